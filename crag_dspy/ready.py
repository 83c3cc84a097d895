"""Ready to answer: warmed up, and what it needs can be reached."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import dspy

from crag_dspy.budget import Limits
from crag_dspy.crag import Crag
from crag_dspy.weather import bounded

PROBE_SECONDS = 2.0
FRESH_SECONDS = 5.0


def warm(crag: Crag) -> None:
    """Ask one question that may spend nothing, so that the first real one finds models, index and libraries in memory.

    No LM is called and no page is read.
    """
    with contextlib.suppress(dspy.LMError):  # nobody listens there: only the LM client's libraries are loaded
        dspy.LM("openai/none", api_base="http://127.0.0.1:9/v1", api_key="none", num_retries=0, cache=False)("warm-up")
    nothing = Limits(max_searches=0, max_pages=0, max_lm_calls=0)
    Crag(crag.program, crag.lm)("How long does the warranty last?", limits=nothing)
    crag.program.parts.cross_encoder.scores("How long does it last?", ["It lasts two years."])  # the index may be empty


class Readiness:
    """Whether questions can be answered now; looked up at most every few seconds, however often it is asked."""

    def __init__(self, crag: Crag) -> None:
        self._crag = crag
        self._lock = threading.Lock()
        self._found: dict[str, Any] = {}
        self._looked = float("-inf")

    def __call__(self) -> dict[str, Any]:
        """Return `ready`, and of `index` and `lm` each `ok`, `unavailable` or (of an LM whose address only its library knows) `unknown`."""
        with self._lock:
            if time.monotonic() - self._looked > FRESH_SECONDS:
                parts = {"index": self._index(), "lm": self._lm()}
                self._found = {"ready": "unavailable" not in parts.values(), **parts}
                self._looked = time.monotonic()
            return dict(self._found)

    def _index(self) -> str:
        try:
            bounded(lambda: self._crag.program.parts.index.search("warranty", 1), time.monotonic() + PROBE_SECONDS)
        except Exception:  # whatever it is, no question could be answered from the index
            return "unavailable"
        return "ok"

    def _lm(self) -> str:
        address = urlsplit(str(self._crag.lm.kwargs.get("api_base") or ""))
        if not address.hostname:
            return "unknown"
        try:
            socket.create_connection((address.hostname, address.port or (443 if address.scheme == "https" else 80)), PROBE_SECONDS).close()
        except OSError:
            return "unavailable"
        return "ok"
