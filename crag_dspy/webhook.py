"""A signed webhook by which other systems say which pages and files changed, so that they are indexed anew.

Whoever has the secret may name what changed, and can neither make the service fetch an address nor read a file that is not the index's
own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from filelock import FileLock, Timeout
from pydantic import Field, StringConstraints, ValidationError

from crag_dspy.deliveries import Deliveries
from crag_dspy.domains import canonical_url
from crag_dspy.errors import IngestError
from crag_dspy.fetch import Fetcher
from crag_dspy.index import Index
from crag_dspy.ingest import LOCK, missing
from crag_dspy.readers import READERS, NoText, read
from crag_dspy.refresh import refresh
from crag_dspy.signing import Refused, key, verify
from crag_dspy.split import split
from crag_dspy.types import Frozen

log = logging.getLogger(__name__)

RETRY_SECONDS = 60.0
LOCK_SECONDS = 600.0  # a `crag ingest` may take as long; after that the delivery is tried again
STOP_SECONDS = 15.0  # more than a page may take
_Name = Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class ContentChanged(Frozen):
    """What a delivery says. Further fields mean nothing, so that senders may add theirs."""

    id: str | None = None
    """The same as the header's, if it is repeated."""
    urls: tuple[_Name, ...] = Field(default=(), max_length=100)
    paths: tuple[_Name, ...] = Field(default=(), max_length=100)
    """Relative to the folder of documents, or ids of the index."""


