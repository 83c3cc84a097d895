"""Few-shot, stage by stage: demonstrations for each predictor, kept where they help on examples that they do not show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import dspy

from crag_dspy.program import CRAG
from optimize.examples import halves
from optimize.optimizers import Task, score
from optimize.strict import strict

LABELLED = ("grade", "refine")
"""The predictors that are shown labelled examples; the others are shown what they wrote themselves."""


def few_shot(program: CRAG, todo: Sequence[Task], tries: int, checks: int, progress: Callable[[str], None]) -> list[str]:
    """Give the predictors demonstrations from one half of their examples where the other half goes better with them.

    Grader and strip filter are shown labelled examples (LabeledFewShot); rewriter and generator replies of their own that passed
    their metric (BootstrapFewShot). A demonstration lengthens every prompt, so it has to earn its place.

    Args:
        program: Whose predictors get them.
        todo: The predictors' tasks.
        tries: Examples of a predictor that may be shown, at most.
        checks: Other examples that are asked with and without them, at most.
        progress: Told what is being done.

    Returns:
        What a person should know about predictors that got none.

    Raises:
        LMFailure: the LM failed, where DSPy would take that for a bad reply.
    """
    notes = []
    for task in todo:
        learn, choose = halves(task.examples, tries)
        progress(f"demonstrations: {task.name}")
        shown = _labelled(task, learn) if task.name in LABELLED else _bootstrapped(task, learn)
        if not shown.demos:
            notes.append(f"{task.name}: 0 demonstrations, no training question led to one")
            continue
        held = choose[:checks]
        alone = [score(task, task.student, example) for example in held]
        without = sum(alone)
        asked, with_them = _overtakes(task, shown, held, alone)
        if held and with_them <= without:
            tried = f"with them {with_them:g} of {asked}" if asked else "with them not tried"
            notes.append(
                f"{task.name}: its prompt stays, demonstrations could not do better (examples not shown: without them {without:g} of "
                f"{len(held)} right, {tried})"
            )
            continue
        getattr(program, task.name).demos = shown.demos
    return notes


def _overtakes(task: Task, shown: dspy.Predict, held: Sequence[dspy.Example], alone: Sequence[float]) -> tuple[int, float]:
    """Ask with demonstrations as long as they can still come out ahead; return on how many examples, and what was right of them.

    First those that went wrong without: where none of them goes right, nothing can be gained.
    """
    asked, right = 0, 0.0
    for at in sorted(range(len(held)), key=lambda at: alone[at]):
        if right + len(held) - asked <= sum(alone):
            break
        right += score(task, shown, held[at])
        asked += 1
    return asked, right


def _labelled(task: Task, learn: list[dspy.Example]) -> dspy.Predict:
    predictor: dspy.Predict = dspy.LabeledFewShot(k=task.demos).compile(task.student, trainset=learn, sample=False)
    return predictor


def _bootstrapped(task: Task, learn: list[dspy.Example]) -> dspy.Predict:
    known = [example for example in learn if example.get("need") != "none"]
    # A small LM seldom declines on its own, so the refusal is shown, in the middle: the last demonstration weighs most.
    refusal = [example for example in learn if example.get("need") == "none"][:1]
    if not known:
        return task.student.reset_copy()
    optimizer = dspy.BootstrapFewShot(metric=strict(task.metric), max_bootstrapped_demos=task.demos - len(refusal), max_labeled_demos=0)
    predictor: dspy.Predict = optimizer.compile(task.student, trainset=known)
    predictor.demos = [*predictor.demos[:1], *refusal, *predictor.demos[1:]]
    return predictor
