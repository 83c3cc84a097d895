"""What a person sees of a compile: progress, the table of before and after, answers of each need."""

from __future__ import annotations

import time
from datetime import date
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from optimize import evaluate
from optimize.dataset import Row

COSTS = ("lm_calls", "seconds")
SHOWN = (
    "answers_right", *(f"answers_right_{need}" for need in evaluate.NEEDS), "action_accuracy", "fallback_precision", "fallback_recall",
    "abstention_f1", "retrieval_recall_at_5", "grader_balanced_accuracy", "strip_precision", "strip_recall", "cites_gold",
    "citation_precision", "citation_recall", "groundedness", "confidence_ece", "objective", *COSTS,
)  # fmt: skip

console = Console(highlight=False, soft_wrap=True)


def one_of_each_need(outcomes: list[evaluate.Outcome]) -> list[evaluate.Outcome]:
    """Return the first outcome of each need."""
    firsts: dict[str | None, evaluate.Outcome] = {}
    for outcome in outcomes:
        firsts.setdefault(outcome.row.need, outcome)
    return list(firsts.values())[:4]


def before_after(before: dict[str, float], after: dict[str, float], lm: str) -> Table:
    """Return the table that a person reads: the same questions, the same LM, before and after."""
    table = Table(
        title=f"{before['questions']:.0f} dev questions, LM {lm}",
        caption="Right: every fact of the gold answer stands in an answer of at most 80 words with checked citations; "
        "where nobody knows, an abstention.",
    )
    for heading in ("", "uncompiled", "compiled"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in SHOWN:
        if name in before and name in after:
            form = "{:.1f}" if name in COSTS else "{:.0%}"
            table.add_row(name.replace("_", " "), form.format(before[name]), form.format(after[name]))
    return table


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

    def evaluate(self, description: str, program: Any, rows: list[Row], day: date) -> list[evaluate.Outcome]:
        """Evaluate a program as one step."""
        self.start(description, len(rows))

        def done(outcome: evaluate.Outcome) -> None:
            self._bar.advance(self._task)
            self.note(outcome.row.question)
            if not console.is_terminal:  # no bar there: a line for each question
                verdict = "right" if outcome.right else "error" if outcome.error else "wrong"
                console.print(f"  {verdict} ({outcome.row.need or 'unlabelled'}): {outcome.row.question}", style="dim", markup=False)

        return evaluate.run(program, rows, day, done)

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
