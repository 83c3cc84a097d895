"""One GET over a connection to a checked address, with limits on time, size and type. Only `fetch` calls it."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import httpx

from crag_dspy.addresses import Target
from crag_dspy.weather import WebFailure, retry_after

USER_AGENT = "crag_dspy/0.1 (+https://pypi.org/project/crag-dspy)"
TEXT_TYPES = ("text/html", "application/xhtml+xml", "text/plain")
PDF_TYPES = ("application/pdf", "application/x-pdf")


class Reply(NamedTuple):
    """A server's answer; the body only of a 200."""

    status: int
    headers: Mapping[str, str]
    content_type: str
    """`application/pdf` where the body is one, whatever the server calls it."""
    body: bytes

    @property
    def location(self) -> str | None:
        """Where a redirect leads, as the server wrote it."""
        return self.headers.get("location") if self.status in (301, 302, 303, 307, 308) else None


def get(
    target: Target,
    connect: tuple[str, int],
    deadline: float,
    *,
    max_bytes: int,
    typed: bool = True,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one GET and read the answer; nothing is followed, no cookie and no credential is sent or kept.

    Args:
        target: What is asked for.
        connect: The checked address and port. The connection goes there and nowhere else, so a name that resolves differently a
            moment later (DNS rebinding) gains nothing; the host name is kept for the Host header and for TLS.
        deadline: On the monotonic clock, for all of it.
        max_bytes: Most bytes after decompression.
        typed: Whether the answer must say that it is a page; robots.txt need not.
        headers: More headers.

    Raises:
        WebFailure: `page_unavailable`, `page_timeout`, `page_too_large` or `page_type`.
    """
    address, port = connect
    host = target.host
    url = target.url.copy_with(host=f"[{address}]" if ":" in address else address, port=port, fragment=None)
    left = max(0.1, deadline - time.monotonic())
    asked = {
        "Host": f"[{host}]" if ":" in host else host,
        "User-Agent": USER_AGENT,
        "Accept": "text/html,application/xhtml+xml,text/plain;q=0.8,application/pdf;q=0.7",
        "Accept-Encoding": "gzip",
        **(headers or {}),
    }
    try:
        with (
            _cut_off(left) as trace,
            # Half of the time for the connection, so that a lost packet leaves some for a second attempt.
            httpx.Client(timeout=httpx.Timeout(left, connect=left / 2), trust_env=False, follow_redirects=False) as client,
            client.stream("GET", url, headers=asked, extensions={"sni_hostname": host, "trace": trace}) as reply,
        ):
            content_type, body = reply.headers.get("content-type", ""), b""
            if reply.status_code == 200:
                content_type, body = _read(reply, host, deadline, max_bytes, typed)
            return Reply(reply.status_code, dict(reply.headers), content_type, body)
    except (httpx.HTTPError, httpx.InvalidURL, zlib.error, ValueError) as exc:
        if time.monotonic() >= deadline:
            raise _too_slow(host) from exc
        if isinstance(exc, httpx.TimeoutException):
            raise _too_slow(host, passing=True) from exc
        passing = isinstance(exc, (httpx.NetworkError, httpx.RemoteProtocolError)) and not _distrusted(exc)
        raise WebFailure("page_unavailable", f"{host} could not be read ({type(exc).__name__}).", passing=passing) from exc


def refusal(host: str, reply: Reply) -> WebFailure:
    """Return the failure that a status other than 200 is."""
    wait = retry_after(reply.headers.get("retry-after"))
    return WebFailure("page_unavailable", f"{host} answered {reply.status}.", status=reply.status, retry_after=wait)


def _read(reply: httpx.Response, host: str, deadline: float, max_bytes: int, typed: bool) -> tuple[str, bytes]:
    """Read the body as it arrives, and stop at the first sign that it is none of ours."""
    content_type = reply.headers.get("content-type", "")
    kind = content_type.split(";")[0].strip().lower()
    if typed and kind not in TEXT_TYPES + PDF_TYPES:
        raise WebFailure("page_type", f"{host} sent {kind[:60] or 'no content type'}, not a page.")
    encoding = reply.headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding not in ("identity", "gzip"):
        raise WebFailure("page_type", f"{host} sent its page packed in a way that was not asked for ({encoding[:40]}).")
    # Unpacked here: httpx unpacks whole blocks, a thousandfold in a decompression bomb, before their size can be seen.
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == "gzip" else None
    body, packed = bytearray(), 0
    for block in reply.iter_raw():
        packed += len(block)
        body += unpack.decompress(block, max_bytes + 1 - len(body)) if unpack else block
        if max(len(body), packed) > max_bytes:
            raise WebFailure("page_too_large", f"{host} sent more than {max_bytes:,} bytes.")
        if len(body) >= 5 and kind in PDF_TYPES and not body.startswith(b"%PDF-"):
            raise WebFailure("page_type", f"{host} sent a file that is no PDF, though it is called one.")
        if _binary(body[:1024]):
            raise WebFailure("page_type", f"{host} sent a file that is no text, whatever type it names.")
    if time.monotonic() >= deadline:  # cut off, which may look like a page's end
        raise _too_slow(host)
    if unpack and packed and not unpack.eof:
        raise WebFailure("page_unavailable", f"{host} sent only the beginning of a packed page.", passing=True)
    return "application/pdf" if body.startswith(b"%PDF-") else content_type, bytes(body)


def _binary(head: bytes | bytearray) -> bool:
    """Whether a body is, by its zero bytes, a binary file that is no PDF: servers mislabel them as pages."""
    return b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff", b"%PDF-"))  # UTF-16


def _too_slow(host: str, passing: bool = False) -> WebFailure:
    return WebFailure("page_timeout", f"{host} did not send its page in time.", passing=passing)


def _distrusted(error: BaseException | None) -> bool:
    """Whether a certificate is behind an error: it will be no better in a second."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


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
