"""A candidate against the champion, measured alike; its registration, and the alias as decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import dspy
import mlflow

from crag_dspy.errors import CragError, StateError
from crag_dspy.program import CRAG
from optimize import compare, registry
from optimize.dataset import Row
from optimize.evaluate import Outcome
from optimize.promote import Decision, Measured, Mode, decide, measure
from optimize.proof import Proof
from optimize.report import Steps

UNCOMPILED, COMPILED = "uncompiled", "compiled"
LOGGED_AS = {UNCOMPILED: "before", COMPILED: "after"}  # in MLflow; a baseline's name is its own


def judge(
    mode: Mode,
    candidate: Measured,
    uncompiled: Measured,
    *,
    program: CRAG,
    shared: Mapping[str, Any],
    steps: Steps,
    dev: Sequence[Row],
    day: date,
    max_cost: float | None = None,
) -> Decision:
    """Decide about a candidate; the champion is asked again where it was measured on other questions or with other parts.

    A champion of other code runs in a process of its own, whose spending is not known here: not where there is a `max_cost`.
    """
    number = registry.champion()
    if number is None:
        return decide(mode, candidate, uncompiled, None)
    name = f"version {number}"
    try:
        champion = registry.measured(number, shared, dev) or measure(_ask(number, program, steps, dev, day, max_cost))
    except CragError as exc:  # what was compiled is not lost for it
        return Decision("candidate" if mode == "force" else "unchanged", f"{name}, the champion, could not be measured ({exc})")
    return decide(mode, candidate, uncompiled, champion, name)


def _ask(number: str, program: CRAG, steps: Steps, dev: Sequence[Row], day: date, max_cost: float | None) -> list[Outcome]:
    what = f"On dev: the champion, version {number}"
    try:
        return steps.evaluate(what, registry.load_into(program.deepcopy(), number), dev, day)
    except StateError:  # compiled from other code: on its own, then
        if max_cost is not None:
            raise
        steps.start(what, len(dev))
        return compare.ask(f"models:/{registry.MODEL}/{number}", dev, day, steps.answered).outcomes


def register(
    plain: CRAG,
    compiled: CRAG,
    lm: dspy.BaseLM,
    shared: Mapping[str, Any],
    recipe: Mapping[str, Any],
    proof: Proof,
    final: Proof | None,
    decision: Decision,
    report: str,
    index: Path | None = None,
) -> registry.Published:
    """Register the compiled program, and the uncompiled one where that is the champion; move the alias as decided.

    Args:
        plain: The uncompiled program.
        compiled: The candidate.
        lm: The LM that both were measured with.
        shared: What both were measured on and with.
        recipe: How the candidate was compiled.
        proof: Both on the dev questions.
        final: Both on the test questions, if these were touched.
        decision: Who gets the alias.
        report: The report as HTML.
        index: A packed index that both versions carry.

    Raises:
        SecretLeak: a configured credential stands in what is to be logged.
    """
    metrics = _metrics(proof) | ({f"test/{name}": value for name, value in _metrics(final).items()} if final else {})
    for gain in proof.gains[:1]:
        for name, pair in (("answers_right", gain.right), ("objective", gain.objective)):
            if pair.difference:
                value, low, high = pair.difference
                metrics |= {f"gain/{name}": value, f"gain/{name}_low": low, f"gain/{name}_high": high}
    published = registry.publish(
        compiled,
        lm,
        params={**shared, **recipe},
        manifest={**shared, **recipe},
        tables={LOGGED_AS.get(name, name): outcomes for name, outcomes in proof.runs.items()},
        metrics=metrics,
        files={"report.html": report},
        index=index,
    )
    if decision.champion == "candidate":
        registry.promote(published.version)
    elif decision.champion == "uncompiled":
        with mlflow.start_run(run_name="uncompiled", nested=True):
            first = registry.publish(
                plain,
                lm,
                params={**shared, "optimizer": "none"},
                manifest={**shared, "optimizer": "none"},
                tables={"after": proof.runs[UNCOMPILED]},
                metrics={f"after/{measure}": value for measure, value in proof.scores[UNCOMPILED].items()},
                index=index,
            )
        registry.promote(first.version)
    return published


def _metrics(proof: Proof) -> dict[str, float]:
    return {f"{LOGGED_AS.get(name, name)}/{key}": value for name, scores in proof.scores.items() for key, value in scores.items()}
