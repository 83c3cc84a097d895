"""How stages talk to the LM: text goes in as data, replies are read tolerantly, calls run side by side and are counted."""

from __future__ import annotations

import contextlib
import contextvars
import json
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError

T = TypeVar("T")
R = TypeVar("R")

_FIELD_MARKER = re.compile(r"\[\s*\[\s*#+|#+\s*\]\s*\]")
_CHAT_MARKER = re.compile(r"<[|｜](\w{1,40})[|｜]>")
_SOURCE_NUMBER = re.compile(r"[\[【［]\s*([A-Za-z]?\d+(?:\s*[,;–-]\s*[A-Za-z]?\d+)*)\s*[\]】］]")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff\U000e0000-\U000e007f\x00-\x08\x0b\x0c\x0e-\x1f]")


def as_data(text: str) -> str:
    """Return retrieved text as it may stand in a prompt.

    DSPy's field markers (`[[ ## name ## ]]`), a chat template's (`<|im_end|>`) and bracketed source numbers lose their brackets and
    invisible characters are dropped, so that a page can neither end its field nor pose as numbered evidence. Only the prompt sees
    this form.
    """
    text = _INVISIBLE.sub("", text)
    text = _FIELD_MARKER.sub("(#)", text)
    text = _CHAT_MARKER.sub(r"(\1)", text)
    return _SOURCE_NUMBER.sub(r"(\1)", text)


class Reply(NamedTuple):
    """An LM's reply: the prediction, or None where it broke the format, and then the raw text."""

    prediction: Any
    raw: str

    def field(self, name: str) -> str:
        """Return an output field as text; from a reply out of format, whatever of it can be read."""
        if self.prediction is not None:
            return str(getattr(self.prediction, name, "") or "").strip()
        return salvage(self.raw, name)


def salvage(raw: str, name: str) -> str:
    """Return the field `name` of a reply that broke the format: an outer JSON key, or the text without its markers."""
    body = re.sub(r"^```\w*\n|\n?```$", "", raw.strip())
    inner = body[body.find("{") : body.rfind("}") + 1]
    for text in (body, inner if f'"{name}"' in inner else ""):
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(text)
            while isinstance(value, dict) and value:
                value = value.get(name, next(iter(value.values())))
            return "" if value is None or value == {} else str(value).strip()
    if match := re.search(rf"\[\[\s*##\s*{name}\s*##\s*\]\](.*?)(?:\[\[\s*##|\Z)", body, re.S):
        return match.group(1).strip()
    return re.sub(r"\[\[\s*##\s*\w+\s*##\s*\]\]", " ", body).strip()


class Meter:
    """Counts one question's LM calls, across threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.lm_calls = 0
        self.parse_failures = 0

    def ask(self, predictor: dspy.Module, **inputs: str) -> Reply:
        """Call a predictor once; a reply out of format comes back raw. LM errors pass through as DSPy raised them."""
        with self._lock:
            self.lm_calls += 1
        try:
            return Reply(predictor(**inputs), "")
        except AdapterParseError as exc:
            with self._lock:
                self.parse_failures += 1
            return Reply(None, exc.lm_response or "")


def wave(function: Callable[[T], R], items: Sequence[T], workers: int) -> list[R]:
    """Call `function` on every item at once and return the results in order; the first error is raised.

    Each call runs in a copy of the caller's context: DSPy's LM and optimizer trace, and MLflow's span, are context
    variables that a plain thread would not see.
    """
    if workers <= 1 or len(items) <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(workers, len(items)), thread_name_prefix="crag") as pool:
        futures = [pool.submit(contextvars.copy_context().run, function, item) for item in items]
        return [future.result() for future in futures]
