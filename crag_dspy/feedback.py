"""What people say of an answer, kept at its trace: thumbs, a corrected answer, the sources that it should rest on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, model_validator

from crag_dspy.domains import shown_url
from crag_dspy.errors import CragError
from crag_dspy.status import has_registry
from crag_dspy.types import Frozen
from crag_dspy.watch import questions

Thumbs = Literal["up", "down"]
THUMBS, CORRECTED = "thumbs_up", "expected_response"  # the latter is the name that MLflow's judges look for
SOURCES = "sources"
MAX_ANSWER, MAX_SOURCES, MAX_SOURCE = 4000, 20, 2000
_TRACE_ID = re.compile(r"tr-[0-9a-f]{1,64}")


class FeedbackError(CragError):
    """Feedback does not fit; nothing was kept."""

    code = "invalid_feedback"
    status = 400


class UnknownTrace(FeedbackError):
    """There is no answer of that trace id."""

    code = "unknown_trace"
    status = 404


class FeedbackUnavailable(FeedbackError):
    """MLflow cannot be asked."""

    code = "feedback_unavailable"
    status = 503


class Feedback(Frozen):
    """What one person says of one answer. An answer corrects, and so says that the other was wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trace_id: str
    thumbs: Thumbs | None = None
    answer: str | None = Field(default=None, pattern=r"\S", max_length=MAX_ANSWER)
    sources: tuple[Annotated[str, Field(pattern=r"\S", max_length=MAX_SOURCE)], ...] = Field(default=(), max_length=MAX_SOURCES)
    by: str = Field(default="default", pattern=r"\S", max_length=200)

    @model_validator(mode="after")
    def _says_something(self) -> Feedback:
        if self.answer and self.thumbs == "up":
            raise ValueError("thumbs up and a corrected answer contradict each other")
        if not self.answer and self.thumbs is None:
            raise ValueError("say thumbs up or down, or give the corrected answer")
        if self.sources and not self.answer and self.thumbs == "down":
            raise ValueError("sources belong to an answer: give the corrected one")
        return self


class Verdict(Frozen):
    """What was last said of an answer."""

    right: bool
    answer: str | None
    """The corrected answer."""
    sources: tuple[str, ...]
    """Document ids and URLs that the right answer rests on, where somebody named them."""
    said_at: datetime


def feedback(trace_id: str, *, thumbs: Thumbs | None = None, answer: str | None = None, sources: Sequence[str] = (), by: str = "") -> None:
    """Keep what somebody says of an answer: `crag_dspy.feedback(answer.trace_id, thumbs="up")`. What is said later overrides.

    Args:
        trace_id: The answer's.
        thumbs: Whether the answer is right. May be left out beside a corrected answer.
        answer: The right answer, at most 4,000 characters, as short as it is complete: a later answer is right if it holds these words.
        sources: Document ids and URLs that the right answer rests on, at most 20. Of URLs the query is left out, which may hold a token.
        by: Who says it.

    Raises:
        FeedbackError: it says nothing, contradicts itself or is too long; or the trace is redacted and the feedback holds text.
        UnknownTrace: there is no answer of that id (yet: another process's traces take a second to arrive).
        FeedbackUnavailable: MLflow cannot be asked.
    """
    said = {"trace_id": trace_id, "thumbs": thumbs, "answer": answer, "sources": sources, "by": by or "default"}
    keep(said)


def keep(said: Mapping[str, Any]) -> Feedback:
    """Do what `feedback` does with its arguments by name, as they come from outside."""
    try:
        read = Feedback.model_validate(said)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise FeedbackError(f"The feedback does not fit: {f'{where}: ' if where else ''}{reason}.") from None
    trace = _trace(read.trace_id)
    if read.answer and not isinstance(questions(trace)[0].inputs.get("question"), str):
        raise FeedbackError(f"{read.trace_id} is redacted (CRAG_TRACING): it keeps no text, so no corrected answer. Send thumbs only.")
    _keep(read, trace)
    return read


