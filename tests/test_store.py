"""The collection among others: threads, processes that write, that open at once, that are killed; a folder and a real server."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromadb.api.models.Collection import Collection
from chromadb.api.types import DefaultEmbeddingFunction
from conftest import WordEmbedder
from filelock import FileLock

import crag_dspy.store
from crag_dspy.errors import IndexUnusable, SourceFailure
from crag_dspy.index import Index, Where, open_client
from crag_dspy.split import split
from crag_dspy.store import Store
from crag_dspy.types import Document, Passage

processes = multiprocessing.get_context("forkserver")  # real processes, which import once
processes.set_forkserver_preload(["crag_dspy.index", "conftest"])


def other(where: str | Path, task: Callable[[Index], None], *, killed: bool = False) -> None:
    """Run a task with an index of its own in another process, and wait for its end."""
    child = start(where, task)
    child.join(60)
    assert child.exitcode == (-signal.SIGKILL if killed else 0)


def start(where: str | Path, task: Callable[[Index], None]) -> BaseProcess:
    child = processes.Process(target=_run, args=(str(where), task))
    child.start()
    return child


def _run(where: str, task: Callable[[Index], None]) -> None:
    task(Index(open_client(where), "crag", WordEmbedder(), create=True))


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def store(index: Index, text: str, id: str = "guide.md", **fields: Any) -> None:
    document = Document(id=id, title="Guide", text=text, **fields)
    index.upsert(document, split(document))


def found(index: Index, question: str, where: Where | None = None) -> list[str]:
    assert {hit.passage.id for hit in index.search(question, 9, where)} == {hit.passage.id for hit in index.nearest(question, 9, where)}
    return [hit.passage.text for hit in index.search(question, 9, where)]


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run a Chroma server in a process of its own; give its address, and what stops it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).parent / "chroma"), "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    with open(folder / "server.log", "w") as log:  # a pipe that nobody reads would fill and stop it
        process = subprocess.Popen(command, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 30
    while True:
        try:
            open_client(address)
            break
        except IndexUnusable:
            assert process.poll() is None and time.monotonic() < until, (folder / "server.log").read_text()
            time.sleep(0.05)

    def stop() -> None:
        process.terminate()
        process.wait(10)

    try:
        yield address, stop
    finally:
        stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("served")) as (address, _):
        yield address


@pytest.fixture(params=["folder", "server"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the address of an empty index, of either kind."""
    if request.param == "folder":
        return str(tmp_path / "chroma")
    address = str(request.getfixturevalue("server"))
    client = open_client(address)
    for collection in client.list_collections():
        client.delete_collection(collection.name)
    return address


def _change(index: Index) -> None:
    store(index, "The price is 12 euro.")
    store(index, "A price of the web.", "http://a.example", source_type="web", published_at=date(2026, 1, 2))


def _delete(index: Index) -> None:
    index.delete("http://a.example")
    index.delete("b.md")


def test_what_another_process_does_is_found_at_the_next_search(where: str) -> None:
    index = Index(open_client(where), "crag", WordEmbedder(), create=True)
    store(index, "The price is 10 euro.")
    store(index, "The mast is nine metres high.", "b.md")
    assert found(index, "price")[0] == "The price is 10 euro."
    other(where, _change)
    assert sorted(found(index, "price")) == ["A price of the web.", "The mast is nine metres high.", "The price is 12 euro."]
    assert found(index, "price", Where(source_type="web", published_from=date(2026, 1, 2))) == ["A price of the web."]
    other(where, _delete)
    assert (found(index, "price"), index.count(), index.document_ids()) == (["The price is 12 euro."], 1, ["guide.md"])
    store(index, "The price is 13 euro.")  # and after a change of its own
    assert found(index, "price") == ["The price is 13 euro."]


def _many(index: Index, name: str = "theirs") -> None:
    passages = [Passage(id=f"{name}-{i}", document_id=name, title="", text=f"{name} {i}") for i in range(1100)]
    index.upsert(Document(id=name, title="", text=""), passages)


def test_a_writer_that_was_overtaken_takes_nothing_away(tmp_path: Path) -> None:
    """Chroma writes its vectors to files every 1,000 rows; with vectors older than the files it would overwrite them."""
    index = Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder(), create=True)
    store(index, "The mast is nine metres high.")
    other(tmp_path / "chroma", _many)
    _many(index, "mine")
    anew = Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder())
    assert anew.count() == 2201
    assert len(anew._store._rows.get(include=["embeddings"])["ids"]) == 2201  # raises where a vector is missing


def _put_and_search(index: Index) -> None:
    store(index, "The mast.", f"{os.getpid()}.md")
    assert index.search("mast", 3)


def test_many_that_open_one_new_folder_at_once_are_soon_done(tmp_path: Path) -> None:
    children = [start(tmp_path / "chroma", _put_and_search) for _ in range(6)]
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0] * 6
    index = Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder())
    assert index.document_ids() == sorted(f"{child.pid}.md" for child in children)


def test_a_server_that_hangs_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crag_dspy.store, "SERVER_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(IndexUnusable, match="No Chroma server answers"):
        open_client(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_a_folder_that_is_written_for_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder(), create=True)
    monkeypatch.setattr(crag_dspy.store, "LOCK_SECONDS", 0.1)
    with FileLock(tmp_path / "chroma" / "crag.lock"):
        with pytest.raises(IndexUnusable, match="being written by another process"):
            store(index, "The mast.")
        with pytest.raises(IndexUnusable, match="being written by another process"):
            open_client(tmp_path / "chroma")
    store(index, "The mast.")


