"""The report of a compile as one HTML file: nothing is loaded from elsewhere, nothing runs, retrieved text is only text."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from crag_dspy.state import chat_template
from optimize import plots
from optimize.evaluate import Outcome
from optimize.proof import Proof, question_objective, threshold_curve, unmeasured
from optimize.report import CAPTION, Line, lines

WORST = 10
LONGEST = 1500  # characters of one text shown

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Plot(NamedTuple):
    """A picture with the words that belong to it; pictures are base64."""

    title: str
    caption: str
    light: str
    dark: str


class Number(NamedTuple):
    """One number of the policy."""

    name: str
    before: str
    after: str


class Prompt(NamedTuple):
    """What one predictor sends, as (role, text), its inputs as `{{name}}`."""

    stage: str
    before: Sequence[tuple[str, str]]
    after: Sequence[tuple[str, str]]


def render(
    *,
    proof: Proof,
    test: Proof | None,
    before: CRAG,
    after: CRAG,
    day: date,
    lm: str,
    verdict: str,
    notes: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> str:
    """Return the report as HTML.

    Args:
        proof: The programs on the dev questions; the first two are the uncompiled and the compiled one.
        test: The same on the test questions; None where these were not touched.
        before: The uncompiled program.
        after: The compiled program.
        day: The day on which the questions were asked.
        lm: The LM's name.
        verdict: What became of the version, and why.
        notes: What a reader should know, e.g. warnings of the compile.
        facts: Where it comes from: run, commit, hashes of the data.
    """
    outcomes = list(proof.runs.values())
    return _templates.get_template("report.html.j2").render(
        day=day.isoformat(),
        lm=lm,
        verdict=verdict,
        notes=[*unmeasured([o.row for o in outcomes[0]]), *notes],
        facts=facts or {},
        caption=CAPTION,
        tables=[_table("dev", proof)] + ([_table("test, at the end", test)] if test else []),
        plots=_plots(proof, test or proof, before.policy.value, after.policy.value),
        policy=_policy(before.policy.value, after.policy.value),
        prompts=_prompts(before, after),
        worst=[_shown(outcome) for outcome in worst(outcomes[1])],
    )


def worst(outcomes: Sequence[Outcome], most: int = WORST) -> list[Outcome]:
    """Return the worst answers: wrong before right, then by their objective, the surest first."""
    return sorted(outcomes, key=lambda o: (o.right, question_objective(o), -(o.answer.confidence if o.answer else 1.0)))[:most]


class _Table(NamedTuple):
    name: str
    questions: int
    programs: list[str]
    lines: list[Line]


def _table(name: str, proof: Proof) -> _Table:
    return _Table(name, len(next(iter(proof.runs.values()))), list(proof.runs), lines(proof))


def _plots(proof: Proof, final: Proof, old: Policy, new: Policy) -> list[Plot]:
    before, after = list(proof.runs.values())[:2]
    curve = threshold_curve(after, new)
    on = "" if final is proof else ", on test"
    drawn = (
        (
            f"Answers right by need{on}",
            "Where the answer is: in the index, on the web, on both; or nobody knows.",
            plots.needs(final.scores),
        ),
        (
            "Routes, compiled",
            "Questions by what they need and what was done; the frames mark where they belong.",
            plots.routes(after),
        ),
        (
            "Upper threshold",
            "What the routes on dev would be worth with one threshold for all kinds of questions, the rest of the compiled policy as it "
            "is; the lines are the thresholds of the two policies.",
            plots.thresholds(curve, list(old.upper.values()), list(new.upper.values())),
        ),
        (
            "Reliability",
            "Answers right among those of one confidence; larger points stand for more answers. Below the line the program is too sure.",
            plots.reliability(before, after),
        ),
        (f"Cost against quality{on}", "Up and to the left is better.", plots.cost_quality(final.scores)),
    )
    return [Plot(title, caption, *(base64.b64encode(png).decode() for png in found)) for title, caption, found in drawn if found]


def _policy(old: Policy, new: Policy) -> list[Number]:
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return [Number(name, before.get(name, "–"), after.get(name, "–")) for name in before | after]


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}, {key}": f"{inner:g}" for key, inner in value.items()}
        elif isinstance(value, list):
            found[name] = ", ".join(f"{inner:g}" for inner in value)
        else:
            found[name] = f"{value:g}"
    return found


def _prompts(before: CRAG, after: CRAG) -> list[Prompt]:
    new = dict(after.named_predictors())
    return [Prompt(name, _messages(predictor), _messages(new[name])) for name, predictor in before.named_predictors()]


def _messages(predictor: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in chat_template(predictor)]


def _shown(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome with its texts cut to what a page can hold."""
    answer, trace = outcome.answer, outcome.trace
    sides = [("index", g) for g in trace.internal] + [("web", g) for g in trace.external] if trace else []
    return {
        "outcome": outcome,
        "objective": question_objective(outcome),
        "expected": _cut(outcome.row.answer) or "nobody knows",
        "text": _cut(answer.text) if answer else "",
        "reply": _cut(trace.reply) if trace else "",
        "dropped": [_cut(text) for text in trace.dropped_claims] if trace else [],
        "evidence": [(item, _cut(item.text)) for item in trace.evidence] if trace else [],
        "grades": [(side, g, outcome.row.is_gold(g.passage.source)) for side, g in sides],
    }


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
