"""Compile, log, load and serve end to end: real Chroma, real MLflow on SQLite, real models and sandbox web, a rule-following LM."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import httpx
import mlflow
import pytest
from conftest import TODAY
from fake_lm import FakeLM, fake_lm_server

import crag_dspy
from crag_dspy.errors import StateError
from crag_dspy.settings import Settings
from optimize import registry
from optimize.__main__ import DATA, Steps, index_corpus, optimize
from optimize.dataset import load_rows, sample

KEY, HEADER = "sk-marked-key-000111222", "Bearer marked-header-333444555"


class Compiled(NamedTuple):
    folder: Path
    version: registry.Published
    lm: dspy.LM
    fake: FakeLM
    settings: Settings


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """Compile once on a few questions of data/, with an LM that carries a marked key and header."""
    folder = tmp_path_factory.mktemp("optimize")
    before = Path.cwd()
    os.chdir(folder)
    os.environ["MARKED_API_KEY"] = KEY
    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    settings = Settings(home=folder / ".crag", web="sandbox", sandbox=DATA / "web")
    with fake_lm_server() as fake, Steps() as steps:
        lm = fake.lm(api_key=KEY, extra_headers={"X-Authorization": HEADER})
        index_corpus(settings, DATA / "corpus", steps)
        rows = {name: sample(load_rows(DATA / f"{name}.jsonl"), 8) for name in ("train", "dev")}
        version = optimize(settings, rows["train"], rows["dev"], TODAY, quick=True, steps=steps, lm=lm)
        yield Compiled(folder, version, lm, fake, settings)
    os.environ.pop("MARKED_API_KEY")
    os.chdir(before)


def test_a_version_is_registered_with_metrics_prompts_and_a_champion(compiled: Compiled) -> None:
    run = mlflow.get_run(compiled.version.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["before/questions"] == run.data.metrics["after/questions"] == 8
    assert 0 <= run.data.metrics["after/answers_right"] <= 1
    assert run.data.params["lm"] == "openai/fake" and run.data.params["optimizer"] == "few-shot"
    assert registry.champion() is not None
    linked = mlflow.models.get_model_info(compiled.version.uri).prompts or []
    names = sorted(mlflow.genai.load_prompt(uri).name for uri in linked)
    assert names == ["crag.generate", "crag.grade", "crag.refine", "crag.rewrite"]


def test_the_logged_signature_names_its_columns(compiled: Compiled) -> None:
    signature = mlflow.models.get_model_info(compiled.version.uri).signature
    assert [(c.name, c.required) for c in signature.inputs.inputs] == [("question", True), ("as_of", False)]
    assert {"text", "status", "claims", "citations", "usage", "web_query"} <= {c.name for c in signature.outputs.inputs}


def test_the_credentials_reached_the_lm_and_nothing_else(compiled: Compiled) -> None:
    assert any(KEY in call.headers.get("authorization", "") for call in compiled.fake.calls)
    assert any(call.headers.get("x-authorization") == HEADER for call in compiled.fake.calls)
    files = [path for path in compiled.folder.rglob("*") if path.is_file()]
    assert any(path.name == "program.json" for path in files) and any(path.name == "mlflow.db" for path in files)
    for path in files:
        body = path.read_bytes()
        assert KEY.encode() not in body and HEADER.encode() not in body, path


def test_a_credential_in_the_artifact_refuses_the_log(tmp_path: Path) -> None:
    (tmp_path / "program.json").write_text(f'{{"demo": "the key is {KEY}"}}')
    with pytest.raises(crag_dspy.CragError, match=r"OTHER_KEY stands in program\.json") as caught:
        registry.refuse_secrets(tmp_path, {"OTHER_KEY": KEY})
    assert KEY not in str(caught.value)


def test_a_loaded_version_answers_as_the_compiled_one(compiled: Compiled) -> None:
    crag = crag_dspy.load(compiled.version.uri, settings=compiled.settings, lm=compiled.fake.lm())
    logged = mlflow.load_table("after.json", run_ids=[compiled.version.run_id])
    for row in logged.to_dict(orient="records")[:4]:
        answer = crag(row["question"], as_of=TODAY)
        assert (answer.text, answer.action, answer.status) == (row["answer"], row["action"], row["status"])
    json.dumps(answer.model_dump(mode="json"), allow_nan=False)
    assert all(predictor.demos for name, predictor in crag.program.named_predictors() if name != "rewrite")


def test_no_artifact_is_a_pickle(compiled: Compiled) -> None:
    assert not [path for path in compiled.folder.rglob("*.pkl")]


def test_an_unknown_version_says_what_to_do(compiled: Compiled) -> None:
    with pytest.raises(StateError, match="python -m optimize"):
        crag_dspy.load("models:/crag/99", settings=compiled.settings, lm=compiled.fake.lm())


def test_another_index_is_refused(compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\nA document of somebody else.")
    with pytest.raises(crag_dspy.CragError, match="CRAG_HOME"):
        index_corpus(compiled.settings, tmp_path, Steps())


def test_an_interrupted_run_leaves_no_version(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = len(mlflow.search_model_versions())

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "signature", interrupt)  # in the middle of logging
    rows = {name: sample(load_rows(DATA / f"{name}.jsonl"), 2) for name in ("train", "dev")}
    with pytest.raises(KeyboardInterrupt):
        optimize(compiled.settings, rows["train"], rows["dev"], TODAY, quick=True, steps=Steps(), lm=compiled.fake.lm())
    assert len(mlflow.search_model_versions()) == versions


def test_an_lm_that_is_down_ends_the_run_at_once(compiled: Compiled) -> None:
    compiled.fake.status, before = 500, len(compiled.fake.calls)
    try:
        rows = {name: sample(load_rows(DATA / f"{name}.jsonl"), 8) for name in ("train", "dev")}
        with pytest.raises(crag_dspy.CragError, match="HTTP 500") as caught:
            optimize(compiled.settings, rows["train"], rows["dev"], TODAY, quick=True, steps=Steps(), lm=compiled.fake.lm(api_key=KEY))
    finally:
        compiled.fake.status = 200
    assert KEY not in str(caught.value) and len(compiled.fake.calls) - before <= 12


def test_the_served_model_answers_in_any_form_of_the_request(compiled: Compiled, tmp_path: Path) -> None:
    """Serve from an empty folder with nothing but the artifact's own code on the path."""
    logged = mlflow.load_table("after.json", run_ids=[compiled.version.run_id])
    question, text = next((r["question"], r["answer"]) for r in logged.to_dict(orient="records") if r["status"] == "answered")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{compiled.folder}/mlflow.db",
        "CRAG_HOME": str(compiled.folder / ".crag"),
        "CRAG_WEB": "sandbox",
        "CRAG_SANDBOX": str(DATA / "web"),
        "CRAG_LM": "openai/fake",
        "CRAG_LM_API_BASE": compiled.fake.address,
        "OPENAI_API_KEY": KEY,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # MLflow starts uvicorn by name
    }
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", compiled.version.uri, "--env-manager", "local", "-p", str(port)]
    log = tmp_path / "server.log"
    with log.open("w") as out, subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_up(url, server, log)
            bodies: list[dict[str, Any]] = [
                {"dataframe_records": [{"question": question, "as_of": "2026-03-02"}]},
                {"dataframe_split": {"columns": ["question", "as_of"], "data": [[question, "2026-03-02"]]}},
                {"inputs": [{"question": question, "as_of": "2026-03-02"}]},
                {"inputs": {"question": [question], "as_of": ["2026-03-02"]}},
                {"instances": [{"question": question, "as_of": "2026-03-02"}]},
            ]
            answers = [httpx.post(f"{url}/invocations", json=body, timeout=60) for body in bodies]
            assert [reply.status_code for reply in answers] == [200] * len(bodies), answers[0].text
            found = [reply.json()["predictions"][0] for reply in answers]
            assert {answer["text"] for answer in found} == {text} and {answer["question"] for answer in found} == {question}

            bad = httpx.post(f"{url}/invocations", json={"dataframe_records": [{"question": ""}]}, timeout=60)
            assert bad.status_code == 400 and "question is empty" in bad.text and "Traceback" not in bad.text

            compiled.fake.status = 500
            down = httpx.post(f"{url}/invocations", json=bodies[0], timeout=60)
            assert down.status_code == 503 and KEY not in down.text and "Traceback" not in down.text
        finally:
            compiled.fake.status = 200
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself, which the test then reports
                os.killpg(server.pid, signal.SIGTERM)
            server.wait(30)
    assert KEY not in log.read_text()


def _wait_until_up(url: str, server: subprocess.Popen[Any], log: Path) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/ping", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.3)
    raise AssertionError(log.read_text()[-3000:])