def verdict(trace: Any) -> Verdict | None:
    """Return what people last said of an MLflow trace's answer, here or in MLflow's own pages; None where they said nothing.

    Thumbs down do not take a correction back, thumbs up after it do.
    """
    thumbs, corrected = _latest(trace, THUMBS), _latest(trace, CORRECTED)
    if corrected and not (thumbs and thumbs.feedback.value and _when(thumbs) > _when(corrected)):
        return Verdict(right=False, answer=str(corrected.expectation.value), sources=_sources(corrected), said_at=_when(corrected))
    if thumbs is None:
        return None
    return Verdict(right=thumbs.feedback.value, answer=None, sources=_sources(thumbs), said_at=_when(thumbs))


def _keep(said: Feedback, trace: Any) -> None:
    import mlflow
    from mlflow.entities import AssessmentSource, Expectation
    from mlflow.entities import Feedback as Thumb
    from mlflow.exceptions import MlflowException

    who = AssessmentSource(source_type="HUMAN", source_id=said.by)
    shown = [shown_url(source) if "://" in source else source for source in said.sources]
    sources = {SOURCES: json.dumps(shown, ensure_ascii=False)} if shown else None
    kept: list[Any] = [Thumb(name=THUMBS, value=said.thumbs == "up", source=who, metadata=None if said.answer else sources)]
    if said.answer:
        kept.append(Expectation(name=CORRECTED, value=said.answer, source=who, metadata=sources))
    try:
        for assessment in kept:
            earlier = _latest(trace, assessment.name)
            assessment.overrides = earlier.assessment_id if earlier else None
            mlflow.log_assessment(said.trace_id, assessment)
    except MlflowException as exc:
        raise _failed(said.trace_id, exc) from exc


def _trace(trace_id: str) -> Any:
    """Return the trace of an answer; one that is still on its way from this process is waited for."""
    unknown = UnknownTrace(f"There is no answer of trace {trace_id[:80]!r}. It is the answer's trace_id; MLFLOW_TRACKING_URI says where.")
    if not _TRACE_ID.fullmatch(trace_id) or not has_registry():
        raise unknown
    import mlflow

    trace = _found(trace_id)
    if trace is None:
        mlflow.flush_trace_async_logging()
        trace = _found(trace_id)
    if trace is None:
        raise unknown
    return trace


def _found(trace_id: str) -> Any:
    """Return the trace of an answer; None where there is none, or not all of it yet."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        trace = mlflow.MlflowClient().get_trace(trace_id)
    except MlflowException as exc:
        if exc.error_code in ("RESOURCE_DOES_NOT_EXIST", "NOT_FOUND", "BAD_REQUEST"):  # the last where only some of it was written
            return None
        raise _failed(trace_id, exc) from exc
    return trace if questions(trace) else None


def _failed(trace_id: str, exc: Any) -> FeedbackUnavailable:
    return FeedbackUnavailable(
        f"MLflow could not be asked for {trace_id} ({exc.error_code}). Check MLFLOW_TRACKING_URI, or send it again later."
    )


def _latest(trace: Any, name: str) -> Any:
    """Return the assessment of a name that people made last and nobody has overridden."""
    able = [
        a
        for a in trace.info.assessments
        if a.name == name
        and a.valid is not False
        and a.source.source_type == "HUMAN"
        and (isinstance(a.feedback.value, bool) if a.feedback else bool(a.expectation and str(a.expectation.value).strip()))
    ]
    return max(able, key=_when, default=None)


def _when(assessment: Any) -> datetime:
    return datetime.fromtimestamp(assessment.last_update_time_ms / 1000, UTC)


def _sources(assessment: Any) -> tuple[str, ...]:
    return tuple(json.loads((assessment.metadata or {}).get(SOURCES, "[]")))
