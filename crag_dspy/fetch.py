"""One function that fetches pages, and nowhere an address that was not checked."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx

from crag_dspy.errors import SourceFailure

USER_AGENT = "crag_dspy/0.1 (+https://pypi.org/project/crag-dspy)"
TEXT_TYPES = ("text/html", "application/xhtml+xml", "text/plain")


class Page(NamedTuple):
    """A fetched page: its address after redirects, and its bytes."""

    url: str
    body: bytes
    content_type: str


@dataclass(frozen=True)
class Fetcher:
    """Fetches public http(s) pages within limits.

    `routes` maps a host suffix to a loopback (host, port): the only way to reach an address that is not public. The
    sandbox web and the tests use it.
    """

    routes: Mapping[str, tuple[str, int]] = field(default_factory=lambda: MappingProxyType({}))
    timeout: float = 10.0
    """Seconds for the whole page, redirects included."""
    max_bytes: int = 3_000_000
    """Bytes after decompression."""
    max_redirects: int = 4

    def __call__(self, url: str) -> Page:
        """Fetch one page.

        Raises:
            SourceFailure: the address is not allowed (`blocked_address`), or the page cannot be had (`page_unavailable`,
                `page_timeout`, `page_too_large`, `page_type`).
        """
        deadline = time.monotonic() + self.timeout
        for _ in range(self.max_redirects + 1):
            page = self._get(url, deadline)
            if isinstance(page, Page):
                return page
            url = page
        raise SourceFailure("page_unavailable", f"{_host(url)} redirects more than {self.max_redirects} times.")

    def _get(self, url: str, deadline: float) -> Page | str:
        """Fetch without following: a page, or the address it redirects to."""
        parts = urlsplit(url)
        host = (parts.hostname or "").rstrip(".").lower()
        address, port, host_header = self._resolve(url)
        # The connection goes to the address that was checked, so a name that resolves differently a moment later
        # (DNS rebinding) gains nothing; the host name is kept for the Host header and for TLS.
        literal = f"[{address}]" if ":" in address else address
        target = httpx.URL(url).copy_with(host=literal, port=port, userinfo=b"", fragment=None)
        headers = {
            "Host": host_header,
            "User-Agent": USER_AGENT,
            "Accept": "text/html,application/xhtml+xml,text/plain;q=0.8",
        }
        try:
            with (
                httpx.Client(timeout=max(0.1, deadline - time.monotonic()), trust_env=False, follow_redirects=False) as client,
                client.stream("GET", target, headers=headers, extensions={"sni_hostname": host}) as reply,
            ):
                if reply.is_redirect:
                    return urljoin(url, reply.headers.get("location", ""))
                if reply.status_code != 200:
                    raise SourceFailure("page_unavailable", f"{host} answered {reply.status_code}.")
                content_type = reply.headers.get("content-type", "").split(";")[0].strip().lower()
                if content_type not in TEXT_TYPES:
                    raise SourceFailure("page_type", f"{host} sent {content_type or 'no content type'}, not a page.")
                return Page(url, self._read(reply, host, deadline), reply.headers.get("content-type", ""))
        except httpx.TimeoutException as exc:
            raise SourceFailure("page_timeout", f"{host} took more than {self.timeout:g} s.") from exc
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise SourceFailure("page_unavailable", f"{host} could not be read ({type(exc).__name__}).") from exc

    def _read(self, reply: httpx.Response, host: str, deadline: float) -> bytes:
        body = bytearray()
        for block in reply.iter_bytes(65536):
            body += block
            if len(body) > self.max_bytes:
                raise SourceFailure("page_too_large", f"{host} sent more than {self.max_bytes:,} bytes.")
            if time.monotonic() > deadline:  # httpx limits each read, not the whole: a slow drip would never end
                raise SourceFailure("page_timeout", f"{host} took more than {self.timeout:g} s.")
        return bytes(body)

    def _resolve(self, url: str) -> tuple[str, int, str]:
        """Return the checked address and port to connect to, and the Host header."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as exc:
            raise SourceFailure("blocked_address", "A result with an impossible port was not fetched.") from exc
        host = (parts.hostname or "").rstrip(".").lower()
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            raise SourceFailure(
                "blocked_address",
                f"A result that is no plain http(s) address was not fetched ({parts.scheme or 'no scheme'}).",
            )
        for suffix, route in self.routes.items():
            if host == suffix or host.endswith("." + suffix):
                return route[0], route[1], host
        if port not in (None, 80, 443):
            raise SourceFailure("blocked_address", f"{host} was not fetched: port {port} is not allowed.")
        port = port or (443 if parts.scheme == "https" else 80)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise SourceFailure("page_unavailable", f"{host} has no address.") from exc
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            if not _public(address):
                raise SourceFailure("blocked_address", f"{host} was not fetched: it leads to an address that is not public.")
        return addresses[0], port, host


def _public(address: str) -> bool:
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)
    return ip.is_global and not ip.is_multicast


def _host(url: str) -> str:
    return urlsplit(url).hostname or "a page"
