"""Compile a program on training questions: demonstrations for each predictor, numbers for the policy."""

from __future__ import annotations

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


class Effort(NamedTuple):
    """How much a compile may spend."""

    levels: int
    """Passages that the LM grades for the calibration, at most; 0 leaves grading to the cross-encoder."""
    tries: int
    """Examples that bootstrapping tries per predictor, at most."""
    doubts: int
    """Questions in doubt that the generator is asked for the gate before it, at most."""


FULL = Effort(levels=40, tries=24, doubts=24)
QUICK = Effort(levels=0, tries=6, doubts=4)
GRADE_DEMOS, REWRITE_DEMOS, REFINE_DEMOS, GENERATE_DEMOS = 4, 3, 2, 4


class Compiled(NamedTuple):
    """A compiled program and what a person should know about how it came about."""

    program: CRAG
    demos: dict[str, int]
    warnings: list[str]


def compile_program(
    student: CRAG, rows: Sequence[Row], as_of: date, effort: Effort, progress: Callable[[str], None] = lambda text: None
) -> Compiled:
    """Compile on training questions; the student stays as it was.

    Grader and strip filter get labelled demonstrations from the gold sentences (LabeledFewShot). Rewriter and generator get
    demonstrations of their own making that passed a metric (BootstrapFewShot): the query found a gold page, the answer held
    every fact and cited it. Then the policy is fitted (see `calibrate`), the LM's part of it with the compiled grader.
    """
    program: CRAG = student.deepcopy()
    policy = program.policy.value
    progress("observing the training questions")
    seen = observe(program, rows, as_of, lambda text: progress(f"observing: {text}"))
    policy = fit_scale(seen, policy)

    program.grade = dspy.LabeledFewShot(k=GRADE_DEMOS).compile(program.grade, trainset=examples.for_grade(seen), sample=False)
    strips = examples.for_refine(seen, policy, as_of)
    program.refine = dspy.LabeledFewShot(k=REFINE_DEMOS).compile(program.refine, trainset=strips, sample=False)
    progress("bootstrapping the query rewriter")
    program.rewrite = _bootstrap(program.rewrite, examples.for_rewrite(seen)[: effort.tries], examples.finds_gold(program), REWRITE_DEMOS)
    progress("bootstrapping the generator")
    answers = examples.for_generate(seen, policy, as_of)
    known = [example for example in answers if example.need != "none"][: effort.tries]
    program.generate = _bootstrap(program.generate, _in_turn(known), examples.answers_right, GENERATE_DEMOS - 1)
    # A small LM seldom declines on its own, so the refusal is shown, in the middle: the last demonstration weighs most.
    unknown = [example for example in answers if example.need == "none"][:1]
    program.generate.demos = [*program.generate.demos[:1], *unknown, *program.generate.demos[1:]]

    progress("grading training passages")
    seen = ask_levels(program, seen, policy, effort.levels, lambda text: progress(f"grading: {text}"))
    progress("fitting the policy")
    policy = fit(seen, policy, as_of)
    progress("asking the generator where it is in doubt")
    policy = fit_gate(seen, policy, as_of, _generated(program, in_doubt(seen, policy, as_of), policy, as_of, effort.doubts))
    program.policy.value = policy
    for predictor in program.predictors():
        predictor.demos = [_clean(demo, predictor.signature) for demo in predictor.demos]
    demos = {name: len(predictor.demos) for name, predictor in program.named_predictors()}
    return Compiled(
        program,
        demos,
        [f"{name}: 0 demonstrations, no training question led to one" for name, n in demos.items() if not n],
    )


def _generated(program: CRAG, doubtful: Sequence[Observation], policy: Policy, as_of: date, most: int) -> dict[str, bool]:
    """Return, by row id, whether the compiled generator answers rightly, or rightly declines, where asked."""
    asked = examples.for_generate(doubtful, policy, as_of)
    pools = [[e for e in asked if (e.need == "none") == unknown] for unknown in (True, False)]
    turns = [e for pair in zip_longest(*pools) for e in pair if e is not None][:most]
    meter = Meter()
    replies = [meter.ask(program.generate, question=e.question, evidence=e.evidence).field("answer") for e in turns]
    return {e.id: examples.answers_right(e, dspy.Prediction(answer=reply)) for e, reply in zip(turns, replies, strict=True)}


def _bootstrap(predictor: dspy.Predict, trainset: list[dspy.Example], metric: examples.Metric, most: int) -> dspy.Predict:
    if not trainset:
        return predictor
    optimizer = dspy.BootstrapFewShot(metric=metric, max_bootstrapped_demos=most, max_labeled_demos=0)
    compiled: dspy.Predict = optimizer.compile(predictor, trainset=trainset)
    compiled._compiled = False  # DSPy freezes a compiled sub-module: its state would not be saved with the program
    return compiled


def _in_turn(known: list[dspy.Example]) -> list[dspy.Example]:
    """Return the examples with the needs in turn, so that the first few cover all of them."""
    needs = list(dict.fromkeys(example.need for example in known))
    pools = {need: [example for example in known if example.need == need] for need in needs}
    rounds = max((len(pool) for pool in pools.values()), default=0)
    return [pools[need][i] for i in range(rounds) for need in needs if i < len(pools[need])]


def _clean(demo: dspy.Example, signature: type[dspy.Signature]) -> dspy.Example:
    """Return a demonstration with the signature's fields alone: labels of the training row do not belong into a prompt."""
    return dspy.Example(**{name: demo[name] for name in signature.fields if name in demo})
