"""`python -m optimize.predictors MODEL`: each of the four predictors by itself, before and after, on examples from the gold labels.

The program's own metrics mix a predictor with what stands around it: the cross-encoder decides most grades, and a poor query may still
be saved by a second one. Here each predictor gets the same inputs before and after, and its own metric (see `examples`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import dspy
import typer
from rich.table import Table

from crag_dspy import app
from crag_dspy.cli import run_in_one_line
from crag_dspy.index import Where
from crag_dspy.program import CRAG
from crag_dspy.settings import load_settings
from optimize import registry
from optimize.calibrate import observe
from optimize.dataset import Row, load_rows
from optimize.demo import DATA, day_of
from optimize.optimizers import Task, score, tasks
from optimize.report import Steps, console
from optimize.statistics import Difference, paired_bootstrap

logging.getLogger("mlflow").setLevel(logging.WARNING)
cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

METRICS = {
    "grade": "passage on its side of relevant",
    "rewrite": "query finds a gold page",
    "refine": "all gold strips picked, half of the picks gold",
    "generate": "every fact, cited; or declined",
}


class Measured(NamedTuple):
    """One predictor before and after, on the same examples."""

    name: str
    before: list[float]
    """By example: 1 where the metric holds, else 0."""
    after: list[float]

    @property
    def gain(self) -> Difference:
        """The difference of the means, with its 95 % interval."""
        return paired_bootstrap(self.before, self.after)


@cli.command()
def main(
    model: Annotated[str, typer.Argument(help="A registered version's number.")],
    data: Annotated[Path, typer.Option(help="Questions with gold sentences, JSONL.")] = DATA / "dev.jsonl",
    as_of: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day of the questions. Default: today.")] = None,
    most: Annotated[int, typer.Option(help="Examples for each predictor, at most.")] = 36,
) -> None:
    """Measure the predictors of a version against the uncompiled ones."""
    rows, day = load_rows(data), day_of(data, as_of)
    crag = app.build(load_settings(remember=False), today=lambda: day)
    crag.program.parts = replace(crag.program.parts, where=Where(source_type="internal"))
    compiled = registry.load_into(crag.program.deepcopy(), model)
    with app.context(crag.lm), dspy.context(disable_history=True), Steps() as steps:
        found = measure(crag.program, compiled, rows, day, most, steps)
    table = Table(title=f"Predictors of version {model}, LM {crag.lm.model}", title_justify="left")
    for heading in ("predictor", "right is", "examples", "uncompiled", "compiled", "difference in points (95 %)"):
        table.add_column(heading, justify="left" if heading in ("predictor", "right is") else "right")
    for one in found:
        shares = [f"{sum(values) / len(values):.0%}" for values in (one.before, one.after)]
        value, low, high = (round(100 * number) + 0 for number in one.gain)
        table.add_row(one.name, METRICS[one.name], str(len(one.before)), *shares, f"{value:+d} ({low:+d} to {high:+d})")
    console.print(table)


def measure(before: CRAG, after: CRAG, rows: list[Row], day: date, most: int, steps: Steps) -> list[Measured]:
    """Measure both programs' predictors on the same examples, which the compiled policy makes; those without examples are left out."""
    steps.start("Retrieving", len(rows))
    seen = observe(after, rows, day, steps.note)
    found = []
    for task in tasks(after, seen, after.policy.value, day, end_to_end=False):
        chosen = task._replace(examples=task.examples[:most])
        if chosen.examples:
            programs = {"uncompiled": before, "compiled": after}
            scores = [_scores(chosen, name, getattr(program, task.name), steps) for name, program in programs.items()]
            found.append(Measured(task.name, *scores))
    return found


def _scores(task: Task, name: str, predictor: dspy.Predict, steps: Steps) -> list[float]:
    steps.start(f"{task.name}, {name}", len(task.examples))
    scores: list[float] = []
    for example in task.examples:
        scores.append(score(task, predictor, example))
        steps.note(f"{sum(scores):g} of {len(scores)} right")
    return scores


if __name__ == "__main__":
    run_in_one_line(cli, console)
