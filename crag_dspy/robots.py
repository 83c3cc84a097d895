"""What a site asks of robots (RFC 9309), remembered per origin."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urljoin

from protego import Protego

from crag_dspy.errors import SourceFailure

MAX_ORIGINS = 1000


class Robots:
    """Answers whether a page may be fetched, from its origin's robots.txt."""

    def __init__(self, agent: str = "crag_dspy", *, keep: float = 86_400.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember nothing yet.

        Args:
            agent: The name that the rules are looked up by.
            keep: Seconds that an origin's rules are remembered (RFC 9309, section 2.4: a day at most).
            clock: In seconds.
        """
        self._agent, self._keep, self._clock = agent, keep, clock
        self._lock = threading.Lock()
        self._origins: OrderedDict[str, threading.Lock] = OrderedDict()
        self._rules: dict[str, tuple[float, Protego | bool | None]] = {}

    def permit(self, url: str, origin: str, read: Callable[[str], str]) -> bool:
        """Return whether the page at `url` may be fetched.

        Args:
            url: The page.
            origin: Its scheme, host and port.
            read: Fetches the text of robots.txt; its failure's `status`, if it has one, is the server's answer. Called once per
                origin and day: a 5xx forbids the site, a 4xx or no answer at all permits it.
        """
        with self._lock:
            lock = self._origins.setdefault(origin, threading.Lock())
            self._origins.move_to_end(origin)
            if len(self._origins) > MAX_ORIGINS:
                forgotten, _ = self._origins.popitem(last=False)
                self._rules.pop(forgotten, None)
        with lock:  # pages of one site that arrive together ask once
            read_at, rules = self._rules.get(origin, (self._clock() - self._keep, None))
            if self._clock() - read_at >= self._keep:
                rules = self._read(urljoin(url, "/robots.txt"), read)
                if rules is not None:
                    self._rules[origin] = self._clock(), rules
        return rules is None or (rules if isinstance(rules, bool) else bool(rules.can_fetch(url, self._agent)))

    def _read(self, url: str, read: Callable[[str], str]) -> Protego | bool | None:
        """Return the rules, or the one answer for all pages, or None where nobody answered: then it is asked again next time."""
        try:
            return Protego.parse(read(url))
        except SourceFailure as exc:
            status = getattr(exc, "status", None)
            return None if status is None else not 500 <= status <= 599
        except Exception:  # rules that the parser stumbles over are no rules
            return True
