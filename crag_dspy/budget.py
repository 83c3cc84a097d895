"""Hard limits of one answer, and what it has spent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pydantic import Field

from crag_dspy.types import Frozen, Limit


class Limits(Frozen):
    """What one answer may spend."""

    max_searches: int = Field(default=4, ge=0)
    max_pages: int = Field(default=12, ge=0)
    max_lm_calls: int = Field(default=24, ge=0)
    max_tokens: int = Field(default=60_000, ge=0)
    """Prompt and completion tokens together."""
    max_seconds: float = Field(default=120.0, gt=0)
    max_usd: float | None = Field(default=None, ge=0)
    """None: no limit on the price, which is known for hosted LMs only."""


class Budget:
    """Counts what is spent, across threads, and refuses what a limit no longer allows.

    An LM call that is not the last word leaves room for those that are: the generator's, so that a limit never costs the answer.
    """

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits(max_searches=10**9, max_pages=10**9, max_lm_calls=10**9, max_tokens=10**12, max_seconds=1e9)
        self.stop: Limit | None = None
        """The first limit that stood in the way."""
        self.lm_calls = self.prompt_tokens = self.completion_tokens = self.searches = self.pages = 0
        self.usd: float | None = None
        self.kept_back = 0
        """LM calls kept for the generator; each that it makes is one less."""
        self._calls_in_flight = self._in_flight = 0  # calls under way, tokens that they may still use
        self._largest = self._dearest = 0.0  # of one call so far: tokens, price
        self.slowest = 0.0
        """Seconds of the slowest call so far."""
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()

    @property
    def seconds(self) -> float:
        """Seconds since the question came."""
        return self._clock() - self._started

    @property
    def left(self) -> float:
        """Seconds left, 0 or more."""
        return max(0.0, self.limits.max_seconds - self.seconds)

    def begin_call(self, tokens: int, *, last: bool = False, usd: float = 0.0) -> float | None:
        """Ask for an LM call; return the seconds that it may take, or None if a limit forbids it.

        Args:
            tokens: What it may use at most.
            last: It is one of those kept back.
            usd: What it may cost at most, where prices are known.
        """
        with self._lock:
            back = 0 if last else self.kept_back
            limits = self.limits
            used = self.prompt_tokens + self.completion_tokens + self._in_flight
            seconds = self.left - (self.slowest if back else 0.0)
            if self.lm_calls + 1 + back > limits.max_lm_calls:
                self._refuse("max_lm_calls")
                return None
            if used + tokens + back * max(tokens, self._largest) > limits.max_tokens:
                self._refuse("max_tokens")
                return None
            price = max(usd, self._dearest)
            if limits.max_usd is not None and (self.usd or 0.0) + (self._calls_in_flight + 1 + back) * price > limits.max_usd:
                self._refuse("max_usd")
                return None
            if seconds <= 0 or (back and seconds < self.slowest):
                self._refuse("max_seconds")
                return None
            self.lm_calls += 1
            self._calls_in_flight += 1
            self._in_flight += tokens
            self._dearest = price
            if last:
                self.kept_back = max(0, self.kept_back - 1)
            return seconds

    def end_call(self, reserved: int, *, prompt: int, completion: int, seconds: float, usd: float | None) -> None:
        """Book what a call really used."""
        with self._lock:
            self._calls_in_flight -= 1
            self._in_flight -= reserved
            self.prompt_tokens += prompt
            self.completion_tokens += completion
            self._largest = max(self._largest, prompt + completion)
            self.slowest = max(self.slowest, seconds)
            if usd is not None:
                self.usd = (self.usd or 0.0) + usd
                self._dearest = max(self._dearest, usd)

    def spend_searches(self, wanted: int) -> int:
        """Return how many of `wanted` searches may be made, and book them."""
        if self.left <= 0:
            self._refuse("max_seconds")
            return 0
        granted = max(0, min(wanted, self.limits.max_searches - self.searches))
        if granted < wanted:
            self._refuse("max_searches")
        self.searches += granted
        return granted

    def spend_pages(self, wanted: int) -> int:
        """Return how many of `wanted` pages may be read, and book them."""
        granted = max(0, min(wanted, self.limits.max_pages - self.pages))
        if granted < wanted:
            self._refuse("max_pages")
        self.pages += granted
        return granted

    def out_of_time(self) -> None:
        """Note that a call did not come back in time."""
        self._refuse("max_seconds")

    def _refuse(self, limit: Limit) -> None:
        self.stop = self.stop or limit
