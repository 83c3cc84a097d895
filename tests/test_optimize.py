"""Compile, log, load and serve end to end: real Chroma, real MLflow on SQLite, real models and sandbox web, a rule-following LM."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
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
from typer.testing import CliRunner

import crag_dspy
from crag_dspy.errors import StateError
from crag_dspy.policy import Policy
from crag_dspy.settings import Settings
from optimize import registry
from optimize.__main__ import Options, cli, optimize
from optimize.compile import Compiled as CompiledProgram
from optimize.dataset import Row, load_rows, sample
from optimize.demo import DATA, index_corpus
from optimize.origin import digest
from optimize.report import Steps

KEY, HEADER = "sk-marked-key-000111222", "Bearer marked-header-333444555"


def questions(size: int) -> dict[str, list[Row]]:
    return {name: sample(load_rows(DATA / f"{name}.jsonl"), size) for name in ("train", "dev", "test")}


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
        from_evidence = fake.rules["answer"]  # the baselines' prompts have passages, and ask whether one is relevant
        fake.rules["answer"] = lambda inputs: from_evidence(inputs) if "evidence" in inputs else "NOT IN EVIDENCE"
        fake.rules["relevant"] = lambda inputs: "yes"
        level = fake.rules["level"]  # readable only after demonstrations, which come beside the layout and the question
        fake.rules["level"] = lambda inputs: level(inputs) if fake.calls[-1].prompt.count("[[ ## passage ## ]]") > 2 else "Hm."
        index_corpus(settings, DATA / "corpus", steps)
        rows = questions(8)
        options = Options(quick=True, baselines=True)
        version = optimize(settings, rows["train"], rows["dev"], TODAY, steps=steps, test=rows["test"][:2], options=options, lm=lm)
        yield Compiled(folder, version, lm, fake, settings)
    os.environ.pop("MARKED_API_KEY")
    os.chdir(before)


def test_a_version_is_registered_with_metrics_prompts_and_a_champion(compiled: Compiled) -> None:
    run = mlflow.get_run(compiled.version.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["before/questions"] == run.data.metrics["after/questions"] == 8
    assert 0 <= run.data.metrics["after/answers_right"] <= 1
    assert run.data.params["lm"] == "openai/fake" and run.data.params["optimizer"] == "few-shot"
    assert registry.champion() in ("1", "2")  # the compiled one, or the uncompiled one that was registered beside it
    linked = mlflow.models.get_model_info(compiled.version.uri).prompts or []
    names = sorted(mlflow.genai.load_prompt(uri).name for uri in linked)
    assert names == ["crag.generate", "crag.grade", "crag.refine", "crag.rewrite"]


def test_the_manifest_says_where_the_version_comes_from(compiled: Compiled) -> None:
    folder = Path(mlflow.artifacts.download_artifacts(f"{compiled.version.uri}/artifacts"))
    manifest = json.loads((folder / "manifest.json").read_text())
    rows = questions(8)
    assert manifest["dev"] == digest(rows["dev"]) != manifest["train"] == digest(rows["train"])
    assert manifest["lm"] == "openai/fake" and manifest["optimizer"] == "few-shot" and manifest["seed"] == 0
    assert manifest["fingerprint"].keys() == {"grade", "rewrite", "refine", "generate"} and manifest["dspy"] == dspy.__version__
    assert Policy.model_validate(manifest["policy"]) and manifest["metrics"]["after/questions"] == 8
    assert manifest["git_commit"] and manifest["decision"] and manifest["run_id"] == compiled.version.run_id


def test_the_report_is_written_and_logged(compiled: Compiled) -> None:
    written = (compiled.folder / "report.html").read_text(encoding="utf-8")
    logged = mlflow.artifacts.load_text(f"runs:/{compiled.version.run_id}/report.html")
    assert written == logged
    for said in ("8 dev questions", "NaiveRAG", "TutorialCRAG", "answers right", "The ten worst answers", compiled.version.run_id):
        assert said in written


def test_baselines_and_test_questions_are_measured_where_asked_for_and_recorded(compiled: Compiled) -> None:
    run = mlflow.get_run(compiled.version.run_id).data
    assert [run.metrics.get(f"{name}/questions") for name in ("before", "after", "NaiveRAG", "TutorialCRAG")] == [8, 8, None, None]
    for name in ("before", "after", "NaiveRAG", "TutorialCRAG"):
        assert run.metrics[f"test/{name}/questions"] == 2
    assert run.tags["test"] == "touched" and run.metrics["gain/objective_low"] <= run.metrics["gain/objective"]
    assert registry.earlier_touches(digest(questions(8)["test"][:2])) == 1


def test_a_worse_candidate_is_registered_but_not_promoted(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It abstains from everything. The champion was measured on these questions before, and is not asked again."""

    def worse(student: Any, *args: Any) -> CompiledProgram:
        program = student.deepcopy()
        program.policy.value = Policy(upper=dict.fromkeys(Policy().upper, 0.0), lower=0.0, answerable=1.0, band=(1.0, 1.0))
        return CompiledProgram(program, {"generate": 0}, ["generate: 0 demonstrations"])

    monkeypatch.setattr(sys.modules["optimize.__main__"], "compile_program", worse)
    champion, rows, options = registry.champion(), questions(8), Options(quick=True, report=Path("worse.html"))
    assert champion
    version = optimize(compiled.settings, rows["train"], rows["dev"], TODAY, steps=Steps(), options=options, lm=compiled.fake.lm())
    assert registry.champion() == champion != version.version
    said = " ".join(capsys.readouterr().out.split())
    assert f"It did not become the champion: it is not better than version {champion}" in said
    assert "On dev: the champion" not in said and "generate: 0 demonstrations" in said
    assert f"not better than version {champion}" in Path("worse.html").read_text(encoding="utf-8")
    run = mlflow.get_run(version.run_id).data
    assert run.tags["test"] == "untouched" and not [name for name in run.metrics if name.startswith("test/")]


