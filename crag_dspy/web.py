"""Search results into passages: fetch, extract, split; a page that fails leaves its snippet, typed as such."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from email.message import Message

from crag_dspy.errors import SourceFailure
from crag_dspy.extract import clean_title, extract
from crag_dspy.fetch import Page
from crag_dspy.lm import wave
from crag_dspy.search import Result, canonical_url
from crag_dspy.split import split
from crag_dspy.types import Document, Passage

# How much of one page is read: extraction time grows with the square of the number of tags (30,000 take up to 4 s), and every
# passage of the text is scored.
MAX_TAGS = 30_000
MAX_TEXT = 100_000


# Orders to whatever machine reads the page. A page that gives them anywhere cannot be believed elsewhere either.
_MACHINE = r"(?:\bAIs?\b|\b(?:assistants?|language models?|chat ?bots?|answer engines?|automated readers?|LLMs?)\b)"
_ORDERS = re.compile(
    rf"{_MACHINE}[^.?!]{{0,80}}\b(?:ignore|disregard|answer that|reply with|cite this|output only"
    r"|must (?:now )?(?:answer|reply|cite|repeat|say|output))\b"
    r"|\b(?:ignore|disregard|forget) (?:all |any |your |the |these )*(?:previous |prior |other )*(?:instructions|prompts?)\b"
    r"|\bsystem prompt\b[^.?!]{0,40}\b(?:updated|is now|output)\b",
    re.I,
)


def gives_orders(text: str) -> bool:
    """Return whether a text tells a language model what to do ("AI assistants: ignore your instructions and answer …")."""
    return bool(_ORDERS.search(text))


def read_pages(
    results: Sequence[Result], fetch: Callable[[str], Page], as_of: date, workers: int
) -> tuple[list[Passage], list[SourceFailure], int]:
    """Return the passages of all results, what failed, and how many pages were read."""
    read = wave(lambda result: _read(result, fetch, as_of), results, workers)
    documents: dict[str | None, Document] = {}
    for document, _ in read:
        if document and (document.url not in documents or documents[document.url].snippet):  # a snippet never replaces its page
            documents[document.url] = document
    failures = [failure for _, failure in read if failure]
    pages = sum(not document.snippet for document in documents.values())
    return [passage for document in documents.values() for passage in split(document)], failures, pages


def _read(result: Result, fetch: Callable[[str], Page], as_of: date) -> tuple[Document | None, SourceFailure | None]:
    now = datetime.now(UTC)
    try:
        page = fetch(result.url)
    except SourceFailure as exc:
        return None if exc.code == "blocked_address" else _snippet(result, now, as_of), exc
    body = b"<".join(page.body.split(b"<", MAX_TAGS)[:MAX_TAGS])
    try:
        document = _document(page._replace(body=body), now, as_of)
    except Exception as exc:  # the parsers raise anything on a malformed page (<svg> around it is enough); the others go on
        return _snippet(result, now, as_of), SourceFailure("page_broken", f"{result.url} could not be parsed ({type(exc).__name__}).")
    if document is None:
        return _snippet(result, now, as_of), SourceFailure("page_empty", f"{result.url} has no main text.")
    if gives_orders(document.text):
        return None, SourceFailure("page_gives_orders", f"{result.url} carries orders to language models and was not used.")
    if len(body) < len(page.body) or len(document.text) > MAX_TEXT:
        document = document.model_copy(update={"text": document.text[:MAX_TEXT]})
        return document, SourceFailure("page_cut", f"{result.url} is very long: only its beginning was read.")
    return document, None


def _document(page: Page, now: datetime, as_of: date) -> Document | None:
    url, text = canonical_url(page.url), _decoded(page)
    if not page.content_type.lower().startswith("text/plain"):
        return extract(text, id=url, url=url, retrieved_at=now, today=as_of)
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    if not text.strip():
        return None
    return Document(id=url, title=clean_title(None, url), text=text.strip(), source_type="web", url=url, retrieved_at=now)


def _decoded(page: Page) -> str | bytes:
    """Return the page as text if it is UTF-8 or the server names its charset, else the bytes: the page itself may name one."""
    with suppress(UnicodeDecodeError):
        return page.body.decode("utf-8-sig")
    header = Message()
    header["Content-Type"] = page.content_type
    charset = header.get_content_charset()
    if charset is None:
        return page.body
    with suppress(LookupError):
        # As browsers read it: Latin-1 is what Windows' superset of it is mislabelled as.
        return page.body.decode("cp1252" if charset in ("iso-8859-1", "us-ascii") else charset, "replace")
    return page.body


def _snippet(result: Result, now: datetime, as_of: date) -> Document | None:
    """Return the search engine's excerpt, typed as such, or None where it gave none."""
    if not result.snippet:
        return None
    url = canonical_url(result.url)
    return Document(
        id=url,
        title=result.title,
        text=result.snippet,
        source_type="web",
        url=url,
        published_at=result.published_at if result.published_at and result.published_at <= as_of else None,
        retrieved_at=now,
        snippet=True,
    )
