"""DuckDuckGo: its library gives rows, or raises; it has a network stack of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ddgs.ddgs import DDGS
from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException
from tavily_server import failure

from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.search import MAX_QUERY, DuckDuckGoSearch

options_given: list[dict[str, Any]] = []


@pytest.fixture
def duckduckgo(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], list[tuple[str, int]]]:
    """Make the library give rows, or raise: it has its own network stack, which cannot be pointed at a local server."""

    def install(outcome: object) -> list[tuple[str, int]]:
        asked: list[tuple[str, int]] = []
        options_given.clear()

        def text(self: DDGS, query: str, *, max_results: int, **options: Any) -> object:
            asked.append((query, max_results))
            options_given.append(options)
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
    assert failure(lambda: DuckDuckGoSearch(sleep=lambda _: None)("gate times", 3)).code == code


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
    assert DuckDuckGoSearch(sleep=lambda _: None)("gate times", 3) == []


@pytest.mark.parametrize("rows", [None, 7, [None, 7, "x"], "rows"])
def test_duckduckgo_out_of_shape_gives_nothing_or_a_failure(rows: object, duckduckgo: Callable[[object], object]) -> None:
    duckduckgo(rows)
    try:
        assert DuckDuckGoSearch(sleep=lambda _: None)("gate times", 3) == []
    except SourceFailure as exc:
        assert exc.code == "web_unavailable"


def test_duckduckgo_is_asked_alone_with_time_range_and_sites(duckduckgo: Callable[[object], list[tuple[str, int]]]) -> None:
    rows = [{"href": f"https://{host}/", "title": host} for host in ("www.gov.uk", "evilgov.uk", "w3.org")]
    asked = duckduckgo(rows)
    search = DuckDuckGoSearch(time_range="month", domains=Domains(allow=("gov.uk", "w3.org")))
    assert [result.url for result in search("gate " * 100, 5)] == ["https://www.gov.uk/", "https://w3.org/"]
    assert options_given == [{"backend": "duckduckgo", "timelimit": "m"}]
    [(query, _)] = asked
    assert query.endswith("gate site:gov.uk OR site:w3.org") and len(query) <= MAX_QUERY
