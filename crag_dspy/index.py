"""The index: passages in Chroma with their document, place and dates, searched by vectors and by keywords."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import httpx
from chromadb.api import ClientAPI
from chromadb.api.models.Collection import Collection
from chromadb.errors import ChromaError, InternalError
from pydantic import model_validator

from crag_dspy.errors import IndexUnusable, SourceFailure
from crag_dspy.keywords import Keywords
from crag_dspy.rows import FILE, Snapshot, from_row, parts, read_passages, read_snapshot, retrievals, to_row
from crag_dspy.rows import in_context as in_context
from crag_dspy.rows import passage_id as passage_id
from crag_dspy.store import SPACE, Store
from crag_dspy.store import open_client as open_client
from crag_dspy.types import Document, Frozen, Passage, SourceType

BATCH = 64  # passages embedded and stored at once: what a killed ingestion loses at most
RRF_K = 60


class EmbedderLike(Protocol):
    """What the index needs of an embedder."""

    name: str
    dimension: int

    def passages(self, texts: Sequence[str]) -> list[list[float]]: ...  # noqa: D102
    def query(self, text: str) -> list[float]: ...  # noqa: D102


class Where(Frozen):
    """Which passages may be found. What is not given does not restrict; a passage without a date lies in no period."""

    source_type: SourceType | None = None
    document_ids: tuple[str, ...] | None = None
    published_from: date | None = None
    published_to: date | None = None
    """Both days belong to the period."""

    @model_validator(mode="after")
    def _in_order(self) -> Where:
        if self.published_from and self.published_to and self.published_from > self.published_to:
            raise ValueError(f"published_from {self.published_from} lies after published_to {self.published_to}")
        return self

    def admits(self, passage: Passage) -> bool:
        """Return whether a passage may be found."""
        day = passage.published_at
        return (
            (self.source_type is None or passage.source_type == self.source_type)
            and (self.document_ids is None or passage.document_id in self.document_ids)
            and (self.published_from is None or (day is not None and day >= self.published_from))
            and (self.published_to is None or (day is not None and day <= self.published_to))
        )


class Hit(NamedTuple):
    """A passage found, and its score: fused from both rankings in `search`; in `nearest`, cosine similarity as 0-1."""

    passage: Passage
    score: float


class Change(NamedTuple):
    """What an upsert did, in passages."""

    added: int
    unchanged: int
    removed: int


def fuse(*rankings: Sequence[str]) -> list[tuple[str, float]]:
    """Return the ids of several rankings with their fused scores, best first, ties by id.

    Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): each ranking gives 1 / (60 + rank), ranks counting from 1.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, 1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (RRF_K + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


class Index:
    """One Chroma collection, opened with the embedder that it was made with; what other processes write is found at the next search.

    Chroma holds everything; passages and the keyword ranking are kept in memory, and follow the collection's state.
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
        mine = {"embedder": embedder.name, "dimension": embedder.dimension}

        def check(rows: Collection) -> None:
            stored = rows.metadata or {}
            theirs = {key: stored.get(key) for key in mine}
            if theirs != mine:
                raise IndexUnusable(
                    f"The index {name!r} was made with embedder {theirs['embedder']!r} ({theirs['dimension']} dimensions), not with "
                    f"{embedder.name!r} ({embedder.dimension}). Use that embedder, or make a new index: set CRAG_COLLECTION (or delete "
                    "the folder) and run crag ingest PATH…"
                )
            space = (rows.configuration.get("hnsw") or {}).get("space")
            if space != SPACE:
                raise IndexUnusable(f"The index {name!r} measures {space!r} distance, not {SPACE!r}. Make a new one with crag ingest PATH…")

        self._store = Store(client, name, create=mine if create else None, check=check, revector=partial(_revector, embedder))
        self._snapshot = Snapshot(None, {}, Keywords())

    @property
    def folder(self) -> Path | None:
        """The folder that holds the index; None on a server or in memory."""
        return self._store.folder

    def upsert(self, document: Document, passages: Sequence[Passage], *, file: str | None = None) -> Change:
        """Store a document's passages; what it had before and has no longer is removed.

        Passages that are there already cost no embedding, even if they were retrieved anew. A reader finds the old passages or the new,
        never none; both only while a document of more than one batch is being written.

        Args:
            document: The document.
            passages: All of its passages; none removes it.
            file: The file that it was read from, if from one; see `files`.
        """
        with self._store.reading() as (rows, _):
            stored = rows.get(where={"document_id": document.id}, include=["metadatas"])
        old = dict(zip(stored["ids"], stored["metadatas"] or [], strict=True))
        new = {passage.id: passage for passage in passages}
        said = {key: to_row(passage) | ({FILE: file} if file else {}) for key, passage in new.items()}
        fresh = [passage for key, passage in new.items() if key not in old]
        gone = sorted(old.keys() - new.keys())
        renewed = sorted(key for key in old.keys() & new.keys() if not said[key].items() <= dict(old[key] or {}).items())
        for begin in range(0, max(1, len(fresh)), BATCH):
            batch, last = fresh[begin : begin + BATCH], begin + BATCH >= len(fresh)
            vectors = self._embedder.passages([in_context(passage) for passage in batch]) if batch else []
            if not (batch or renewed or gone):
                break
            with self._store.writing() as rows:
                if batch:
                    rows.upsert(
                        ids=[passage.id for passage in batch],
                        documents=[passage.text for passage in batch],
                        embeddings=cast(Any, vectors),
                        metadatas=[said[passage.id] for passage in batch],
                    )
                # Removed last: a run killed in between leaves old rows beside new ones, which the next run removes.
                for part in parts(renewed if last else []):
                    rows.update(ids=part, metadatas=[said[key] for key in part])
                for part in parts(gone if last else []):
                    rows.delete(ids=part)
        return Change(len(fresh), len(new) - len(fresh), len(gone))

    def remember(self, document: Document, passages: Sequence[Passage]) -> None:
        """Store a page that was read for a question.

        Raises:
            SourceFailure: the index cannot be written (`index_unavailable`): the page is not there next time, the answer is none the worse.
        """
        try:
            self.upsert(document, passages)
        except (ChromaError, httpx.HTTPError, OSError, IndexUnusable) as exc:
            raise SourceFailure("index_unavailable", f"A page could not be written to the index ({type(exc).__name__}).") from exc

    def delete(self, document_id: str) -> int:
        """Remove a document's passages; return how many they were."""
        return self.upsert(Document(id=document_id, title="", text=""), []).removed

    def files(self) -> dict[str, str]:
        """Return the documents that were read from files: id to file."""
        with self._store.reading() as (rows, _):
            found = rows.get(include=["metadatas"])["metadatas"] or []
        return {str(row["document_id"]): str(row[FILE]) for row in found if row and FILE in row and "document_id" in row}

    def pages(self) -> dict[str, datetime | None]:
        """Return the pages of the web: address to when they were retrieved; see `retrievals`."""
        with self._store.reading() as (rows, _):
            found = rows.get(where={"source_type": "web"}, include=["metadatas"])
        return retrievals(from_row(key, None, row) for key, row in zip(found["ids"], found["metadatas"] or [], strict=True))

    def internal_ids(self) -> list[str]:
        """Return the ids of the team's own passages, in order; an id changes with the text."""
        with self._store.reading() as (rows, _):
            return sorted(rows.get(where={"source_type": "internal"}, include=[])["ids"])

    def count(self) -> int:
        """Return how many passages the index holds."""
        with self._store.reading() as (_, state):
            return state.rows

    def document_ids(self) -> list[str]:
        """Return the ids of all documents, sorted."""
        with self._store.reading() as (rows, _):
            found = rows.get(include=["metadatas"])["metadatas"] or []
        return sorted({str((row or {}).get("document_id", "")) for row in found})

    def search(self, question: str, k: int, where: Where | None = None) -> list[Hit]:
        """Return the `k` passages that stand best in both rankings, by vectors and by keywords, fused; best first, ties by id.

        Raises:
            SourceFailure: the index cannot be read (`index_unavailable`).
        """
        deep = max(4 * k, 40)  # each ranking reaches deeper than k: what stands low in one may stand high in the other
        near, snapshot, admitted = self._nearest(question, deep, where)
        matching = snapshot.keywords.rank(question, deep, admitted)
        return [Hit(snapshot.passages[key], score) for key, score in fuse([key for key, _ in near], matching)][:k]

    def nearest(self, question: str, k: int, where: Where | None = None) -> list[Hit]:
        """Return the `k` passages whose vectors are nearest to the question's, best first, ties by id.

        The score is their cosine similarity mapped to 0-1: 1 identical, 0.5 orthogonal.

        Raises:
            SourceFailure: the index cannot be read (`index_unavailable`).
        """
        near, snapshot, _ = self._nearest(question, max(4 * k, 40), where)  # HNSW misses neighbours when asked for few
        return [Hit(snapshot.passages[key], similarity) for key, similarity in near[:k]]

    def _nearest(self, question: str, n: int, where: Where | None) -> tuple[list[tuple[str, float]], Snapshot, list[str] | None]:
        vector = self._embedder.query(question)
        try:
            try:
                return self._query(vector, n, where)
            except InternalError:  # on a server, another client may have deleted a row that this one was about to name
                return self._query(vector, n, where)
        except (ChromaError, httpx.HTTPError, OSError, IndexUnusable) as exc:
            raise SourceFailure("index_unavailable", f"The index cannot be read ({type(exc).__name__}).") from exc

    def _query(self, vector: list[float], n: int, where: Where | None) -> tuple[list[tuple[str, float]], Snapshot, list[str] | None]:
        """Return ids with similarities, best first, and the rows and admitted ids that they were found among."""
        with self._store.reading() as (rows, state):
            if state != self._snapshot.state:
                self._snapshot = read_snapshot(rows, state, self._snapshot)
            snapshot = self._snapshot
            # Chroma's own filters compare dates only as numbers and leave out rows without the field.
            admitted = None if where is None else [key for key, passage in snapshot.passages.items() if where.admits(passage)]
            n = min(n, len(snapshot.passages if admitted is None else admitted))
            if n == 0:
                return [], snapshot, admitted
            found = rows.query(query_embeddings=cast(Any, [vector]), n_results=n, ids=admitted, include=["distances"])
        assert found["distances"]  # asked for in `include`
        near = [
            (key, min(1.0, max(0.0, 1.0 - distance / 2.0)))  # rounding leaves 0-1
            for key, distance in zip(found["ids"][0], found["distances"][0], strict=True)
            if key in snapshot.passages
        ]
        return sorted(near, key=lambda item: (-item[1], item[0])), snapshot, admitted


def _revector(embedder: EmbedderLike, rows: Collection) -> None:
    """Store the vectors of all rows again."""
    for part in parts(rows.get(include=[])["ids"], BATCH):
        passages = read_passages(rows, part)
        rows.upsert(
            ids=[passage.id for passage in passages],
            embeddings=cast(Any, embedder.passages([in_context(passage) for passage in passages])),
        )
