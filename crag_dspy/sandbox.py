"""A small web on loopback: pages from a folder, and a search that speaks Tavily's protocol.

The real Tavily client, the real fetcher and the real extractor run against it, in the demo and in the tests. A file
`<folder>/<host>/<page>.html` is the page `http://<host>/<page>`.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import bm25s

from crag_dspy.errors import SettingsError
from crag_dspy.extract import extract
from crag_dspy.split import split

SUFFIX = "example"  # reserved for documentation (RFC 2606): no such host exists on the real web
KEY = "sandbox"
SNIPPET_CHARS = 300


class Sandbox:
    """Serves a folder of pages until closed; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Read the pages and start serving on a free loopback port.

        Raises:
            SettingsError: the folder has no pages, or none with text.
        """
        self.pages = {f"http://{path.parent.name}/{path.stem}": path for path in sorted(folder.glob("*/*.html"))}
        self._entries = _entries(self.pages)
        if not self._entries:
            raise SettingsError(
                f"The sandbox web finds no <host>/<page>.html with text in {str(folder)!r}. "
                "Set CRAG_SANDBOX to its folder, or CRAG_WEB=none."
            )
        self._ranking = bm25s.BM25()
        self._ranking.index(_tokens([f"{title} {text}" for _, title, text in self._entries]), show_progress=False)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="sandbox-web").start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that the web listens on."""
        return "127.0.0.1", self._server.server_port

    @property
    def search_url(self) -> str:
        """Base URL for the Tavily client."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def search(self, query: str, limit: int) -> list[dict[str, object]]:
        """Return Tavily-shaped results of the pages that match best, one per page, best first (BM25 over their sections)."""
        tokens = bm25s.tokenize([query], stopwords="en", stemmer=None, show_progress=False, return_ids=False)
        scores = self._ranking.get_scores(tokens[0]) if tokens[0] else []
        results: dict[str, dict[str, object]] = {}
        for i in sorted(range(len(scores)), key=lambda i: (-scores[i], self._entries[i][0])):
            url, title, text = self._entries[i]
            if scores[i] <= 0 or len(results) >= limit:
                break
            results.setdefault(
                url,
                {
                    "url": url,
                    "title": title,
                    "content": text[:SNIPPET_CHARS],
                    "score": round(float(scores[i]), 4),
                    "raw_content": None,
                },
            )
        return list(results.values())

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _entries(pages: dict[str, Path]) -> list[tuple[str, str, str]]:
    """Return (url, title, text) of every section of every page."""
    entries = []
    for url, path in pages.items():
        page = extract(path.read_bytes(), id=url, url=url)
        if page is not None:
            entries += [(url, page.title, passage.text) for passage in split(page)]
    return entries


def _tokens(texts: list[str]) -> object:
    return bm25s.tokenize(texts, stopwords="en", stemmer=None, show_progress=False)


def _handler(web: Sandbox) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if urlsplit(self.path).path != "/search":
                return self._send(404, "text/plain", b"not found")
            try:
                asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                query, limit = str(asked["query"]), int(asked.get("max_results") or 5)
            except (ValueError, KeyError, TypeError):
                return self._send(400, "application/json", b'{"detail": {"error": "bad request"}}')
            reply = {"query": query, "results": web.search(query, limit), "images": [], "response_time": 0.0}
            return self._send(200, "application/json", json.dumps(reply).encode())

        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").split(":")[0]
            path = web.pages.get(f"http://{host}{urlsplit(self.path).path.rstrip('/')}")
            if path is None:
                return self._send(404, "text/html", b"<h1>Not found</h1>")
            return self._send(200, "text/html; charset=utf-8", path.read_bytes())

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: queries are users' words."""

    return Handler
