"""One function that fetches pages, and nowhere an address that was not checked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urljoin

from crag_dspy import addresses, wire
from crag_dspy.addresses import Target
from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.pagecache import Kept, PageCache
from crag_dspy.robots import Robots
from crag_dspy.weather import WebFailure, persistent

ROBOTS_SECONDS, ROBOTS_BYTES = 3.0, 512_000  # RFC 9309, section 2.5: at least 500 KiB are to be read


class Page(NamedTuple):
    """A fetched page: its address after redirects, and its bytes."""

    url: str
    body: bytes
    content_type: str
    """As the server wrote it; `application/pdf` for every body that is one."""
    retrieved_at: datetime | None = None
    """When its site was last asked: before today, where it comes from the page cache."""
    note: SourceFailure | None = None
    """Something that went wrong without costing the page."""


class Hosts:
    """Limits how many requests are under way to one host at once."""

    def __init__(self, limit: int = 2) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._places: dict[str, tuple[threading.Semaphore, int]] = {}  # with the number of those who use or want it

    @contextmanager
    def place(self, host: str, deadline: float) -> Iterator[None]:
        """Wait for a place and hold it.

        Raises:
            WebFailure: `page_timeout`: none came free by the deadline (on the monotonic clock).
        """
        with self._lock:
            semaphore, users = self._places.get(host, (threading.Semaphore(self._limit), 0))
            self._places[host] = semaphore, users + 1
        try:
            if not semaphore.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise WebFailure("page_timeout", f"{host} was busy with other pages until the time was up.")
            try:
                yield
            finally:
                semaphore.release()
        finally:
            with self._lock:
                semaphore, users = self._places.pop(host)
                if users > 1:
                    self._places[host] = semaphore, users - 1


@dataclass(frozen=True)
class Fetcher:
    """Fetches public http(s) pages within limits: HTML, plain text and PDF.

    `routes` maps a host suffix to a loopback (host, port): the only way to reach an address that is not public. The
    sandbox web and the tests use it.
    """

    routes: Mapping[str, tuple[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    domains: Domains = field(default_factory=Domains)
    """The sites that may be used, checked again at every redirect."""
    robots: Robots | None = field(default_factory=Robots)
    """None: robots.txt is not asked for."""
    cache: PageCache | None = None
    timeout: float = 10.0
    """Seconds for the whole page, redirects and further attempts included."""
    max_bytes: int = 3_000_000
    """Bytes after decompression."""
    max_redirects: int = 4
    attempts: int = 3
    """Most requests for one address, where trying again can help."""
    hosts: Hosts = field(default_factory=Hosts)
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def limited_to(self, domains: Domains) -> Fetcher:
        """Return this fetcher for other sites, e.g. those of one question; what it remembers is shared."""
        return replace(self, domains=domains)

    def __call__(self, url: str, *, deadline: float | None = None) -> Page:
        """Fetch one page.

        Args:
            url: Its address, as found.
            deadline: When it is no longer wanted, on the monotonic clock; `timeout` holds besides.

        Raises:
            SourceFailure: the address is not allowed (`blocked_address`, `blocked_domain`, `page_robots`), or the page cannot be had
                (`page_unavailable`, `page_timeout`, `page_too_large`, `page_type`).
        """
        end = min(time.monotonic() + self.timeout, deadline if deadline is not None else float("inf"))
        addresses.check(url, self.domains, self.routes)
        kept, note = self.cache.get(url) if self.cache else (None, None)
        if kept and not self._usable(kept):
            kept = None
        if kept and self.cache and self.cache.is_fresh(kept):
            return Page(kept.url, kept.body, kept.content_type, kept.retrieved_at, note)
        address, reply = self._follow(url, end, kept)
        if reply.status == 304 and kept:
            kept = kept._replace(retrieved_at=self.now())
        else:
            etag, modified = (reply.headers.get(name, "")[:200] for name in ("etag", "last-modified"))
            kept = Kept(address, reply.body, reply.content_type, etag, modified, self.now())
        if self.cache and "no-store" not in reply.headers.get("cache-control", "").lower():
            note = self.cache.put(url, kept) or note
        return Page(kept.url, kept.body, kept.content_type, kept.retrieved_at, note)

    def _follow(self, url: str, end: float, kept: Kept | None = None, *, typed: bool = True) -> tuple[str, wire.Reply]:
        """Follow redirects to a page, or to a 304 for the one that was kept."""
        address = url
        for _ in range(self.max_redirects + 1):
            target = addresses.check(address, self.domains, self.routes)
            if self.robots and not self.robots.permit(address, target.origin, lambda where: self._robots_txt(where, end)):
                raise SourceFailure("page_robots", f"{target.host} does not want this page to be read by robots (robots.txt).")
            asked = kept.conditions() if kept and kept.url == address else {}
            reply = persistent(self._attempt(target, end, asked, typed), attempts=self.attempts, deadline=end, sleep=self.sleep)
            if reply.location is None:
                return address, reply
            try:
                address = urljoin(address, reply.location)
            except ValueError as exc:
                raise WebFailure("page_unavailable", f"{target.host} redirects to what is no address.") from exc
        raise WebFailure("page_unavailable", f"{target.host} redirects more than {self.max_redirects} times.")

    def _attempt(self, target: Target, end: float, asked: Mapping[str, str], typed: bool) -> Callable[[int], wire.Reply]:
        def attempt(number: int) -> wire.Reply:
            found = addresses.resolve(target, end)
            with self.hosts.place(target.host, end):
                where = found[number % len(found)]
                reply = wire.get(target, where, end, max_bytes=self.max_bytes, typed=typed, headers=asked)
            if reply.status != 200 and reply.location is None and not (reply.status == 304 and asked):
                raise wire.refusal(target.host, reply)
            return reply

        return attempt

    def _robots_txt(self, url: str, end: float) -> str:
        alone = replace(self, robots=None, max_bytes=ROBOTS_BYTES, attempts=1)
        _, reply = alone._follow(url, min(end, time.monotonic() + ROBOTS_SECONDS), typed=False)
        return reply.body.decode("utf-8", "replace")

    def _usable(self, kept: Kept) -> bool:
        """Whether a kept page's own address still passes: the lists may have changed since."""
        try:
            addresses.check(kept.url, self.domains, self.routes)
        except SourceFailure:
            return False
        return len(kept.body) <= self.max_bytes
