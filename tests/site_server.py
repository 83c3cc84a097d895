"""A site on loopback that answers each path with raw bytes, and fixtures that watch sockets and names."""

from __future__ import annotations

import itertools
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from crag_dspy.fetch import Fetcher

HTML = b"<html><body><p>The gate opens at seven.</p></body></html>"
PUBLIC = "93.184.216.34"


class Site(socketserver.ThreadingTCPServer):
    """Answers each path with raw bytes, or with pieces sent one by one, and remembers the requests' heads."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, bytes | Callable[[], Iterable[bytes]]] = {}
        self.heads: list[str] = []

    def fetcher(self, **limits: Any) -> Fetcher:
        """Return a fetcher that finds the site as *.example; without robots.txt and further attempts, unless asked for."""
        return Fetcher(routes={"example": ("127.0.0.1", self.server_address[1])}, **({"robots": None, "attempts": 1} | limits))


class _Handler(socketserver.BaseRequestHandler):
    server: Site

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            block = self.request.recv(4096)
            if not block:
                return
            head += block
        self.server.heads.append(head.decode())
        answer = self.server.answers[head.split()[1].decode()]
        try:
            for piece in [answer] if isinstance(answer, bytes) else answer():
                self.request.sendall(piece)
        except OSError:
            pass  # the client has seen enough


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def connections(only_loopback: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the addresses that sockets were told to connect to; only loopback's are really tried."""
    seen: list[Any] = []
    connect = socket.socket.connect

    def spy(self: socket.socket, address: Any) -> Any:
        seen.append(address)
        if address[0] != "127.0.0.1":
            raise ConnectionRefusedError("not in a test")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", spy)
    return seen


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make every name resolve to the given addresses; to each list in turn, if several are given, and then to the last."""

    def install(*answers: list[str]) -> None:
        turns = itertools.chain(answers, itertools.repeat(answers[-1]))

        def lookup(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
            numeric = bool(re.fullmatch(r"[\d.]+|[\da-f:.]*:[\da-f:.]*", host))
            return [found(ip, port) for ip in ([host] if numeric else next(turns))]

        def found(ip: str, port: int) -> Any:
            family, address = (socket.AF_INET6, (ip, port, 0, 0)) if ":" in ip else (socket.AF_INET, (ip, port))
            return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address

        monkeypatch.setattr(socket, "getaddrinfo", lookup)

    return install


def reply(body: bytes = HTML, status: str = "200 OK", content_type: str = "text/html", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
