"""A web on loopback on which everything goes wrong, one path per fault: as pages, and as a search that speaks Tavily's protocol.

with BadWeb() as web:
    TavilySearch(api_key="k", api_base_url=web.search_url("503"))   # the provider fails so
    TavilySearch(api_key="k", api_base_url=web.finding("drip", "good"))  # finds pages, of which the first fails so
    Fetcher(routes=web.routes)(web.page_url("drip"))                 # the page fails so
"""

from __future__ import annotations

import gzip
import json
import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator
from functools import cache
from types import TracebackType
from typing import NamedTuple

FACT = "The gate of the harbour opens at seven on every day of the year."
PAGE = f"<html><head><title>Gate</title></head><body><article><h1>Gate</h1><p>{FACT}</p></article></body></html>".encode()
MEGABYTE = b"x" * 1_000_000


class Fault(NamedTuple):
    """What a fault must become: the code of the search's failure, and of the page's; None where it is no failure."""

    search: str | None
    page: str | None


FAULTS: dict[str, Fault] = {
    "refused": Fault("web_unavailable", "page_unavailable"),
    "dns": Fault("web_unavailable", "page_unavailable"),
    "hang": Fault("web_timeout", "page_timeout"),
    "drip": Fault("web_timeout", "page_timeout"),
    "reset": Fault("web_unavailable", "page_unavailable"),
    "401": Fault("web_key", "page_unavailable"),
    "403": Fault("web_quota", "page_unavailable"),
    "404": Fault("web_unavailable", "page_unavailable"),
    "429": Fault("web_rate_limited", "page_unavailable"),
    "432": Fault("web_quota", "page_unavailable"),
    "500": Fault("web_unavailable", "page_unavailable"),
    "502": Fault("web_unavailable", "page_unavailable"),
    "503": Fault("web_unavailable", "page_unavailable"),
    "504": Fault("web_unavailable", "page_unavailable"),
    "redirect_loop": Fault("web_unavailable", "page_unavailable"),
    "malformed_json": Fault("web_unavailable", "page_type"),
    "null_results": Fault(None, "page_type"),
    "empty_body": Fault("web_unavailable", "page_empty"),
    "wrong_type": Fault("web_unavailable", "page_type"),
    "wrong_charset": Fault(None, None),
    "truncated": Fault("web_unavailable", "page_unavailable"),
    "truncated_gzip": Fault("web_unavailable", "page_unavailable"),
    "bomb": Fault("web_unavailable", "page_too_large"),
    "huge": Fault("web_unavailable", "page_too_large"),
    "nested": Fault("web_unavailable", "page_empty"),
}


class BadWeb(socketserver.ThreadingTCPServer):
    """Serves the faults until closed; use it as a context manager. `asked` counts the requests by fault."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.over = threading.Event()
        self.asked: dict[str, int] = {}
        self.bodies: list[dict[str, object]] = []
        self.retry_after: str | None = "0"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._closed: int = free.getsockname()[1]
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def routes(self) -> dict[str, tuple[str, int]]:
        """Routes for a `Fetcher`."""
        return {"refused.example": ("127.0.0.1", self._closed), "example": ("127.0.0.1", self.server_address[1])}

    def page_url(self, fault: str) -> str:
        """Return the address of a page with this fault, or of the good one."""
        return {"refused": "http://refused.example/page", "dns": "http://no-such-host.test/"}.get(
            fault, f"http://{fault.replace('_', '-')}.example/{fault}"
        )

    def search_url(self, fault: str) -> str:
        """Return the base URL of a search with this fault."""
        if fault == "dns":
            return "http://no-such-host.test"
        return f"http://127.0.0.1:{self._closed if fault == 'refused' else self.server_address[1]}/{fault}"

    def finding(self, *faults: str) -> str:
        """Return the base URL of a search that works, and finds pages with these faults (`good`: none)."""
        return self.search_url("+".join(faults) + "+")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()


class _Handler(socketserver.BaseRequestHandler):
    server: BadWeb

    def handle(self) -> None:
        head, body = b"", b""
        while b"\r\n\r\n" not in head:
            block = self.request.recv(65536)
            if not block:
                return
            head += block
        head, body = head.split(b"\r\n\r\n", 1)
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        while lengths and len(body) < lengths[0]:
            body += self.request.recv(65536)
        method, path = head.decode().split()[:2]
        fault = path.split("/")[1]
        if fault == "robots.txt":
            return self.send([_reply(b"none", status="404 Not Found")])
        self.server.asked[fault] = self.server.asked.get(fault, 0) + 1
        if method == "POST":
            self.server.bodies.append(json.loads(body))
        if fault.endswith("+"):
            rows = [{"url": self.server.page_url(name), "title": name, "content": f"Snippet of {name}."} for name in fault.split("+")[:-1]]
            return self.send([_reply(json.dumps({"results": rows}).encode(), "application/json")])
        return self.send(self.answer(fault, method == "POST"))

    def send(self, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                self.request.sendall(piece)
        except OSError:
            pass  # the client has seen enough

    def answer(self, fault: str, search: bool) -> Iterable[bytes]:
        good = json.dumps({"results": [{"url": self.server.page_url("good"), "content": FACT}]}).encode() if search else PAGE
        kind = "application/json" if search else "text/html; charset=utf-8"
        if fault in ("hang", "drip"):
            return self.slow(fault, good, kind)
        if fault in ("bomb", "huge"):
            return _large(fault, search, kind)
        if fault.isdigit():
            extra = {"Retry-After": self.server.retry_after} if self.server.retry_after else {}
            return [_reply(b'{"detail": {"error": "no"}}', kind, f"{fault} Fault", **extra)]
        packed = gzip.compress(good)
        answers = {
            "good": _reply(good, kind),
            "reset": b"",
            "redirect_loop": _reply(b"", kind, "302 Found", Location="/redirect_loop" + "/search" * search),
            "malformed_json": _reply(b'{"results": [{"url": "http', "application/json"),
            "null_results": _reply(b'{"results": null}', "application/json"),
            "empty_body": _reply(b"", kind),
            "wrong_type": _reply(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
            "wrong_charset": _reply(good, kind.split(";")[0] + "; charset=no-such-charset"),
            "truncated": _reply(good, kind)[:-10],
            "truncated_gzip": _reply(packed[: len(packed) // 2], kind, **{"Content-Encoding": "gzip"}),
            "nested": _reply(b"[" * 10_000 + b"]" * 10_000 if search else b"<html><body>" + b"<div>" * 10_000 + FACT.encode(), kind),
        }
        return [answers[fault]]

    def slow(self, fault: str, good: bytes, kind: str) -> Iterator[bytes]:
        if fault == "drip":
            yield f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode()
            for byte in good:
                yield bytes([byte])
                if self.server.over.wait(0.05):
                    return
        self.server.over.wait(30)


def _large(fault: str, search: bool, kind: str) -> Iterator[bytes]:
    """Fifty megabytes: plain, or packed into fifty kilobytes."""
    start, end = (b'{"results": [], "answer": "', b'"}') if search else (PAGE, b"")
    if fault == "bomb":
        yield _reply(_packed(start + MEGABYTE * 50 + end), kind, **{"Content-Encoding": "gzip"})
        return
    yield f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n".encode() + start
    for _ in range(50):
        yield MEGABYTE
    yield end


@cache
def _packed(body: bytes) -> bytes:
    return gzip.compress(body, 1)


def _reply(body: bytes, kind: str = "text/html", status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items())]).encode() + b"\r\n\r\n" + body
