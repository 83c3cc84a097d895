"""Waiting, trying again, giving up, and leaving a failing provider alone: with injected clocks and sleeps."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from crag_dspy.errors import SourceFailure
from crag_dspy.weather import Breaker, Late, Patience, WebFailure, bounded, persistent, retry_after, until


def code(call: Callable[[], object]) -> str | None:
    try:
        call()
    except SourceFailure as exc:
        return exc.code
    return None


def test_a_failure_that_passes_leaves_no_trace() -> None:
    outcomes: list[Any] = [WebFailure("web_unavailable", "", status=503), WebFailure("web_timeout", "", passing=True), "found"]

    def ask(number: int) -> str:
        if isinstance(outcomes[number], Exception):
            raise outcomes[number]
        return str(outcomes[number])

    assert persistent(ask, attempts=3, deadline=time.monotonic() + 60, sleep=lambda _: None) == "found"


def test_waits_grow_and_are_scattered() -> None:
    """Full jitter: two clients that failed together do not come back together."""
    waits: list[list[float]] = []
    for _ in range(200):
        waits.append([])
        with pytest.raises(WebFailure):
            persistent(_raising(WebFailure("x", "", passing=True)), attempts=4, deadline=time.monotonic() + 60, sleep=waits[-1].append)
    for i, most in enumerate([0.2, 0.4, 0.8]):
        column = [row[i] for row in waits]
        assert max(column) <= most
        assert max(column) > most * 0.8 and min(column) < most * 0.2


def test_no_attempt_is_begun_that_the_deadline_would_cut() -> None:
    waits: list[float] = []
    with pytest.raises(WebFailure):
        failure = WebFailure("x", "", status=503, retry_after=2.0)
        persistent(_raising(failure), attempts=9, deadline=time.monotonic() + 1.5, sleep=waits.append)
    assert waits == []


def _raising(failure: Exception) -> Callable[[int], object]:
    def call(_: int) -> object:
        raise failure

    return call


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1e999", None),
        ("120", 120.0),
        ("-3", 0.0),
        ("Mon, 02 Mar 2026 12:00:30 GMT", 30.0),
        ("Mon, 02 Mar 2026 12:00:30", 30.0),
        ("Mon, 02 Mar 2026 11:00:00 GMT", 0.0),
        ("Mon, 99 Foo 2026", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, datetime(2026, 3, 2, 12, 0, tzinfo=UTC)) == seconds


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_after_five_failures_in_a_row_a_provider_rests_and_is_then_tried_once() -> None:
    clock, calls = Clock(), []
    breaker = Breaker("Tavily", clock=clock)

    def ask(outcome: str) -> str:
        calls.append(outcome)
        if outcome != "well":
            raise SourceFailure(outcome, "Tavily answered 500.")
        return outcome

    def outcome(wanted: str) -> str | None:
        return code(lambda: breaker(lambda: ask(wanted)))

    assert [outcome(o) for o in ["web_unavailable"] * 4 + ["well"] + ["web_unavailable"] * 5] == ["web_unavailable"] * 4 + [None] + [
        "web_unavailable"
    ] * 5, "a success in between starts the count anew"
    asked = len(calls)
    assert outcome("well") == "web_resting"
    clock.now += 59
    with pytest.raises(SourceFailure, match=r"Tavily failed 5 times in a row and is asked again in 1 s\. Last: Tavily answered 500\."):
        breaker(lambda: ask("well"))
    assert len(calls) == asked, "nobody was asked"
    clock.now += 2
    assert [outcome("web_timeout"), outcome("well")] == ["web_timeout", "web_resting"], "tried once, failed, resting again"
    clock.now += 61
    assert [outcome("well"), outcome("web_timeout"), outcome("well")] == [None, "web_timeout", None]


def test_while_one_call_tries_a_rested_provider_the_others_are_refused() -> None:
    clock = Clock()
    breaker = Breaker("Tavily", limit=1, clock=clock)
    assert code(lambda: breaker(lambda: _raising(SourceFailure("web_timeout", ""))(0))) == "web_timeout"
    clock.now += 61
    assert breaker(lambda: code(lambda: breaker(lambda: None))) == "web_resting"


def test_a_bad_query_does_not_count_against_the_provider() -> None:
    breaker = Breaker("Tavily", limit=1)
    assert [code(lambda: breaker(lambda: _raising(SourceFailure("web_query", ""))(0))) for _ in range(3)] == ["web_query"] * 3


def test_what_arrived_is_used_and_stragglers_are_not_waited_for() -> None:
    release, begun = threading.Event(), time.monotonic()
    results = until(lambda i: i if i % 2 else release.wait(20), [0, 1, 2, 3], 4, begun + 0.3)
    assert results == [None, 1, None, 3]
    assert time.monotonic() - begun < 1
    release.set()


@pytest.mark.parametrize("workers", [0, 1, 2, 9])
def test_results_come_in_order_and_errors_come_through(workers: int) -> None:
    assert until(lambda i: i * i, range(5), workers, None) == [0, 1, 4, 9, 16]
    assert until(lambda i: i, [], workers, None) == []
    with pytest.raises(ZeroDivisionError):
        until(lambda i: 1 // i, [1, 0], workers, time.monotonic() + 5)


def test_no_item_is_begun_after_the_deadline() -> None:
    begun: list[int] = []
    assert until(begun.append, [1, 2], 1, time.monotonic() - 1) == [None, None]  # type: ignore[func-returns-value]
    assert begun == []


def test_a_call_that_hangs_is_left_at_its_deadline() -> None:
    release = threading.Event()
    with pytest.raises(Late):
        bounded(lambda: release.wait(20), time.monotonic() + 0.1)
    release.set()
    assert bounded(lambda: None, time.monotonic() + 5) is None


def test_a_client_that_knows_no_time_limit_gets_one() -> None:
    release, begun = threading.Event(), time.monotonic()
    assert code(lambda: Patience("Engine", 5.0, 3)(lambda _: release.wait(20), begun + 0.2)) == "web_timeout"
    assert time.monotonic() - begun < 1
    release.set()


def test_a_hung_call_does_not_keep_the_process_from_ending() -> None:
    script = """
        import threading, time
        from crag_dspy.weather import until
        print(until(lambda i: i or threading.Event().wait(60), [0, 1], 2, time.monotonic() + 0.2))
    """
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=50)
    assert done.stdout.strip() == "[None, 1]"
    assert time.monotonic() - begun < 40
