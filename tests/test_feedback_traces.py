"""Traces in a real MLflow store: whole under load, sampled, in the right place; what people say of them; and training rows from both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import dspy
import mlflow
import pytest
from conftest import TODAY
from fake_lm import FakeLM
from starlette.testclient import TestClient
from typer.testing import CliRunner
from whole_program import FRESH, LASTS, LONGER, NEWS, QUESTION, STALE, Web, build

import crag_dspy
from crag_dspy import app
from crag_dspy.cli import cli
from crag_dspy.errors import CragError, DatasetError, SettingsError
from crag_dspy.experiment import NAME, experiment
from crag_dspy.feedback import FeedbackError, FeedbackUnavailable, UnknownTrace, Verdict, verdict
from crag_dspy.http import create_app
from crag_dspy.settings import Settings
from crag_dspy.state import save_state
from crag_dspy.types import Answer
from crag_dspy.watch import Tracing, questions
from optimize.dataset import Row, load_rows
from optimize.traces import Harvest, harvest, judged
from optimize.traces import cli as from_elsewhere

ROOT = Path(__file__).resolve().parent.parent
NOTHING = Web(find=lambda query: [])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of an MLflow store, which takes seconds to make."""
    address = f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"
    mlflow.MlflowClient(address).search_experiments()
    return address


