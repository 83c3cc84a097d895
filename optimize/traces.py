"""Traces that people judged, as training questions: `python -m optimize.dataset from-traces OUT.jsonl`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from crag_dspy.errors import DatasetError
from crag_dspy.experiment import experiment
from crag_dspy.feedback import Verdict, verdict
from crag_dspy.status import has_registry
from crag_dspy.watch import questions
from optimize.dataset import Row, same_question

_MARKER = re.compile(r"\s*\[\d+\]")
cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


class Harvest(NamedTuple):
    """What traces gave: rows in the order in which they were judged, the reasons of what was left out, the days of the questions."""

    rows: list[Row]
    left_out: Counter[str]
    days: list[str]


@cli.callback()
def commands() -> None:
    """Questions with answers, from elsewhere."""


@cli.command()
def from_traces(
    out: Annotated[Path, typer.Argument(help="A new JSONL file.")],
    since: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Questions asked since this day (UTC). Default: all.")
    ] = None,
) -> None:
    """Write the questions whose answers people corrected or confirmed as training questions."""
    if out.exists():
        raise DatasetError(f"{out} exists already. Give another name; two files can be joined with cat.")
    if not out.resolve().parent.is_dir():
        raise DatasetError(f"{out}: there is no such folder.")
    found = harvest(judged(since))
    if found.rows:
        out.write_text("".join(f"{row.model_dump_json(exclude_defaults=True)}\n" for row in found.rows), encoding="utf-8")
    for reason, count in found.left_out.most_common():
        typer.echo(f"Left out: {count} {reason}")
    if not found.rows:
        raise DatasetError("No trace makes a training question. Judge answers with crag feedback, or check MLFLOW_TRACKING_URI.")
    days = " to ".join(dict.fromkeys(found.days[:1] + found.days[-1:]))
    typer.echo(f"{len(found.rows)} questions written to {out}, asked as of {days} (--as-of of python -m optimize).")


def judged(since: datetime | None = None) -> Iterator[Any]:
    """Yield the MLflow traces of the experiment that people judged, of questions asked since a day.

    Raises:
        DatasetError: there is no store of traces.
        SettingsError: it cannot be asked, or has no such experiment.
    """
    if not has_registry():
        raise DatasetError("There are no traces here. Run this where mlflow.db is, or set MLFLOW_TRACKING_URI.")
    import mlflow

    asked_since = f"attributes.timestamp_ms >= {int(since.replace(tzinfo=UTC).timestamp() * 1000)}" if since else None
    where = [experiment(create=False)]
    # First without spans, which hold the documents: few of many answers are judged.
    for trace in mlflow.search_traces(
        locations=where, filter_string=asked_since, return_type="list", include_spans=False, order_by=["timestamp_ms ASC"], flush=True
    ):
        if verdict(trace):
            yield mlflow.get_trace(trace.info.trace_id)


def harvest(traces: Iterable[Any]) -> Harvest:
    """Return the rows that judged traces give; of a question that was asked several times, the one that was judged last."""
    newest: dict[str, tuple[Verdict, Row, str]] = {}
    left_out: Counter[str] = Counter()
    for trace in traces:
        said = verdict(trace)
        if said is None:
            continue
        row, day = _row(trace, said)
        if isinstance(row, str):
            left_out[row] += 1
            continue
        key = same_question(row.question)
        if key in newest:
            left_out["asked again: what was said last counts"] += 1
        if key not in newest or newest[key][0].said_at <= said.said_at:
            newest[key] = (said, row, day)
    chosen = sorted(newest.values(), key=lambda one: one[0].said_at)
    return Harvest([row for _, row, _ in chosen], left_out, sorted(day for _, _, day in chosen))


def _row(trace: Any, said: Verdict) -> tuple[Row | str, str]:
    """Return the row and the day of its question, or why there is none."""
    asked = questions(trace)
    if len(asked) != 1:
        return "traces of another program that hold several questions, or none", ""
    [span] = asked
    question, outputs = (span.inputs or {}).get("question"), span.outputs
    if not isinstance(question, str):
        return "redacted traces (CRAG_TRACING): they hold no question", ""
    if not said.answer and not said.right:
        return "thumbs down without a corrected answer", ""
    if not outputs:
        return "questions without an answer", ""
    abstained = outputs["status"] == "abstained"
    answer = _MARKER.sub("", said.answer) if said.answer else "" if abstained else _stated(outputs)
    gold = said.sources or (() if said.answer else outputs["citations"])
    row = Row(
        id=trace.info.trace_id,
        question=question.strip(),
        answer=answer.strip(),
        need=None if answer else "none",
        gold_docs=_sources(gold, web=False),
        gold_urls=_sources(gold, web=True),
    )
    return row, str(span.attributes.get("as_of", ""))


def _stated(outputs: dict[str, Any]) -> str:
    return " ".join(outputs.get("statements", ())) or _MARKER.sub("", outputs["answer"])


def _sources(sources: Sequence[str], *, web: bool) -> tuple[str, ...]:
    return tuple(dict.fromkeys(source for source in sources if ("://" in source) == web))
