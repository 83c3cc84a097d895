"""The web search: Tavily's own client against a local server, and every way in which a provider can fail."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ddgs.ddgs import DDGS
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException
from hypothesis import given
from hypothesis import strategies as st

from crag_dspy.errors import SettingsError, SourceFailure
from crag_dspy.search import MAX_QUERY, DuckDuckGoSearch, TavilySearch, canonical_url, shorten

KEY = "tvly-SENTINEL"


class Tavily(ThreadingHTTPServer):
    """Gives one answer to every search, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body = 200, b'{"results": []}'
        self.delay = threading.Event()
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    def answer(self, body: object, status: int = 200) -> None:
        self.status, self.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()

    def rows(self, *rows: object) -> None:
        self.answer({"results": rows})

    def client(self, api_key: str | None = KEY, timeout: float = 5.0) -> TavilySearch:
        return TavilySearch(api_key=api_key, api_base_url=f"http://127.0.0.1:{self.server_port}", timeout=timeout)


class _Handler(BaseHTTPRequestHandler):
    server: Tavily

    def do_POST(self) -> None:
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.keys.append(self.headers["Authorization"])
        if self.server.status == 0:  # never
            self.server.delay.wait(5)
            return
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def tavily() -> Iterator[Tavily]:
    with Tavily() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.delay.set()
        server.shutdown()


def failure(search: Callable[[], object]) -> SourceFailure:
    with pytest.raises(SourceFailure) as caught:
        search()
    return caught.value


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


GOOD: dict[str, Any] = {"url": "https://harbour.example/gate", "title": "Gate times", "content": "Opens at seven.", "score": 0.9}


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        "text",
        [],
        {},
        {"title": "no address"},
        GOOD | {"url": None},
        GOOD | {"url": ""},
        GOOD | {"url": 7},
        GOOD | {"url": ["https://harbour.example/x"]},
        GOOD | {"url": "gate times"},
        GOOD | {"url": "http://[::1"},
        GOOD | {"url": "https://harbour.example:port/"},
        GOOD | {"url": "https://harbour.example/x", "score": "high"},
        GOOD | {"url": "https://harbour.example/x", "score": [0.9]},
    ],
)
def test_an_odd_row_is_dropped_alone(odd: object, tavily: Tavily) -> None:
    tavily.rows(odd, GOOD, odd)
    assert [result.url for result in tavily.client()("gate times", 5)] == ["https://harbour.example/gate"]


@pytest.mark.parametrize(
    ("fields", "title", "snippet"),
    [
        ({}, "Gate times", "Opens at seven."),
        ({"title": None}, "harbour.example/gate", "Opens at seven."),
        ({"title": " \n "}, "harbour.example/gate", "Opens at seven."),
        ({"title": 7}, "harbour.example/gate", "Opens at seven."),
        ({"title": ["Gate"]}, "harbour.example/gate", "Opens at seven."),
        ({"title": "Gate\n  times"}, "Gate times", "Opens at seven."),
        ({"title": "x" * 3000}, "x" * 200, "Opens at seven."),
        ({"content": None}, "Gate times", ""),
        ({"content": {"text": "Opens"}}, "Gate times", ""),
        ({"content": " Opens \n at  seven."}, "Gate times", "Opens at seven."),
        ({"title": "Gate \ud83c", "content": "\udf0a seven"}, "Gate ?", "? seven"),
        ({"score": None}, "Gate times", "Opens at seven."),
        ({"raw_content": None}, "Gate times", "Opens at seven."),
        ({"raw_content": "<p>Opens at nine.</p>"}, "Gate times", "Opens at seven."),
    ],
)
def test_what_a_row_lacks_has_a_fallback(fields: dict[str, object], title: str, snippet: str, tavily: Tavily) -> None:
    tavily.rows(GOOD | fields)
    [result] = tavily.client()("gate times", 5)
    assert (result.title, result.snippet) == (title, snippet)


def test_a_row_without_a_title_key_is_named_by_its_address(tavily: Tavily) -> None:
    tavily.rows({"url": "https://harbour.example/" + "x" * 300})
    [result] = tavily.client()("gate times", 5)
    assert result.title == ("harbour.example/" + "x" * 300)[:200]


