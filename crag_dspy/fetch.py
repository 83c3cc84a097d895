"""One function that fetches pages, and nowhere an address that was not checked."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urljoin

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
        address = url
        for _ in range(self.max_redirects + 1):
            page = self._get(address, deadline)
            if isinstance(page, Page):
                return page
            address = page
        raise SourceFailure("page_unavailable", f"{httpx.URL(url).host} redirects more than {self.max_redirects} times.")

    def _get(self, url: str, deadline: float) -> Page | str:
        """Fetch without following: a page, or the address it redirects to."""
        target = _parse(url)
        host = _host(target)
        address, port = self._resolve(target, host)
        # The connection goes to the address that was checked, so a name that resolves differently a moment later
        # (DNS rebinding) gains nothing; the host name is kept for the Host header and for TLS.
        target = target.copy_with(host=f"[{address}]" if ":" in address else address, port=port, fragment=None)
        headers = {
            "Host": f"[{host}]" if ":" in host else host,
            "User-Agent": USER_AGENT,
            "Accept": "text/html,application/xhtml+xml,text/plain;q=0.8",
            "Accept-Encoding": "gzip",
        }
        left = max(0.1, deadline - time.monotonic())
        try:
            with (
                _cut_off(left) as trace,
                httpx.Client(timeout=left, trust_env=False, follow_redirects=False) as client,
                client.stream("GET", target, headers=headers, extensions={"sni_hostname": host, "trace": trace}) as reply,
            ):
                if reply.has_redirect_location:
                    return urljoin(url, reply.headers["location"])
                if reply.status_code != 200:
                    raise SourceFailure("page_unavailable", f"{host} answered {reply.status_code}.")
                content_type = reply.headers.get("content-type", "").split(";")[0].strip().lower()
                if content_type not in TEXT_TYPES:
                    raise SourceFailure("page_type", f"{host} sent {content_type or 'no content type'}, not a page.")
                return Page(url, self._read(reply, host, deadline), reply.headers.get("content-type", ""))
        except (httpx.HTTPError, zlib.error, ValueError) as exc:  # ValueError: where it redirects to is no address
            if isinstance(exc, httpx.TimeoutException) or time.monotonic() >= deadline:
                raise self._too_slow(host) from exc
            raise SourceFailure("page_unavailable", f"{host} could not be read ({type(exc).__name__}).") from exc

    def _read(self, reply: httpx.Response, host: str, deadline: float) -> bytes:
        """Read the body as it arrives, and stop at the first sign that it is none of ours."""
        encoding = reply.headers.get("content-encoding", "").strip().lower() or "identity"
        if encoding not in ("identity", "gzip"):
            raise SourceFailure("page_type", f"{host} sent its page packed in a way that was not asked for ({encoding[:40]}).")
        # Unpacked here: httpx unpacks whole blocks, a thousandfold in a decompression bomb, before their size can be seen.
        unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
        body = bytearray()
        for block in reply.iter_raw():
            body += unpack.decompress(block, self.max_bytes + 1 - len(body)) if unpack else block
            if len(body) > self.max_bytes:
                raise SourceFailure("page_too_large", f"{host} sent more than {self.max_bytes:,} bytes.")
            if _binary(body[:1024]):
                raise SourceFailure("page_type", f"{host} sent a file that is no text, whatever type it names.")
        if time.monotonic() >= deadline:  # cut off, which may look like a page's end
            raise self._too_slow(host)
        return bytes(body)

    def _too_slow(self, host: str) -> SourceFailure:
        return SourceFailure("page_timeout", f"{host} took more than {self.timeout:g} s.")

    def _resolve(self, target: httpx.URL, host: str) -> tuple[str, int]:
        """Return the checked address and port to connect to."""
        if target.scheme not in ("http", "https") or not host or target.userinfo:
            raise SourceFailure(
                "blocked_address",
                f"A result that is no plain http(s) address was not fetched ({target.scheme or 'no scheme'}).",
            )
        for suffix, route in self.routes.items():
            if host == suffix or host.endswith("." + suffix):
                return route
        if target.port not in (None, 80, 443):
            raise SourceFailure("blocked_address", f"{host} was not fetched: port {target.port} is not allowed.")
        port = target.port or (443 if target.scheme == "https" else 80)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise SourceFailure("page_unavailable", f"{host} has no address.") from exc
        addresses = [str(entry[4][0]) for entry in found]
        for address in addresses:
            if not _public(address):
                raise SourceFailure("blocked_address", f"{host} was not fetched: it leads to an address that is not public.")
        return addresses[0], port


@contextmanager
def _cut_off(seconds: float) -> Iterator[Any]:
    """Shut the connection down after `seconds`; httpx limits each read, not the whole, so a slow drip would never end.

    Yields a trace function, by which httpx hands over the connections that it opens.
    """
    connections: list[socket.socket] = []
    end = time.monotonic() + seconds

    def trace(event: str, info: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            if time.monotonic() >= end:
                raise httpx.ConnectTimeout("the time was up before the connection stood")
            connections.append(info["return_value"].get_extra_info("socket"))

    def shut_down() -> None:
        for connection in connections:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not SSLSocket's, which upsets the thread that reads

    timer = threading.Timer(seconds, shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield trace
    finally:
        timer.cancel()


def _parse(url: str) -> httpx.URL:
    try:
        return httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as exc:
        raise SourceFailure("blocked_address", "A result whose address cannot be read was not fetched.") from exc


def _host(target: httpx.URL) -> str:
    return target.raw_host.decode("ascii").rstrip(".").lower()


def _binary(head: bytes | bytearray) -> bool:
    """Whether a body is a PDF or, by its zero bytes, another binary file: servers mislabel them as pages."""
    return head.startswith(b"%PDF-") or (b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")))  # UTF-16


_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses as IPv6-only networks see them
_NOT_PUBLIC = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments; a cloud's metadata among them
    ipaddress.IPv4Network("168.63.129.16/32"),  # Azure's platform address, the same inside every virtual network
)


def _public(address: str) -> bool:
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.split("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
        ip = inner or (ip.teredo[1] if ip.teredo else ip)
    if isinstance(ip, ipaddress.IPv6Address):
        return ip in _UNICAST and ip.is_global
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)