def test_a_champion_measured_otherwise_is_asked_again(compiled: Compiled) -> None:
    rows, champion = questions(8)["dev"], registry.champion()
    assert champion
    params = mlflow.get_run(mlflow.MlflowClient().get_model_version("crag", champion).run_id).data.params
    known = registry.measured(champion, params, rows)
    assert known and len(known.objective) == 8 and 0 <= min(known.objective) <= max(known.objective) <= 1
    for key in ("lm", "as_of", "parts", "dev"):
        assert registry.measured(champion, params | {key: "other"}, rows) is None
    assert registry.measured(champion, params, rows[:7]) is None


def test_the_logged_signature_names_its_columns(compiled: Compiled) -> None:
    signature = mlflow.models.get_model_info(compiled.version.uri).signature
    columns = {c.name: c.required for c in signature.inputs.inputs}
    assert columns["question"] and [name for name, required in columns.items() if required] == ["question"] and "as_of" in columns
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
    kept = {name: len(predictor.demos) for name, predictor in crag.program.named_predictors()}
    folder = Path(mlflow.artifacts.download_artifacts(f"{compiled.version.uri}/artifacts"))
    assert kept["grade"] > 0 and kept == json.loads((folder / "manifest.json").read_text())["demonstrations"]


def test_no_artifact_is_a_pickle(compiled: Compiled) -> None:
    assert not [path for path in compiled.folder.rglob("*.pkl")]


def test_an_unknown_version_says_what_to_do(compiled: Compiled) -> None:
    with pytest.raises(StateError, match="python -m optimize"):
        crag_dspy.load("models:/crag/99", settings=compiled.settings, lm=compiled.fake.lm())


