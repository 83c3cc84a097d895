"""Limits of one answer: none is ever passed, the generator's calls are kept back, and what hangs is left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from fake_lm import FakeLM
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.budget import Budget, Limits
from crag_dspy.crag import context
from crag_dspy.lm import Meter
from crag_dspy.weather import Late, bounded

repeatable = settings(max_examples=300)
UNLIMITED = {"max_searches": 10**6, "max_pages": 10**6, "max_lm_calls": 10**6, "max_tokens": 10**9, "max_seconds": 1e9}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def budget(kept_back: int = 0, clock: Clock | None = None, **limits: float) -> Budget:
    made = Budget(Limits(**(UNLIMITED | limits)), clock=clock or Clock())  # type: ignore[arg-type]
    made.kept_back = kept_back
    return made


def call(spent: Budget, tokens: int = 100, *, last: bool = False, usd: float | None = None, seconds: float = 0.0) -> bool:
    """Make a call that uses all the tokens it asked for; return whether it was allowed."""
    if spent.begin_call(tokens, last=last) is None:
        return False
    spent.end_call(tokens, prompt=tokens // 2, completion=tokens - tokens // 2, seconds=seconds, usd=usd)
    return True


@pytest.mark.parametrize(
    ("limits", "kept_back", "made", "last_made"),
    [
        ({"max_lm_calls": 0}, 1, 0, 0),
        ({"max_lm_calls": 1}, 1, 0, 1),
        ({"max_lm_calls": 3}, 1, 2, 1),
        ({"max_lm_calls": 3}, 2, 1, 2),
        ({"max_lm_calls": 3}, 0, 3, 0),
        ({"max_tokens": 99}, 1, 0, 0),
        ({"max_tokens": 199}, 1, 0, 1),
        ({"max_tokens": 200}, 1, 1, 1),
        ({"max_tokens": 450}, 2, 2, 2),
        ({"max_tokens": 0}, 0, 0, 0),
    ],
)
def test_calls_end_at_the_limit_and_the_generators_are_kept_back(
    limits: dict[str, float], kept_back: int, made: int, last_made: int
) -> None:
    spent = budget(kept_back, **limits)
    assert sum(call(spent) for _ in range(9)) == made
    assert spent.stop == next(iter(limits))
    assert sum(call(spent, last=True) for _ in range(9)) == last_made
    assert spent.lm_calls == made + last_made and spent.prompt_tokens + spent.completion_tokens == 100 * (made + last_made)


def test_the_dearest_call_so_far_is_kept_back_in_money() -> None:
    spent = budget(1, max_usd=1.0)
    assert [call(spent, usd=price) for price in (0.25, 0.25, 0.1)] == [True, True, True]  # 0.60 spent
    assert not call(spent) and spent.stop == "max_usd"  # 0.25 for this one and 0.25 for the generator
    assert call(spent, last=True, usd=0.25) and spent.usd == pytest.approx(0.85)
    assert not call(spent, last=True)


def test_calls_under_way_count_with_their_price() -> None:
    spent = budget(max_usd=1.0)
    assert call(spent, usd=0.4)
    assert spent.begin_call(1) is not None  # up to 0.8
    assert spent.begin_call(1) is None and spent.stop == "max_usd"


@pytest.mark.parametrize(("most", "calls"), [(0.0, 0), (0.09, 0), (0.1, 1), (0.35, 3)])
def test_what_a_call_may_cost_is_known_before_it_is_made(most: float, calls: int) -> None:
    spent = budget(max_usd=most)
    assert sum(spent.begin_call(1, usd=0.1) is not None for _ in range(5)) == calls and spent.stop == "max_usd"


def test_an_lm_without_prices_meets_no_limit_on_the_price() -> None:
    spent = budget(1, max_usd=0.01)
    assert all(call(spent) for _ in range(50)) and spent.usd is None and spent.stop is None


def test_time_ends_calls_and_searches_and_leaves_room_for_the_slowest() -> None:
    clock = Clock()
    spent = budget(1, clock, max_seconds=10.0)
    assert spent.begin_call(1) == 10.0
    clock.now += 3
    spent.end_call(1, prompt=1, completion=0, seconds=3.0, usd=None)
    assert spent.seconds == 3.0 and spent.left == 7.0
    assert spent.begin_call(1) == 4.0  # 3 are the generator's
    clock.now += 2
    assert spent.begin_call(1) is None and spent.stop == "max_seconds"  # 5 left, but not twice the slowest
    assert spent.begin_call(1, last=True) == 5.0
    clock.now += 6
    assert spent.begin_call(1, last=True) is None and spent.left == 0.0
    assert spent.spend_searches(1) == 0


@pytest.mark.parametrize(
    ("limit", "asked", "granted"),
    [(0, [1], [0]), (3, [2, 2, 1], [2, 1, 0]), (5, [2, 3], [2, 3]), (4, [0, 9], [0, 4])],
)
@pytest.mark.parametrize("kind", ["searches", "pages"])
def test_searches_and_pages_are_granted_up_to_the_limit(kind: str, limit: int, asked: list[int], granted: list[int]) -> None:
    spent = budget(**{f"max_{kind}": limit})
    spend: Callable[[int], int] = getattr(spent, f"spend_{kind}")
    assert [spend(n) for n in asked] == granted and getattr(spent, kind) == sum(granted)
    assert spent.stop == (None if asked == granted else f"max_{kind}")


def test_the_first_limit_is_the_one_that_is_told() -> None:
    spent = budget(max_pages=0, max_searches=0, max_lm_calls=0)
    assert spent.stop is None
    spent.spend_pages(1), spent.spend_searches(1), spent.begin_call(1), spent.out_of_time()
    assert spent.stop == "max_pages"


def test_the_generators_calls_are_free_for_others_once_they_were_made() -> None:
    spent = budget(2, max_lm_calls=4)
    assert [call(spent), call(spent, last=True), call(spent, last=True)] == [True] * 3
    assert call(spent) and spent.stop is None  # the check of a claim, after the generator


limits = st.fixed_dictionaries(
    {
        "max_searches": st.integers(0, 4),
        "max_pages": st.integers(0, 6),
        "max_lm_calls": st.integers(0, 8),
        "max_tokens": st.integers(0, 1500),
        "max_seconds": st.floats(0.5, 30),
    }
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 200), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 7), st.floats(0, 1)),
        st.tuples(st.just("searches"), st.integers(0, 3), st.none()),
        st.tuples(st.just("pages"), st.integers(0, 4), st.none()),
        st.tuples(st.just("wait"), st.floats(0, 5), st.none()),
    ),
    max_size=40,
)


@repeatable
@given(limits, steps)
def test_no_sequence_passes_a_limit_and_stop_names_the_first_refusal(
    limits: dict[str, float], steps: list[tuple[str, float, float]]
) -> None:
    clock = Clock()
    spent = Budget(Limits(**limits), clock=clock)  # type: ignore[arg-type]
    under_way: list[int] = []
    refused = False
    for step, amount, more in steps:
        before = spent.stop
        if step == "begin":
            seconds = spent.begin_call(int(amount), last=bool(more))
            assert seconds is None or 0 < seconds <= spent.left
            under_way += [int(amount)] if seconds is not None else []
            refused |= seconds is None
        elif step == "end" and under_way:
            tokens = under_way.pop(int(amount) % len(under_way))
            used = int(tokens * more)
            spent.end_call(tokens, prompt=used, completion=tokens - used, seconds=more, usd=None)
        elif step == "searches":
            refused |= spent.spend_searches(int(amount)) < amount
        elif step == "pages":
            refused |= spent.spend_pages(int(amount)) < amount
        elif step == "wait":
            clock.now += amount
        assert spent.stop == before or before is None  # the first one stays
        assert (spent.stop is not None) >= refused
        assert spent.lm_calls <= limits["max_lm_calls"]
        assert spent.searches <= limits["max_searches"] and spent.pages <= limits["max_pages"]
        assert spent.prompt_tokens + spent.completion_tokens + sum(under_way) <= limits["max_tokens"]


@repeatable
@given(st.integers(1, 3), st.integers(0, 9), st.integers(1, 300), st.lists(st.integers(1, 300), max_size=12))
def test_what_is_kept_back_can_be_had_until_it_is_used(kept_back: int, spare: int, largest: int, tokens: list[int]) -> None:
    """Whatever was called before, the generator gets its calls, if they are no larger than the largest that was made."""
    spent = budget(kept_back, max_lm_calls=kept_back + spare, max_tokens=(kept_back + spare) * 300)
    made = [n for n in tokens if call(spent, n)]
    assert all(call(spent, min(largest, max(made, default=300)), last=True) for _ in range(kept_back))


def test_threads_together_pass_no_limit() -> None:
    for _ in range(20):
        spent = budget(2, max_lm_calls=12, max_tokens=900, max_searches=3, max_pages=5)
        barrier = threading.Barrier(8)

        def hurry(i: int, spent: Budget = spent, barrier: threading.Barrier = barrier) -> tuple[int, int, int]:
            barrier.wait(5)
            return sum(call(spent, 60) for _ in range(4)), spent.spend_searches(1), spent.spend_pages(2)

        with ThreadPoolExecutor(8) as pool:
            calls, searches, pages = (sum(column) for column in zip(*pool.map(hurry, range(8)), strict=True))
        assert (calls, searches, pages) == (10, 3, 5)
        assert spent.lm_calls == 10 and spent.prompt_tokens + spent.completion_tokens == 600
        assert call(spent, 60, last=True) and call(spent, 60, last=True) and not call(spent, 60, last=True)


@pytest.fixture
def hanging(fake_lm: FakeLM) -> Iterator[FakeLM]:
    release = threading.Event()
    fake_lm.rules["answer"] = lambda inputs: "well"
    with context(fake_lm.lm()):
        Meter().ask(dspy.Predict("question -> answer"), question="Is anybody there?")  # the first call imports its client
    fake_lm.rules["answer"] = lambda inputs: "late" if release.wait(20) else ""
    yield fake_lm
    release.set()


def test_a_call_that_hangs_is_left_behind(hanging: FakeLM) -> None:
    meter = Meter(Budget(Limits(max_seconds=0.5)))
    begun = time.monotonic()
    with context(hanging.lm()):
        replies = [meter.ask(dspy.Predict("question -> answer"), question="Is anybody there?", last=True) for _ in range(2)]
    assert time.monotonic() - begun < 1.5
    assert [reply.skipped for reply in replies] == [True, True] and meter.budget.stop == "max_seconds"
    assert meter.lm_calls == 1  # the second was not begun


def test_bounded_gives_the_result_the_error_or_up() -> None:
    def refuse() -> None:
        raise ValueError("refused")

    now = time.monotonic()
    assert bounded(lambda: "well", now + 5) == "well"
    assert bounded(lambda: "well", now + 1e12) == "well"
    with pytest.raises(ValueError, match="refused"):
        bounded(refuse, now + 5)
    release, begun = threading.Event(), time.monotonic()
    with pytest.raises(Late):
        bounded(lambda: release.wait(20), begun + 0.05)
    release.set()
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("field", [*UNLIMITED, "max_usd"])
def test_no_limit_is_negative(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Limits(**{field: -1})
