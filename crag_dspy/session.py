"""The HTTP session that a search provider's client speaks through: it sends no more than it is told and reads no more than it can hold."""

from __future__ import annotations

import threading
import time
from typing import Any

import requests

from crag_dspy.weather import retry_after

__all__ = ["LimitedSession", "TooMuch", "requests"]

MAX_BYTES = 10_000_000
BLOCK = 8192  # bytes read at once, which a decompression bomb multiplies by a thousand


class TooMuch(requests.exceptions.RequestException):
    """A reply is longer than `MAX_BYTES` after decompression."""


class LimitedSession(requests.Session):
    """A session that follows no redirect, reads at most `MAX_BYTES`, and takes `timeout` as the time for all of the body."""

    def __init__(self, *, direct: bool = False) -> None:
        """Open a session.

        Args:
            direct: Pass by the proxies of the environment: a server on loopback is none of theirs.
        """
        super().__init__()
        self.trust_env = not direct
        self.auth = lambda request: request  # or requests would look for a password in ~/.netrc and send it instead of the key
        self._own = threading.local()

    def retry_after(self) -> float | None:
        """Return the seconds that this thread's last reply asked to wait, if it did."""
        return getattr(self._own, "retry_after", None)

    def request(self, method: Any, url: Any, *args: Any, timeout: Any = None, **kwargs: Any) -> requests.Response:
        """Send a request and read its reply.

        Raises:
            requests.exceptions.RequestException: as ever, and `TooMuch`.
        """
        self._own.retry_after = None
        end = time.monotonic() + (timeout or 60.0)
        reply = super().request(method, url, *args, **(kwargs | {"timeout": timeout, "stream": True, "allow_redirects": False}))
        with reply:
            body = bytearray()
            for block in reply.iter_content(BLOCK):
                body += block
                if len(body) > MAX_BYTES:
                    raise TooMuch(f"a reply of more than {MAX_BYTES:,} bytes")
                if time.monotonic() > end:
                    raise requests.exceptions.ReadTimeout("the reply did not end in time")
        reply._content = bytes(body)  # as `Response.content` keeps it
        self._own.retry_after = retry_after(reply.headers.get("retry-after"))
        return reply