def test_another_index_is_refused(compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\nA document of somebody else.")
    with pytest.raises(crag_dspy.CragError, match="CRAG_HOME"):
        index_corpus(compiled.settings, tmp_path, Steps())


@pytest.mark.parametrize("where", ["mlflow.log_metrics", "optimize.registry.signature", "mlflow.register_model"])
def test_an_interrupted_run_leaves_no_version_and_no_prompts(compiled: Compiled, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def everything() -> list[tuple[str, str]]:
        """Every version of the model, and every prompt's."""
        found = [(v.name, str(v.version)) for v in mlflow.search_model_versions()]
        for prompt in mlflow.MlflowClient().search_prompts():
            numbers = range(1, 9)
            uris = [(prompt.name, str(n), f"prompts:/{prompt.name}/{n}") for n in numbers]
            found += [(name, n) for name, n, uri in uris if mlflow.genai.load_prompt(uri, allow_missing=True, cache_ttl_seconds=0)]
        return sorted(found)

    def interrupt(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    program = crag_dspy.load(compiled.version.uri, settings=compiled.settings, lm=compiled.fake.lm()).program
    before = everything()
    assert ("crag.grade", "1") in before
    monkeypatch.setattr(where, interrupt)
    with pytest.raises(KeyboardInterrupt), mlflow.start_run():
        registry.publish(program, compiled.fake.lm(), params={}, metrics={}, manifest={}, tables={})
    monkeypatch.undo()
    assert everything() == before


def test_a_packed_index_is_part_of_the_version_and_searched_for_credentials(compiled: Compiled, tmp_path: Path) -> None:
    program = crag_dspy.load(compiled.version.uri, settings=compiled.settings, lm=compiled.fake.lm()).program
    (tmp_path / "rows.bin").write_bytes(b"vectors")
    with mlflow.start_run():
        packed = registry.publish(program, compiled.fake.lm(), params={}, metrics={}, manifest={}, tables={}, index=tmp_path)
    folder = Path(mlflow.artifacts.download_artifacts(f"{packed.uri}/artifacts"))
    assert [path.read_bytes() for path in folder.rglob("rows.bin")] == [b"vectors"]
    (tmp_path / "rows.bin").write_bytes(KEY.encode())
    with mlflow.start_run(), pytest.raises(crag_dspy.CragError, match=r"stands in rows\.bin"):
        registry.publish(program, compiled.fake.lm(api_key=KEY), params={}, metrics={}, manifest={}, tables={}, index=tmp_path)


def test_an_lm_that_is_down_ends_the_run_at_once(compiled: Compiled) -> None:
    compiled.fake.status, before = 500, len(compiled.fake.calls)
    try:
        rows = questions(8)
        with pytest.raises(crag_dspy.CragError, match="HTTP 500") as caught:
            optimize(compiled.settings, rows["train"], rows["dev"], TODAY, steps=Steps(), lm=compiled.fake.lm(api_key=KEY))
    finally:
        compiled.fake.status = 200
    assert KEY not in str(caught.value) and len(compiled.fake.calls) - before <= 12


def environment(compiled: Compiled) -> dict[str, str]:
    """What a process of its own needs to know, without this repository on its path."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {
        "MLFLOW_TRACKING_URI": f"sqlite:///{compiled.folder}/mlflow.db",
        "CRAG_HOME": str(compiled.folder / ".crag"),
        "CRAG_WEB": "sandbox",
        "CRAG_SANDBOX": str(DATA / "web"),
        "CRAG_LM": "openai/fake",
        "CRAG_LM_API_BASE": compiled.fake.address,
        "OPENAI_API_KEY": KEY,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # MLflow starts uvicorn by name
    }


def test_two_versions_are_compared_each_on_its_own_code(compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second version's code abstains whatever it is asked, unlike this repository's."""
    other = tmp_path / "crag_dspy"
    shutil.copytree(registry.PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "crag.py").open("a") as file:
        file.write(
            "\n\n_predict = Crag.predict\n\n\ndef _other(self, question, **options):\n"
            "    found = _predict(self, question, **options)\n"
            "    found.answer = found.answer.model_copy(update={'status': 'abstained', 'claims': ()})\n"
            "    return found\n\n\nCrag.predict = _other\n"
        )
    program = crag_dspy.load(compiled.version.uri, settings=compiled.settings, lm=compiled.fake.lm()).program
    monkeypatch.setattr(registry, "PACKAGE", other)
    with mlflow.start_run():
        second = registry.publish(program, compiled.fake.lm(), params={}, metrics={}, manifest={}, tables={})
    data = tmp_path / "dev.jsonl"
    data.write_text("\n".join(row.model_dump_json() for row in questions(4)["dev"]))
    command = [sys.executable, "-m", "optimize.evaluate", compiled.version.uri, second.uri, "--data", str(data), "--as-of", "2026-03-02"]
    env = environment(compiled) | {"COLUMNS": "160"}
    done = subprocess.run(command, cwd=DATA.parent, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    table = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in done.stdout.splitlines() if line.count("│") > 3}
    right = [value.strip() for value in table["answers right"]]
    assert right[:2] == ["100%", "25%"] and right[2] == "too few"  # it is right where nobody knows
    assert KEY not in done.stdout + done.stderr


def test_own_questions_are_split_by_the_command_and_mistakes_end_before_anything_is_asked(compiled: Compiled, tmp_path: Path) -> None:
    calls = len(compiled.fake.calls)
    own = tmp_path / "own.jsonl"
    own.write_text('{"question": "Which colour?", "anwser": "red"}\n{"question": "Which size?", "answer": 3}\n')
    for arguments, said in (
        (["--data", str(own)], r"line 1, field 'answer'.*\n.*line 1, field 'anwser'.*did you mean 'answer'\?.*\n.*line 2, field 'answer'"),
        (["--train", str(own)], "Give --train and --dev, or --data"),
        (["--data", str(own), "--train", str(own), "--dev", str(own)], "Give --train and --dev, or --data"),
        (["--quick", "--report", str(tmp_path / "no" / "report.html")], "there is no such folder"),
    ):
        found = CliRunner().invoke(cli, arguments)
        assert isinstance(found.exception, crag_dspy.CragError) and re.search(said, str(found.exception))
    assert len(compiled.fake.calls) == calls


def test_the_served_model_answers_in_any_form_of_the_request(compiled: Compiled, tmp_path: Path) -> None:
    """Serve from an empty folder with nothing but the artifact's own code on the path."""
    logged = mlflow.load_table("after.json", run_ids=[compiled.version.run_id])
    question, text = next((r["question"], r["answer"]) for r in logged.to_dict(orient="records") if r["status"] == "answered")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = environment(compiled) | {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
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
