"""A trace per question on a real MLflow store: what it shows, what `redacted` keeps out, and no secret in any mode."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import dspy
import mlflow
import pytest
from conftest import TODAY, WordScorer
from fake_lm import FakeLM
from whole_program import LONGER, NEWS, POLICY, QUESTION, STALE, Shelf, Web

from crag_dspy.crag import Crag
from crag_dspy.errors import QuestionError
from crag_dspy.parts import Parts
from crag_dspy.program import CRAG
from crag_dspy.types import Document
from crag_dspy.watch import Event, Tracing, listening, stage

KEY, HEADER, TOKEN = "sk-marked-key-000111", "marked-header-222333", "marked-token-444555"
NEWS_URL = f"http://news.example/a?access={TOKEN}"
STAGES = ["retrieve", "grade", "assess", "rewrite", "search", "grade", "refine", "generate", "check"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the experiment's id in an MLflow store on SQLite."""
    folder = tmp_path_factory.mktemp("mlflow")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    yield mlflow.create_experiment("watch", artifact_location=str(folder / "artifacts"))
    mlflow.set_tracking_uri(before)


@pytest.fixture(autouse=True)
def experiment(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    mlflow.set_experiment(experiment_id=store)
    for trace in found(store):
        mlflow.MlflowClient().delete_traces(store, trace_ids=[trace.info.trace_id])
    return store


def found(experiment: str) -> list[Any]:
    mlflow.flush_trace_async_logging()
    return list(mlflow.search_traces(locations=[experiment], return_type="list", max_results=100))


def crag(fake_lm: FakeLM, tracing: Tracing, *documents: Document, web: Web | None = None) -> Crag:
    lm = fake_lm.lm(api_key=KEY, extra_headers={"X-Secret": HEADER})
    web = web or Web({NEWS_URL: NEWS["http://news.example/"]})
    parts = Parts(index=Shelf(*documents), cross_encoder=WordScorer(), search=web, fetch=web.fetch, today=lambda: TODAY)  # type: ignore[arg-type]
    return Crag(CRAG(parts, POLICY), lm, tracing=tracing, version="7")


def test_a_trace_shows_how_the_answer_came_about(fake_lm: FakeLM, experiment: str) -> None:
    answer = crag(fake_lm, "on", STALE)(QUESTION)
    [trace] = found(experiment)
    assert trace.info.trace_id == answer.trace_id
    spans = {span.name: span for span in trace.data.spans}
    [root] = [span for span in trace.data.spans if span.parent_id is None]
    assert root.name == "crag" and root.inputs == {"question": QUESTION}
    assert root.outputs["answer"] == answer.text and root.outputs["status"] == "answered"
    assert [span.name for span in trace.data.spans if span.parent_id == root.span_id and span.name != "refine"] == [
        name for name in STAGES if name != "refine"
    ]
    assert all(span.parent_id in (None, root.span_id) for span in trace.data.spans)
    [document] = spans["retrieve"].outputs
    assert spans["retrieve"].span_type == "RETRIEVER" and document["page_content"] == STALE.text
    assert document["metadata"]["doc_uri"] == "warranty.md" and document["metadata"]["published_at"] == STALE.published_at.isoformat()  # type: ignore[union-attr]
    assert [d["page_content"] for d in spans["search"].outputs] == [f"# Page news\n\n{LONGER}"]
    graded = [span.outputs[0] for span in trace.data.spans if span.name == "grade"]
    assert "LM level 3.0 of 3" in graded[0]["why"] and "400 days old" in graded[0]["why"] and graded[0]["stale"] is True
    assert graded[0]["relevance"] < graded[0]["before_freshness"] and graded[1]["doc_uri"].startswith("http://news.example/")
    assert spans["rewrite"].outputs[0]["query"] == answer.web_query and spans["assess"].outputs["action"] == "ambiguous"
    assert spans["generate"].outputs[0]["answer"] and spans["check"].outputs["claims"][0]["text"]
    assert trace.info.tags["action"] == "ambiguous" and trace.info.tags["status"] == "answered"
    assert root.attributes["version"] == "7" and root.attributes["usage"]["lm_calls"] == answer.usage.lm_calls
    assert all(span.attributes["note"] for span in trace.data.spans if span is not root)


SECRET_TEXT = "The Corvane warranty lasts 26 months, says zanzibar."


def test_redacted_keeps_every_text_out(fake_lm: FakeLM, experiment: str) -> None:
    document = Document(
        id="a1.md", title="Quagmire", text=f"# Ostrich\n\n{SECRET_TEXT} It is made by the Wombat company.", published_at=STALE.published_at
    )
    fake_lm.rules["level"] = lambda inputs: "2"
    web = Web({"http://news.example/": ("The Corvane warranty lasts 31 months, says Tangerine.", TODAY - timedelta(days=2))})
    answer = crag(fake_lm, "redacted", document, web=web)(QUESTION)
    assert {"zanzibar", "Tangerine"} & set(answer.text.replace(",", " ").replace(".", " ").split())
    [trace] = found(experiment)
    shown = json.dumps(trace.to_dict()).lower()
    for word in ("corvane", "warranty", "months", "zanzibar", "quagmire", "ostrich", "wombat", "tangerine", "page news"):
        assert word not in shown, word
    assert "a1.md" in shown and "ambiguous" in shown and str(len(QUESTION)) in shown  # ids, decisions and lengths stay
    assert len(trace.data.spans) == 1 + len(STAGES) + 1


@pytest.mark.parametrize("mode", ["on", "redacted"])
def test_no_secret_is_in_a_trace(fake_lm: FakeLM, experiment: str, mode: Tracing) -> None:
    traced = crag(fake_lm, mode, STALE)
    traced(QUESTION)
    fake_lm.status = 500  # the refusal echoes the key
    with pytest.raises(dspy.LMError):
        traced(QUESTION)
    with pytest.raises(QuestionError):
        traced("zanzibar " * 1000)
    traces = found(experiment)
    shown = json.dumps([trace.to_dict() for trace in traces])
    assert fake_lm.calls[0].headers["authorization"] == f"Bearer {KEY}" and fake_lm.calls[0].headers["x-secret"] == HEADER
    for secret in (KEY, HEADER, TOKEN):
        assert secret not in shown
    assert sorted(str(trace.info.state) for trace in traces) == ["ERROR", "ERROR", "OK"]
    assert '\\"QuestionError\\"' in shown or '"QuestionError"' in shown  # what kind of error it was
    assert mode == "on" or "zanzibar" not in shown


def test_grades_that_say_nothing_crash_neither_log_nor_trace(fake_lm: FakeLM, experiment: str, caplog: pytest.LogCaptureFixture) -> None:
    fake_lm.rules["level"] = lambda inputs: ""
    with caplog.at_level(logging.DEBUG):
        answer = crag(fake_lm, "on", STALE, web=Web(find=lambda query: []))(QUESTION)
    [trace] = found(experiment)
    [graded] = [span.outputs for span in trace.data.spans if span.name == "grade" and span.outputs]
    assert [g["verdict"] for g in graded] == ["ambiguous"] and "unreadable" in graded[0]["why"] and answer.usage.searches == 1


def test_off_writes_nothing(fake_lm: FakeLM, experiment: str, tmp_path: Path) -> None:
    answer = crag(fake_lm, "off", STALE)(QUESTION)
    assert answer.trace_id is None and found(experiment) == [] and list(tmp_path.iterdir()) == []


def test_parallel_questions_have_a_whole_trace_each(fake_lm: FakeLM, experiment: str) -> None:
    traced = crag(fake_lm, "on", STALE)
    questions = [f"{QUESTION[:-1]} since {2001 + i}?" for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(traced, questions))
    traces = {trace.info.trace_id: trace for trace in found(experiment)}
    assert len(traces) == 8 == len({answer.trace_id for answer in answers})
    for question, answer in zip(questions, answers, strict=True):
        spans = traces[answer.trace_id].data.spans
        assert [span.inputs["question"] for span in spans if span.parent_id is None] == [question]
        assert {span.name for span in spans} == {"crag", *STAGES}
        assert {span.parent_id for span in spans} == {None, spans[0].span_id}


class Machine:
    @stage("assess", lambda machine, result: (f"gave {result}", {"text": result}))
    def work(self, fail: bool = False) -> str:
        if fail:
            raise ValueError("broken")
        return "well"


def test_a_listener_hears_what_runs_inside_and_nothing_else() -> None:
    heard: list[Event] = []
    Machine().work()
    with listening(heard.append):
        assert Machine().work() == "well"
        with pytest.raises(ValueError, match="broken"):
            Machine().work(fail=True)
        other = threading.Thread(target=Machine().work)
        other.start()
        other.join()
    Machine().work()
    assert heard == [Event(stage="assess", note="gave well")]
