"""`python -m optimize.ablate MODEL`: what each stage is worth, by leaving it out (Yan et al. 2024, section 5.4), on the same questions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import dspy
import typer

from crag_dspy import app
from crag_dspy.cli import run_in_one_line
from crag_dspy.followup import Gap
from crag_dspy.grade import Judgement, kept
from crag_dspy.index import Where
from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from crag_dspy.run import KEPT_PER_NEED, Run
from crag_dspy.settings import load_settings
from crag_dspy.types import Action, Grade, Strip
from optimize import evaluate, registry
from optimize.dataset import Row, load_rows, sample
from optimize.demo import DATA, day_of
from optimize.report import Steps, console

logging.getLogger("mlflow").setLevel(logging.WARNING)
cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class WithoutRefine(Run):
    """Whole passages reach the generator."""

    def refine(self, grades: Sequence[Grade]) -> list[tuple[Grade, list[Strip]]]:
        """Keep every passage whole."""
        worth = kept(grades, self.policy, KEPT_PER_NEED)
        return [(g, [Strip(passage=g.passage, start=0, end=len(g.passage.text), scores=g.scores)]) for g in worth]


class WithoutRewrite(Run):
    """The question itself is the query."""

    def rewrite(self, wanted: Sequence[Gap]) -> list[tuple[Gap, str]]:
        """Search with the need's own words."""
        return [(gap, self.plan.needs[gap.need].replace("?", " ").strip()) for gap in wanted] if not self.rounds else []


class _Action(Run):
    replaced: Action
    by: Action

    def assess(self, internal: Sequence[Grade]) -> Judgement:
        """Take another action where one is left out."""
        judged = super().assess(internal)
        if judged.action != self.replaced:
            return judged
        return judged._replace(action=self.by)


class WithoutCorrect(_Action):
    """What the index covers goes to the web too."""

    replaced, by = "correct", "ambiguous"


class WithoutAmbiguous(_Action):
    """What the index half covers is replaced by the web."""

    replaced, by = "ambiguous", "incorrect"


class WithoutIncorrect(_Action):
    """What is irrelevant is kept beside the web."""

    replaced, by = "incorrect", "ambiguous"


class WithoutGate(Run):
    """Every question goes to the web, whatever the index holds."""

    def assess(self, internal: Sequence[Grade]) -> Judgement:
        """Judge nothing."""
        return super().assess(internal)._replace(action="ambiguous")


class WithoutFollowUps(Run):
    """One round of searches."""

    def gaps(self, grades: Sequence[Grade], judged: Judgement) -> list[Gap]:
        """Ask once."""
        return [] if self.rounds else super().gaps(grades, judged)


ABLATIONS: dict[str, type[Run]] = {
    "the whole program": Run,
    "without refinement": WithoutRefine,
    "without rewriting": WithoutRewrite,
    "without follow-ups": WithoutFollowUps,
    "without the action correct": WithoutCorrect,
    "without the action ambiguous": WithoutAmbiguous,
    "without the action incorrect": WithoutIncorrect,
    "without the gate (web always)": WithoutGate,
}
GRADERS: dict[str, tuple[float, float]] = {"cross-encoder alone": (1.0, 1.0), "LM alone": (0.0, 1.0)}
COSTS = ("lm_calls", "searches", "prompt_tokens", "seconds")
SHOWN = (
    "answers_right", "action_accuracy", "fallback_precision", "fallback_recall", "abstention_f1", "strip_precision",
    "grader_balanced_accuracy", "citation_precision", *COSTS,
)  # fmt: skip


@cli.command()
def main(
    model: Annotated[str, typer.Argument(help="A registered version's number, or 'none' for the uncompiled program.")],
    data: Annotated[Path, typer.Option(help="Questions, JSONL.")] = DATA / "dev.jsonl",
    as_of: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day of the questions. Default: today.")] = None,
    only: Annotated[str, typer.Option(help="Part of a name: run only these, and the whole program.")] = "",
    most: Annotated[int, typer.Option(help="Questions, at most.")] = 10_000,
) -> None:
    """Measure the program with one stage left out at a time."""
    rows, day = sample(load_rows(data), most), day_of(data, as_of)
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)  # what two variants ask alike is asked once
    crag = app.build(load_settings(remember=False), today=lambda: day)
    crag.program.parts = replace(crag.program.parts, where=Where(source_type="internal"))
    program = crag.program if model == "none" else registry.load_into(crag.program, model)
    with app.context(crag.lm.copy(cache=True)), dspy.context(disable_history=True), Steps() as steps:
        results = _measured(program, rows, day, only, steps)
    console.print(
        f"{len(rows)} questions, LM {crag.lm.model}, program {model}. After the first line what was asked before is not paid again."
    )
    for name, found in results:
        shares = [f"{key.replace('_', ' ')} {found[key]:.0%}" for key in SHOWN if key in found and key not in COSTS]
        costs = [f"{key.replace('_', ' ')} {found[key]:.1f}" for key in COSTS]
        console.print(f"{name}: {', '.join(shares + costs)}")


def _measured(program: CRAG, rows: list[Row], day: date, only: str, steps: Steps) -> list[tuple[str, dict[str, float]]]:
    found = []
    whole: Policy = program.policy.value
    for name, run in ABLATIONS.items():
        if only in name or run is Run:
            program.steps = run
            found.append((name, evaluate.summarise(steps.evaluate(name, program, rows, day), program.parts.cross_encoder)))
    program.steps = Run
    for name, band in GRADERS.items():
        if only in name:
            program.policy.value = whole.model_copy(update={"band": band})
            found.append((name, evaluate.summarise(steps.evaluate(name, program, rows, day), program.parts.cross_encoder)))
    program.policy.value = whole
    return found


if __name__ == "__main__":
    run_in_one_line(cli, console)
