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
    """Return a query of one line and at most 400 characters that holds every name and number of the question.

    What the LM leaves out of these is put back; an empty reply leaves the question as the query.
    """
    query = clean_query(meter.ask(predictor, question=question).field("query"))
    return with_names(query, question) if query else shorten(question)


# A word with a digit, or with a capital letter that does not begin a sentence.
_NAME = re.compile(r"\b[\w-]*\d[\w.-]*\w|\b[\w-]*\d\b|(?<![.!?] )(?<!^)\b[A-Z][\w-]*")


def with_names(query: str, question: str) -> str:
    """Return a query with the question's names and numbers that it lacks behind it: without them it asks for something else."""
    lacking = [name for name in dict.fromkeys(_NAME.findall(question)) if name != "I" and name.lower() not in query.lower()]
    return shorten(" ".join([query, *lacking]))


def clean_query(reply: str) -> str:
    """Return a reply's first line without quotes, labels and markdown."""
    line = next((line for line in reply.splitlines() if line.strip()), "")
    line = re.sub(r"^\W*(?:search )?query\W*:\s*", "", line.strip(), flags=re.I)
    return shorten(re.sub(r"[\"“”`*]+", " ", line).strip(" '-"))
