"""The served model as its callers see it: MLflow's own scoring app on a logged model, and the service of our own."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import mlflow
import numpy as np
import pandas as pd
import pytest
from conftest import TODAY, WordScorer
from fake_lm import FakeLM, fake_lm_server
from served_model import DAY, KEY, QUESTIONS, Home, make_home, save
from starlette.testclient import TestClient
from whole_program import FRESH, LASTS, POLICY, QUESTION, STALE, Shelf, Web

from crag_dspy import packed
from crag_dspy.crag import Crag
from crag_dspy.domains import Domains
from crag_dspy.errors import IndexUnusable, SourceFailure
from crag_dspy.fetch import Fetcher
from crag_dspy.http import create_app
from crag_dspy.index import Index
from crag_dspy.parts import Parts
from crag_dspy.program import CRAG
from crag_dspy.ready import Readiness
from crag_dspy.settings import Settings
from crag_dspy.signature import signature

TEXT = LASTS.replace(".", " [1].")
SECRET = "PATIENT-4711"  # stands in questions; no error may repeat it


class Served:
    """A loaded version that answers from fakes, behind MLflow's scoring app."""

    def __init__(self, loaded: Any, fake: FakeLM) -> None:
        from mlflow.pyfunc import scoring_server

        self.model, self.fake, self.loaded = loaded.unwrap_python_model(), fake, loaded
        self.client = TestClient(scoring_server.init(loaded), raise_server_exceptions=False)

    def use(self, **parts: Any) -> Crag:
        settings = Settings(serve_workers=parts.pop("serve_workers", 8), serve_max_rows=parts.pop("serve_max_rows", 256))
        given: dict[str, Any] = {"index": Shelf(FRESH), "cross_encoder": WordScorer(), "today": lambda: TODAY}
        crag = Crag(CRAG(Parts(**(given | parts)), POLICY), self.fake.lm(api_key=KEY))
        self.model.start(crag, settings)
        return crag

    def rows(self, *rows: Any, **more: Any) -> httpx.Response:
        return self.client.post("/invocations", json={"dataframe_records": list(rows), **more})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with fake_lm_server() as fake:
        yield make_home(tmp_path_factory.mktemp("home"), fake)


