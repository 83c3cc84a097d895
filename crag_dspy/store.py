"""One Chroma collection that threads share, and where it is a folder also processes, of which any may be killed.

Three things about Chroma 1.5.9 (all measured) make this file necessary. A client reads a folder's vectors once: after another process
wrote, `get` is right, but `query` misses its rows, or fails (https://github.com/chroma-core/chroma/issues/3792). A client that writes
with such old vectors in memory overwrites the newer ones in the files. And a process killed while Chroma rewrites these files, once in
about a thousand rows, leaves them in a state that crashes whoever opens them (https://github.com/chroma-core/chroma/issues/7238).

So every write is announced by a file, made under a lock, and followed by a new generation in the collection's metadata; whoever finds
another generation than its own opens the folder anew, under the same lock; and whoever finds the announcement of a killed writer has
the vectors made again from the rows, if their files were being written. Rows are in SQLite, which a kill cannot hurt.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import chromadb
import httpx
from chromadb.api import ClientAPI
from chromadb.api.models.Collection import Collection
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import ChromaError, InvalidArgumentError, NotFoundError
from filelock import FileLock, Timeout

from crag_dspy.errors import IndexUnusable
from crag_dspy.weather import Late, bounded

SPACE = "cosine"
# Chroma's 100 misses one neighbour in fourteen among 5,000 vectors, and which one hangs on the order of insertion; 1,000 missed none.
EF_SEARCH = 1000
GENERATION = "generation"
LOCK_SECONDS = 30.0
LOCK, ANNOUNCEMENT = "crag.lock", "crag.writing"
SERVER_SECONDS = 10.0  # that a Chroma server may take to answer
_spellings = itertools.count(1)


class State(NamedTuple):
    """What tells the collection's contents of now from those of another moment."""

    collection: uuid.UUID
    generation: str | None
    rows: int


class Store:
    """A collection, opened. Calls take turns, so that it can be opened anew between two of them."""

    def __init__(
        self,
        client: ClientAPI,
        name: str,
        *,
        create: dict[str, Any] | None = None,
        check: Callable[[Collection], None] = lambda rows: None,
        revector: Callable[[Collection], None] | None = None,
    ) -> None:
        """Open the collection.

        Args:
            client: A Chroma client (folder, server or memory). Of a folder's only the path is used.
            name: The collection's name.
            create: Make the collection, with this metadata, if there is none.
            check: Called before anything is changed; raises what the caller has against the collection.
            revector: Stores the vectors of all rows again. Without it, damaged vectors are an error.

        Raises:
            IndexUnusable: no such collection, a name that Chroma refuses, damaged vectors, or the folder is being written for too long.
        """
        settings = client.get_settings()
        self.folder = Path(settings.persist_directory) if settings.is_persistent else None
        self._client, self._name, self._revector = client, name, revector
        self._turn = threading.RLock()
        self._known: State | None = None
        self._close = weakref.finalize(self, lambda: None)
        with self._alone():
            if self.folder:
                self._open_anew()
            self._rows = self._find(create)
            check(self._rows)
            self._catch_up()

    @contextmanager
    def reading(self) -> Iterator[tuple[Collection, State]]:
        """Give the collection as it is now, whoever wrote last.

        Raises:
            ChromaError, httpx.HTTPError, OSError: Chroma cannot be read.
            IndexUnusable: the folder is being written for too long.
        """
        with self._turn:
            if self._interrupted() or self._state() != self._known:
                with self._alone():
                    self._catch_up()
            assert self._known
            yield self._rows, self._known

    @contextmanager
    def writing(self) -> Iterator[Collection]:
        """Give the collection for one short change, which nobody else sees half done.

        Raises:
            ChromaError, httpx.HTTPError, OSError: Chroma cannot be written.
            IndexUnusable: the folder is being written by others for too long.
        """
        with self._turn, self._alone():
            self._catch_up()
            if self.folder:
                self._announcement.touch()
            try:
                yield self._rows
            finally:
                self._settle()

    @property
    def metadata(self) -> dict[str, Any]:
        """The collection's metadata when it was opened."""
        return dict(self._rows.metadata or {})

    @property
    def _announcement(self) -> Path:
        assert self.folder
        return self.folder / ANNOUNCEMENT

    def _interrupted(self) -> bool:
        return self.folder is not None and self._announcement.exists()

    def _alone(self) -> Any:
        return _locked(self.folder) if self.folder else nullcontext()

    def _find(self, create: dict[str, Any] | None = None) -> Collection:
        try:
            # embedding_function=None: Chroma's own default would be downloaded at first use.
            return self._client.get_collection(self._name, embedding_function=None)
        except NotFoundError as exc:
            if create is None:
                raise IndexUnusable(f"There is no index {self._name!r} yet. Make it with: crag ingest PATH…") from exc
            try:
                return self._client.create_collection(
                    self._name,
                    embedding_function=None,
                    configuration=cast(Any, {"hnsw": {"space": SPACE, "ef_search": EF_SEARCH}}),
                    metadata=create,
                )
            except InvalidArgumentError as refused:
                raise IndexUnusable(f"CRAG_COLLECTION={self._name!r} cannot be a collection's name: {refused}") from refused

    def _state(self) -> State:
        rows = self._client.get_collection(self._name, embedding_function=None)
        # The count is for rows of other tools, which know no generation.
        return State(rows.id, (rows.metadata or {}).get(GENERATION), rows.count())

    def _catch_up(self) -> None:
        """Come level with what others wrote; call it alone."""
        if self._interrupted():
            self._mend()
        elif self._known and self._state() == self._known:
            return
        elif self._known and self.folder:
            self._open_anew()
        self._rows = self._client.get_collection(self._name, embedding_function=None)
        self._known = self._state()

    def _settle(self) -> None:
        """Record a new generation, then withdraw the announcement: killed in between, it is done again."""
        self._rows.modify(metadata={**(self._rows.metadata or {}), GENERATION: uuid.uuid4().hex})
        self._known = self._state()
        if self.folder:
            self._announcement.unlink(missing_ok=True)

    def _open_anew(self) -> None:
        """Read the folder again.

        Chroma shares what it has read among all clients of a process that spell the path alike, so each opening spells it in its own way.
        """
        unlike = format(next(_spellings), "b").replace("1", "/.").replace("0", "/")
        client = _open_folder(f"{self.folder}{unlike}")
        self._close()
        self._client, self._close = client, weakref.finalize(self, cast(Any, client).close)

    def _mend(self) -> None:
        """Finish what a killed writer began: vectors whose files it was writing are thrown away and made again."""
        self._rows = self._client.get_collection(self._name, embedding_function=None)
        begun = self._announcement.stat().st_mtime_ns
        folder = self._vectors()
        torn = folder.is_dir() and any(file.stat().st_mtime_ns >= begun for file in folder.iterdir())
        if torn and self._revector is None:
            raise IndexUnusable("A write to the index was cut short and damaged it. Mend it with: crag ingest PATH…")
        if torn:
            shutil.rmtree(folder)
        self._open_anew()
        self._rows = self._client.get_collection(self._name, embedding_function=None)
        if torn and self._revector:
            self._revector(self._rows)
        self._settle()

    def _vectors(self) -> Path:
        """Return the folder of the collection's vectors; Chroma itself could name it only after reading them, which may crash."""
        assert self.folder
        database = sqlite3.connect(self.folder / "chroma.sqlite3")
        try:
            query = "SELECT id FROM segments WHERE collection = ? AND scope = 'VECTOR'"
            (segment,) = database.execute(query, (str(self._rows.id),)).fetchone()
        finally:
            database.close()
        return self.folder / str(segment)


