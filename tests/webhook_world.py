"""A folder, a site, an index of both and a webhook to them: what its tests share. As a pytest plugin it brings the fixtures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import WordEmbedder
from site_server import Site, reply

from crag_dspy.deliveries import Deliveries
from crag_dspy.index import Index, open_client
from crag_dspy.ingest import ingest
from crag_dspy.search import Result
from crag_dspy.types import Document
from crag_dspy.web import read_pages
from crag_dspy.webhook import Webhook

SECRET = "whsec_YSBrZXkgb2YgdGhpcnR5LXR3byBieXRlcywgcmVhbGw="
OTHER = "whsec_" + base64.b64encode(b"another key of thirty-two bytes!").decode()
URL = "http://pages.example/gate"
NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
SEEN = {"id": "msg_1", "seen": True}


def seconds(offset: float = 0) -> str:
    return str(int(NOW.timestamp() + offset))


def signed(body: bytes, id: str = "msg_1", offset: float = 0, secret: str = SECRET) -> dict[str, str]:
    """Return the headers that the specification asks for, worked out here once more."""
    mac = hmac.new(base64.b64decode(secret[6:]), b".".join([id.encode(), seconds(offset).encode(), body]), hashlib.sha256)
    return {"webhook-id": id, "webhook-timestamp": seconds(offset), "webhook-signature": "v1," + base64.b64encode(mac.digest()).decode()}


def eventually(condition: Callable[[], bool], limit: float = 10.0) -> bool:
    end = time.monotonic() + limit
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


class Counting(WordEmbedder):
    embedded = 0

    def passages(self, texts: Any) -> list[list[float]]:
        self.embedded += len(texts)
        return super().passages(texts)


class Place:
    """A folder of documents, a site, and an index of both, as `crag ingest` and questions leave it."""

    def __init__(self, folder: Path, site: Site) -> None:
        self.folder, self.site, self.docs = folder, site, folder / "docs"
        self.write("leave.md", "Annual leave is thirty days.")
        self.write("deep/canteen.md", "The canteen opens at noon.")
        self.embedder = Counting()
        self.index = Index(open_client(folder / "chroma"), "crag", self.embedder, create=True)
        self.fetch = site.fetcher(now=lambda: NOW)
        ingest([self.docs], self.index, base=folder)
        self.show("The gate opens at seven.")
        passages, _, _ = read_pages([Result(url=URL, title="")], self.fetch, NOW.date(), 1)
        self.index.remember(Document(id=URL, title="", text=""), passages)
        self.site.heads.clear()
        self.embedder.embedded = 0

    def write(self, name: str, text: str) -> Path:
        path = self.docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def show(self, text: str, status: str = "200 OK") -> None:
        html = f"<html><head><title>Gate</title></head><body><article><h1>Gate</h1><p>{text}</p></article></body></html>"
        self.site.answers["/gate"] = reply(html.encode(), status, content_type="text/html; charset=utf-8")

    def webhook(self, documents: bool = True, now: datetime = NOW) -> Webhook:
        inbox = Deliveries(self.folder / "home" / "webhooks.sqlite3")
        return Webhook(SECRET, self.index, self.fetch, inbox, documents=self.docs if documents else None, now=lambda: now)

    def texts(self) -> str:
        return "\n".join(sorted(hit.passage.text for hit in self.index.search("leave canteen gate mast", 50)))

    def waiting(self) -> int:
        with Deliveries(self.folder / "home" / "webhooks.sqlite3")._opened() as database:
            return int(database.execute("SELECT count(*) FROM deliveries WHERE attempts_left > 0").fetchone()[0])

    def settled(self) -> bool:
        return eventually(lambda: self.waiting() == 0)


@pytest.fixture
def place(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, site)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return a place for tests that change nothing."""
    with Site() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Place(tmp_path_factory.mktemp("shared"), server)
        server.shutdown()


def send(to: Webhook, id: str = "msg_1", **body: Any) -> tuple[int, dict[str, Any]]:
    content = json.dumps(body).encode()
    return to.accept(signed(content, id), content)


def work_off(place: Place, to: Webhook, **body: Any) -> dict[str, Any]:
    """Send a delivery, wait until it is worked off, and return what was said to it."""
    with to:
        status, said = send(to, **body)
        assert status == 202 and place.settled()
    return said
