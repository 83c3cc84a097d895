"""Before the first LM call: what is missing is named with what to do, and what a run will take is said."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, get_args

import dspy
import litellm
import pytest
from compile_world import program, rows
from conftest import TODAY
from fake_lm import FakeLM
from rich.console import Console

from crag_dspy import app
from crag_dspy.errors import SettingsError
from crag_dspy.local_lm import embedded
from crag_dspy.settings import Settings
from optimize import preflight
from optimize.compile import QUICK, prepare
from optimize.dataset import Row
from optimize.optimizers import QUICK_BUDGET, Optimizer, Recipe, Task
from optimize.preflight import Estimate, PreflightError, afford, check, estimate, table

PRICED = "openai/priced-model"


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(litellm.model_cost, PRICED, {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6})


@pytest.fixture
def lm(fake_lm: FakeLM) -> Iterator[dspy.LM]:
    """Return an LM that must not be asked."""
    yield fake_lm.lm()
    assert not fake_lm.calls


def tasks(lm: dspy.LM, given: list[Row] | None = None, *, end_to_end: bool = False) -> list[Task]:
    return prepare(program(lm), given or rows(), TODAY, Recipe(end_to_end=end_to_end)).tasks


def example(**fields: str) -> dspy.Example:
    return dspy.Example(question="?", **fields).with_inputs("question")


def task(name: str, count: int, metric: Any = lambda example, prediction, trace=None, pred_name=None, pred_trace=None: 1.0) -> Task:
    return Task(name, dspy.Predict("question -> answer"), metric, [example() for _ in range(count)], 2)


@pytest.mark.parametrize("end_to_end", [False, True])
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_with_enough_of_everything_nothing_is_said(lm: dspy.LM, optimizer: Optimizer, end_to_end: bool) -> None:
    assert check(Recipe(optimizer, end_to_end), tasks(lm, end_to_end=end_to_end)) == []


@pytest.mark.parametrize(("optimizer", "module"), [("mipro", "optuna"), ("gepa", "gepa")])
def test_a_missing_package_refuses(lm: dspy.LM, monkeypatch: pytest.MonkeyPatch, optimizer: Optimizer, module: str) -> None:
    real = preflight.importlib.util.find_spec
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    with pytest.raises(PreflightError, match=f"needs the package {module}. Install it with: pip install {module}"):
        check(Recipe(optimizer), [task("grade", 9)])
    assert check(Recipe("random-search"), [task("grade", 9)]) == []


@pytest.mark.parametrize("optimizer", ["random-search", "mipro", "gepa"])
def test_too_few_examples_refuse_with_all_counts_and_what_to_add(optimizer: Optimizer) -> None:
    with pytest.raises(
        PreflightError, match=r"rewrite has 3 of the 4 .* \(grade 9, rewrite 3\)\. Add questions with gold_urls .* few-shot"
    ):
        check(Recipe(optimizer), [task("grade", 9), task("rewrite", 3)])
    assert check(Recipe("few-shot"), [task("grade", 9), task("rewrite", 3)]) == []


@pytest.mark.parametrize("optimizer", ["random-search", "mipro", "gepa"])
def test_no_web_questions_leave_the_rewriter_alone_with_a_warning(lm: dspy.LM, optimizer: Optimizer) -> None:
    [warning] = check(Recipe(optimizer), tasks(lm, rows(web=False)))
    assert warning.startswith("rewrite: 0 examples, so its prompt stays as it is") and "gold_urls" in warning


def test_nothing_to_learn_from_refuses(lm: dspy.LM) -> None:
    bare = [Row(question=row.question, answer=row.answer) for row in rows() if row.answerable]
    with pytest.raises(PreflightError, match=r"nothing to learn from \(grade 0|grade has"):
        check(Recipe("gepa"), [one._replace(examples=[]) for one in tasks(lm, bare)])


def test_a_metric_of_three_arguments_is_no_metric_for_gepa() -> None:
    bad = task("grade", 9, lambda example, prediction, trace=None: 1.0)
    with pytest.raises(PreflightError, match="metric of grade does not take GEPA's five arguments"):
        check(Recipe("gepa"), [bad])
    assert check(Recipe("mipro"), [bad]) == []


@pytest.mark.parametrize("end_to_end", [False, True])
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_the_estimate_has_a_price_and_its_bounds_are_in_order(lm: dspy.LM, optimizer: Optimizer, end_to_end: bool) -> None:
    recipe = Recipe(optimizer, end_to_end, budget=QUICK_BUDGET)
    task_lm, prompt_lm = dspy.LM(PRICED, max_tokens=300), dspy.LM("openai/nobody-knows", max_tokens=1000)
    steps = estimate(recipe, QUICK, tasks(lm, end_to_end=end_to_end), task_lm, prompt_lm, measured=[("dev", rows())])
    for step in steps:
        assert step.calls[0] <= step.calls[1] and step.tokens[0] <= step.tokens[1]
        assert step.usd is None or 0 <= step.usd[0] <= step.usd[1]
    named = {step.step: step for step in steps}
    assert named["observing"].calls == (0, 0) and named["evaluating on dev"].calls == (12, 144)
    assert 0 < named[f"optimizing ({optimizer})"].calls[1]
    assert ("writing instructions" in named) == (optimizer in ("mipro", "gepa"))
    if "writing instructions" in named:
        assert named["writing instructions"].usd is None


def test_the_judge_and_the_embedded_lm_have_their_lines() -> None:
    embedded = dspy.LM("openai/qwen", api_key="local", api_base="http://127.0.0.1:1/v1", max_tokens=300)
    steps = estimate(Recipe(), QUICK, [], embedded, embedded, measured=[("dev", rows())], judge=dspy.LM(PRICED, max_tokens=300))
    named = {step.step: step for step in steps}
    assert named["judging on dev"].lm == PRICED and named["judging on dev"].calls == (0, 12) and named["judging on dev"].usd
    assert named["evaluating on dev"].usd == (0.0, 0.0)


def step(usd: tuple[float, float] | None, lm: str = PRICED) -> Estimate:
    return Estimate("a step", lm, (1, 2), (10, 20), usd)


@pytest.mark.parametrize(
    ("steps", "most", "said"),
    [
        ([step((1.0, 9.0)), step((0.5, 9.0))], 1.4, r"USD 1.5000 at least, more than --max-cost 1.4"),
        ([step((1.0, 9.0)), step(None, "openai/x")], 5.0, r"price of openai/x is unknown, so --max-cost"),
        ([step((1.0, 9.0)), step((0.5, 9.0))], 1.5, None),
        ([step((1.0, 9.0)), step(None)], None, None),
    ],
)
def test_what_costs_too_much_even_at_best_is_refused(steps: list[Estimate], most: float | None, said: str | None) -> None:
    if said is None:
        afford(steps, most)
        return
    with pytest.raises(PreflightError, match=said):
        afford(steps, most)


def test_the_table_names_unknown_prices_and_counts_examples() -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table([step((1.0, 2.0)), step(None, "openai/x")], [task("grade", 9), task("rewrite", 0)]))
    text = console.export_text()
    assert "unknown price" in text and "1.0000 – 2.0000" in text and "grade 9, rewrite 0" in text and "in all" in text


@pytest.mark.parametrize(
    ("given", "role", "model", "base"),
    [
        ({"reflection_lm": "openai/b", "reflection_lm_api_base": "http://b/v1"}, "reflection", "openai/b", "http://b/v1"),
        ({}, "reflection", "openai/a", "http://a/v1"),
        ({"reflection_lm_api_base": "http://b/v1"}, "reflection", "openai/a", "http://a/v1"),
        ({"judge_lm": "openai/c"}, "judge", "openai/c", None),
        ({"judge_lm": "openai/c"}, "task", "openai/a", "http://a/v1"),
    ],
)
def test_each_role_has_its_lm(given: dict[str, str], role: app.Role, model: str, base: str | None) -> None:
    lm = app.build_lm(Settings(lm="openai/a", lm_api_base="http://a/v1", **given), role)
    assert (lm.model, lm.kwargs.get("api_base")) == (model, base) and not embedded(lm)


@pytest.mark.parametrize(
    ("given", "role", "said"),
    [
        ({}, "judge", "CRAG_JUDGE_LM is not set"),
        ({"judge_lm": "nobody/x"}, "judge", "CRAG_JUDGE_LM='nobody/x' names no known provider"),
        ({"reflection_lm": "nobody/x"}, "reflection", "CRAG_REFLECTION_LM='nobody/x' names no known provider"),
    ],
)
def test_an_lm_that_cannot_be_built_names_its_variable(given: dict[str, str], role: app.Role, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        app.build_lm(Settings(lm="openai/a", **given), role)
