"""Before the first LM call: whether an optimizer has all that it needs, and what the run will cost."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from typing import NamedTuple

import dspy
from rich.table import Table

from crag_dspy.errors import CragError
from crag_dspy.lm import most_tokens, price
from crag_dspy.local_lm import embedded
from optimize.compile import Effort
from optimize.dataset import Row
from optimize.examples import halves
from optimize.fewshot import LABELLED
from optimize.optimizers import DEMOS, WHOLE, Recipe, Task

FEWEST = 4  # examples: two to learn from, two to choose on
CALLS = (1, 8)  # LM calls for one question: an answer alone; two grades, a query, two grades, two picks, an answer
NEEDS_MODULE = {"mipro": "optuna", "gepa": "gepa"}
SHORTEST = 5  # tokens of a reply, at least
ANYTHING = 500  # tokens of a prompt, where no example shows its length
WANTED = {
    "grade": "questions with gold sources and support",
    "rewrite": "questions with gold_urls",
    "refine": "questions with gold sources and support",
    "generate": "questions with gold sources and support, or an empty answer",
    WHOLE: "questions",
}
"""What examples are made of."""


class PreflightError(CragError):
    """Something is missing for a run; nothing was asked of an LM yet."""

    code = "preflight"


def check(recipe: Recipe, tasks: Sequence[Task]) -> list[str]:
    """Return warnings about predictors that will stay as they are.

    Raises:
        PreflightError: a package is missing, a metric cannot be called as the optimizer calls it, or a predictor has too few examples.
    """
    module = NEEDS_MODULE.get(recipe.optimizer)
    if module and importlib.util.find_spec(module) is None:
        raise PreflightError(f"--optimizer {recipe.optimizer} needs the package {module}. Install it with: pip install {module}")
    if recipe.optimizer == "gepa":
        for task in tasks:
            _takes_five(task.name, task.metric)
    if recipe.optimizer == "few-shot":
        return []  # it makes do with any number, and says afterwards what was lacking
    for task in tasks:
        if 0 < len(task.examples) < FEWEST:
            raise PreflightError(
                f"{task.name} has {len(task.examples)} of the {FEWEST} examples that --optimizer {recipe.optimizer} needs, to learn from "
                f"some and choose on others ({_counts(tasks)}). Add {WANTED[task.name]} to the training set, or use --optimizer few-shot."
            )
    if not any(task.examples for task in tasks):
        raise PreflightError(
            f"There is nothing to learn from ({_counts(tasks)}). Add questions with gold sources and support: data/README.md."
        )
    return [
        f"{task.name}: 0 examples, so its prompt stays as it is; {WANTED[task.name]} would change that"
        for task in tasks
        if not task.examples
    ]


def _takes_five(name: str, metric: Callable[..., object]) -> None:
    try:
        inspect.signature(metric).bind(None, None, None, None, None)
    except TypeError as exc:
        raise PreflightError(
            f"The metric of {name} does not take GEPA's five arguments (example, prediction, trace, pred_name, pred_trace): {exc}."
        ) from exc


def _counts(tasks: Sequence[Task]) -> str:
    return ", ".join(f"{task.name} {len(task.examples)}" for task in tasks)


class Estimate(NamedTuple):
    """What a step of a run will cost, at least and at most."""

    step: str
    lm: str
    calls: tuple[int, int]
    tokens: tuple[int, int]
    usd: tuple[float, float] | None
    """None: the LM's prices are unknown."""


def estimate(
    recipe: Recipe,
    effort: Effort,
    tasks: Sequence[Task],
    lm: dspy.LM,
    prompt_lm: dspy.LM,
    *,
    measured: Sequence[tuple[str, Sequence[Row]]],
    judge: dspy.LM | None = None,
) -> list[Estimate]:
    """Return the steps of a run with their cost.

    Args:
        recipe: How it compiles.
        effort: What the calibration may ask.
        tasks: What is optimized.
        lm: The task LM.
        prompt_lm: The LM that writes instructions.
        measured: What is evaluated, as (what, questions).
        judge: The LM that judges answers, if any.
    """
    shown = [task for task in tasks if task.examples]
    one = [_prompt(task) for task in shown] or [ANYTHING]
    short, long = min(one) // 2, max(one) * (1 + max(DEMOS.values()))  # a demonstration is about as long as an input
    steps = [Estimate("observing", "none", (0, 0), (0, 0), (0.0, 0.0))]
    asked, written = _search_calls(recipe, effort, shown)
    steps.append(_priced(f"optimizing ({recipe.optimizer})", lm, asked, short, long))
    if written[1]:
        steps.append(_priced("writing instructions", prompt_lm, written, short, long))
    steps.append(_priced("calibrating", lm, (0, effort.levels + effort.doubts), short, long))
    for what, rows in measured:
        known = sum(row.answerable for row in rows)
        steps.append(_priced(f"evaluating on {what}", lm, (CALLS[0] * known, CALLS[1] * len(rows)), short, long))
        if judge is not None:
            steps.append(_priced(f"judging on {what}", judge, (0, known), 100, 1000))
    return steps