def open_client(where: str | Path) -> ClientAPI:
    """Open a Chroma folder, or a server by its http(s):// address.

    Raises:
        IndexUnusable: the folder cannot be opened, or the server does not answer.
    """
    if not str(where).startswith(("http://", "https://")):
        try:
            Path(where).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise IndexUnusable(
                f"The index in {str(where)!r} cannot be opened ({exc.strerror}). Set CRAG_CHROMA to another folder."
            ) from exc
        with _locked(Path(where)):  # two that make the same new folder at once would trip over each other
            return _open_folder(str(where))
    address = urlsplit(str(where))

    def connect() -> ClientAPI:
        client = chromadb.HttpClient(
            host=address.hostname or "",
            port=address.port or (443 if address.scheme == "https" else 80),
            ssl=address.scheme == "https",
            settings=ChromaSettings(anonymized_telemetry=False),
        )
        # Chroma's client waits for ever, and has no setting for it: a server that hangs would hold every question.
        client._server._session.timeout = httpx.Timeout(SERVER_SECONDS)  # type: ignore[attr-defined]
        return client

    try:
        return bounded(connect, time.monotonic() + SERVER_SECONDS)
    except (ValueError, Late) as exc:
        raise IndexUnusable(f"No Chroma server answers at {where}. Start it (chroma run), or set CRAG_CHROMA to a folder.") from exc


def _open_folder(path: str) -> ClientAPI:
    try:
        return chromadb.PersistentClient(path=path, settings=ChromaSettings(anonymized_telemetry=False))
    except ChromaError as exc:
        raise IndexUnusable(f"The index in {path!r} cannot be opened ({exc}). Set CRAG_CHROMA to another folder.") from exc


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / LOCK, timeout=LOCK_SECONDS)
    try:
        lock.acquire()
    except Timeout as exc:
        raise IndexUnusable(f"The index in {str(folder)!r} is being written by another process. Try again when it is done.") from exc
    try:
        yield
    finally:
        lock.release()
