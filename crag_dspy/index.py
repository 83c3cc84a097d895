"""The index: passages in Chroma, with their document, place and dates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import chromadb
import httpx
from chromadb.api import ClientAPI
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import ChromaError, InvalidArgumentError, NotFoundError

from crag_dspy.errors import IndexUnusable, SourceFailure
from crag_dspy.types import Document, Passage

SPACE = "cosine"


class EmbedderLike(Protocol):
    """What the index needs of an embedder."""

    name: str
    dimension: int

    def passages(self, texts: Sequence[str]) -> list[list[float]]: ...  # noqa: D102
    def query(self, text: str) -> list[float]: ...  # noqa: D102


class Hit(NamedTuple):
    """A passage found, and its cosine similarity mapped to 0-1 (1 identical, 0.5 orthogonal)."""

    passage: Passage
    similarity: float


class Change(NamedTuple):
    """What an upsert did, in passages."""

    added: int
    unchanged: int
    removed: int


def passage_id(document: Document, section: str, start: int, text: str) -> str:
    """Return an id that changes with anything stored, so that an old row can never lend its text or dates to a new one."""
    parts = (document.id, document.title, document.url, document.published_at, document.snippet, section, start, text)
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "replace")).hexdigest()[:20]


def in_context(passage: Passage, text: str | None = None) -> str:
    """Return a passage's text (or a strip of it) under its title and section, as the models read it."""
    heading = " > ".join(part for part in (passage.title, passage.section) if part)
    return f"{heading}\n{passage.text if text is None else text}"