def _killed_before_its_rows(index: Index) -> None:
    Collection.upsert = die  # type: ignore[method-assign]
    store(index, "The price is 12 euro.")


def _killed_after_its_rows(index: Index) -> None:
    Store._settle = die  # type: ignore[method-assign]
    store(index, "The price is 12 euro.")


def _killed_before_the_old_rows_go(index: Index) -> None:
    Collection.delete = die  # type: ignore[method-assign]
    store(index, "The price is 12 euro.")


def _killed_after_the_new_generation(index: Index) -> None:
    Path.unlink = die  # type: ignore[method-assign]
    store(index, "The price is 12 euro.")


def _killed_while_chroma_writes_its_vectors(index: Index) -> None:
    def tear(*_: object) -> None:
        vectors = index._store._vectors()
        vectors.mkdir(exist_ok=True)
        for name in ("data_level0.bin", "header.bin", "length.bin", "link_lists.bin", "index_metadata.pickle"):
            (vectors / name).write_bytes(b"\xff" * 500)
        die()

    Store._settle = tear  # type: ignore[method-assign]
    store(index, "The price is 12 euro.")


KILLED = [
    _killed_before_its_rows,
    _killed_after_its_rows,
    _killed_before_the_old_rows_go,
    _killed_after_the_new_generation,
    _killed_while_chroma_writes_its_vectors,
]


@pytest.mark.parametrize("task", KILLED)
@pytest.mark.parametrize("running", [True, False], ids=["a running reader", "a new one"])
def test_after_a_writer_was_killed_anyone_may_go_on(tmp_path: Path, task: Callable[[Index], None], running: bool) -> None:
    index = Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder(), create=True)
    store(index, "The price is 10 euro.")
    store(index, "The mast is nine metres high.", "b.md")
    other(tmp_path / "chroma", task, killed=True)
    if not running:
        index = Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder())
    texts = set(found(index, "price"))
    assert texts - {"The price is 12 euro."} >= {"The mast is nine metres high."} and "" not in texts
    store(index, "The price is 12 euro.")
    assert set(found(index, "price")) == {"The price is 12 euro.", "The mast is nine metres high."}
    rows = index._store._rows.get(include=["embeddings", "documents"])
    assert rows["embeddings"] is not None and rows["documents"] is not None
    wanted = [WordEmbedder().query(f"Guide\n{text}") for text in rows["documents"]]
    np.testing.assert_allclose(np.asarray(rows["embeddings"]), np.asarray(wanted), atol=1e-6)
    assert not (tmp_path / "chroma" / "crag.writing").exists()


def _add_without_us(index: Index) -> None:
    vector: Any = WordEmbedder().query("lantern")
    index._store._rows.add(ids=["x"], embeddings=[vector], documents=["A lantern."])


def test_rows_of_another_tool_are_noticed(where: str) -> None:
    index = Index(open_client(where), "crag", WordEmbedder(), create=True)
    store(index, "The price is 10 euro.")
    other(where, _add_without_us)
    assert found(index, "lantern")[0] == "A lantern."


def test_a_server_that_goes_away_is_a_named_failure(tmp_path: Path) -> None:
    with serve(tmp_path) as (address, stop):
        index = Index(open_client(address), "crag", WordEmbedder(), create=True)
        store(index, "The mast.")
        other_embedder = WordEmbedder()
        other_embedder.name = "other"
        with pytest.raises(IndexUnusable, match="'words-64'"):
            Index(open_client(address), "crag", other_embedder)
        stop()
        with pytest.raises(SourceFailure) as failed:
            index.search("mast", 3)
    assert failed.value.code == "index_unavailable"


def test_collections_of_one_client_are_separate(where: str) -> None:
    client = open_client(where)
    a, b = Index(client, "one", WordEmbedder(), create=True), Index(client, "two", WordEmbedder(), create=True)
    store(a, "The mast.")
    assert (a.count(), b.count(), b.search("mast", 3)) == (1, 0, [])


def test_a_passage_given_twice_is_stored_once(where: str) -> None:
    index = Index(open_client(where), "crag", WordEmbedder(), create=True)
    document = Document(id="guide.md", title="Guide", text="The mast.")
    (passage,) = split(document)
    assert index.upsert(document, [passage, passage]).added == index.count() == 1


def test_chromas_own_embedder_is_never_asked(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Chroma's default embedder was called")

    monkeypatch.setattr(DefaultEmbeddingFunction, "__call__", refuse)
    index = Index(open_client(where), "crag", WordEmbedder(), create=True)
    store(index, "The mast.")
    assert found(Index(open_client(where), "crag", WordEmbedder()), "mast") == ["The mast."]


def test_an_index_let_go_closes_its_folder(tmp_path: Path) -> None:
    def handles() -> int:
        return sum("chroma" in os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))

    client = open_client(tmp_path / "chroma")
    Index(client, "crag", WordEmbedder(), create=True)
    before = handles()
    for _ in range(5):
        Index(client, "crag", WordEmbedder()).count()
    assert handles() <= before + 2
