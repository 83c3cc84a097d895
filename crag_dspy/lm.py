"""How stages talk to the LM: text goes in as data, replies are read tolerantly, calls run side by side and are counted."""

from __future__ import annotations

import contextlib
import contextvars
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import dspy
from dspy.utils.exceptions import AdapterParseError
from dspy.utils.usage_tracker import track_usage

from crag_dspy.budget import Budget
from crag_dspy.hostile import ESCAPE, INVISIBLE
from crag_dspy.weather import Late, bounded

FORMAT_TOKENS = 200  # what DSPy writes around the fields of a prompt
T = TypeVar("T")
R = TypeVar("R")

_FIELD_MARKER = re.compile(r"\[\s*\[\s*#+|#+\s*\]\s*\]")
_CHAT_MARKER = re.compile(
    r"<[|｜](\w{1,40})[|｜]>|<+(/?\s*(?:SYS|(?:start|end)_of_turn|evidence|context|system|instructions?|passage|strips))>+|\[(/?INST)\]",
    re.I,
)
_SOURCE_NUMBER = re.compile(r"[\[【［]\s*([A-Za-z]?\d+(?:\s*[,;–-]\s*[A-Za-z]?\d+)*)\s*[\]】］]")
_GAP = re.compile(r"\n{3,}")


def as_data(text: str) -> str:
    """Return retrieved text as it may stand in a prompt.

    DSPy's field markers (`[[ ## name ## ]]`), a chat template's (`<|im_end|>`, `[INST]`), tags that pose as the prompt's and bracketed
    source numbers lose their brackets, escaped or not, and invisible characters are dropped, so that a page can neither end its field
    nor pose as numbered evidence. Only the prompt sees this form.
    """
    text = ESCAPE.sub(r"\1", INVISIBLE.sub("", text))
    text = _FIELD_MARKER.sub("(#)", text)
    text = _CHAT_MARKER.sub(lambda match: f"({match[match.lastindex or 0]})", text)
    return _GAP.sub("\n\n", _SOURCE_NUMBER.sub(r"(\1)", text))


class Reply(NamedTuple):
    """An LM's reply: the prediction, or None where it broke the format, and then the raw text."""

    prediction: Any
    raw: str
    skipped: bool = False
    """No call was made, or none came back in time."""

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
    """Makes one question's LM calls, within its budget."""

    def __init__(self, budget: Budget | None = None) -> None:
        self.budget = budget or Budget()
        self.parse_failures = 0

    @property
    def lm_calls(self) -> int:
        """How many calls were made."""
        return self.budget.lm_calls

    def ask(self, predictor: dspy.Module, *, last: bool = False, **inputs: str) -> Reply:
        """Call a predictor once; a reply out of format comes back raw, and an empty one where the budget allows no call.

        `last` calls may use what the budget keeps back for them. LM errors pass through as DSPy raised them.
        """
        prompt, completion = most_tokens(predictor, inputs)
        tokens, most_usd = prompt + completion, price(getattr(dspy.settings.lm, "model", ""), prompt, completion)
        seconds = self.budget.begin_call(tokens, last=last, usd=most_usd or 0.0)
        if seconds is None:
            return Reply(None, "", skipped=True)
        began = time.monotonic()
        with track_usage() as used:
            try:
                return Reply(bounded(lambda: predictor(**inputs), began + seconds), "")
            except AdapterParseError as exc:
                self.parse_failures += 1
                return Reply(None, exc.lm_response or "")
            except Late:
                self.budget.out_of_time()
                return Reply(None, "", skipped=True)
            finally:
                prompt, completion, usd = spent(used.get_total_tokens())
                self.budget.end_call(tokens, prompt=prompt, completion=completion, seconds=time.monotonic() - began, usd=usd)


def most_tokens(predictor: dspy.Module, inputs: Mapping[str, str]) -> tuple[int, int]:
    """Return how many tokens a prompt may take at most, by its characters (three for a token, as few as there are), and the reply."""
    shown = [*inputs.values()]
    for inner in predictor.predictors():
        shown += [inner.signature.instructions, *(str(value) for demo in inner.demos for value in demo.values())]
    limit = getattr(dspy.settings.lm, "kwargs", {}).get("max_tokens") or 0
    return FORMAT_TOKENS + sum(map(len, shown)) // 3, int(limit)


def spent(totals: Mapping[str, Mapping[str, Any]]) -> tuple[int, int, float | None]:
    """Return prompt tokens, completion tokens and the price in USD (None where no LM's prices are known)."""
    used = {model: (int(use.get("prompt_tokens") or 0), int(use.get("completion_tokens") or 0)) for model, use in totals.items()}
    prices = [usd for model, counts in used.items() if (usd := price(model, *counts)) is not None]
    return sum(p for p, _ in used.values()), sum(c for _, c in used.values()), sum(prices) if prices else None


def price(model: str, prompt: int, completion: int) -> float | None:
    """Return the price in USD of tokens of a model, from litellm's list; None where it has none."""
    import litellm

    prices = litellm.model_cost.get(model) or litellm.model_cost.get(model.split("/", 1)[-1]) or {}
    if "input_cost_per_token" not in prices:
        return None
    return prompt * float(prices["input_cost_per_token"]) + completion * float(prices.get("output_cost_per_token") or 0.0)


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
