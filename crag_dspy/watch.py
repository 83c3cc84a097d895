"""Watching an answer being made: an event per stage for whoever listens, a span per stage in an MLflow trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast

from crag_dspy.domains import shown_url
from crag_dspy.types import Answer, Frozen, Grade, Passage

Method = TypeVar("Method", bound=Callable[..., Any])

Stage = Literal["retrieve", "grade", "assess", "rewrite", "search", "refine", "generate", "check"]
Tracing = Literal["off", "on", "redacted"]
"""`redacted`: spans hold ids, scores and counts, no text of questions, documents or answers."""


class Event(Frozen):
    """A stage that has just ended, and what came of it in a few words."""

    stage: Stage
    note: str


_listener: ContextVar[Callable[[Event], None] | None] = ContextVar("crag_listener", default=None)
_tracing: ContextVar[Tracing] = ContextVar("crag_tracing", default="off")


@contextmanager
def listening(listener: Callable[[Event], None]) -> Iterator[None]:
    """Hand every event of what runs inside to a function."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def stage(name: Stage, describe: Callable[[Any, Any], tuple[str, Any]]) -> Callable[[Method], Method]:
    """Make a method a stage: it leaves an event and, where a trace is open, a span.

    `describe` gets the object and what the method returned, and returns the note and the span's outputs.
    """

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _tracing.get() == "off":
                result = method(self, *args, **kwargs)
                if listener := _listener.get():
                    listener(Event(stage=name, note=describe(self, result)[0]))
                return result
            with _span(name, _SPAN_TYPES.get(name, "CHAIN")) as span:
                result = method(self, *args, **kwargs)
                note, outputs = describe(self, result)
                span.set_outputs(_redacted(outputs) if _tracing.get() == "redacted" else outputs)
                span.set_attribute("note", note if _tracing.get() == "on" else "")
            if listener := _listener.get():
                listener(Event(stage=name, note=note))
            return result

        return cast(Method, run)

    return decorate


@contextmanager
def _span(name: str, span_type: str, attributes: dict[str, Any] | None = None) -> Iterator[Any]:
    """Open a span. An error leaves its kind there and no more: MLflow would keep message and traceback, which may hold keys and texts."""
    import mlflow

    failed: Exception | None = None
    with mlflow.start_span(name=name, span_type=span_type, attributes=attributes) as span:
        try:
            yield span
        except Exception as exc:  # raised again below, where MLflow does not see its words
            failed = exc
            span.set_status("ERROR")
            span.set_attribute("error", type(exc).__name__)
    if failed is not None:
        raise failed


_SPAN_TYPES = {"retrieve": "RETRIEVER", "search": "RETRIEVER", "grade": "RERANKER", "generate": "LLM", "refine": "PARSER"}
_TEXTS = frozenset(["page_content", "text", "query", "need", "term", "question", "answer", "reason", "why", "title", "section", "dropped"])


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: len(str(inner)) if key in _TEXTS else _redacted(inner) for key, inner in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list) else value


@contextmanager
def trace(mode: Tracing, question: str, attributes: dict[str, Any]) -> Iterator[Callable[[Answer], Answer]]:
    """Open a trace for one question, unless tracing is off; yields a function that closes it with the answer and gives that its id."""
    if mode == "off":
        yield lambda answer: answer
        return
    import mlflow

    token = _tracing.set(mode)
    try:
        with _span("crag", "AGENT", attributes) as span:
            span.set_inputs({"question": question if mode == "on" else len(question)})

            def close(answer: Answer) -> Answer:
                outputs = {"answer": answer.text, "status": answer.status, "citations": [_address(c.url or c.id) for c in answer.citations]}
                span.set_outputs(outputs if mode == "on" else _redacted(outputs))
                for name in ("action", "assessment", "stop_reason", "confidence"):
                    span.set_attribute(name, getattr(answer, name))
                span.set_attribute("warnings", [warning.code for warning in answer.warnings])
                span.set_attribute("usage", answer.usage.model_dump())
                mlflow.update_current_trace(tags={"action": answer.action, "status": answer.status, "stop_reason": answer.stop_reason})
                return answer.model_copy(update={"trace_id": span.trace_id})

            yield close
    finally:
        _tracing.reset(token)


def _address(source: str) -> str:
    return shown_url(source) if "://" in source else source


def documents(passages: Sequence[Passage]) -> list[dict[str, Any]]:
    """Return passages as MLflow's documents, which its pages and judges understand."""
    return [
        {
            "id": passage.id,
            "page_content": passage.text,
            "metadata": {
                "doc_uri": _address(passage.source),
                "title": passage.title,
                "section": passage.section,
                "source_type": passage.source_type,
                "published_at": passage.published_at.isoformat() if passage.published_at else "",
            },
        }
        for passage in passages
    ]


def grades(found: Sequence[Grade]) -> list[dict[str, Any]]:
    """Return grades as a person reads them: the source, the score before and after freshness, who said so and why."""
    return [
        {
            "id": g.passage.id,
            "doc_uri": _address(g.passage.source),
            "before_freshness": round(max(g.needs), 3),
            "relevance": round(g.relevance, 3),
            "verdict": g.verdict,
            "graded_by": g.graded_by,
            "stale": g.stale,
            "age_days": g.age_days,
            "why": g.why,
        }
        for g in found
    ]