class Webhook:
    """Takes deliveries, and works them off one at a time in a thread of its own."""

    def __init__(
        self,
        secret: str,
        index: Index,
        fetch: Fetcher,
        deliveries: Deliveries,
        *,
        documents: Path | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Take what is needed; what waits is worked off while it is entered.

        Args:
            secret: Shared with the senders: `whsec_…`.
            index: What is brought up to date.
            fetch: Fetches pages of the index, asking their sites: see `refresh`.
            deliveries: Where deliveries wait.
            documents: A folder whose files may be added to the index. None: only files that are in it.
            now: The clock.

        Raises:
            SettingsError: the secret is none.
        """
        self._key, self._index, self._fetch, self._deliveries = key(secret), index, fetch, deliveries
        self._documents, self._now = documents, now
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="crag-webhook")

    def accept(self, headers: Mapping[str, str], body: bytes) -> tuple[int, dict[str, Any]]:
        """Take a delivery, and return status and body of the response.

        202: it will be worked off; `ignored` lists what is not in the index, or cannot be. 200: its id was seen before, nothing is done.

        Raises:
            Refused: 401, 400 (the body does not fit, or a path leads out of the folder), 503 (the folder is not there).
        """
        now = self._now()
        id = verify(self._key, headers, body, now.timestamp())
        if self._deliveries.holds(id):
            return 200, {"id": id, "seen": True}
        wanted = _parse(id, body)
        pages, files = self._index.pages() if wanted.urls else {}, self._index.files() if wanted.paths else {}
        urls = [url for url in wanted.urls if _address(url) in pages]
        paths = [path for path in wanted.paths if self._file(path, files)]
        ignored = [name for name in (*wanted.urls, *wanted.paths) if name not in (*urls, *paths)]
        work = ContentChanged(urls=tuple(_address(url) for url in urls), paths=tuple(paths))
        if not self._deliveries.add(id, work.model_dump_json(), now.timestamp()):
            return 200, {"id": id, "seen": True}
        self._wake.set()
        return 202, {"id": id, "urls": urls, "paths": paths, "ignored": ignored}

    def __enter__(self) -> Webhook:
        """Begin to work off what is waiting, also from before; once."""
        self._wake.set()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop after the page or file under way; the rest waits for the next start."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        again: float | None = None
        while not self._stopping.is_set():
            self._wake.wait(again)
            self._wake.clear()
            try:
                again = None if self._work_off() else RETRY_SECONDS
            except Exception as exc:  # the inbox cannot be used; the thread must live until it can
                log.error("The webhook's inbox cannot be worked off (%s).", type(exc).__name__)
                again = RETRY_SECONDS

    def _work_off(self) -> bool:
        """Work off what is waiting; return False where the rest must wait for a better time."""
        lock = FileLock(self._deliveries.path.with_suffix(".lock"))  # one process at a time
        while not self._stopping.is_set():
            with suppress(Timeout), lock.acquire(timeout=1.0):
                while not self._stopping.is_set():
                    if (delivery := self._deliveries.next()) is None:
                        return True
                    if not self._index_anew(delivery[0], ContentChanged.model_validate_json(delivery[1])):
                        return False
        return True

    def _index_anew(self, id: str, work: ContentChanged) -> bool:
        failures = 0
        for index_anew, name in [(self._page, url) for url in work.urls] + [(self._path, path) for path in work.paths]:
            if self._stopping.is_set():
                self._deliveries.put_back(id)
                return True
            try:
                index_anew(name)
            except Exception as exc:  # of the index, most likely; one page or file must not cost the others
                log.error("Delivery %s: a page or file was not indexed (%s).", id, type(exc).__name__)
                failures += 1
        if not failures:
            self._deliveries.finish(id)
        elif not self._deliveries.waits(id):
            log.error("Delivery %s is given up; it is taken again if it is sent again.", id)
        return not failures

    def _page(self, url: str) -> None:
        for failed in refresh([url], self._index, self._fetch, self._now().date()).failed:
            log.warning("%s was left as it was (%s).", failed.url, failed.code)

    def _path(self, path: str) -> None:
        with FileLock((self._index.folder or self._deliveries.path.parent) / LOCK, timeout=LOCK_SECONDS):
            self._index_file(path)

    def _index_file(self, path: str) -> None:
        files = self._index.files()
        if (file := self._file(path, files)) is None:
            return
        if missing(file):
            for id in _documents(file, files):
                self._index.delete(id)
            return
        for id in _documents(file, files) or [os.path.relpath(file)]:
            try:
                document = read(file, id=id)
            except NoText:
                self._index.delete(id)
            except IngestError as exc:
                log.warning("%r was left as it was (%s).", path, exc)
            else:
                self._index.upsert(document, split(document), file=str(file))

    def _file(self, path: str, files: Mapping[str, str]) -> Path | None:
        """Return the file that a path names, if it is in the index or can be; `files` are the index's.

        Raises:
            Refused: it leads out of the folder of documents, or that folder is not there.
        """
        given = PurePosixPath(path)
        if "\0" in path or given.is_absolute() or ".." in given.parts:
            raise Refused(400, "invalid_path", "A path is not relative to the folder of documents, or leads out of it.")
        if self._documents:
            folder = self._documents.resolve()
            if not folder.is_dir():
                raise Refused(503, "documents_unavailable", "The folder of documents is not there now. Send this again later.")
            file = Path(os.path.realpath(folder / given))  # unlike resolve(), without an error where links go in circles
            if not file.is_relative_to(folder):
                raise Refused(400, "invalid_path", "A path leads out of the folder of documents.")
            known = bool(_documents(file, files))
            if (known and missing(file)) or (os.path.isfile(file) and (known or _readable(file.relative_to(folder)))):
                return file
        if path not in files:
            return None
        file = Path(files[path])
        if file.resolve() != file:
            raise Refused(400, "invalid_path", "A path leads to another file than the one that was indexed.")
        return file


def _parse(id: str, body: bytes) -> ContentChanged:
    try:
        wanted = ContentChanged.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise Refused(
            400, "invalid_request", f'{where}: {first["msg"]}. Send an object like {{"urls": ["https://…"], "paths": ["a.md"]}}.'
        ) from exc
    if wanted.id not in (None, id):
        raise Refused(400, "invalid_request", "id: not that of the header webhook-id.")
    if not wanted.urls and not wanted.paths:
        raise Refused(400, "invalid_request", "Nothing changed: neither urls nor paths are named.")
    return wanted


def _address(url: str) -> str:
    """Return the address by which the index would know a page; empty where it is none."""
    try:
        return canonical_url(url)
    except ValueError:
        return ""


def _documents(file: Path, files: Mapping[str, str]) -> list[str]:
    """Return the ids of the documents that were read from a file, or from below what was a folder."""
    return [id for id, other in files.items() if Path(other).is_relative_to(file)]


def _readable(path: Path) -> bool:
    """Return whether `crag ingest` would read such a file, below a folder."""
    return path.suffix.lower() in READERS and not any(part.startswith(".") for part in path.parts)