class Index:
    """One Chroma collection, opened with the embedder that it was made with.

    Chroma keeps a folder's vectors in memory: what another process writes is found after a restart (on a Chroma server, at once).
    """

    def __init__(self, client: ClientAPI, name: str, embedder: EmbedderLike, *, create: bool = False) -> None:
        """Open the collection.

        Args:
            client: A Chroma client (folder, server or memory).
            name: The collection's name.
            embedder: Turns text into vectors; must be the one the collection was made with.
            create: Make the collection if there is none.

        Raises:
            IndexUnusable: no such collection, a name that Chroma refuses, or one made with another embedder, dimension or distance.
        """
        self._embedder = embedder
        self._client = client
        mine = {"embedder": embedder.name, "dimension": embedder.dimension}
        try:
            # embedding_function=None: Chroma's own default would be downloaded at first use.
            self._rows = client.get_collection(name, embedding_function=None)
        except NotFoundError as exc:
            if not create:
                raise IndexUnusable(f"There is no index {name!r} yet. Make it with: crag ingest PATH…") from exc
            try:
                self._rows = client.create_collection(
                    name, embedding_function=None, configuration=cast(Any, {"hnsw": {"space": SPACE}}), metadata=mine
                )
            except InvalidArgumentError as refused:
                raise IndexUnusable(f"CRAG_COLLECTION={name!r} cannot be a collection's name: {refused}") from refused
        stored = self._rows.metadata or {}
        theirs = {key: stored.get(key) for key in mine}
        if theirs != mine:
            raise IndexUnusable(
                f"The index {name!r} was made with embedder {theirs['embedder']!r} ({theirs['dimension']} dimensions), not with "
                f"{embedder.name!r} ({embedder.dimension}). Use that embedder, or make a new index: set CRAG_COLLECTION (or delete "
                "the folder) and run crag ingest PATH…"
            )
        space = (self._rows.configuration.get("hnsw") or {}).get("space")
        if space != SPACE:
            raise IndexUnusable(f"The index {name!r} measures {space!r} distance, not {SPACE!r}. Make a new one with crag ingest PATH…")

    def upsert(self, document: Document, passages: Sequence[Passage]) -> Change:
        """Store a document's passages; what it had before and has no longer is removed."""
        old = set(self._rows.get(where={"document_id": document.id}, include=[])["ids"])
        new = {passage.id: passage for passage in passages}
        fresh = [passage for key, passage in new.items() if key not in old]
        size = self._client.get_max_batch_size()
        for batch in (fresh[i : i + size] for i in range(0, len(fresh), size)):
            vectors = self._embedder.passages([in_context(passage) for passage in batch])
            self._rows.upsert(
                ids=[passage.id for passage in batch],
                documents=[passage.text for passage in batch],
                embeddings=cast(Any, vectors),
                metadatas=[_to_row(passage) for passage in batch],
            )
        # Removed last: a run killed in between leaves old rows beside new ones, which the next run removes.
        gone = sorted(old - new.keys())
        if gone:
            self._rows.delete(ids=gone)
        return Change(len(fresh), len(new) - len(fresh), len(gone))

    def delete(self, document_id: str) -> None:
        """Remove a document's passages."""
        self._rows.delete(where={"document_id": document_id})

    def count(self) -> int:
        """Return how many passages the index holds."""
        return self._rows.count()

    def document_ids(self) -> list[str]:
        """Return the ids of all documents, sorted."""
        rows = self._rows.get(include=["metadatas"])["metadatas"] or []
        return sorted({str((row or {}).get("document_id", "")) for row in rows})

    def search(self, question: str, k: int) -> list[Hit]:
        """Return the `k` passages nearest to a question, best first, ties by id.

        Raises:
            SourceFailure: the index cannot be read (`index_unavailable`).
        """
        vector = self._embedder.query(question)
        try:
            return self._nearest(vector, k)
        except (ChromaError, httpx.HTTPError, OSError) as exc:
            raise SourceFailure("index_unavailable", f"The index cannot be read ({type(exc).__name__}).") from exc

    def _nearest(self, vector: list[float], k: int) -> list[Hit]:
        wanted = min(max(4 * k, 40), self.count())  # HNSW misses neighbours when asked for few
        if wanted == 0:
            return []
        found = self._rows.query(
            query_embeddings=cast(Any, [vector]),
            n_results=wanted,
            include=["documents", "metadatas", "distances"],
        )
        documents, metadatas, distances = found["documents"], found["metadatas"], found["distances"]
        assert documents and metadatas and distances  # asked for in `include`
        # A row that another process deleted is still found, but empty; one that a tool wrote without text is there.
        empty = [key for key, text, row in zip(found["ids"][0], documents[0], metadatas[0], strict=True) if text is None and row is None]
        gone = set(empty) - set(self._rows.get(ids=empty, include=[])["ids"]) if empty else set()
        hits = [
            Hit(_from_row(key, text, row), min(1.0, max(0.0, 1.0 - distance / 2.0)))  # rounding leaves 0-1
            for key, text, row, distance in zip(found["ids"][0], documents[0], metadatas[0], distances[0], strict=True)
            if key not in gone
        ]
        return sorted(hits, key=lambda hit: (-hit.similarity, hit.passage.id))[:k]


def open_client(where: str | Path) -> ClientAPI:
    """Open a Chroma folder, or a server by its http(s):// address.

    Raises:
        IndexUnusable: the folder cannot be opened, or the server does not answer.
    """
    options = ChromaSettings(anonymized_telemetry=False)
    if not str(where).startswith(("http://", "https://")):
        try:
            return chromadb.PersistentClient(path=str(where), settings=options)
        except ChromaError as exc:
            raise IndexUnusable(f"The index in {str(where)!r} cannot be opened ({exc}). Set CRAG_CHROMA to another folder.") from exc
    from urllib.parse import urlsplit

    address = urlsplit(str(where))
    try:
        return chromadb.HttpClient(
            host=address.hostname or "",
            port=address.port or (443 if address.scheme == "https" else 80),
            ssl=address.scheme == "https",
            settings=options,
        )
    except ValueError as exc:
        raise IndexUnusable(f"No Chroma server answers at {where}. Start it (chroma run), or set CRAG_CHROMA to a folder.") from exc


def _to_row(passage: Passage) -> dict[str, Any]:
    return passage.model_dump(mode="json", exclude={"id", "text"}, exclude_none=True)  # Chroma refuses None


def _from_row(key: str, text: str | None, row: Any) -> Passage:
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


def _iso(read: Callable[[str], Any], value: Any) -> Any:
    try:
        return read(value) if isinstance(value, str) else None
    except ValueError:
        return None
