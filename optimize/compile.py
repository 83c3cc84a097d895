"""Compile a program on training questions: instructions and demonstrations for each predictor, numbers for the policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import date
from itertools import zip_longest
from typing import NamedTuple

import dspy

from crag_dspy.lm import Meter
from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from optimize import examples
from optimize.calibrate import Observation, ask_levels, fit, fit_gate, fit_scale, in_doubt, observe
from optimize.dataset import Row
from optimize.fewshot import few_shot
from optimize.optimizers import Recipe, Task, improve, tasks
from optimize.strict import compiling

Progress = Callable[[str], None]


class Effort(NamedTuple):
    """How much a compile may spend beside the optimizer's budget."""

    levels: int
    """Passages that the LM grades for the calibration, at most; 0 leaves grading to the cross-encoder."""
    tries: int
    """Examples of a predictor that few-shot may show, at most."""
    checks: int
    """Others that it asks with and without demonstrations, at most."""
    doubts: int
    """Questions in doubt that the generator is asked for the gate before it, at most."""


FULL = Effort(levels=40, tries=24, checks=12, doubts=24)
QUICK = Effort(levels=0, tries=6, checks=1, doubts=2)


class Prepared(NamedTuple):
    """What is known before the first LM call: the training questions as the program sees them, and what is to be optimized."""

    seen: list[Observation]
    policy: Policy
    """With the scale of the scores fitted."""
    tasks: list[Task]


class Compiled(NamedTuple):
    """A compiled program and what a person should know about how it came about."""

    program: CRAG
    demos: dict[str, int]
    warnings: list[str]


def prepare(student: CRAG, rows: Sequence[Row], as_of: date, recipe: Recipe, progress: Progress = lambda text: None) -> Prepared:
    """Observe the training questions, in an order that the seed says (0: as they are), and derive the examples; no LM call."""
    rows = random.Random(recipe.seed).sample(list(rows), len(rows)) if recipe.seed else rows
    program: CRAG = student.deepcopy()
    seen = observe(program, rows, as_of, lambda text: progress(f"observing: {text}"))
    program.policy.value = policy = fit_scale(seen, program.policy.value)
    return Prepared(seen, policy, tasks(program, seen, policy, as_of, end_to_end=recipe.end_to_end))


def compile_program(
    student: CRAG,
    prepared: Prepared,
    as_of: date,
    effort: Effort,
    recipe: Recipe,
    prompt_lm: dspy.LM,
    progress: Progress = lambda text: None,
) -> Compiled:
    """Compile on training questions; the student stays as it was.

    The optimizer of the recipe writes the prompts (see `optimizers`; few-shot stage by stage: `few_shot`). Then the policy is fitted
    (see `calibrate`), the LM's part of it with the compiled grader.

    Raises:
        OptimizerFailure: the optimizer failed.
        LMFailure: the LM failed while it ran.
    """
    program: CRAG = student.deepcopy()
    seen, policy, todo = prepared
    if recipe.optimizer == "few-shot" and not recipe.end_to_end:
        with compiling():
            notes = few_shot(program, todo, effort.tries, effort.checks, progress)
    else:
        notes = improve(program, todo, recipe, prompt_lm, progress)
    for predictor in program.predictors():
        predictor.demos = [_clean(demo, predictor.signature) for demo in predictor.demos]

    progress("grading training passages")
    seen = ask_levels(program, seen, policy, effort.levels, lambda text: progress(f"grading: {text}"))
    progress("fitting the policy")
    policy = fit(seen, policy, as_of)
    progress("asking the generator where it is in doubt")
    policy = fit_gate(seen, policy, as_of, _generated(program, in_doubt(seen, policy, as_of), policy, as_of, effort.doubts))
    program.policy.value = policy
    return Compiled(program, {name: len(predictor.demos) for name, predictor in program.named_predictors()}, notes)


def _generated(program: CRAG, doubtful: Sequence[Observation], policy: Policy, as_of: date, most: int) -> dict[str, bool]:
    """Return, by row id, whether the compiled generator answers rightly, or rightly declines, where asked."""
    asked = examples.for_generate(doubtful, policy, as_of)
    pools = [[e for e in asked if (e.need == "none") == unknown] for unknown in (True, False)]
    turns = [e for pair in zip_longest(*pools) for e in pair if e is not None][:most]
    meter = Meter()
    replies = [meter.ask(program.generate, question=e.question, evidence=e.evidence).field("answer") for e in turns]
    return {e.id: examples.answers_right(e, dspy.Prediction(answer=reply)) for e, reply in zip(turns, replies, strict=True)}


def _clean(demo: dspy.Example, signature: type[dspy.Signature]) -> dspy.Example:
    """Return a demonstration with the signature's fields alone: labels of the training row do not belong into a prompt."""
    return dspy.Example(**{name: demo[name] for name in signature.fields if name in demo})
