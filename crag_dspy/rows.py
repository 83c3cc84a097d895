"""Chroma's rows as passages, and all of them at one moment, in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

from chromadb.api.models.Collection import Collection

from crag_dspy.keywords import Keywords
from crag_dspy.store import State
from crag_dspy.types import Document, Passage

FILE = "file"  # a row's metadata: the file that its document was read from
READ_BATCH = 5000  # rows read at once


def passage_id(document: Document, section: str, start: int, text: str) -> str:
    """Return an id that changes with anything stored, so that an old row can never lend its text or dates to a new one."""
    parts = (document.id, document.title, document.url, document.published_at, document.snippet, section, start, text)
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()[:20]


def in_context(passage: Passage, text: str | None = None) -> str:
    """Return a passage's text (or a strip of it) under its title and section, as the models read it."""
    heading = " > ".join(part for part in (passage.title, passage.section) if part)
    return f"{heading}\n{passage.text if text is None else text}"


class Snapshot(NamedTuple):
    """The collection's rows at one moment; `state` is None where none was read yet."""

    state: State | None
    passages: dict[str, Passage]
    keywords: Keywords


def read_snapshot(rows: Collection, state: State, before: Snapshot) -> Snapshot:
    """Read the collection's rows; of those known before, only when pages were retrieved: a row's id changes with its content."""
    ids = set(rows.get(include=[])["ids"])
    new = [passage for part in parts(sorted(ids - before.passages.keys())) for passage in read_passages(rows, part)]
    passages = {key: passage for key, passage in before.passages.items() if key in ids} | {passage.id: passage for passage in new}
    if before.passages:
        passages |= _retrieved_anew(rows, passages)
    keywords = before.keywords.updated({passage.id: in_context(passage) for passage in new}, before.passages.keys() - ids)
    return Snapshot(state, passages, keywords)


def _retrieved_anew(rows: Collection, passages: Mapping[str, Passage]) -> dict[str, Passage]:
    found = rows.get(where={"source_type": "web"}, include=["metadatas"])
    days = {
        key: _iso(datetime.fromisoformat, (row or {}).get("retrieved_at"))
        for key, row in zip(found["ids"], found["metadatas"] or [], strict=True)
    }
    return {
        key: passages[key].model_copy(update={"retrieved_at": when})
        for key, when in days.items()
        if key in passages and passages[key].retrieved_at != when
    }


def read_passages(rows: Collection, ids: list[str]) -> list[Passage]:
    """Read some rows by their ids."""
    found = rows.get(ids=ids, include=["documents", "metadatas"])
    documents, metadatas = found["documents"], found["metadatas"]
    assert documents is not None and metadatas is not None  # asked for in `include`
    return [from_row(key, text, row) for key, text, row in zip(found["ids"], documents, metadatas, strict=True)]


def parts(ids: Sequence[str], size: int = READ_BATCH) -> Iterator[list[str]]:
    """Give a list of ids in parts that one call of Chroma takes."""
    for i in range(0, len(ids), size):
        yield list(ids[i : i + size])


def to_row(passage: Passage) -> dict[str, Any]:
    """Return a passage's metadata as Chroma stores it."""
    return passage.model_dump(mode="json", exclude={"id", "text"}, exclude_none=True)  # Chroma refuses None


def from_row(key: str, text: str | None, row: Any) -> Passage:
    """Read a row, also one that another tool wrote with no metadata, no text, or values of its own kind."""
    row = row or {}
    text = text or ""
    start, end = row.get("start"), row.get("end")
    return Passage(
        id=key,
        document_id=str(row.get("document_id") or key),
        title=str(row.get("title") or row.get("document_id") or key),
        text=text,
        section=str(row.get("section") or ""),
        start=start if isinstance(start, int) else 0,
        end=end if isinstance(end, int) else len(text),
        source_type="web" if row.get("source_type") == "web" else "internal",
        url=str(row["url"]) if row.get("url") else None,
        published_at=_iso(date.fromisoformat, row.get("published_at")),
        retrieved_at=_iso(datetime.fromisoformat, row.get("retrieved_at")),
        snippet=bool(row.get("snippet")),
    )


def retrievals(passages: Iterable[Passage]) -> dict[str, datetime | None]:
    """Return the web's pages among passages: document id to when the oldest of its passages was retrieved, None where one does not say."""
    found: dict[str, datetime | None] = {}
    for passage in passages:
        if passage.source_type == "web":
            when = passage.retrieved_at
            when = when.replace(tzinfo=when.tzinfo or UTC) if when else None
            before = found.get(passage.document_id, when)
            found[passage.document_id] = min(before, when) if before and when else None
    return found


def due(pages: Mapping[str, datetime | None], before: datetime) -> list[str]:
    """Return the pages that were retrieved before a moment, or nobody knows when; the oldest first."""
    old = {id: when for id, when in pages.items() if when is None or when < before}
    return sorted(old, key=lambda id: (old[id] or datetime.min.replace(tzinfo=UTC), id))


def _iso(read: Callable[[str], Any], value: Any) -> Any:
    try:
        return read(value) if isinstance(value, str) else None
    except ValueError:
        return None
