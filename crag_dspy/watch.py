"""Watching an answer being made: an event per stage for whoever listens, a span per stage in an MLflow trace."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast

from crag_dspy.domains import shown_url
from crag_dspy.errors import SettingsError
from crag_dspy.experiment import experiment
from crag_dspy.types import Answer, Frozen, Grade, Passage, Trace

log = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])

Stage = Literal["retrieve", "grade", "assess", "rewrite", "search", "refine", "generate", "check"]
Tracing = Literal["off", "on", "redacted"]
"""`redacted`: spans hold ids, scores and counts, no text of questions, documents or answers."""
ROOT = "crag"
"""Name of a question's span, which holds those of its stages."""


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
def _span(name: str, span_type: str, **options: Any) -> Iterator[Any]:
    """Open a span. An error leaves its kind there and no more: MLflow would keep message and traceback, which may hold keys and texts."""
    import mlflow

    failed: Exception | None = None
    with mlflow.start_span(name=name, span_type=span_type, **options) as span:
        try:
            yield span
        except Exception as exc:  # raised again below, where MLflow does not see its words
            failed = exc
            span.set_status("ERROR")
            span.set_attribute("error", type(exc).__name__)
    if failed is not None:
        raise failed


_SPAN_TYPES = {"retrieve": "RETRIEVER", "search": "RETRIEVER", "grade": "RERANKER", "generate": "LLM", "refine": "PARSER"}
_TEXTS = frozenset(
    ["page_content", "text", "query", "need", "term", "question", "answer", "reason", "why", "title", "section", "dropped", "statements"]
)


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: len(str(inner)) if key in _TEXTS else _redacted(inner) for key, inner in value.items()}
    return [_redacted(item) for item in value] if isinstance(value, list) else value


@contextmanager
def trace(mode: Tracing, question: str, attributes: Callable[[], dict[str, Any]]) -> Iterator[Callable[[Answer, Trace], Answer]]:
    """Open a trace for one question; yields a function that closes it with what came of the question and gives the answer the trace's id.

    Nothing is traced where tracing is off, where MLflow's sampling leaves the question out, or where there is no experiment to write to.
    """
    where = _destination(mode)
    if where is None:
        yield lambda answer, decided: answer
        return
    from mlflow.entities import NoOpSpan

    token = _tracing.set(mode)
    try:
        with _span(ROOT, "AGENT", attributes=attributes(), **where) as span:
            if isinstance(span, NoOpSpan):  # stays open: what others trace inside is left out as well
                _tracing.set("off")
                yield lambda answer, decided: answer
                return
            span.set_inputs({"question": question if mode == "on" else len(question)})
            yield lambda answer, decided: _close(span, mode, answer, decided)
    finally:
        _tracing.reset(token)


def _destination(mode: Tracing) -> dict[str, Any] | None:
    """Return what a root span needs to know, nothing inside another's trace; None where no trace can be written."""
    if mode == "off":
        return None
    import mlflow
    from mlflow.entities import MlflowExperimentLocation

    if mlflow.get_current_active_span() is not None:
        return {}
    try:
        return {"trace_destination": MlflowExperimentLocation(experiment_id=experiment())}
    except SettingsError as exc:  # found when the program was built; since then the store was changed
        log.warning("This question is not traced. %s", exc)
        return None


def _close(span: Any, mode: Tracing, answer: Answer, decided: Trace) -> Answer:
    import mlflow

    pairs = {(conflict.newer, conflict.older) for conflict in answer.conflicts}
    outputs = {
        "answer": answer.text,
        "status": answer.status,
        "citations": [_address(c.url or c.id) for c in answer.citations],
        # Without what was added about sources that disagree: that is true of the sources, not of the thing.
        "statements": [claim.text for claim in answer.claims if claim.citations not in pairs] or [claim.text for claim in answer.claims],
    }
    searches = [{"query": s.query, "need": s.need, "because": s.reason, "results": s.results} for s in decided.searches]
    span.set_outputs(outputs if mode == "on" else _redacted(outputs))
    for name in ("action", "assessment", "stop_reason", "confidence"):
        span.set_attribute(name, getattr(answer, name))
    span.set_attribute("searches", searches if mode == "on" else _redacted(searches))
    span.set_attribute("parse_failures", decided.parse_failures)
    span.set_attribute("warnings", [warning.code for warning in answer.warnings])
    span.set_attribute("usage", answer.usage.model_dump())
    mlflow.update_current_trace(tags={"action": answer.action, "status": answer.status, "stop_reason": answer.stop_reason})
    return answer.model_copy(update={"trace_id": span.trace_id})


def questions(trace: Any) -> list[Any]:
    """Return the spans of the questions in an MLflow trace: one, but where another program's trace holds several."""
    return [span for span in trace.data.spans if span.name == ROOT and span.span_type == "AGENT"]


@functools.lru_cache(maxsize=1024)  # the same few sources stand in every span, and parsing an address takes longer than the span
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