def _prompt(task: Task) -> int:
    """Return the tokens of a task's usual prompt without demonstrations, by its first examples."""
    if task.name == WHOLE:
        return ANYTHING
    sizes = [most_tokens(task.student, {key: str(value) for key, value in e.inputs().items()})[0] for e in task.examples[:10]]
    return sum(sizes) // len(sizes)


def _search_calls(recipe: Recipe, effort: Effort, tasks: Sequence[Task]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the calls of the task LM and of the LM that writes instructions, each at least and at most."""
    budget, asked, written = recipe.budget, [0, 0], [0, 0]
    for task in tasks:
        each = CALLS if task.name == WHOLE else (1, 1)
        predictors = len(DEMOS) if task.name == WHOLE else 1
        few_shot = recipe.optimizer == "few-shot" and task.name != WHOLE
        learn, choose = (len(part) for part in halves(task.examples, effort.tries if few_shot else budget.examples))
        if few_shot:
            tried = 0 if task.name in LABELLED else learn
            low, high = min(task.demos, tried), tried + 2 * min(choose, effort.checks)
        elif recipe.optimizer == "few-shot":
            tried = min(budget.examples, len(task.examples))
            low, high = min(task.demos, tried), tried
        elif recipe.optimizer == "random-search":  # no demonstrations, the examples' order, and shuffled ones; what repeats is free
            low, high = choose, (budget.candidates + 2) * choose + learn
        elif recipe.optimizer == "mipro":
            low, high = choose, (min(budget.trials, (budget.candidates**2) ** predictors) + 1) * choose + learn
            texts = budget.candidates * predictors
            written = [written[0] + texts, written[1] + texts + learn // 4 + 2]
        else:
            low, high = choose, budget.rollouts + choose + 2 * budget.minibatch
            written[1] += 2 * (high - choose) // (2 * budget.minibatch)  # one to write, one to shorten
        asked = [asked[0] + each[0] * low, asked[1] + each[1] * high]
    return (asked[0], asked[1]), (written[0], written[1])


def _priced(step: str, lm: dspy.LM, calls: tuple[int, int], short: int, long: int) -> Estimate:
    most = int(lm.kwargs.get("max_tokens") or 0)
    tokens = (calls[0] * (short + SHORTEST), calls[1] * (long + most))
    low, high = (
        price(lm.model, calls[i] * prompt, calls[i] * reply) for i, (prompt, reply) in enumerate(((short, SHORTEST), (long, most)))
    )
    usd = (0.0, 0.0) if embedded(lm) or not calls[1] else None if low is None or high is None else (low, high)
    return Estimate(step, lm.model, calls, tokens, usd)


def afford(estimates: Sequence[Estimate], max_cost: float | None) -> None:
    """Refuse a run that costs more than it may even at best, or of which nobody can tell.

    Raises:
        PreflightError: so it is.
    """
    if max_cost is None:
        return
    if unknown := sorted({step.lm for step in estimates if step.usd is None}):
        raise PreflightError(
            f"The price of {', '.join(unknown)} is unknown, so --max-cost could not be kept. Leave it out, or use another LM."
        )
    least = sum(step.usd[0] for step in estimates if step.usd)
    if least > max_cost:
        raise PreflightError(
            f"The run costs USD {least:.4f} at least, more than --max-cost {max_cost:g}. Raise it, or ask less: --quick, fewer questions."
        )


def table(estimates: Sequence[Estimate], tasks: Sequence[Task]) -> Table:
    """Return the estimate as a person reads it."""
    shown = Table(title="What this run will take, at least and at most", caption=f"Examples: {_counts(tasks)}")
    for heading in ("step", "LM", "LM calls", "tokens", "USD"):
        shown.add_column(heading, justify="left" if heading in ("step", "LM") else "right")
    for step in estimates:
        usd = "unknown price" if step.usd is None else _span(*step.usd, form=".4f")
        shown.add_row(step.step, step.lm, _span(*step.calls), _span(*step.tokens), usd)
    known = [step.usd for step in estimates if step.usd is not None]
    total = "unknown price" if len(known) < len(estimates) else _span(sum(u[0] for u in known), sum(u[1] for u in known), form=".4f")
    calls, tokens = ([sum(getattr(step, what)[i] for step in estimates) for i in (0, 1)] for what in ("calls", "tokens"))
    shown.add_section()
    shown.add_row("in all", "", _span(*calls), _span(*tokens), total)
    return shown


def _span(low: float, high: float, form: str = ",d") -> str:
    return format(low, form) if format(low, form) == format(high, form) else f"{low:{form}} – {high:{form}}"
