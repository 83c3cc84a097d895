"""What a person sees of a compile on the terminal: progress, the table of before and after, answers of each need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date
from typing import Any, NamedTuple

import dspy
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from optimize import evaluate
from optimize.dataset import Row
from optimize.proof import EVERYTHING, Pair, Proof

COSTS = ("lm_calls", "searches", "prompt_tokens", "completion_tokens", "seconds", "seconds_p95")
SHOWN = (
    "judged_right", "answer_f1",
    "action_accuracy", "fallback_precision", "fallback_recall", "abstention_precision", "abstention_recall", "abstention_f1",
    "retrieval_recall_at_5", "retrieval_ndcg_at_5", "grader_balanced_accuracy", "strip_precision", "strip_recall",
    "cites_gold", "citation_precision", "citation_recall", "groundedness", "source_authority", "source_freshness", "source_independence",
    "confidence_ece", *COSTS, "usd",
)  # fmt: skip
CAPTION = (
    "Right: every fact of the gold answer stands in an answer of at most 80 words with checked citations; where nobody knows, an "
    "abstention. Objective: right, cited, grounded and routed, less the LM calls, per question. Differences in points, with the 95 % "
    "interval of a paired bootstrap; an interval that holds 0 is within chance."
)

console = Console(highlight=False, soft_wrap=True)


class Line(NamedTuple):
    """One line of the table: a measure, its value for each program, and what the second gained over the first."""

    name: str
    values: tuple[str, ...]
    difference: str = ""
    part: bool = False
    """True where it is a part (a need, a kind) of the line above."""


def lines(proof: Proof) -> list[Line]:
    """Return the table of a proof, for the terminal and the report: the first two programs compared, further ones beside them."""
    others = list(proof.runs)[2:]
    found = []
    for measure, title in (("right", "answers right"), ("objective", "objective")):
        for gain in proof.gains:
            pair: Pair = getattr(gain, measure)
            whole = gain.group == EVERYTHING
            key = "answers_right" if measure == "right" else "objective_per_question"
            beside = [proof.scores[name].get(key if whole else f"{key}_{gain.group}") for name in others]
            name = title if whole else f"{gain.group} ({gain.questions})"
            values = tuple(_share(value) for value in (pair.before, pair.after, *beside))
            found.append(Line(name, values, _points(pair), not whole))
            if whole:
                second, blank = list(proof.runs)[1], ("",) * len(proof.runs)
                found += [Line(f"{second} over {name}", blank, _points(getattr(more, measure)), True) for name, more in proof.over.items()]
    for name in SHOWN:
        numbers = [scores.get(name) for scores in proof.scores.values()]
        if any(number is not None for number in numbers):
            form = _money if name == "usd" else _cost if name in COSTS else _share
            found.append(Line(name.replace("_", " "), tuple(form(number) for number in numbers)))
    return found


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _cost(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _money(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _points(pair: Pair) -> str:
    if pair.difference is None:
        return "too few"
    value, low, high = (round(100 * number) + 0 for number in pair.difference)
    return f"{value:+d} ({low:+d} to {high:+d})"


def before_after(proof: Proof, title: str, notes: Sequence[str] = ()) -> Table:
    """Return the table that a person reads: the same questions, the same LM, one column for each program."""
    table = Table(title=escape(title), caption=escape("\n".join([CAPTION, *notes])))
    table.add_column("")
    for heading in (*proof.runs, "difference"):
        table.add_column(heading, justify="right")
    for line in lines(proof):
        table.add_row(f"  {line.name}" if line.part else line.name, *line.values, line.difference)
    return table


def one_of_each_need(outcomes: Sequence[evaluate.Outcome]) -> list[evaluate.Outcome]:
    """Return the first outcome of each need."""
    firsts: dict[str | None, evaluate.Outcome] = {}
    for outcome in outcomes:
        firsts.setdefault(outcome.row.need, outcome)
    return list(firsts.values())[:4]


class Steps:
    """Progress for a person: what is being done, how far, for how long."""

    def __init__(self) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
        )
        self._task: Any = None
        self._began = 0.0

    def start(self, description: str, total: int | None = None) -> None:
        """Begin a step; the one before is done."""
        self.stop()
        self._bar = Progress(*self._bar.columns, console=console, transient=True)
        self._bar.start()
        self._task, self._began, self._name = (
            self._bar.add_task(description, total=total, note=""),
            time.monotonic(),
            description,
        )

    def note(self, text: str) -> None:
        """Say what is being done now."""
        self._bar.update(self._task, note=text[:60])

    def answered(self, outcome: evaluate.Outcome) -> None:
        """Say that one question more is done."""
        self._bar.advance(self._task)
        self.note(outcome.row.question)
        if not console.is_terminal:  # no bar there: a line for each question
            verdict = "right" if outcome.right else "error" if outcome.error else "wrong"
            console.print(f"  {verdict} ({outcome.row.need or 'unlabelled'}): {outcome.row.question}", style="dim", markup=False)

    def evaluate(
        self, description: str, program: Any, rows: Sequence[Row], day: date, judge: dspy.BaseLM | None = None
    ) -> list[evaluate.Outcome]:
        """Evaluate a program as one step."""
        self.start(description, len(rows))
        return evaluate.run(program, rows, day, self.answered, judge)

    def stop(self) -> None:
        """End the step and leave a line saying how long it took."""
        if self._task is not None:
            self._bar.stop()
            console.print(f"{self._name}: {time.monotonic() - self._began:.0f} s", style="dim")
            self._task = None

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        if self._task is not None:
            self._bar.stop()
