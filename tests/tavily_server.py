"""A local server that gives Tavily's client one answer to every search, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from crag_dspy.errors import SourceFailure
from crag_dspy.search import TavilySearch

KEY = "tvly-SENTINEL"


class Tavily(ThreadingHTTPServer):
    """Gives one answer to every search, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body = 200, b'{"results": []}'
        self.delay = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    def answer(self, body: object, status: int = 200) -> None:
        self.status, self.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()

    def rows(self, *rows: object) -> None:
        self.answer({"results": rows})

    def client(self, api_key: str | None = KEY, timeout: float = 5.0, **options: Any) -> TavilySearch:
        address = f"http://127.0.0.1:{self.server_port}"
        return TavilySearch(api_key=api_key, api_base_url=address, timeout=timeout, sleep=lambda _: None, **options)


class _Handler(BaseHTTPRequestHandler):
    server: Tavily

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers["Authorization"])
        if self.server.status == 0:  # never
            self.server.delay.wait(5)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def tavily() -> Iterator[Tavily]:
    with Tavily() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.delay.set()
        server.shutdown()


def failure(search: Callable[[], object]) -> SourceFailure:
    with pytest.raises(SourceFailure) as caught:
        search()
    return caught.value


GOOD: dict[str, Any] = {"url": "https://harbour.example/gate", "title": "Gate times", "content": "Opens at seven.", "score": 0.9}
