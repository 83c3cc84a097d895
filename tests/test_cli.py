"""The command line as a person types it, each call a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_lm import FakeLM


def crag(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("CRAG_", "OPENAI_", "TAVILY_", "MLFLOW_"))}
    command = [sys.executable, "-m", "crag_dspy.cli", *words]
    return subprocess.run(command, cwd=folder, env=clean | {"CRAG_WEB": "none"} | env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "warranty.md").write_text(
        "---\npublished: 2026-02-20\n---\n# Warranty\n\nThe Corvane warranty lasts 26 months from delivery.\n"
    )
    (folder / "photo.png").write_bytes(b"\x89PNG")
    (folder / "empty.txt").write_text("  \n")
    return folder


def test_ingest_then_ask(documents: Path, tmp_path: Path, fake_lm: FakeLM) -> None:
    lm = {"CRAG_LM": "openai/fake", "CRAG_LM_API_BASE": fake_lm.address, "OPENAI_API_KEY": "not-a-real-key"}
    done = crag(tmp_path, "ingest", "documents")
    assert done.returncode == 0, done.stderr
    assert "1 documents: 1 passages added" in done.stdout
    assert "photo.png" in done.stderr and ".png" in done.stderr and "empty.txt" in done.stderr and "has no text" in done.stderr

    asked = crag(tmp_path, "ask", "How long does the Corvane warranty last?", "--as-of", "2026-03-02", **lm)
    assert asked.returncode == 0, asked.stderr
    assert "The Corvane warranty lasts 26 months from delivery [1]." in asked.stdout and "documents/warranty.md, 2026-02-20" in asked.stdout
    assert "uncompiled" in asked.stderr and not (tmp_path / "mlflow.db").exists()

    answer = json.loads(crag(tmp_path, "ask", "How long does the Corvane warranty last?", "--json", "--as-of", "2026-03-02", **lm).stdout)
    assert set(answer) >= {
        "question", "text", "status", "claims", "citations", "action", "assessment", "confidence", "warnings",
        "stop_reason", "web_query", "usage",
    }  # fmt: skip
    assert (
        answer["claims"][0]["citations"] == [1] and answer["citations"][0]["quote"] == "The Corvane warranty lasts 26 months from delivery."
    )
    assert set(answer["usage"]) == {"lm_calls", "prompt_tokens", "completion_tokens", "searches", "pages", "seconds", "usd"}


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        (("ask", "What?"), {}, "crag ingest PATH"),
        (("ingest", "nowhere"), {}, "'nowhere'"),
        (("ask", "What?"), {"CRAG_WEBB": "none"}, "did you mean CRAG_WEB"),
        (("ask", "What?"), {"CRAG_WEB": "bing"}, "CRAG_WEB='bing'"),
        (("ingest", "documents/photo.png"), {}, "unsupported type '.png'"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_to_do(
    documents: Path, tmp_path: Path, words: tuple[str, ...], env: dict[str, str], says: str
) -> None:
    done = crag(tmp_path, *words, **env)
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("question", "env", "says"),
    [
        ("", {}, "question is empty"),
        ("x" * 100_000, {}, "100,000 characters"),
        ("What?", {"CRAG_LM": "nosuchprovider/model"}, "CRAG_LM='nosuchprovider/model'"),
        ("What?", {"CRAG_LM": "local", "CRAG_LOCAL_MODEL": "nowhere.gguf"}, "nowhere.gguf"),
        ("What?", {"CRAG_WEB": "tavily"}, "TAVILY_API_KEY"),
    ],
)
def test_bad_input_is_refused_before_any_lm_call(
    documents: Path, tmp_path: Path, fake_lm: FakeLM, question: str, env: dict[str, str], says: str
) -> None:
    assert crag(tmp_path, "ingest", "documents").returncode == 0
    lm = {"CRAG_LM": "openai/fake", "CRAG_LM_API_BASE": fake_lm.address, "OPENAI_API_KEY": "not-a-real-key"}
    done = crag(tmp_path, "ask", question, **(lm | env))
    assert done.returncode == 1 and says in done.stderr and "Traceback" not in done.stderr and fake_lm.calls == []


def test_an_index_of_another_embedder_is_refused(documents: Path, tmp_path: Path) -> None:
    import chromadb

    client = chromadb.PersistentClient(path=str(tmp_path / ".crag" / "chroma"))
    client.create_collection("crag", embedding_function=None, metadata={"embedder": "other", "dimension": 8})
    done = crag(tmp_path, "ingest", "documents")
    assert done.returncode == 1 and "'other'" in done.stderr and "bge-small" in done.stderr


def test_an_lm_that_refuses_is_one_line_without_the_key(documents: Path, tmp_path: Path, fake_lm: FakeLM) -> None:
    assert crag(tmp_path, "ingest", "documents").returncode == 0
    fake_lm.status = 401
    lm = {"CRAG_LM": "openai/fake", "CRAG_LM_API_BASE": fake_lm.address, "OPENAI_API_KEY": "sk-marked-key-000111222"}
    done = crag(tmp_path, "ask", "How long does the Corvane warranty last?", "--as-of", "2026-03-02", **lm)
    assert done.returncode == 1 and "HTTP 401" in done.stderr and "CRAG_LM" in done.stderr
    assert "Traceback" not in done.stderr and "sk-marked" not in done.stderr + done.stdout


def test_status_tells_what_there_is_and_makes_nothing(documents: Path, tmp_path: Path) -> None:
    none = crag(tmp_path, "status")
    assert none.returncode == 1 and "crag ingest PATH" in none.stderr
    assert crag(tmp_path, "ingest", "documents").returncode == 0
    told = crag(tmp_path, "status")
    assert told.returncode == 0, told.stderr
    assert "1 documents, 1 passages (1 internal, 0 web)" in told.stdout and " MB" in told.stdout
    assert "published: 2026-02-20 to 2026-02-20" in told.stdout and "retrieved: no dates" in told.stdout
    assert "embedder: bge-small-en-v1.5-int8" in told.stdout and "none registered" in told.stdout
    assert not (tmp_path / "mlflow.db").exists() and not (tmp_path / "mlruns").exists()


def test_status_of_an_index_of_another_embedder(tmp_path: Path) -> None:
    import chromadb

    client = chromadb.PersistentClient(path=str(tmp_path / ".crag" / "chroma"))
    client.create_collection("crag", embedding_function=None, metadata={"embedder": "other", "dimension": 8})
    told = crag(tmp_path, "status")
    assert told.returncode == 0 and "embedder: other" in told.stdout and "0 documents" in told.stdout


def test_status_names_the_versions_and_the_champion(documents: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=store, registry_uri=store)
    client.create_registered_model("crag")
    for _ in range(2):
        client.create_model_version("crag", source=str(tmp_path))
    assert crag(tmp_path, "ingest", "documents").returncode == 0
    assert "Versions: 1, 2; champion: none" in crag(tmp_path, "status").stdout
    client.set_registered_model_alias("crag", "champion", "2")
    assert "Versions: 1, 2; champion: 2" in crag(tmp_path, "status").stdout


def test_a_deleted_file_is_removed_and_a_second_ingestion_at_once_refused(documents: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    (documents / "second.md").write_text("# Mast\n\nThe mast is nine metres high.\n")
    assert "2 documents: 2 passages added" in crag(tmp_path, "ingest", "documents").stdout
    (documents / "second.md").unlink()
    with FileLock(tmp_path / ".crag" / "chroma" / "crag.ingest.lock"):
        busy = crag(tmp_path, "ingest", "documents")
    assert busy.returncode == 1 and "Another crag ingest" in busy.stderr and "Traceback" not in busy.stderr
    assert "1 unchanged, 1 removed. The index holds 1 passages." in crag(tmp_path, "ingest", "documents").stdout