@pytest.fixture(scope="module")
def loaded(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a model that carries its index, loaded where there is no other."""
    folder = save(home, index=packed.pack(home.settings.home / "chroma", home.folder / "index"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.env().items():
            patch.setenv(name, value)
        patch.setenv("CRAG_HOME", str(tmp_path_factory.mktemp("empty")))
        yield mlflow.pyfunc.load_model(str(folder))


@pytest.fixture
def served(loaded: Any, fake_lm: FakeLM, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT", "true")  # as the scoring app sets it, for good
    server = Served(loaded, fake_lm)
    server.use()
    return server


def test_a_version_carries_its_index_and_stays_as_it_was(loaded: Any, home: Home) -> None:
    artifact = home.folder / "model" / "artifacts" / "index"
    before = {path.name: path.read_bytes() for path in artifact.rglob("*") if path.is_file()}
    found = loaded.predict(pd.DataFrame({"question": QUESTIONS[:1], "as_of": [DAY]}))
    assert found[0]["text"] == "The warranty of the Corvane hygrometer lasts 12 months [1]."
    assert before and {path.name: path.read_bytes() for path in artifact.rglob("*") if path.is_file()} == before


def test_an_index_on_a_server_cannot_be_packed(tmp_path: Path) -> None:
    with pytest.raises(IndexUnusable, match="CRAG_PACK_INDEX"):
        packed.pack(None, tmp_path / "index")


def test_an_index_whose_write_was_cut_short_is_not_packed(word_index: Index, tmp_path: Path) -> None:
    assert word_index.folder
    (word_index.folder / "crag.writing").touch()
    with pytest.raises(IndexUnusable, match="crag ingest"):
        packed.pack(word_index.folder, tmp_path / "index")


def test_the_signature_names_every_column_and_parameter() -> None:
    told = signature()
    columns = {column.name: column.required for column in told.inputs.inputs}
    assert [name for name, required in columns.items() if required] == ["question"]
    assert {param.name for param in told.params.params} == set(columns) - {"question"}
    assert {"as_of", "allow_domains", "deny_domains", "language", "max_seconds", "max_searches", "max_lm_calls"} < set(columns)
    assert {"text", "status", "claims", "usage", "error"} < {column.name for column in told.outputs.inputs}


@pytest.mark.parametrize("question", [QUESTION, "007", "2024-01-02", "東京のCorvaneは?"])
def test_every_form_of_the_request_gives_the_same_answer(served: Served, question: str) -> None:
    row = {"question": question, "as_of": DAY}
    bodies: list[dict[str, Any]] = [
        {"dataframe_records": [row]},
        {"dataframe_split": {"columns": list(row), "data": [list(row.values())]}},
        {"inputs": [row]},
        {"inputs": {name: [value] for name, value in row.items()}},
        {"instances": [row]},
    ]
    replies = [served.client.post("/invocations", json=body) for body in bodies]
    assert [reply.status_code for reply in replies] == [200] * len(bodies)
    found = [reply.json()["predictions"][0] for reply in replies]
    assert {answer["question"] for answer in found} == {question} and len({answer["text"] for answer in found}) == 1
    assert all(answer["error"] is None for answer in found)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"question": ""}, "invalid_request", "question is empty"),
    ({"question": " \n\t "}, "invalid_request", "question is empty"),
    ({"question": None}, "invalid_request", "question is empty"),
    ({"question": 3}, "invalid_request", "no text"),
    ({"question": True}, "invalid_request", "no text"),
    ({"question": [SECRET]}, "invalid_request", "no text"),
    ({"question": {"text": SECRET}}, "invalid_request", "no text"),
    ({"question": SECRET * 400}, "question", "at most 4,000"),
    ({"question": SECRET, "as_of": "yesterday"}, "invalid_request", "as_of='yesterday'"),
    ({"question": SECRET, "as_of": "2026-02-30"}, "invalid_request", "as_of='2026-02-30'"),
    ({"question": SECRET, "as_of": 20260302}, "invalid_request", "as_of=20260302"),
    ({"question": SECRET, "max_seconds": 0}, "invalid_request", "max_seconds"),
    ({"question": SECRET, "max_seconds": -1}, "invalid_request", "max_seconds"),
    ({"question": SECRET, "max_seconds": "soon"}, "invalid_request", "max_seconds='soon' is no number"),
    ({"question": SECRET, "max_seconds": 1e9}, "invalid_request", "this server allows"),
    ({"question": SECRET, "max_seconds": float("inf")}, "invalid_request", "this server allows"),
    ({"question": SECRET, "max_searches": 1.5}, "invalid_request", "max_searches"),
    ({"question": SECRET, "max_searches": -1}, "invalid_request", "max_searches"),
    ({"question": SECRET, "max_lm_calls": 25}, "invalid_request", "more than the 24"),
    ({"question": SECRET, "max_pages": True}, "invalid_request", "max_pages=True is no number"),
    ({"question": SECRET, "max_usd": -0.1}, "invalid_request", "max_usd"),
    ({"question": SECRET, "allow_domains": "not a domain"}, "invalid_request", "domains"),
    ({"question": SECRET, "deny_domains": ["gov.uk"]}, "invalid_request", "separated by commas"),
    ({"question": SECRET, "language": "german!"}, "invalid_request", "language='german!'"),
    ({"question": SECRET, "language": "de-AT"}, "invalid_request", "answers are in English"),
]


@pytest.mark.parametrize(("row", "code", "words"), BAD, ids=lambda value: str(value)[:60])
def test_a_bad_question_alone_gets_its_status_and_beside_others_its_item(
    served: Served, row: dict[str, Any], code: str, words: str
) -> None:
    body = json.dumps({"dataframe_records": [row]})  # as JSON writes Infinity and lone surrogates
    alone = served.client.post("/invocations", content=body, headers={"Content-Type": "application/json"})
    assert alone.status_code == 400, alone.text
    told = alone.json()
    assert (told["status"], told["code"]) == (400, code) and words in told["message"]
    assert SECRET not in alone.text and "Traceback" not in alone.text and "stack_trace" not in alone.text
    assert not served.fake.calls

    good = {"question": QUESTION}
    body = json.dumps({"dataframe_records": [good, row, good]})
    reply = served.client.post("/invocations", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 200, reply.text
    first, bad, last = reply.json()["predictions"]
    assert first["text"] == last["text"] == TEXT
    assert bad["status"] == "error" and bad["error"]["code"] == code and words in bad["error"]["message"]
    assert bad["text"] == "" and set(bad) == set(first) and len(bad["question"]) <= 200


@pytest.mark.parametrize("form", ["inputs", "dict"])
def test_what_some_rows_leave_out_is_not_said_in_them(served: Served, form: str) -> None:
    """MLflow casts columns of text here: null would arrive as the text "None" or "nan"."""
    rows: list[dict[str, Any]] = [
        {"question": QUESTION, "as_of": DAY, "max_searches": 1},
        {"question": QUESTION, "as_of": None, "max_searches": None},
        {"question": None, "as_of": DAY, "max_searches": 1},
    ]
    body = {"inputs": rows if form == "inputs" else {name: [row[name] for row in rows] for name in rows[0]}}
    found = served.client.post("/invocations", json=body).json()["predictions"]
    assert [one["status"] for one in found] == ["answered", "answered", "error"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (json.dumps({"messages": [{"role": "user", "content": "hi"}]}), "application/json", 400),
        (json.dumps({"dataframe_records": [{"Question": "hi"}]}), "application/json", 400),
        (json.dumps([{"question": "hi"}]), "application/json", 400),
        (json.dumps({"dataframe_records": [{"question": "\ud800"}]}), "application/json", 400),
        ("{bad", "application/json", 400),
        ("", "application/json", 400),
        ("question", "text/plain", 415),
    ],
)
def test_no_request_at_all_is_refused(served: Served, content: str, kind: str, status: int) -> None:
    reply = served.client.post("/invocations", content=content, headers={"Content-Type": kind})
    assert reply.status_code == status and "Traceback" not in reply.text and not served.fake.calls


@pytest.mark.parametrize("n", [0, 1, 3, 100])
def test_as_many_answers_as_questions_in_order(served: Served, n: int) -> None:
    rows = {"question": [f"{QUESTION} ({i})" for i in range(n)], "as_of": [DAY] * n}
    found = served.client.post("/invocations", json={"inputs": rows}).json()["predictions"]
    assert [one["question"] for one in found] == rows["question"]


def test_too_many_rows_are_refused_only_over_http(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.use(serve_max_rows=2)
    reply = served.rows(*[{"question": SECRET}] * 3)
    assert reply.status_code == 400 and "3 rows in one request; at most 2" in reply.json()["message"] and SECRET not in reply.text
    monkeypatch.delenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT")
    assert len(served.loaded.predict(pd.DataFrame({"question": [QUESTION] * 3}))) == 3


def test_outside_http_one_bad_row_is_an_item_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT")
    (bad,) = served.loaded.predict(pd.DataFrame({"question": [""]}))
    (good,) = served.loaded.predict(pd.DataFrame({"question": [QUESTION]}))
    assert bad["status"] == "error" and bad["error"]["code"] == "invalid_request"
    assert good["error"] == {"code": None, "message": None}  # a struct, for Spark


@pytest.mark.parametrize(
    ("lm", "status", "code"), [(429, 429, "lm_rate_limit"), (500, 503, "lm_unavailable"), (401, 503, "lm_unavailable")]
)
def test_an_lm_that_refuses(served: Served, caplog: pytest.LogCaptureFixture, lm: int, status: int, code: str) -> None:
    served.fake.status = lm
    reply = served.rows({"question": QUESTION})
    assert reply.status_code == status and reply.json()["code"] == code
    batch = served.rows({"question": QUESTION}, {"question": ""}).json()["predictions"]
    assert [one["error"]["code"] for one in batch] == [code, "invalid_request"]
    for told in (reply.text, json.dumps(batch), caplog.text):
        assert KEY not in told and "Corvane warranty lasts" not in told
    assert "LM" in caplog.text  # the log says what it was


def test_what_nobody_thought_of_is_a_500_and_the_next_question_is_answered(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(WordScorer):
        def scores(self, query: str, texts: Any) -> np.ndarray:
            if "Broken" in query:
                raise KeyError(f"{SECRET} {KEY}")
            return super().scores(query, texts)

    served.use(cross_encoder=Broken())
    reply = served.rows({"question": f"Broken {QUESTION}"})
    assert reply.status_code == 500 and reply.json()["code"] == "internal"
    for told in (reply.text, caplog.text):
        assert SECRET not in told and KEY not in told
    assert "KeyError" in caplog.text and "Traceback" not in reply.text
    assert served.rows({"question": QUESTION}).status_code == 200


def test_an_index_that_fails_costs_the_index_not_the_answer(served: Served) -> None:
    class Down(Shelf):
        def search(self, *args: Any) -> Any:
            raise SourceFailure("index_unavailable", "The index cannot be read.")

    served.use(index=Down())
    (found,) = served.rows({"question": QUESTION}).json()["predictions"]
    assert found["status"] == "abstained" and "index_unavailable" in [warning["code"] for warning in found["warnings"]]
    assert Readiness(served.model.crag)() == {"ready": False, "index": "unavailable", "lm": "ok"}


def test_every_item_is_json(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("_MLFLOW_IS_IN_SERVING_ENVIRONMENT")
    found = served.loaded.predict(pd.DataFrame({"question": [QUESTION, "Who knows?", ""], "max_usd": [np.nan, 0.5, np.nan]}))
    assert [one["status"] for one in found] == ["answered", "abstained", "error"]
    json.dumps(found, allow_nan=False)


def test_rows_win_over_parameters_and_parameters_over_settings(served: Served) -> None:
    served.use(index=Shelf(STALE))
    rows = [{"question": QUESTION}, {"question": QUESTION, "as_of": DAY}]
    params = {"as_of": STALE.published_at.isoformat() if STALE.published_at else ""}
    found = served.rows(*rows, params=params).json()["predictions"]
    assert [one["assessment"] for one in found] == ["sufficient", "stale"]
    assert served.rows({"question": QUESTION}).json()["predictions"][0]["assessment"] == "stale"


@pytest.mark.parametrize(
    "params", [{"as_of": "soon"}, {"max_seconds": -1}, {"language": "de"}, {"max_lm_calls": "x"}, {"allow_domains": "?"}]
)
def test_a_bad_parameter_is_refused(served: Served, params: dict[str, Any]) -> None:
    reply = served.rows({"question": QUESTION}, params=params)
    assert reply.status_code == 400 and next(iter(params)) in reply.json()["message"] and not served.fake.calls


def test_an_unknown_parameter_is_named(served: Served) -> None:
    with pytest.raises(mlflow.MlflowException, match="There is no 'max_second'"):
        served.model.predict(None, pd.DataFrame({"question": [QUESTION]}), {"max_second": 3})


def test_a_request_narrows_the_sites_of_the_server_and_never_widens_them(served: Served) -> None:
    web = Web({"http://a.gov.example/": LASTS})
    ours = Domains(allow=("gov.example", "news.example"), deny=("bad.gov.example",))
    served.use(index=Shelf(), search=web, fetch=Fetcher(domains=ours))
    for asked in ({"allow_domains": "gov.example"}, {"deny_domains": "b.gov.example"}):
        assert served.rows({"question": QUESTION, **asked}).status_code == 200
    assert list(dict.fromkeys(web.domains)) == [
        Domains(allow=("gov.example",), deny=("bad.gov.example",)),
        Domains(allow=("gov.example", "news.example"), deny=("bad.gov.example", "b.gov.example")),
    ]
    for site in ("evil.example", "bad.gov.example", "example"):
        reply = served.rows({"question": QUESTION, "allow_domains": site})
        assert reply.status_code == 400 and f"{site!r} is not among the sites" in reply.json()["message"]


def test_a_budget_in_the_row_binds(served: Served) -> None:
    (found,) = served.rows({"question": QUESTION, "max_lm_calls": 0}).json()["predictions"]
    assert found["usage"]["lm_calls"] == 0 and not served.fake.calls


@pytest.fixture
def hanging(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Return a server with a second for each request, whose LM does not answer."""
    monkeypatch.setenv("MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", "1")
    end, rule = threading.Event(), served.fake.rules["answer"]
    served.fake.rules["answer"] = lambda inputs: rule(inputs) if end.wait(60) else ""
    yield served
    end.set()


def test_an_answer_comes_although_the_lm_hangs(hanging: Served) -> None:
    began = time.monotonic()
    (found,) = hanging.rows({"question": QUESTION}).json()["predictions"]
    assert time.monotonic() - began < 30 and "max_seconds" in [warning["code"] for warning in found["warnings"]]


def test_rows_that_the_time_does_not_reach_are_told_so(hanging: Served) -> None:
    hanging.use(serve_workers=1)
    found = hanging.rows(*[{"question": QUESTION}] * 4).json()["predictions"]
    assert found[0]["error"] is None and found[-1]["error"]["code"] == "timeout"
    assert len(hanging.fake.asked("answer")) <= 1  # nothing goes on for nobody


def test_a_row_that_hangs_outside_the_lm_costs_no_other_row(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT", "4")
    end = threading.Event()

    class Stuck(Shelf):
        def search(self, question: str, k: int, where: Any = None) -> Any:
            if "anemometer" in question:
                end.wait(60)
            return super().search(question, k, where)

    served.use(index=Stuck(FRESH))
    found = served.rows({"question": QUESTION}, {"question": "How long does the anemometer last?"}).json()["predictions"]
    end.set()
    assert found[0]["error"] is None and found[1]["error"]["code"] == "timeout"


def test_rows_of_a_batch_are_answered_at_once_and_not_too_many(served: Served) -> None:
    served.use(serve_workers=3)
    now, most, lock, three = [0], [0], threading.Lock(), threading.Barrier(3, timeout=30)
    rule = served.fake.rules["answer"]

    def counted(inputs: dict[str, str]) -> str:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        three.wait()  # goes on only when three are under way
        with lock:
            now[0] -= 1
        return rule(inputs)

    served.fake.rules["answer"] = counted
    found = served.rows(*[{"question": QUESTION}] * 9).json()["predictions"]
    assert most == [3] and {one["text"] for one in found} == {TEXT}


def test_twenty_at_once_right_after_the_start(served: Served) -> None:
    served.use()
    with ThreadPoolExecutor(20) as pool:
        frame = pd.DataFrame({"question": [QUESTION]})
        found = list(pool.map(lambda _: served.loaded.predict(frame)[0], range(20)))
    assert {one["text"] for one in found} == {TEXT}


def test_warming_up_asks_no_lm(served: Served) -> None:
    shelf = Shelf(FRESH)
    served.use(index=shelf)
    assert shelf.asked and not served.fake.calls


def test_ready_is_looked_up_once_in_a_while(served: Served) -> None:
    shelf = Shelf(FRESH)
    served.use(index=shelf)
    before, ready = len(shelf.asked), Readiness(served.model.crag)
    assert [ready() for _ in range(5)] == [{"ready": True, "index": "ok", "lm": "ok"}] * 5
    assert len(shelf.asked) == before + 1


@pytest.fixture
def web(served: Served) -> Iterator[TestClient]:
    with TestClient(create_app(served.use(), 8)) as client:
        yield client


def test_health_and_ready_differ(served: Served, web: TestClient) -> None:
    assert web.get("/health").json() == {"status": "ok"}
    assert web.get("/ready").status_code == 200
    crag = served.use()
    crag.lm = crag.lm.copy(api_base="http://127.0.0.1:9/v1")
    with TestClient(create_app(crag, 8)) as client:
        assert client.get("/health").status_code == 200
        reply = client.get("/ready")
    assert reply.status_code == 503 and reply.json() == {"ready": False, "index": "ok", "lm": "unavailable"}


def test_ask_gives_the_answer_as_json(web: TestClient) -> None:
    reply = web.post("/ask", json={"question": QUESTION, "as_of": DAY})
    assert reply.status_code == 200 and reply.json()["text"] == TEXT


@pytest.mark.parametrize("path", ["/ask", "/ask/stream"])
@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        ("{bad", 400, "no JSON"),
        ("[1]", 400, "no object"),
        ("{}", 400, "question is empty"),
        (json.dumps({"question": f"{SECRET} \ud800"}), 400, "half a character"),
        (json.dumps({"question": SECRET, "max_second": 3}), 400, "There is no 'max_second'"),
        (json.dumps({"question": SECRET, "as_of": "soon"}), 400, "as_of='soon'"),
        (json.dumps({"question": SECRET * 10_000}), 400, "100,000 bytes"),
        ("[" * 50_000, 400, "no JSON"),
    ],
)
def test_a_bad_request_is_refused_in_one_shape(web: TestClient, path: str, content: str, status: int, words: str) -> None:
    reply = web.post(path, content=content)
    assert reply.status_code == status and set(reply.json()) == {"status", "code", "message"}
    assert words in reply.json()["message"] and SECRET not in reply.text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/ask", 405), ("GET", "/nothing", 404)])
