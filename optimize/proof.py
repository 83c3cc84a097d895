"""Before and after on the same questions: what changed, by need and by kind, and whether it is more than chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, get_args

from crag_dspy.grade import assess
from crag_dspy.lm import as_data
from crag_dspy.plan import plan
from crag_dspy.policy import Policy
from crag_dspy.retrieve import Scorer
from crag_dspy.types import Kind
from optimize.calibrate import WORTH
from optimize.citing import alce, by_facts
from optimize.dataset import Row
from optimize.evaluate import NEEDS, Outcome, summarise
from optimize.metrics import objective
from optimize.statistics import Difference, paired_bootstrap

FEWEST = 5  # questions in a group below which an interval would pretend to know something
GRID = tuple(round(i / 20, 2) for i in range(1, 20))
KINDS: tuple[Kind, ...] = get_args(Kind)
EVERYTHING = "all"


def question_objective(outcome: Outcome) -> float:
    """Return what one answer is worth, 0-1: the composite objective (`metrics.objective`) of this question alone; an error is worth 0.

    The two F1s become what they count: whether abstaining, or searching the web, was right here. What cannot be told of this question
    (the citations of an abstention, the route of a question without a need) is left out and the other weights make up for it.
    """
    row, answer = outcome.row, outcome.answer
    if answer is None:
        return 0.0
    judged = alce(answer, by_facts(row)) if row.gold_docs or row.gold_urls else None
    return objective(
        {
            "answers_right": float(outcome.right),
            "citation_precision": _mean(judged.precision) if judged else None,
            "groundedness": _mean(judged.recall) if judged else None,
            "abstention_f1": float((answer.status == "abstained") != row.answerable),
            "fallback_f1": float((answer.usage.searches > 0) == (row.need != "internal")) if row.need and row.answerable else None,
            "lm_calls": answer.usage.lm_calls,
        }
    )


class Pair(NamedTuple):
    """One measure of two programs on the same questions, each 0-1."""

    before: float
    after: float
    difference: Difference | None
    """With its 95 % interval; None on fewer than five questions."""


class Gain(NamedTuple):
    """What one group of questions gained."""

    group: str
    """A need, a kind, or "all"."""
    questions: int
    right: Pair
    objective: Pair


def gains(before: Sequence[Outcome], after: Sequence[Outcome]) -> list[Gain]:
    """Compare two runs over the same questions: all of them, then each need and each kind that occurs (paired bootstrap).

    Raises:
        ValueError: the runs are not over the same questions.
    """
    if [o.row.id for o in before] != [o.row.id for o in after]:
        raise ValueError("the two runs are not over the same questions")
    old, new = [question_objective(o) for o in before], [question_objective(o) for o in after]
    return [
        Gain(
            name,
            len(mine),
            _pair([float(before[i].right) for i in mine], [float(after[i].right) for i in mine]),
            _pair([old[i] for i in mine], [new[i] for i in mine]),
        )
        for name, mine in _groups(before).items()
    ]


def _groups(outcomes: Sequence[Outcome]) -> dict[str, list[int]]:
    """Return the positions of all questions, and of each need and kind that occurs."""
    groups = {EVERYTHING: list(range(len(outcomes)))}
    groups |= {need: [i for i, o in enumerate(outcomes) if o.row.need == need] for need in NEEDS}
    groups |= {kind: [i for i, o in enumerate(outcomes) if o.row.kind == kind] for kind in KINDS}
    return {name: mine for name, mine in groups.items() if mine}


def _pair(before: list[float], after: list[float]) -> Pair:
    found = paired_bootstrap(before, after)
    return Pair(sum(before) / len(before), sum(after) / len(after), found if len(before) >= FEWEST else None)


class Proof(NamedTuple):
    """Several programs on the same questions; the first is what came before, the second what came after."""

    runs: Mapping[str, Sequence[Outcome]]
    scores: Mapping[str, Mapping[str, float]]
    """`evaluate.summarise` of each, and `objective_per_question`; both that and `answers_right` also by need and kind."""
    gains: Sequence[Gain]
    over: Mapping[str, Gain]
    """By further program: what the second gained over it, on all questions."""


def prove(runs: Mapping[str, Sequence[Outcome]], scorer: Scorer | None = None) -> Proof:
    """Measure two programs or more.

    Raises:
        ValueError: they are not over the same questions.
    """
    scores = {}
    for name, outcomes in runs.items():
        scores[name] = summarise(outcomes, scorer)
        worth = [question_objective(outcome) for outcome in outcomes]
        for group, mine in _groups(outcomes).items():
            end = "" if group == EVERYTHING else f"_{group}"
            scores[name][f"answers_right{end}"] = sum(outcomes[i].right for i in mine) / len(mine)
            scores[name][f"objective_per_question{end}"] = sum(worth[i] for i in mine) / len(mine)
    before, after, *_ = runs.values()
    over = {name: gains(outcomes, after)[0] for name, outcomes in list(runs.items())[2:]}
    return Proof(runs, scores, gains(before, after), over)


def unmeasured(rows: Sequence[Row]) -> list[str]:
    """Return what cannot be measured on these questions for want of labels, in sentences."""
    known = [row for row in rows if row.answerable]
    found = []
    for what, labels, have in (
        ("citations, groundedness and retrieval", "gold sources (gold_docs, gold_urls)", [bool(r.gold_docs or r.gold_urls) for r in known]),
        ("grader and strip filter", "gold sentences (support)", [bool(r.support) for r in known]),
        ("routes and web fallback", "their need", [bool(r.need) for r in rows]),
        ("the differences between kinds", "their kind", [bool(r.kind) for r in rows]),
    ):
        if not any(have):
            found.append(f"Not measured: {what}; no question names {labels}.")
        elif not all(have):
            found.append(f"Measured on {sum(have)} of {len(have)} questions only: {what}; the others do not name {labels}.")
    if len(known) == len(rows):
        found.append("Not measured: whether what nobody knows is declined; no question has an empty answer.")
    return found


class Point(NamedTuple):
    """One point of the threshold curve."""

    upper: float
    worth: float
    """Mean worth of the actions taken (`calibrate.WORTH`), 0-1."""


def threshold_curve(outcomes: Sequence[Outcome], policy: Policy) -> list[Point]:
    """Return what the routes would be worth with another upper threshold, the same for every kind; no LM call, for grades are replayed.

    Empty where no question names its need.
    """
    known = [(o.row.need, o.trace, plan(as_data(o.row.question)).start) for o in outcomes if o.row.need and o.trace]
    curve = []
    for upper in GRID if known else ():
        common = policy.model_copy(update={"upper": dict.fromkeys(policy.upper, upper)})
        worth = [WORTH[need][assess(trace.internal, trace.needs, trace.kind, common, start).action] for need, trace, start in known]
        curve.append(Point(upper, sum(worth) / len(worth)))
    return curve


def _mean(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
