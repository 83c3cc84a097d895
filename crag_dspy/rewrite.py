"""A web query from the question."""

from __future__ import annotations

import re

import dspy

from crag_dspy.lm import Meter
from crag_dspy.search import shorten


class WriteQuery(dspy.Signature):  # type: ignore[misc]
    """Write the web search query that finds a page answering the question.

    Keep every name and number of the question; leave out filler words. A few keywords, one line.
    """

    question: str = dspy.InputField()
    query: str = dspy.OutputField()


def rewrite(predictor: dspy.Module, meter: Meter, question: str) -> str:
    """Return a query of one line and at most 400 characters; an empty reply leaves the question as the query."""
    return clean_query(meter.ask(predictor, question=question).field("query")) or shorten(question)


def clean_query(reply: str) -> str:
    """Return a reply's first line without quotes, labels and markdown."""
    line = next((line for line in reply.splitlines() if line.strip()), "")
    line = re.sub(r"^\W*(?:search )?query\W*:\s*", "", line.strip(), flags=re.I)
    return shorten(re.sub(r"[\"“”`*]+", " ", line).strip(" '-"))