def test_other_errors_have_the_same_shape(web: TestClient, method: str, path: str, status: int) -> None:
    reply = web.request(method, path)
    assert reply.status_code == status and reply.json()["status"] == status


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    return [(block.split("\n")[0][7:], json.loads(block.split("\n")[1][6:])) for block in text.strip().split("\n\n")]


def test_a_stream_tells_stages_then_words_then_the_answer(web: TestClient) -> None:
    reply = web.post("/ask/stream", json={"question": QUESTION, "as_of": DAY})
    assert reply.headers["content-type"].startswith("text/event-stream")
    told = events(reply.text)
    names = [name for name, _ in told]
    assert names[0] == "stage" and names[-1] == "answer" and names == sorted(names, key=["stage", "text", "answer"].index)
    assert "".join(data["text"] for name, data in told if name == "text") == told[-1][1]["text"] == TEXT


def test_a_stream_that_fails_ends_with_the_error(served: Served, web: TestClient) -> None:
    served.fake.status = 500
    name, data = events(web.post("/ask/stream", json={"question": QUESTION, "as_of": DAY}).text)[-1]
    assert name == "error" and data["code"] == "lm_unavailable" and KEY not in json.dumps(data)


def test_errors_are_logged_where_they_arose(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.fake.status = 500
    with caplog.at_level(logging.ERROR):
        served.rows({"question": QUESTION})
    assert "grade.py" in caplog.text and QUESTION not in caplog.text


def test_parts_can_be_replaced_while_serving(served: Served) -> None:
    crag = served.use()
    crag.program.parts = replace(crag.program.parts, index=Shelf(STALE))
    assert served.rows({"question": QUESTION}).status_code == 200
