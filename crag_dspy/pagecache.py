"""Fetched pages on disk, so that a page is asked for once a day, and then only whether it has changed.

One file per page: a line of JSON, then the body. Nothing is unpickled, so a tampered file is at worst a wrong page.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from crag_dspy.domains import canonical_url
from crag_dspy.errors import SourceFailure

logger = logging.getLogger(__name__)


class Kept(NamedTuple):
    """A page as it was kept."""

    url: str
    """After redirects."""
    body: bytes
    content_type: str
    etag: str
    last_modified: str
    retrieved_at: datetime

    def conditions(self) -> dict[str, str]:
        """Return the headers that ask whether the page has changed (RFC 9110, section 13.1)."""
        asked = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in asked.items() if value}


class PageCache:
    """A folder of pages, by canonical URL. It never fails: what cannot be read is fetched, what cannot be written is not kept."""

    def __init__(
        self,
        folder: Path,
        *,
        fresh: timedelta = timedelta(days=1),
        max_bytes: int = 500_000_000,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Use a folder; it is made when the first page is kept.

        Args:
            folder: Where the files are.
            fresh: How long a page is used without asking its site.
            max_bytes: Size of all files, beyond which the oldest go.
            now: The clock, in UTC.
        """
        self._folder, self._fresh, self._max_bytes, self._now = folder, fresh, max_bytes, now
        self._lock = threading.Lock()
        self._said = False
        self._written = 0

    def get(self, url: str) -> tuple[Kept | None, SourceFailure | None]:
        """Return the kept page, or None; and the trouble with the cache, the first time only."""
        try:
            head, _, body = self._path(url).read_bytes().partition(b"\n")
            row = json.loads(head)
            final, kind, etag, modified = (str(row[name]) for name in ("url", "content_type", "etag", "last_modified"))
            kept = Kept(final, body, kind, etag, modified, datetime.fromisoformat(row["retrieved_at"]))
            if row["sha256"] != hashlib.sha256(body).hexdigest() or kept.retrieved_at.tzinfo is None:
                raise ValueError("the body is not the one that was kept")
        except (FileNotFoundError, NotADirectoryError):
            return None, None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
            return None, self._trouble("read", exc)
        return kept, None

    def is_fresh(self, kept: Kept) -> bool:
        """Return whether a page may be used without asking its site; one from the future (a clock was wrong) may not."""
        return timedelta(0) <= self._now() - kept.retrieved_at < self._fresh

    def put(self, url: str, kept: Kept) -> SourceFailure | None:
        """Keep a page, replacing an older copy in one step; return the trouble with the cache, the first time only."""
        row = {name: getattr(kept, name) for name in ("url", "content_type", "etag", "last_modified")}
        row |= {"retrieved_at": kept.retrieved_at.isoformat(), "sha256": hashlib.sha256(kept.body).hexdigest()}
        temporary = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, suffix=".part")
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(row).encode() + b"\n" + kept.body)
            os.replace(temporary, self._path(url))
            self._prune()
        except (OSError, ValueError) as exc:
            if temporary:
                with suppress(OSError):
                    os.unlink(temporary)
            return self._trouble("written", exc)
        return None

    def _path(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(canonical_url(url).encode('utf-8', 'replace')).hexdigest()}.page"

    def _prune(self) -> None:
        with self._lock:
            self._written += 1
            if self._written % 50 != 1:
                return
        files = sorted(((file.stat().st_mtime, file.stat().st_size, file) for file in self._folder.glob("*.p*")), reverse=True)
        total = 0
        for _, size, file in files:
            total += size
            if total > self._max_bytes:
                file.unlink(missing_ok=True)

    def _trouble(self, what: str, error: Exception) -> SourceFailure | None:
        with self._lock:
            if self._said:
                return None
            self._said = True
        message = f"The page cache could not be {what} ({type(error).__name__}); pages are fetched instead. Delete or mend its folder."
        logger.warning(message)
        return SourceFailure("page_cache", message)
