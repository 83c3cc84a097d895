"""Search results into passages: fetch, extract, split; a page that fails leaves its snippet, typed as such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime

from crag_dspy.errors import SourceFailure
from crag_dspy.extract import extract
from crag_dspy.fetch import Page
from crag_dspy.lm import wave
from crag_dspy.search import Result, canonical_url
from crag_dspy.split import split
from crag_dspy.types import Document, Passage


def read_pages(
    results: Sequence[Result], fetch: Callable[[str], Page], as_of: date, workers: int
) -> tuple[list[Passage], list[SourceFailure], int]:
    """Return the passages of all results, what failed, and how many pages were read."""
    read = wave(lambda result: _read(result, fetch, as_of), results, workers)
    documents = {document.url: document for document, _ in read if document}
    failures = [failure for _, failure in read if failure]
    pages = sum(not document.snippet for document in documents.values())
    return [passage for document in documents.values() for passage in split(document)], failures, pages


def _read(result: Result, fetch: Callable[[str], Page], as_of: date) -> tuple[Document | None, SourceFailure | None]:
    now = datetime.now(UTC)
    failure: SourceFailure | None = None
    try:
        page = fetch(result.url)
        url = canonical_url(page.url)
        document = extract(page.body, id=url, url=url, retrieved_at=now, today=as_of)
        if document is not None:
            return document, None
        failure = SourceFailure("page_empty", f"{result.url} has no main text.")
    except SourceFailure as exc:
        failure = exc
        if exc.code == "blocked_address":
            return None, exc
    if not result.snippet:
        return None, failure
    snippet = Document(
        id=result.url,
        title=result.title,
        text=result.snippet,
        source_type="web",
        url=result.url,
        published_at=result.published_at,
        retrieved_at=now,
        snippet=True,
    )
    return snippet, failure
