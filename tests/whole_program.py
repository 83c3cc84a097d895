"""The whole program on fakes: an index in memory, a web of pages by URL, a scorer that counts words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

import dspy
from conftest import TODAY, WordScorer

from crag_dspy.crag import Crag
from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Page
from crag_dspy.index import Hit, Where
from crag_dspy.parts import Parts
from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from crag_dspy.search import Result
from crag_dspy.split import split
from crag_dspy.types import Answer, Document, Trace

# On word overlap 0-1: all of the question's words is sure, half of them is doubtful and graded by the LM.
POLICY = Policy(platt=(0.0, 0.5, 0.5), platt_lm=(-3.0, 0.0, 0.0, 6.0), band=(0.4, 0.95), lower=0.3, support=0.4, answerable=0.3)
QUESTION = "How long does the Corvane warranty last in months?"
LASTS, LONGER = "The Corvane warranty lasts 26 months.", "The Corvane warranty lasts 31 months."
FRESH = Document(id="warranty.md", title="Warranty", text=LASTS, published_at=TODAY - timedelta(days=5))
STALE = FRESH.model_copy(update={"published_at": TODAY - timedelta(days=400)})
BUOY = "What does the Tidewarden buoy weigh in kilograms?"
COMPOUND = f"How long does the Corvane warranty last in months, and {BUOY[0].lower()}{BUOY[1:]}"


class Shelf:
    """An index in memory that remembers what it was asked."""

    def __init__(self, *documents: Document) -> None:
        self.passages = [passage for document in documents for passage in split(document)]
        self.asked: list[tuple[str, Where | None]] = []

    def search(self, question: str, k: int, where: Where | None = None) -> list[Hit]:
        self.asked.append((question, where))
        able = [passage for passage in self.passages if where is None or where.admits(passage)]
        scores = WordScorer().scores(question, [passage.text for passage in able])
        return sorted((Hit(p, float(s)) for p, s in zip(able, scores, strict=True)), key=lambda hit: (-hit.score, hit.passage.id))[:k]


class Web:
    """A web of (body, day) by URL; `find` says which URLs a query finds, by default all."""

    def __init__(self, pages: dict[str, str | tuple[str, date]] | None = None, find: Callable[[str], list[str]] | None = None) -> None:
        self.pages = {url: page if isinstance(page, tuple) else (page, None) for url, page in (pages or {}).items()}
        self.find = find or (lambda query: list(self.pages))
        self.queries: list[str] = []
        self.domains: list[Domains | None] = []
        self.failure: SourceFailure | None = None

    def __call__(self, query: str, limit: int, *, domains: Domains | None = None, deadline: float | None = None) -> list[Result]:
        self.queries.append(query)
        self.domains.append(domains)
        if self.failure:
            raise self.failure
        return [Result(url=url, title="A result", snippet="") for url in self.find(query)[:limit]]

    def fetch(self, url: str) -> Page:
        body, day = self.pages.get(url, (f"Junk about the Corvane warranty and its months is on {url}.", None))
        if body == "DOWN":
            raise SourceFailure("page_unavailable", f"{url} answered 503.")
        title = f"Page {url.split('//')[1].split('.')[0]}"
        meta = f'<meta property="article:published_time" content="{day}T08:00:00Z">' if day else ""
        html = f"<html><head><title>{title}</title>{meta}</head><body><article><h1>{title}</h1><p>{body}</p></article></body></html>"
        return Page(url, html.encode(), "text/html")


def build(lm: dspy.LM, *documents: Document, web: Web | None = None, policy: Policy = POLICY, **options: Any) -> Crag:
    """Return a program on these documents and this web."""
    given: dict[str, Any] = {"index": Shelf(*documents), "cross_encoder": WordScorer(), "search": web, "today": lambda: TODAY} | options
    return Crag(CRAG(Parts(fetch=web.fetch if web else None, **given), policy), lm)


def run(
    lm: dspy.LM, question: str, *documents: Document, web: Web | None = None, policy: Policy = POLICY, **options: Any
) -> tuple[Answer, Trace]:
    prediction = build(lm, *documents, web=web, policy=policy, **options).predict(question)
    return prediction.answer, prediction.trace


def codes(answer: Answer) -> list[str]:
    return [warning.code for warning in answer.warnings]


NEWS = {"http://news.example/": (LONGER, TODAY - timedelta(days=2))}
NO_JUNK = {"level": lambda inputs: "0" if "Junk" in inputs["passage"] else "3"}
FOUR = 4  # calls: a grade, a query, a grade of the page, the answer
