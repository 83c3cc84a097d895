"""The webhook: only who has the secret is heard, and a delivery counts once."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from chromadb.errors import InternalError
from conftest import WordEmbedder, WordScorer
from fake_lm import fake_lm_server
from filelock import FileLock
from starlette.testclient import TestClient
from webhook_world import NOW, OTHER, SECRET, SEEN, URL, Place, eventually, seconds, send, signed, work_off

from crag_dspy import app, webhook
from crag_dspy.crag import Crag
from crag_dspy.deliveries import ATTEMPTS, KEEP_SECONDS, Deliveries
from crag_dspy.errors import SettingsError
from crag_dspy.http import MAX_BODY, create_app
from crag_dspy.index import Index
from crag_dspy.parts import Parts
from crag_dspy.program import CRAG
from crag_dspy.settings import load_settings
from crag_dspy.signing import Refused, key, verify
from crag_dspy.types import Document
from crag_dspy.webhook import Webhook

pytest_plugins = ["site_server", "webhook_world"]


# The signature


def test_a_signature_of_openssl_is_accepted() -> None:
    # printf '%s.%s.%s' msg_1 1772438400 "$body" | openssl dgst -sha256 -mac HMAC -macopt hexkey:… -binary | base64
    headers = {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1772438400",
        "webhook-signature": "v1,xlsl48r0tj+W6yRHzGWafwpJDgDBHcijBbU7K/GD72Q=",
    }
    assert verify(key(SECRET), headers, b'{"paths":["leave.md"]}', 1772438400.0) == "msg_1"
    with pytest.raises(Refused):
        verify(key(OTHER), headers, b'{"paths":["leave.md"]}', 1772438400.0)


BODY = b'{"paths": ["leave.md"]}'
GOOD = signed(BODY)


@pytest.mark.parametrize(
    "headers",
    [
        GOOD,
        signed(BODY, offset=-299),
        signed(BODY, offset=299),
        GOOD | {"webhook-signature": f"v1a,{'A' * 88} {signed(BODY, secret=OTHER)['webhook-signature']} {GOOD['webhook-signature']}"},
    ],
    ids=["now", "earlier", "later", "while-the-secret-changes"],
)
def test_a_fresh_delivery_signed_with_the_secret_is_heard(headers: Mapping[str, str]) -> None:
    assert verify(key(SECRET), headers, BODY, NOW.timestamp()) == "msg_1"


FORGED = {
    "body": (GOOD, BODY.replace(b"leave", b"lease")),
    "one-byte-more": (GOOD, BODY + b" "),
    "id": (GOOD | {"webhook-id": "msg_2"}, BODY),
    "timestamp": (GOOD | {"webhook-timestamp": seconds(1)}, BODY),
    "secret": (signed(BODY, secret=OTHER), BODY),
    "too-old": (signed(BODY, offset=-301), BODY),
    "of-tomorrow": (signed(BODY, offset=86_400), BODY),
    "no-headers": ({}, BODY),
    "no-id": ({name: value for name, value in GOOD.items() if name != "webhook-id"}, BODY),
    "no-timestamp": ({name: value for name, value in GOOD.items() if name != "webhook-timestamp"}, BODY),
    "no-signature": ({name: value for name, value in GOOD.items() if name != "webhook-signature"}, BODY),
    "empty-signature": (GOOD | {"webhook-signature": ""}, BODY),
    "only-the-version": (GOOD | {"webhook-signature": "v1,"}, BODY),
    "another-version": (GOOD | {"webhook-signature": GOOD["webhook-signature"].replace("v1,", "v2,")}, BODY),
    "without-version": (GOOD | {"webhook-signature": GOOD["webhook-signature"][3:]}, BODY),
    "not-ascii": (GOOD | {"webhook-signature": "v1,\xe9"}, BODY),
    "full-stop-in-id": (signed(BODY, id="msg.1"), BODY),
    "id-of-two-lines": (signed(BODY, id="msg\n1"), BODY),
    "endless-id": (signed(BODY, id="m" * 201), BODY),
    "fraction": (GOOD | {"webhook-timestamp": seconds() + ".5"}, BODY),
    "other-digits": (GOOD | {"webhook-timestamp": "١٧٧٢٤٣٨٤٠٠"}, BODY),
}


@pytest.mark.parametrize(("headers", "body"), FORGED.values(), ids=FORGED)
def test_what_is_forged_old_or_unsigned_is_refused(headers: Mapping[str, str], body: bytes) -> None:
    with pytest.raises(Refused) as refused:
        verify(key(SECRET), headers, body, NOW.timestamp())
    assert refused.value.status == 401 and SECRET[6:] not in str(refused.value)


@pytest.mark.parametrize(
    "secret",
    ["hunter2", SECRET[6:], "whsec_", "whsec_!!!!", "whsec_" + base64.b64encode(b"x" * 23).decode(), "whsec_" + "A" * 100],
    ids=["word", "no-prefix", "empty", "no-base64", "too-short", "too-long"],
)
def test_a_weak_secret_is_refused_when_the_service_opens_and_not_repeated(secret: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CRAG_WEBHOOK_SECRET", secret)
    monkeypatch.setattr(app, "embedder", WordEmbedder)
    settings = load_settings(home=tmp_path, web="none")
    app.open_index(settings, create=True)
    with pytest.raises(SettingsError, match="openssl rand -base64 32") as refused:
        app.open_webhook(settings)
    assert secret == "whsec_" or secret not in str(refused.value)


# The route


@contextmanager
def served(index: Index, to: Webhook | None) -> Iterator[TestClient]:
    with fake_lm_server() as lm:
        crag = Crag(CRAG(Parts(index=index, cross_encoder=WordScorer())), lm.lm())
        with TestClient(create_app(crag, 4, to)) as client:
            yield client


@pytest.fixture(scope="module")
def client(shared: Place) -> Iterator[TestClient]:
    with served(shared.index, shared.webhook()) as client:
        yield client


def post(client: TestClient, body: bytes, headers: Mapping[str, str] | None = None) -> httpx.Response:
    return client.post("/webhooks/content-changed", content=body, headers=dict(signed(body) if headers is None else headers))


def test_a_changed_file_and_page_are_indexed_while_the_service_runs(place: Place) -> None:
    place.write("leave.md", "Annual leave is forty days.")
    place.show("The gate opens at noon.")
    body = json.dumps({"id": "msg_1", "type": "content.changed", "urls": [URL], "paths": ["leave.md", "photo.png"]}).encode()
    with served(place.index, place.webhook()) as client:
        reply = post(client, body)
        assert reply.status_code == 202
        assert reply.json() == {"id": "msg_1", "urls": [URL], "paths": ["leave.md"], "ignored": ["photo.png"]}
        assert place.settled() and "forty days" in place.texts() and "thirty" not in place.texts()
        assert "noon" in place.texts() and "seven" not in place.texts() and place.embedder.embedded == 2
        again = post(client, body)
        assert again.status_code == 200 and again.json() == SEEN


@pytest.mark.parametrize(("headers", "body"), FORGED.values(), ids=FORGED)
def test_the_route_refuses_forgeries_with_401(client: TestClient, headers: Mapping[str, str], body: bytes) -> None:
    sent = {name: value.encode("utf-8") for name, value in headers.items() if "\n" not in value}
    reply = client.post("/webhooks/content-changed", content=body, headers=list(sent.items()))
    assert reply.status_code == 401 and set(reply.json()) == {"status", "code", "message"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "body: Invalid JSON"),
        (b"{bad", "body: Invalid JSON"),
        (b"[1]", "object"),
        (b"null", "object"),
        (b"{}", "neither urls nor paths"),
        (b'{"urls": [], "paths": []}', "neither urls nor paths"),
        (b'{"url": "http://pages.example/gate"}', "neither urls nor paths"),
        (b'{"urls": "http://pages.example/gate"}', "urls: "),
        (b'{"urls": [3]}', "urls.0: "),
        (b'{"paths": [null]}', "paths.0: "),
        (b'{"paths": [""]}', "paths.0: "),
        (b'{"paths": {"a.md": 1}}', "paths: "),
        (json.dumps({"paths": ["a.md"] * 101}).encode(), "paths: "),
        (json.dumps({"paths": ["a" * 2001]}).encode(), "paths.0: "),
        (b'{"paths": ["\\ud800.md"]}', "body: Invalid JSON"),
        (b'{"paths": ["\xff.md"]}', "body: Invalid JSON"),
        (b"[" * 50_000, "body: Invalid JSON"),
        (b'{"id": "msg_2", "paths": ["leave.md"]}', "webhook-id"),
        (b'{"id": 1, "paths": ["leave.md"]}', "id: "),
    ],
)
def test_a_body_that_does_not_fit_is_refused_and_its_id_stays_free(client: TestClient, body: bytes, says: str) -> None:
    id = f"msg_{hashlib.sha256(body).hexdigest()}"
    reply = post(client, body, signed(body, id))
    assert reply.status_code == 400 and says in reply.json()["message"], reply.text
    assert post(client, BODY, signed(BODY, id)).status_code == 202


def test_a_body_that_is_too_long_is_refused_unread(client: TestClient) -> None:
    body = json.dumps({"paths": ["leave.md"], "data": "x" * MAX_BODY}).encode()
    reply = post(client, body)
    assert reply.status_code == 413 and reply.json()["code"] == "too_long"


def test_only_post_is_known(client: TestClient) -> None:
    assert client.get("/webhooks/content-changed").status_code == 405


def test_an_index_that_cannot_be_read_is_no_client_error_and_the_sender_may_try_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Index) -> Any:
        raise InternalError("marked words")

    headers = signed(BODY, "msg_later")
    with monkeypatch.context() as patch:
        patch.setattr(Index, "files", fails)
        reply = post(client, BODY, headers)
    assert reply.status_code == 500 and "marked words" not in reply.text
    assert post(client, BODY, headers).status_code == 202


@pytest.mark.parametrize("secret", [None, "", "  "])
def test_without_a_secret_there_is_no_webhook(secret: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if secret is not None:
        monkeypatch.setenv("CRAG_WEBHOOK_SECRET", secret)
    assert app.open_webhook(load_settings()) is None


def test_without_a_webhook_there_is_no_such_route(shared: Place) -> None:
    with served(shared.index, None) as client:
        assert post(client, BODY).status_code == 404


def test_the_service_opens_it_with_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "embedder", WordEmbedder)
    monkeypatch.setenv("CRAG_WEBHOOK_SECRET", SECRET)
    monkeypatch.setenv("CRAG_DOCUMENTS", "docs")
    monkeypatch.setenv("CRAG_WEB", "none")
    settings = load_settings()
    index = app.open_index(settings, create=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "new.md").write_text("The mast is nine metres high.")
    opened = app.open_webhook(settings)
    assert opened
    body = b'{"paths": ["new.md"]}'
    now = datetime.now(UTC) - NOW
    with opened:
        assert opened.accept(signed(body, offset=now.total_seconds()), body)[0] == 202
        assert eventually(lambda: index.document_ids() == ["docs/new.md"]), "the id that crag ingest would give"
    assert (tmp_path / ".crag" / "webhooks.sqlite3").exists()


# Once


def test_a_delivery_counts_once_also_after_a_restart(place: Place) -> None:
    work_off(place, place.webhook(), urls=[URL], paths=["leave.md"])
    assert len(place.site.heads) == 1
    for to in (place.webhook(), place.webhook(now=NOW + timedelta(minutes=4))):
        with to:
            assert send(to, urls=[URL], paths=["leave.md"]) == (200, SEEN)
    assert len(place.site.heads) == 1 and place.embedder.embedded == 0
    work_off(place, place.webhook(), id="msg_2", urls=[URL])
    assert len(place.site.heads) == 2


def test_of_deliveries_of_one_id_at_once_to_several_servers_one_counts(place: Place) -> None:
    servers = [place.webhook() for _ in range(4)]
    together = threading.Barrier(12)

    def deliver(i: int) -> int:
        together.wait(10)
        return send(servers[i % 4], urls=[URL])[0]

    with ThreadPoolExecutor(12) as pool:
        assert sorted(pool.map(deliver, range(12))) == [200] * 11 + [202]
    with servers[0], servers[1]:
        assert place.settled()
    assert len(place.site.heads) == 1


def test_what_was_accepted_is_worked_off_by_the_next_process(place: Place) -> None:
    place.write("leave.md", "Annual leave is forty days.")
    assert send(place.webhook(), paths=["leave.md"])[0] == 202  # of a process that ends before its thread gets to it
    with place.webhook():
        assert place.settled()
    assert "forty days" in place.texts()


def test_a_service_that_stops_leaves_the_rest_to_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("leave.md", "Annual leave is forty days.")
    place.write("deep/canteen.md", "The canteen opens at one.")
    to, begun, read = place.webhook(), threading.Event(), webhook.read

    def slow(path: Path, *, id: str) -> Document:
        begun.set()
        assert to._stopping.wait(10)
        return read(path, id=id)

    monkeypatch.setattr(webhook, "read", slow)
    with to:
        send(to, paths=["leave.md", "deep/canteen.md"])
        assert begun.wait(10)
    assert "forty days" in place.texts() and "noon" in place.texts() and place.waiting() == 1
    monkeypatch.undo()
    with place.webhook():
        assert place.settled()
    assert "noon" not in place.texts()


def test_it_waits_for_an_ingestion_that_is_running(place: Place) -> None:
    place.write("leave.md", "Annual leave is forty days.")
    with place.webhook() as to:
        with FileLock(place.folder / "chroma" / "crag.ingest.lock"):
            assert send(to, paths=["leave.md"])[0] == 202
            time.sleep(0.3)
            assert place.waiting() == 1
        assert place.settled() and "forty days" in place.texts()


def test_an_index_that_fails_is_tried_again_and_logged_by_type(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook, "RETRY_SECONDS", 0.05)
    upsert, failures = Index.upsert, [InternalError("marked words"), MemoryError()]

    def fails(self: Index, *args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return upsert(self, *args, **kwargs)

    monkeypatch.setattr(Index, "upsert", fails)
    place.write("leave.md", "Annual leave is forty days.")
    work_off(place, place.webhook(), paths=["leave.md"])
    assert "forty days" in place.texts()
    assert "InternalError" in caplog.text and "MemoryError" in caplog.text and "marked words" not in caplog.text


def test_an_inbox_gives_up_a_delivery_at_which_the_process_dies_and_forgets_old_ones(tmp_path: Path) -> None:
    inbox = Deliveries(tmp_path / "inbox.sqlite3")
    assert inbox.next() is None
    assert inbox.add("deadly", "{}", 1.0) and inbox.add("good", "{}", 2.0)
    tried = []
    while found := inbox.next():
        tried.append(found[0])
        if found[0] == "good":
            inbox.finish("good")
    assert tried == ["deadly", "good"] + ["deadly"] * (ATTEMPTS - 1)
    assert inbox.add("new", "{}", KEEP_SECONDS + 1.5)
    assert [inbox.holds(id) for id in ("deadly", "good", "new")] == [False, True, True]
