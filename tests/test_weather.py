"""Whatever the web does, it becomes a typed failure in time, on both sides: as the search provider and as a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

import pytest
from bad_web import FACT, FAULTS, BadWeb

from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Fetcher
from crag_dspy.search import Result, TavilySearch
from crag_dspy.web import read_pages

TODAY = date(2026, 3, 2)


def seconds(fault: str) -> float:
    """Return the time limit to try a fault with: short where only the limit ends it, else long enough for a busy machine."""
    return 0.7 if fault in ("hang", "drip") else 8.0


@pytest.fixture(scope="module")
def bad_web() -> Iterator[BadWeb]:
    with BadWeb() as web:
        yield web


SLACK = 8.0  # seconds: what a busy machine may add; whoever waits for a fault to end waits four times as long


def client(web: BadWeb, url: str, **options: Any) -> TavilySearch:
    return TavilySearch(api_key="tvly-SENTINEL", api_base_url=url, **({"timeout": 0.7} | options))


def code(call: Callable[[], object]) -> str | None:
    try:
        call()
    except SourceFailure as exc:
        assert "SENTINEL" not in str(exc)
        return exc.code
    return None


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_the_provider_is_a_typed_failure_in_time(fault: str, bad_web: BadWeb) -> None:
    begun = time.monotonic()
    limit = seconds(fault)
    search = client(bad_web, bad_web.search_url(fault), timeout=limit)
    assert code(lambda: search("gate times", 3, deadline=begun + limit)) == FAULTS[fault].search
    assert time.monotonic() - begun < limit + SLACK


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_a_page_is_a_typed_failure_in_time_and_spares_the_others(fault: str, bad_web: BadWeb) -> None:
    begun = time.monotonic()
    urls = [bad_web.page_url(fault), bad_web.page_url("good")]
    results = [Result(url=url, title="t", snippet=f"Snippet of {url}.") for url in urls]
    limit = seconds(fault)
    fetch = Fetcher(routes=bad_web.routes, timeout=limit)
    passages, failures, pages = read_pages(results, fetch, TODAY, 2, deadline=begun + limit + 0.5)
    assert time.monotonic() - begun < limit + SLACK
    assert [failure.code for failure in failures] == [code for code in [FAULTS[fault].page] if code]
    assert [passage.text for passage in passages if FACT in passage.text and passage.url == urls[1]]
    assert [passage.snippet for passage in passages if passage.url == urls[0]] == [FAULTS[fault].page is not None]
    assert pages == 2 - (FAULTS[fault].page is not None)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_passes_the_fetcher_as_a_source_failure_or_a_page(fault: str, bad_web: BadWeb) -> None:
    begun = time.monotonic()
    limit = seconds(fault)
    failed = code(lambda: Fetcher(routes=bad_web.routes, timeout=limit)(bad_web.page_url(fault)))
    assert failed == FAULTS[fault].page or (failed, FAULTS[fault].page) == (None, "page_empty")
    assert time.monotonic() - begun < limit + SLACK


@pytest.mark.parametrize(
    ("fault", "tries"),
    [("401", 1), ("403", 1), ("404", 1), ("432", 1), ("500", 1), ("429", 3), ("502", 3), ("503", 3), ("504", 3), ("reset", 3)],
)
@pytest.mark.parametrize("side", ["search", "page"])
def test_only_what_may_pass_is_tried_again(fault: str, tries: int, side: str, bad_web: BadWeb) -> None:
    before = bad_web.asked.get(fault, 0)
    if side == "search":
        search = client(bad_web, bad_web.search_url(fault), timeout=5.0, sleep=lambda _: None)
        assert code(lambda: search("gate times", 3)) == FAULTS[fault].search
    else:
        assert code(lambda: Fetcher(routes=bad_web.routes, sleep=lambda _: None)(bad_web.page_url(fault))) == FAULTS[fault].page
    assert bad_web.asked[fault] - before == tries


@pytest.mark.parametrize("side", ["search", "page"])
@pytest.mark.parametrize(
    ("wanted", "tries"),
    [("1", 3), ("8", 1), ("3600", 1), ("nonsense", 3), ("Mon, 02 Mar 2099 12:00:00 GMT", 1), ("Mon, 02 Mar 2020 12:00:00 GMT", 3)],
)
def test_a_short_retry_after_is_waited_for_and_a_long_one_ends_it(wanted: str, tries: int, side: str, bad_web: BadWeb) -> None:
    bad_web.retry_after = wanted
    before, waits = bad_web.asked.get("429", 0), []
    try:
        if side == "search":
            search = client(bad_web, bad_web.search_url("429"), timeout=30.0, sleep=waits.append)
            assert code(lambda: search("gate times", 3)) == "web_rate_limited"
        else:
            assert code(lambda: Fetcher(routes=bad_web.routes, timeout=30.0, sleep=waits.append)(bad_web.page_url("429")))
    finally:
        bad_web.retry_after = "0"
    assert (bad_web.asked["429"] - before, len(waits)) == (tries, tries - 1)
    assert all(wait >= (1.0 if wanted == "1" else 0.0) for wait in waits)


def test_a_provider_that_redirects_is_not_followed(bad_web: BadWeb) -> None:
    """The key goes to the address that was configured, and nowhere else."""
    before = bad_web.asked.get("redirect_loop", 0)
    assert code(lambda: client(bad_web, bad_web.search_url("redirect_loop"))("gate times", 3)) == "web_unavailable"
    assert bad_web.asked["redirect_loop"] - before == 1


def test_a_provider_that_is_down_is_soon_left_alone(bad_web: BadWeb) -> None:
    search = client(bad_web, bad_web.search_url("500"))
    before = bad_web.asked.get("500", 0)
    assert [code(lambda: search("gate times", 3)) for _ in range(7)] == ["web_unavailable"] * 5 + ["web_resting"] * 2
    assert bad_web.asked["500"] - before == 5


def test_pages_that_hang_leave_their_snippets_and_cost_no_more_than_the_deadline(bad_web: BadWeb) -> None:
    urls = [bad_web.page_url(name) for name in ("hang", "good", "drip")] + ["http://127.0.0.1/admin"]
    begun = time.monotonic()
    results = [Result(url=url, title="t", snippet="Snippet.") for url in urls]
    passages, failures, pages = read_pages(results, Fetcher(routes=bad_web.routes), TODAY, 4, deadline=begun + 0.6)
    assert time.monotonic() - begun < 0.6 + SLACK
    assert [(passage.url, passage.snippet) for passage in passages] == [(urls[0], True), (urls[1], False), (urls[2], True)]
    assert [failure.code for failure in failures] == ["page_timeout", "page_timeout", "blocked_address"]
    assert pages == 1


def test_of_an_address_that_must_not_be_fetched_nothing_is_used_even_where_time_is_up() -> None:
    results = [Result(url=url, title="t", snippet="Snippet.") for url in ("http://10.0.0.7/", "file:///etc/passwd", "http://a.example/")]
    passages, failures, _ = read_pages(results, Fetcher(), TODAY, 4, deadline=time.monotonic() - 1)
    assert [passage.url for passage in passages] == ["http://a.example/"]
    assert [failure.code for failure in failures] == ["blocked_address", "blocked_address", "page_timeout"]