@pytest.fixture(autouse=True)
def store(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give each test an experiment name of its own in the store; yield the name. Nobody has made it yet."""
    before = mlflow.get_tracking_uri()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    mlflow.set_tracking_uri(database)
    yield tmp_path.name
    mlflow.set_tracking_uri(before)


def written(name: str) -> list[Any]:
    """Return the traces of an experiment, read back from the store."""
    found = mlflow.MlflowClient().get_experiment_by_name(name)
    return list(mlflow.search_traces(locations=[found.experiment_id], return_type="list", flush=True)) if found else []


def ask(fake_lm: FakeLM, question: str = QUESTION, tracing: Tracing = "on", *documents: Any, **options: Any) -> Answer:
    crag = build(fake_lm.lm(), *(documents or (STALE,)), **({"web": Web(NEWS)} | options))
    crag.tracing = tracing
    return crag(question)


def last(trace_id: str | None) -> Verdict | None:
    return verdict(mlflow.get_trace(trace_id or "", flush=True))


def rows() -> Harvest:
    return harvest(judged())


# --- traces


def test_first_questions_at_once_have_a_whole_trace_each(fake_lm: FakeLM, store: str) -> None:
    crag = build(fake_lm.lm(), STALE, web=Web(NEWS))
    crag.tracing = "on"
    together = Barrier(12)

    def ask_at_once(question: str) -> Answer:
        together.wait()
        return crag(question)

    asked = [f"{QUESTION[:-1]} since {2001 + i}?" for i in range(12)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask_at_once, asked))
    traces = {trace.info.trace_id: trace for trace in written(store)}
    assert len(traces) == 12 == len({answer.trace_id for answer in answers})
    for question, answer in zip(asked, answers, strict=True):
        spans = traces[answer.trace_id].data.spans
        [root] = [span for span in spans if span.parent_id is None]
        assert root.inputs == {"question": question} and {span.parent_id for span in spans} == {None, root.span_id}
        assert {"retrieve", "grade", "assess", "rewrite", "search", "refine", "generate", "check"} == {s.name for s in spans} - {"crag"}


def first_set_then_built(store: str) -> str:
    mlflow.set_experiment(f"{store}-mine")
    experiment()
    return f"{store}-mine"


def first_built_then_set(store: str) -> str:
    experiment()
    mlflow.set_experiment(f"{store}-mine")
    return f"{store}-mine"


def built_for_another_store(store: str) -> str:
    here = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{shutil.copy(here.removeprefix('sqlite:///'), 'other.db')}")
    experiment()
    mlflow.set_tracking_uri(here)
    return store


@pytest.mark.parametrize("prepare", [first_set_then_built, first_built_then_set, built_for_another_store, lambda store: store])
def test_a_trace_is_where_it_was_said_whatever_came_first(
    fake_lm: FakeLM, store: str, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[str], str]
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", "")  # restored afterwards: set_experiment() sets it
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    name = prepare(store)
    answer = ask(fake_lm)
    assert [trace.info.trace_id for trace in written(name)] == [answer.trace_id]


def test_the_experiment_is_made_when_the_program_is_built(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "build_parts", lambda settings, today: None)
    monkeypatch.setattr(app, "CRAG", lambda parts: None)
    app.build(Settings(tracing="off"), lm=dspy.LM("openai/none"))
    assert mlflow.get_experiment_by_name(store) is None
    app.build(Settings(tracing="on"), lm=dspy.LM("openai/none"))
    assert mlflow.get_experiment_by_name(store) is not None


def test_without_a_name_it_is_the_programs_own(fake_lm: FakeLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    answer = ask(fake_lm)
    assert answer.trace_id in [trace.info.trace_id for trace in written(NAME)]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MLFLOW_TRACE_SAMPLING_RATIO", "1.5", "MLFLOW_TRACE_SAMPLING_RATIO='1.5'"),
        ("MLFLOW_TRACE_SAMPLING_RATIO", "10%", "from 0 to 1"),
        ("MLFLOW_TRACE_SAMPLING_RATIO", "nan", "from 0 to 1"),
        ("MLFLOW_EXPERIMENT_ID", "987654321", "'987654321'"),
    ],
)
def test_what_cannot_be_traced_is_refused_when_built_and_answered_when_asked(
    fake_lm: FakeLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=says):
        app.build(Settings(tracing="on"), lm=dspy.LM("openai/none"))
    answer = ask(fake_lm)
    assert answer.status == "answered" and answer.trace_id is None and "not traced" in caplog.text


def test_a_deleted_experiment_is_refused(store: str) -> None:
    mlflow.MlflowClient().delete_experiment(mlflow.MlflowClient().create_experiment(store))
    with pytest.raises(SettingsError, match="was deleted"):
        experiment()


@pytest.mark.parametrize(("share", "fewest", "most"), [("0", 0, 0), ("0.5", 2, 18), ("1", 20, 20)])
def test_mlflows_sampling_takes_whole_questions(
    fake_lm: FakeLM, store: str, monkeypatch: pytest.MonkeyPatch, share: str, fewest: int, most: int
) -> None:
    monkeypatch.setenv("MLFLOW_TRACE_SAMPLING_RATIO", share)
    mlflow.tracing.reset()  # as in a new process
    crag = build(fake_lm.lm(), FRESH)
    crag.tracing = "on"
    with mlflow.start_span("theirs", trace_destination=mlflow.entities.MlflowExperimentLocation(experiment())) as theirs:
        inside = crag(QUESTION)
    answers = [crag(QUESTION) for _ in range(20)]
    traces = {trace.info.trace_id: [span.name for span in trace.data.spans] for trace in written(store)}
    sampled = {answer.trace_id for answer in answers if answer.trace_id}
    assert fewest <= len(sampled) <= most
    if inside.trace_id:
        assert inside.trace_id == theirs.trace_id and traces.pop(inside.trace_id)[:2] == ["theirs", "crag"]
    assert set(traces) == sampled
    assert all(names.count("crag") == 1 and "check" in names for names in traces.values())
    monkeypatch.undo()
    mlflow.tracing.reset()


def test_the_root_says_which_versions_answered_and_what_was_tried(fake_lm: FakeLM, store: str) -> None:
    crag = build(fake_lm.lm(), STALE, web=Web({"http://news.example/": ("The Corvane is nice.", TODAY)}))
    crag.tracing, crag.version = "on", "run 123"
    fake_lm.raw = lambda field, reply: reply if field == "level" else f"[[ ## {field} ## ]]\n{reply}\n\n[[ ## completed ## ]]"
    answer = crag(QUESTION, as_of=date(2026, 3, 1))
    [trace] = written(store)
    [span] = questions(trace)
    said = span.attributes
    assert (said["lm"], said["version"], said["as_of"]) == ("openai/fake", "run 123", "2026-03-01")
    assert set(said["prompts"]) == {"grade", "rewrite", "refine", "generate"} and said["parse_failures"] >= 1
    assert [search["query"] for search in said["searches"]] == list(answer.web_queries) and len(answer.web_queries) == 2
    assert {search["because"] for search in said["searches"]} <= {"stale", "unsupported"}
    assert said["stop_reason"] == answer.stop_reason and said["action"] == answer.action

    other = build(fake_lm.lm(), STALE)
    other.program.generate.demos = [dspy.Example(question="a", evidence="b", answer="c").with_inputs("question", "evidence")]
    assert other.prompts["generate"] != said["prompts"]["generate"] and other.prompts["grade"] == said["prompts"]["grade"]


def test_a_loaded_version_is_named_by_its_run_not_by_an_alias_that_moves(
    fake_lm: FakeLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_state(build(fake_lm.lm()).program, tmp_path / "program.json")
    (tmp_path / "manifest.json").write_text('{"run_id": "77"}')
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", lambda uri: str(tmp_path))
    monkeypatch.setattr(crag_dspy, "build", lambda settings, lm: build(lm))
    assert crag_dspy.load("models:/crag@champion", lm=fake_lm.lm()).version == "run 77"


# --- feedback


def test_a_later_word_overrides_and_all_are_kept(fake_lm: FakeLM) -> None:
    trace_id = ask(fake_lm).trace_id
    assert trace_id and last(trace_id) is None
    crag_dspy.feedback(trace_id, thumbs="up", by="ann")
    assert (said := last(trace_id)) and said.right and said.answer is None
    crag_dspy.feedback(trace_id, answer="30 months", sources=["a.md", "https://x.example/p?token=marked-777"], by="bo")
    assert (said := last(trace_id)) and (said.right, said.answer, said.sources) == (False, "30 months", ("a.md", "https://x.example/p"))
    crag_dspy.feedback(trace_id, answer="31 months", by="cy")
    assert (said := last(trace_id)) and (said.answer, said.sources) == ("31 months", ())
    crag_dspy.feedback(trace_id, thumbs="down")  # takes nothing back
    assert (said := last(trace_id)) and said.answer == "31 months"
    crag_dspy.feedback(trace_id, thumbs="up", sources=["b.md"])
    assert (said := last(trace_id)) and (said.right, said.answer, said.sources) == (True, None, ("b.md",))
    trace = mlflow.get_trace(trace_id)
    assert len(trace.info.assessments) == 7 and sum(bool(a.valid) for a in trace.info.assessments) == 2
    assert {a.source.source_id for a in trace.info.assessments} == {"ann", "bo", "cy", "default"}
    assert "marked-777" not in json.dumps(trace.to_dict())


def test_what_is_said_in_mlflows_own_pages_counts_and_what_a_judge_says_does_not(fake_lm: FakeLM) -> None:
    trace_id = ask(fake_lm).trace_id or ""
    mlflow.flush_trace_async_logging()
    judge = mlflow.entities.AssessmentSource(source_type="LLM_JUDGE", source_id="gpt")
    mlflow.log_feedback(trace_id=trace_id, name="thumbs_up", value=True, source=judge)
    mlflow.log_feedback(trace_id=trace_id, name="thumbs_up", value="rather", source=mlflow.entities.AssessmentSource("HUMAN", "ann"))
    assert last(trace_id) is None
    mlflow.log_expectation(trace_id=trace_id, name="expected_response", value="31 months")
    assert (said := last(trace_id)) and said.answer == "31 months"


LONE = "\ud800"


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ({"trace_id": "tr-0123456789abcdef0123456789abcdef", "thumbs": "up"}, UnknownTrace, "no answer of trace 'tr-0123"),
        ({"trace_id": "../experiments", "thumbs": "up"}, UnknownTrace, "no answer"),
        ({"trace_id": "", "thumbs": "up"}, UnknownTrace, "no answer"),
        ({"trace_id": "tr-1"}, FeedbackError, "thumbs up or down"),
        ({"trace_id": "tr-1", "thumbs": "sideways"}, FeedbackError, "'up' or 'down'"),
        ({"trace_id": "tr-1", "thumbs": "up", "answer": "x"}, FeedbackError, "contradict"),
        ({"trace_id": "tr-1", "answer": "  "}, FeedbackError, "answer"),
        ({"trace_id": "tr-1", "answer": "x" * 4001}, FeedbackError, "4000"),
        ({"trace_id": "tr-1", "answer": LONE}, FeedbackError, "unicode"),
        ({"trace_id": "tr-1", "answer": "x", "sources": ["a"] * 21}, FeedbackError, "20"),
        ({"trace_id": "tr-1", "answer": "x", "sources": "abc"}, FeedbackError, "sources"),
        ({"trace_id": "tr-1", "thumbs": "down", "sources": ["a.md"]}, FeedbackError, "sources belong"),
    ],
)
def test_feedback_that_does_not_fit_is_refused_by_name(said: dict[str, Any], error: type[CragError], says: str) -> None:
    with pytest.raises(error, match=says):
        crag_dspy.feedback(**said)


def test_a_trace_of_another_program_takes_no_feedback() -> None:
    with mlflow.start_span("other") as span:
        pass
    with pytest.raises(UnknownTrace):
        crag_dspy.feedback(span.trace_id, thumbs="up")


def test_asking_for_a_trace_where_no_store_is_makes_none(tmp_path: Path) -> None:
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    with pytest.raises(UnknownTrace):
        crag_dspy.feedback("tr-0123", thumbs="up")
    with pytest.raises(DatasetError, match=r"mlflow\.db"):
        list(judged())
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_fails_is_told_apart_and_its_words_stay_out(fake_lm: FakeLM, monkeypatch: pytest.MonkeyPatch) -> None:
    trace_id = ask(fake_lm).trace_id or ""

    def broken(*args: Any) -> Any:
        raise mlflow.MlflowException("postgresql://crag:marked-888@db refused")

    monkeypatch.setattr(mlflow.MlflowClient, "get_trace", broken)
    with pytest.raises(FeedbackUnavailable) as failed:
        crag_dspy.feedback(trace_id, thumbs="up")
    assert "marked-888" not in str(failed.value) and "MLFLOW_TRACKING_URI" in str(failed.value)


def test_a_redacted_trace_keeps_no_corrected_answer(fake_lm: FakeLM) -> None:
    trace_id = ask(fake_lm, QUESTION, "redacted").trace_id or ""
    with pytest.raises(FeedbackError, match="redacted"):
        crag_dspy.feedback(trace_id, answer="31 months, says zanzibar")
    crag_dspy.feedback(trace_id, thumbs="down")
    assert (said := last(trace_id)) and not said.right
    shown = json.dumps(mlflow.get_trace(trace_id).to_dict()).lower()
    assert "zanzibar" not in shown and "corvane" not in shown


def test_over_http(fake_lm: FakeLM) -> None:
    crag = build(fake_lm.lm(), STALE, web=Web(NEWS))
    crag.tracing = "on"
    client = TestClient(create_app(crag, 2), raise_server_exceptions=False)
    trace_id = client.post("/ask", json={"question": QUESTION}).json()["trace_id"]
    kept = client.post("/feedback", json={"trace_id": trace_id, "answer": "31 months", "sources": ["a.md"], "by": "ann"})
    assert (kept.status_code, kept.json()["trace_id"]) == (200, trace_id)
    assert (said := last(trace_id)) and (said.answer, said.sources) == ("31 months", ("a.md",))
    for body, status, code in (
        (b'{"trace_id": "tr-00", "thumbs": "up"}', 404, "unknown_trace"),
        (json.dumps({"trace_id": trace_id, "thumbs": "yes"}).encode(), 400, "invalid_feedback"),
        (json.dumps({"trace_id": trace_id, "thumbs": "up", "admin": True}).encode(), 400, "invalid_feedback"),
        (b"not json", 400, "invalid_request"),
        (b"[1]", 400, "invalid_request"),
        (b'{"trace_id": "' + b"x" * 100_001 + b'"}', 400, "invalid_request"),
    ):
        refused = client.post("/feedback", content=body)
        assert (refused.status_code, refused.json()["code"]) == (status, code), body[:60]
        assert set(refused.json()) == {"status", "code", "message"} and "Traceback" not in refused.text
    assert client.get("/feedback").status_code == 405


def test_on_the_command_line_then_into_training_rows(fake_lm: FakeLM, database: str, tmp_path: Path) -> None:
    trace_id = ask(fake_lm).trace_id or ""

    def say(*words: str) -> Any:
        return CliRunner().invoke(cli, ["feedback", *words])

    assert isinstance(say("tr-00", "--up").exception, UnknownTrace) and isinstance(say(trace_id).exception, FeedbackError)
    assert say(trace_id, "--down", "--by", "ann").exit_code == 0 and (said := last(trace_id)) and not said.right
    kept = say(trace_id, "--answer", "31 months", "--source", "a.md", "--source", "http://n.example/")
    assert kept.exit_code == 0 and trace_id in kept.stdout

    def export() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "optimize.dataset", "from-traces", "out.jsonl", "--since", "2020-01-01"]
        env = os.environ | {"PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": database}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    done = export()
    assert done.returncode == 0 and "1 questions written" in done.stdout and TODAY.isoformat() in done.stdout, done.stderr
    [row] = load_rows(tmp_path / "out.jsonl", warn=pytest.fail)
    assert row == Row(id=trace_id, question=QUESTION, answer="31 months", gold_docs=("a.md",), gold_urls=("http://n.example/",))
    again = export()
    assert again.returncode == 1 and "exists already" in again.stderr and "Traceback" not in again.stderr


def test_without_a_judged_answer_nothing_is_written(fake_lm: FakeLM, tmp_path: Path) -> None:
    crag_dspy.feedback(ask(fake_lm).trace_id or "", thumbs="down")
    done = CliRunner().invoke(from_elsewhere, ["from-traces", "out.jsonl"])
    assert isinstance(done.exception, DatasetError) and "1 thumbs down" in done.stdout and not Path("out.jsonl").exists()


# --- training rows


def test_each_kind_of_verdict_gives_its_row_or_its_reason(fake_lm: FakeLM, store: str, tmp_path: Path) -> None:
    buoy = "What does the Tidewarden buoy weigh?"
    corrected = ask(fake_lm)
    confirmed = ask(fake_lm, "How long does the Corvane warranty last for, in months?")
    unknown, wrongly_unknown = ask(fake_lm, buoy, web=NOTHING), ask(fake_lm, f"{buoy[:-1]} in kilograms?", web=NOTHING)
    wrong, hidden, unjudged = ask(fake_lm, "How long is it?"), ask(fake_lm, QUESTION, "redacted"), ask(fake_lm, "Is the warranty long?")
    assert unknown.status == "abstained" and confirmed.conflicts and unjudged.trace_id
    crag_dspy.feedback(corrected.trace_id or "", answer="33 months [1]")
    crag_dspy.feedback(confirmed.trace_id or "", thumbs="up")
    crag_dspy.feedback(unknown.trace_id or "", thumbs="up")
    crag_dspy.feedback(wrongly_unknown.trace_id or "", answer="12 kg", sources=["buoy.md"])
    crag_dspy.feedback(wrong.trace_id or "", thumbs="down")
    crag_dspy.feedback(hidden.trace_id or "", thumbs="up")
    found = rows()
    assert (
        found.rows
        == [
            Row(id=corrected.trace_id, question=QUESTION, answer="33 months"),
            Row(
                id=confirmed.trace_id,
                question="How long does the Corvane warranty last for, in months?",
                answer=LONGER,  # without its markers, and without what is said about the older source
                gold_docs=("warranty.md",),
                gold_urls=("http://news.example/",),
            ),
            Row(id=unknown.trace_id, question=buoy, answer="", need="none"),
            Row(id=wrongly_unknown.trace_id, question=f"{buoy[:-1]} in kilograms?", answer="12 kg", gold_docs=("buoy.md",)),
        ]
    )
    assert sum(found.left_out.values()) == 2 and "redacted" in " ".join(found.left_out) and "thumbs down" in " ".join(found.left_out)
    assert set(found.days) == {TODAY.isoformat()}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{row.model_dump_json(exclude_defaults=True)}\n" for row in found.rows), encoding="utf-8")
    assert load_rows(path, warn=pytest.fail) == found.rows and not load_rows(path)[2].answerable


def test_of_a_question_asked_twice_what_was_said_last_counts(fake_lm: FakeLM) -> None:
    first, second = ask(fake_lm), ask(fake_lm, QUESTION.upper())
    crag_dspy.feedback(second.trace_id or "", answer="32 months")
    crag_dspy.feedback(first.trace_id or "", answer="34 months")
    found = rows()
    assert [(row.id, row.answer) for row in found.rows] == [(first.trace_id, "34 months")] and sum(found.left_out.values()) == 1


def test_questions_before_a_day_are_left_alone(fake_lm: FakeLM) -> None:
    crag_dspy.feedback(ask(fake_lm).trace_id or "", thumbs="up")
    assert len(list(judged(datetime.now() - timedelta(days=2)))) == 1
    assert list(judged(datetime.now() + timedelta(days=2))) == []


def test_a_trace_of_several_questions_is_left_out(fake_lm: FakeLM) -> None:
    with mlflow.start_span("theirs", trace_destination=mlflow.entities.MlflowExperimentLocation(experiment())):
        ask(fake_lm)
        trace_id = ask(fake_lm, f"{LASTS} Really?").trace_id
    crag_dspy.feedback(trace_id or "", thumbs="up")
    found = rows()
    assert found.rows == [] and "several questions" in " ".join(found.left_out)
