"""A ready program in the hand of its user: ask, await, stream."""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import date
from functools import cached_property
from typing import Any, TypedDict, Unpack

import dspy

from crag_dspy import watch
from crag_dspy.budget import Limits
from crag_dspy.chat import Chat
from crag_dspy.domains import Domains
from crag_dspy.index import Where
from crag_dspy.program import CRAG
from crag_dspy.state import chat_template
from crag_dspy.types import Answer
from crag_dspy.watch import Event, Tracing


class Options(TypedDict, total=False):
    """What may be said beside a question."""

    as_of: date | None
    """The day on which it is asked. Default: today."""
    where: Where | None
    """Which passages of the index are searched. Default: all."""
    limits: Limits | None
    """What the answer may spend. Default: the settings'."""
    domains: Domains | None
    """Whose web pages may be read. Default: the settings'."""


class Crag:
    """A ready program: call it with a question, get an `Answer`."""

    def __init__(self, program: CRAG, lm: dspy.BaseLM, *, tracing: Tracing = "off", version: str = "uncompiled") -> None:
        self.program = program
        self.lm = lm
        self.tracing = tracing
        self.version = version
        """Where the program comes from, for traces: the URI it was loaded from, or the run that logged what is served."""

    def __call__(self, question: str, **options: Unpack[Options]) -> Answer:
        """Answer a question; see `Options` for what may be said beside it.

        Raises:
            QuestionError: the question is empty or too long.
            dspy.LMError: the LM cannot be reached or refuses.
        """
        return self.predict(question, **options).answer  # type: ignore[no-any-return]

    def predict(self, question: str, **options: Unpack[Options]) -> dspy.Prediction:
        """Answer a question and return the prediction: `answer` and `trace`."""
        # trace=None and disable_history: otherwise every prompt stays in memory for the life of the process.
        with (
            context(self.lm),
            dspy.context(trace=None, disable_history=True),
            watch.trace(self.tracing, question, lambda: self._described(options.get("as_of"))) as close,
        ):
            prediction = self.program(question=question, **options)
            prediction.answer = close(prediction.answer, prediction.trace)
            return prediction

    @cached_property
    def prompts(self) -> dict[str, str]:
        """A digest of each predictor's prompt, demonstrations included: the same wherever the Prompt Registry holds the same text."""
        texts = {name: json.dumps(chat_template(predictor)) for name, predictor in self.program.named_predictors()}
        return {name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12] for name, text in texts.items()}

    def _described(self, as_of: date | None) -> dict[str, Any]:
        day = as_of or self.program.parts.today()
        return {"lm": self.lm.model, "version": self.version, "prompts": self.prompts, "as_of": day.isoformat()}

    async def acall(self, question: str, **options: Unpack[Options]) -> Answer:
        """Answer a question without holding up the event loop: several overlap."""
        return await asyncio.to_thread(self, question, **options)

    def stream(self, question: str, **options: Unpack[Options]) -> Iterator[Event | str | Answer]:
        """Yield an `Event` as each stage ends, then the answer's text word by word, then the `Answer`.

        The text comes after the citation check: what is shown was checked.
        """
        events: queue.Queue[Event | None] = queue.Queue()

        def ask() -> Answer:
            try:
                with watch.listening(events.put):
                    return self(question, **options)
            finally:
                events.put(None)

        pool = ThreadPoolExecutor(1, thread_name_prefix="crag-stream")
        asked = pool.submit(copy_context().run, ask)
        pool.shutdown(wait=False)  # whoever stops listening must not wait for the answer: it may be an event loop
        yield from iter(events.get, None)
        answer = asked.result()
        yield from re.findall(r"\S+\s*", answer.text)
        yield answer


def context(lm: dspy.BaseLM) -> Any:
    """Return the DSPy context that the program runs in: this LM, and the format in which it is asked."""
    return dspy.context(lm=lm, adapter=Chat())