@pytest.mark.parametrize(
    ("written", "day"),
    [
        ("2026-02-14", date(2026, 2, 14)),
        ("2026-02-14T08:00:00Z", date(2026, 2, 14)),
        ("Sat, 14 Feb 2026 08:00:00 GMT", date(2026, 2, 14)),
        ("2026-02-30", None),
        ("yesterday", None),
        ("Sat, 99 Feb", None),
        ("", None),
        (None, None),
        (["2026-02-14"], None),
    ],
)
def test_dates_are_read_or_left_open(written: object, day: date | None, tavily: Tavily) -> None:
    tavily.rows(GOOD | {"published_date": written})
    assert tavily.client()("gate times", 5)[0].published_at == day


def test_one_page_is_one_result_and_no_more_come_than_were_asked_for(tavily: Tavily) -> None:
    urls = [
        "https://Harbour.example/gate/?utm_source=news#top",
        "https://harbour.example/gate",
        "https://harbour.example/b",
        "https://c.example/",
    ]
    tavily.rows(*({"url": url} for url in urls))
    assert [result.url for result in tavily.client()("gate times", 2)] == [urls[0], urls[2]]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://harbour.example/gate", "http://reader@harbour.example/gate", "http://[::1]/"])
def test_addresses_that_must_not_be_fetched_reach_the_fetcher_unchanged(url: str, tavily: Tavily) -> None:
    """It refuses them and says so; cleaned of its user-info here, such an address would be fetched."""
    tavily.rows({"url": url}, {"url": "http://harbour.example/gate"})
    assert [result.url for result in tavily.client()("gate times", 5)] == [url, "http://harbour.example/gate"]


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTPS://Harbour.Example./gate/", "https://harbour.example/gate"),
        ("https://harbour.example", "https://harbour.example/"),
        ("https://harbour.example:443/gate#times", "https://harbour.example/gate"),
        ("http://harbour.example:80/gate", "http://harbour.example/gate"),
        ("http://harbour.example:8080/gate", "http://harbour.example:8080/gate"),
        ("https://harbour.example/gate?utm_source=x&day=1&fbclid=y&gclid=z&", "https://harbour.example/gate?day=1"),
        ("https://harbour.example/Gate?Day=1", "https://harbour.example/Gate?Day=1"),
        ("http://reader@harbour.example/gate", "http://reader@harbour.example/gate"),
        ("http://[2606:4700::1111]:8080/gate", "http://[2606:4700::1111]:8080/gate"),
    ],
)
def test_canonical_addresses(url: str, canonical: str) -> None:
    assert canonical_url(url) == canonical
    assert canonical_url(canonical) == canonical


@pytest.fixture
def duckduckgo(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], list[tuple[str, int]]]:
    """Make the library give rows, or raise: it has its own network stack, which cannot be pointed at a local server."""

    def install(outcome: object) -> list[tuple[str, int]]:
        asked: list[tuple[str, int]] = []

        def text(self: DDGS, query: str, *, max_results: int) -> object:
            asked.append((query, max_results))
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(DDGS, "text", text)
        return asked

    return install


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RatelimitException("202"), "web_rate_limited"),
        (TimeoutException("timed out"), "web_timeout"),
        (DDGSException("connection refused"), "web_unavailable"),
    ],
)
def test_duckduckgos_failures_have_their_codes(error: Exception, code: str, duckduckgo: Callable[[object], object]) -> None:
    duckduckgo(error)
    assert failure(lambda: DuckDuckGoSearch()("gate times", 3)).code == code


def test_duckduckgo_gives_results_like_tavilys(duckduckgo: Callable[[object], list[tuple[str, int]]]) -> None:
    rows = [
        {"href": "https://harbour.example/gate", "title": "Gate times", "body": "Opens at seven."},
        {"title": "odd"},
        {"href": "https://b.example/"},
    ]
    asked = duckduckgo(rows)
    results = DuckDuckGoSearch(timeout=0.2)("w" * 500, 2)
    assert [(result.url, result.title, result.snippet) for result in results] == [
        ("https://harbour.example/gate", "Gate times", "Opens at seven."),
        ("https://b.example/", "b.example/", ""),
    ]
    assert asked == [("w" * 400, 2)]


def test_duckduckgo_finding_nothing_is_no_failure(duckduckgo: Callable[[object], object]) -> None:
    duckduckgo(DDGSException("No results found."))
    assert DuckDuckGoSearch()("gate times", 3) == []
