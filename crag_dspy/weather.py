"""What the web does to a program: waiting, trying again, giving up, and leaving a failing provider alone for a while."""

from __future__ import annotations

import contextvars
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import tenacity

from crag_dspy.errors import SourceFailure

T = TypeVar("T")
R = TypeVar("R")

MAX_RETRY_AFTER = 5.0  # seconds; a server that wants a longer rest gets it, without us
PASSING_STATUS = frozenset({429, 502, 503, 504})
_BACKOFF = tenacity.wait_random_exponential(multiplier=0.2, max=3.0)  # full jitter: between nothing and 0.4, 0.8, 1.6 … s


class WebFailure(SourceFailure):
    """A failure on the web: its HTTP status, if one came, and whether trying again soon may help."""

    def __init__(
        self, code: str, message: str, *, status: int | None = None, passing: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(code, message)
        self.status = status
        self.passing = passing or status in PASSING_STATUS
        self.retry_after = retry_after


class Late(Exception):
    """A result had not arrived at its deadline."""


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a Retry-After header asks for (RFC 9110, section 10.2.3: seconds or a date), or None."""
    try:
        seconds = float(value or "")
    except ValueError:
        try:
            when = parsedate_to_datetime(value or "")
            seconds = (when.replace(tzinfo=when.tzinfo or UTC) - (now or datetime.now(UTC))).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def persistent(call: Callable[[int], T], *, attempts: int, deadline: float, sleep: Callable[[float], None] = time.sleep) -> T:
    """Call until it succeeds, fails for good, or another attempt would begin too late; the last failure is raised.

    Only a `WebFailure` that may pass is tried again: after its Retry-After if that is short, else after an exponential backoff with
    full jitter (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).

    Args:
        call: Gets the number of the attempt, from 0.
        attempts: Most attempts.
        deadline: On the monotonic clock.
        sleep: For tests.
    """

    def passing(error: BaseException) -> bool:
        return isinstance(error, WebFailure) and error.passing and (error.retry_after or 0.0) <= MAX_RETRY_AFTER

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, WebFailure) else None
        return _BACKOFF(state) + (asked or 0.0)

    def hopeless(state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= attempts or time.monotonic() + state.upcoming_sleep >= deadline

    for attempt in tenacity.Retrying(retry=tenacity.retry_if_exception(passing), wait=wait, stop=hopeless, sleep=sleep, reraise=True):
        with attempt:
            return call(attempt.retry_state.attempt_number - 1)
    raise AssertionError("tenacity ends with a result or an error")


def until(function: Callable[[T], R], items: Sequence[T], workers: int, deadline: float | None) -> list[R | None]:
    """Call `function` on every item side by side; return what arrived by the deadline, in order, None for each that did not.

    The threads are daemons: one that hangs keeps neither the caller nor the end of the process waiting. The first error is raised.
    """
    todo: queue.SimpleQueue[tuple[int, T]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, R | None, BaseException | None]] = queue.SimpleQueue()
    for pair in enumerate(items):
        todo.put(pair)

    def work() -> None:
        while _left(deadline) != 0.0 and not todo.empty():
            with suppress(queue.Empty):  # another thread was faster
                i, item = todo.get_nowait()
                answer(i, item)

    def answer(i: int, item: T) -> None:
        try:
            done.put((i, function(item), None))
        except BaseException as exc:  # handed to the caller, whatever it is
            done.put((i, None, exc))

    for _ in range(min(max(1, workers), len(items))):
        threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="crag-web").start()
    results: list[R | None] = [None] * len(items)
    for _ in items:
        try:
            i, result, error = done.get(timeout=_left(deadline))
        except queue.Empty:
            break
        if error is not None:
            raise error
        results[i] = result
    return results


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)


def bounded(function: Callable[[], R], deadline: float) -> R:
    """Call something that knows no time limit of its own.

    Raises:
        Late: it had not returned at the deadline (on the monotonic clock); it is left to itself.
    """
    [result] = until(lambda _: (function(),), [None], 1, deadline)
    if result is None:
        raise Late
    return result[0]


class Breaker:
    """A circuit breaker: after `limit` failures in a row a provider is left alone for `rest` seconds, then tried by one call."""

    def __init__(self, provider: str, *, limit: int = 5, rest: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._provider, self._limit, self._rest, self._clock = provider, limit, rest, clock
        self._lock = threading.Lock()
        self._failures, self._open_until, self._last = 0, 0.0, ""

    def __call__(self, call: Callable[[], T]) -> T:
        """Call the provider, or refuse.

        Raises:
            SourceFailure: the provider's failure, or `web_resting` while it is left alone.
        """
        with self._lock:
            left = self._open_until - self._clock()
            if self._failures >= self._limit:
                if left > 0:
                    message = (
                        f"{self._provider} failed {self._failures} times in a row and is asked again in {left:.0f} s. Last: {self._last}"
                    )
                    raise SourceFailure("web_resting", message)
                self._open_until = self._clock() + self._rest  # this call tries it; the others wait for what comes of it
        try:
            result = call()
        except SourceFailure as exc:
            if exc.code != "web_query":  # the query's own fault
                with self._lock:
                    self._failures, self._last = self._failures + 1, str(exc)
                    self._open_until = self._clock() + self._rest
            raise
        with self._lock:
            self._failures = 0
        return result


class Patience:
    """One provider's weather: a circuit breaker, attempts, and a deadline that holds even where its client hangs."""

    def __init__(
        self, name: str, timeout: float, attempts: int, breaker: Breaker | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Take the provider's name, the seconds for one attempt (twice that for all of them) and the most attempts."""
        self._name, self._timeout, self._attempts, self._sleep = name, timeout, attempts, sleep
        self._breaker = breaker or Breaker(name)

    def __call__(self, ask: Callable[[float], T], deadline: float | None) -> T:
        """Call `ask` with the seconds that it may take.

        Raises:
            SourceFailure: what `ask` raises, `web_timeout` or `web_resting`.
        """
        begun = time.monotonic()
        end = min(begun + 2 * self._timeout, deadline if deadline is not None else float("inf"))

        def attempt(_: int) -> T:
            return ask(max(0.05, min(self._timeout, end - time.monotonic())))

        def patiently() -> T:
            try:
                return bounded(lambda: persistent(attempt, attempts=self._attempts, deadline=end, sleep=self._sleep), end)
            except Late as exc:
                had = (
                    f"{self._name} did not answer within {end - begun:.3g} s." if end > begun else f"No time was left to ask {self._name}."
                )
                raise WebFailure("web_timeout", had) from exc

        return self._breaker(patiently)
