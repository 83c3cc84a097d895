"""The web search: Tavily's own client against a local server, and every way in which a provider can fail."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tavily_server import GOOD, KEY, Tavily, failure

from crag_dspy.domains import Domains
from crag_dspy.errors import SettingsError
from crag_dspy.search import MAX_QUERY, TavilySearch, shorten

pytest_plugins = ["tavily_server"]


@pytest.mark.parametrize("key", [None, "", "   ", "\n"])
@pytest.mark.parametrize("variable", [None, "", "  "])
def test_without_a_key_nothing_is_sent(key: str | None, variable: str | None, tavily: Tavily, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable is not None:
        monkeypatch.setenv("TAVILY_API_KEY", variable)
    with pytest.raises(SettingsError, match="TAVILY_API_KEY"):
        tavily.client(key)("gate times", 3)
    assert tavily.asked == []


def test_the_key_comes_from_the_environment_and_goes_out_trimmed(tavily: Tavily, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAVILY_API_KEY", f" {KEY}\n")
    tavily.client(None)("gate times", 3)
    assert tavily.keys == [f"Bearer {KEY}"]
    assert tavily.asked[0]["query"] == "gate times"
    assert tavily.asked[0]["max_results"] == 3


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "web_query"),
        (401, "web_key"),
        (403, "web_quota"),
        (432, "web_quota"),
        (433, "web_quota"),
        (429, "web_rate_limited"),
        (404, "web_unavailable"),
        (500, "web_unavailable"),
        (502, "web_unavailable"),
        (503, "web_unavailable"),
        (204, "web_unavailable"),
        (304, "web_unavailable"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>oops</html>", {"detail": {"error": f"{KEY} is bad"}}, {"detail": None}, []])
def test_each_refusal_has_its_code_and_no_key_in_its_message(status: int, code: str, body: object, tavily: Tavily) -> None:
    tavily.answer(body if status not in (204, 304) else b"", status)
    failed = failure(lambda: tavily.client()("gate times", 3))
    assert failed.code == code
    assert KEY not in str(failed)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>captive portal</html>",
        b'{"results": [',
        [],
        [1],
        None,
        "results",
        7,
        {"results": 7},
        {"results": "x"},
        {"results": {"a": 1}},
    ],
)
def test_an_answer_out_of_shape_is_a_failure(body: object, tavily: Tavily) -> None:
    tavily.answer(body)
    assert failure(lambda: tavily.client()("gate times", 3)).code == "web_unavailable"


@pytest.mark.parametrize("body", [{"results": []}, {"results": None}, {}, {"query": "gate times", "answer": None}])
def test_no_results_are_no_failure(body: object, tavily: Tavily) -> None:
    tavily.answer(body)
    assert tavily.client()("gate times", 3) == []


def test_a_hanging_search_ends_at_its_time_limit(tavily: Tavily) -> None:
    tavily.status = 0
    begun = time.monotonic()
    assert failure(lambda: tavily.client(timeout=0.3)("gate times", 3)).code == "web_timeout"
    assert time.monotonic() - begun < 5


def test_a_refused_connection_is_a_failure() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        search = TavilySearch(api_key=KEY, api_base_url=f"http://127.0.0.1:{free.getsockname()[1]}")
        assert failure(lambda: search("gate times", 3)).code == "web_unavailable"


def test_a_connection_cut_in_the_answer_is_a_failure(tavily: Tavily) -> None:
    tavily.status = 0
    tavily.delay.set()
    assert failure(lambda: tavily.client()("gate times", 3)).code == "web_unavailable"


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ("gate times", "gate times"),
        (" gate\n\ttimes ", "gate times"),
        ("w" * 400, "w" * 400),
        ("w" * 900, "w" * 400),
        ("gate " * 80 + "x", ("gate " * 80).strip()),
        ("a" * 397 + " gate times", "a" * 397),
        ("a" * 395 + " gate times", "a" * 395 + " gate"),
        ("🌊" * 401, "🌊" * 400),
    ],
)
def test_the_query_that_is_sent_fits_tavily(query: str, sent: str, tavily: Tavily) -> None:
    tavily.client()(query, 3)
    assert [asked["query"] for asked in tavily.asked] == [sent]


@given(st.text(max_size=1200))
def test_a_shortened_query_is_the_beginning_of_the_question_in_whole_words(question: str) -> None:
    words, sent = question.split(), shorten(question)
    assert len(sent) <= MAX_QUERY
    assert " ".join(words).startswith(sent)
    assert sent.split() == words[: len(sent.split())] or (len(words[0]) > MAX_QUERY and sent == words[0][:MAX_QUERY])


def test_options_are_passed_on(tavily: Tavily) -> None:
    lists = Domains(allow=("gov.uk",), deny=("tax.gov.uk", "x.org"))
    tavily.client(depth="advanced", topic="news", time_range="week", raw_content=True, domains=lists)("gate times", 3)
    wanted = {
        "search_depth": "advanced",
        "topic": "news",
        "time_range": "week",
        "include_domains": ["gov.uk"],
        "exclude_domains": ["tax.gov.uk", "x.org"],
        "include_raw_content": "markdown",
    }
    assert {name: tavily.asked[0].get(name) for name in wanted} == wanted
    tavily.client()("gate times", 3)
    assert not {"time_range", "include_domains", "exclude_domains", "include_raw_content"} & set(tavily.asked[1])
    tavily.client(domains=lists)("gate times", 3, domains=Domains(deny=("y.org",)))
    assert (tavily.asked[2].get("include_domains"), tavily.asked[2]["exclude_domains"]) == (None, ["y.org"]), "a question's own lists"


def test_no_more_domains_are_sent_than_tavily_takes_and_all_of_them_hold(tavily: Tavily) -> None:
    lists = Domains(allow=tuple(f"a{i}.org" for i in range(400)), deny=tuple(f"d{i}.a1.org" for i in range(200)))
    tavily.rows({"url": "https://a399.org/"}, {"url": "https://d199.a1.org/"}, {"url": "https://b.org/"})
    assert [result.url for result in tavily.client(domains=lists)("gate times", 5)] == ["https://a399.org/"]
    assert (len(tavily.asked[0]["include_domains"]), len(tavily.asked[0]["exclude_domains"])) == (300, 150)


def test_the_lists_hold_whatever_the_provider_returns(tavily: Tavily) -> None:
    urls = [
        "https://evilgov.uk/",
        "https://gov.uk.evil.com/",
        "https://gov.uk@evil.com/",
        "https://www.gov.uk/a",
        "https://GOV.UK./b",
        "https://evil.com/?gov.uk",
        "https://[::1]/",
        "https://tax.gov.uk/",
    ]
    tavily.rows(*({"url": url} for url in urls))
    lists = Domains(allow=("gov.uk",), deny=("tax.gov.uk",))
    assert [result.url for result in tavily.client(domains=lists)("gate times", 20)] == ["https://www.gov.uk/a", "https://GOV.UK./b"]
    assert [result.url for result in tavily.client()("gate times", 20, domains=lists)] == ["https://www.gov.uk/a", "https://GOV.UK./b"]


@pytest.mark.parametrize(
    ("raw", "text"), [(None, ""), ("", ""), (" \n ", ""), (7, ""), (["x"], ""), ("Opens at nine.\n", "Opens at nine."), ("\ud83c", "?")]
)
def test_the_text_that_the_engine_read_comes_along_where_there_is_any(raw: object, text: str, tavily: Tavily) -> None:
    tavily.rows(GOOD | {"raw_content": raw})
    assert tavily.client()("gate times", 5)[0].text == text


@pytest.mark.parametrize("query", ["\ud83c" * 401, "gate \ud83c times", "🌊" * 399 + "\ud83c" + "🌊"])
def test_halves_of_surrogate_pairs_are_not_sent(query: str, tavily: Tavily) -> None:
    tavily.client()(query, 3)
    sent = tavily.asked[0]["query"]
    assert len(sent) <= MAX_QUERY and sent.encode("utf-8")


def test_results_can_be_written_as_json_again(tavily: Tavily) -> None:
    tavily.answer(b'{"results": [{"url": "https://a.example/", "score": Infinity}, {"url": "https://b.example/", "score": NaN}]}')
    for result in tavily.client()("gate times", 3):
        json.dumps(result.model_dump(mode="json"), allow_nan=False)


def test_no_password_of_this_machine_is_sent(tavily: Tavily, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("default login reader password SENTINEL")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    search = tavily.client()
    search._session.trust_env = True  # as it is for Tavily's own address
    search("gate times", 3)
    assert tavily.keys == [f"Bearer {KEY}"]


def test_a_search_on_this_machine_passes_by_the_proxy_of_the_environment(tavily: Tavily, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    tavily.rows(GOOD)
    assert len(tavily.client()("gate times", 3)) == 1


def test_a_deadline_that_has_passed_sends_nothing_more(tavily: Tavily) -> None:
    assert failure(lambda: tavily.client()("gate times", 3, deadline=time.monotonic() - 1)).code == "web_timeout"
    assert tavily.asked == []
