"""The four optimizers, stage by stage and end to end, on a rule-following LM: what they find is kept and repeatable; failures end them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import dspy
import pytest
from compile_world import THINGS, program, prompts, rows, teach
from conftest import TODAY
from fake_lm import FakeLM, fake_lm_server

from crag_dspy.crag import context
from crag_dspy.errors import CragError, LMFailure
from crag_dspy.state import load_state, save_state
from optimize.compile import Compiled, Effort, compile_program, prepare
from optimize.dataset import Row
from optimize.optimizers import Budget, Optimizer, Recipe, Task, improve, writer
from optimize.spend import recording
from optimize.strict import Lenient, OptimizerFailure

EFFORT = Effort(levels=0, tries=6, checks=4, doubts=4)
BUDGET = Budget(examples=4, candidates=2, trials=6, rollouts=14, minibatch=2)
BE_EXACT = "Be exact"


@pytest.fixture
def fake() -> Iterator[FakeLM]:
    with fake_lm_server() as served:
        yield teach(served)


def compiled(
    fake: FakeLM, folder: Path, optimizer: Optimizer, *, end_to_end: bool = False, seed: int = 0, given: list[Row] | None = None
) -> Compiled:
    recipe = Recipe(optimizer, end_to_end, seed, BUDGET)
    lm = fake.lm(cache=True)
    student = program(lm)
    with recording(folder), context(lm), dspy.context(disable_history=True):
        prepared = prepare(student, given or rows(), TODAY, recipe)
        return compile_program(student, prepared, TODAY, EFFORT, recipe, writer(lm, seed))


@pytest.mark.parametrize("end_to_end", [False, True], ids=["stages", "whole"])
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_an_optimizer_ends_and_a_seed_repeats_what_it_finds(fake: FakeLM, tmp_path: Path, optimizer: Optimizer, end_to_end: bool) -> None:
    first = compiled(fake, tmp_path / "a", optimizer, end_to_end=end_to_end)
    calls, fake.calls = len(fake.calls), []
    second = compiled(fake, tmp_path / "b", optimizer, end_to_end=end_to_end)
    assert prompts(first.program) == prompts(second.program) and len(fake.calls) == calls > 0
    assert first.program.policy.value == second.program.policy.value

    save_state(first.program, tmp_path / "program.json")
    loaded = load_state(program(fake.lm()), tmp_path / "program.json")
    assert prompts(loaded) == prompts(first.program)
    for name, predictor in first.program.named_predictors():
        assert not getattr(predictor, "_compiled", False) and not hasattr(predictor, "candidate_programs")
        assert all(set(demo.keys()) <= set(predictor.signature.fields) for demo in predictor.demos), name
    assert first.program.parts.workers > 1  # one after the other while compiling only


@pytest.mark.parametrize("optimizer", ["mipro", "gepa"])
def test_a_better_instruction_is_found(fake: FakeLM, tmp_path: Path, optimizer: Optimizer) -> None:
    """Without the instruction that the LM itself would write, it leaves its markers out."""
    found = compiled(fake, tmp_path / "run", optimizer).program
    assert BE_EXACT in prompts(found)["generate"][0]


@pytest.mark.parametrize("end_to_end", [False, True], ids=["stages", "whole"])
@pytest.mark.parametrize("optimizer", ["random-search", "mipro", "gepa"])
def test_a_person_is_told_which_prompts_stayed(fake: FakeLM, tmp_path: Path, optimizer: Optimizer, end_to_end: bool) -> None:
    before = prompts(program(fake.lm()))
    found = compiled(fake, tmp_path / "run", optimizer, end_to_end=end_to_end)
    stayed = {name for name, prompt in prompts(found.program).items() if prompt == before[name]}
    assert {note.split(":")[0] for note in found.warnings if "its prompt stays" in note} == stayed


def test_random_search_keeps_demonstrations_that_help(fake: FakeLM, tmp_path: Path) -> None:
    """This LM names every second thing, and all of them once it has seen a question with its query."""

    def names_it(inputs: dict[str, str]) -> str:
        shown = fake.calls[-1].prompt.count("euros?") > 1
        return inputs["question"] if shown or any(thing in inputs["question"] for thing in THINGS[::2]) else "a thing"

    fake.rules["query"] = names_it
    assert len(prompts(compiled(fake, tmp_path / "run", "random-search").program)["rewrite"][1]) >= 1


def test_gepa_reflects_on_what_the_predictor_did(fake: FakeLM, tmp_path: Path) -> None:
    compiled(fake, tmp_path / "run", "gepa")
    reflections = [call.prompt for call in fake.asked("new_instruction")]
    generator = [prompt for prompt in reflections if "Answer the question from the numbered evidence" in prompt]
    assert generator and all("Claim without support" in prompt for prompt in generator)
    assert all("Misgraded" not in prompt and "missed the gold page" not in prompt for prompt in generator)


@pytest.mark.parametrize("end_to_end", [False, True], ids=["stages", "whole"])
def test_whether_usage_is_tracked_changes_nothing(fake: FakeLM, tmp_path: Path, end_to_end: bool) -> None:
    plain = compiled(fake, tmp_path / "a", "gepa", end_to_end=end_to_end)
    with dspy.context(track_usage=True):
        tracked = compiled(fake, tmp_path / "b", "gepa", end_to_end=end_to_end)
    assert prompts(tracked.program) == prompts(plain.program)


@pytest.mark.parametrize("optimizer", ["random-search", "mipro", "gepa"])
def test_without_web_questions_the_rewriter_keeps_its_prompt(fake: FakeLM, tmp_path: Path, optimizer: Optimizer) -> None:
    before = prompts(program(fake.lm()))["rewrite"]
    found = compiled(fake, tmp_path / "run", optimizer, given=rows(web=False))
    assert [note for note in found.warnings if note.startswith("rewrite: 0 examples")]
    assert prompts(found.program)["rewrite"] == before and not fake.asked("query")


@pytest.mark.parametrize("end_to_end", [False, True], ids=["stages", "whole"])
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_a_failing_lm_is_an_error_and_no_score(fake: FakeLM, tmp_path: Path, optimizer: Optimizer, end_to_end: bool) -> None:
    fake.status = 401
    with pytest.raises(LMFailure, match="HTTP 401"):
        compiled(fake, tmp_path / "run", optimizer, end_to_end=end_to_end)
    assert len(fake.calls) == 1


@pytest.mark.parametrize("optimizer", ["mipro", "gepa"])
def test_a_reflection_lm_that_fails_is_an_error(fake: FakeLM, tmp_path: Path, optimizer: Optimizer) -> None:
    """GEPA would go on without it, and return what it was given."""
    recipe, lm = Recipe(optimizer, budget=BUDGET), fake.lm(cache=True)
    student = program(lm)
    with fake_lm_server() as other, pytest.raises(LMFailure, match="HTTP 403"), recording(tmp_path / "run"), context(lm):
        other.status = 403
        compile_program(student, prepare(student, rows(), TODAY, recipe), TODAY, EFFORT, recipe, writer(other.lm(), 0))


def test_the_reflection_lm_is_asked_and_has_room(fake: FakeLM, tmp_path: Path) -> None:
    lm = fake.lm(cache=True)
    student, recipe = program(lm), Recipe("gepa", budget=BUDGET)
    with fake_lm_server() as other, recording(tmp_path / "run"), context(lm):
        teach(other)
        compile_program(student, prepare(student, rows(), TODAY, recipe), TODAY, EFFORT, recipe, writer(other.lm(max_tokens=50), 0))
        assert {call.field for call in other.calls} == {"new_instruction"} and not fake.asked("new_instruction")
    assert (
        writer(fake.lm(max_tokens=50), 3).kwargs["max_tokens"] == 1000 and writer(fake.lm(max_tokens=5000), 3).kwargs["max_tokens"] == 5000
    )


@pytest.mark.parametrize("optimizer", ["random-search", "mipro", "gepa"])
def test_a_reply_out_of_format_is_read_as_the_program_reads_it(fake: FakeLM, tmp_path: Path, optimizer: Optimizer) -> None:
    neat = prompts(compiled(fake, tmp_path / "a", optimizer).program)
    fake.raw = lambda field, reply: reply
    untidy = prompts(compiled(fake, tmp_path / "b", optimizer).program)
    assert {name: text for name, (text, _) in neat.items()} == {name: text for name, (text, _) in untidy.items()}


def test_a_prompt_that_is_too_long_is_a_bad_prompt_and_no_failure(fake: FakeLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The LM has no room for demonstrations: those sets score 0, and the run goes on."""

    def execute(lm: Any, call: Any) -> Any:
        if len(call.legacy["messages"]) > 2:
            raise dspy.ContextWindowExceededError(model="fake")
        return real(lm, call)

    from dspy.clients import execution

    real = execution.execute
    monkeypatch.setattr(execution, "execute", execute)
    found = compiled(fake, tmp_path / "run", "random-search")
    assert len(fake.calls) > 20 and {name: demos for name, (_, demos) in prompts(found.program).items() if demos} == {}


EIGHT = [dspy.Example(question="?", strips="1. a").with_inputs("question", "strips")] * 8


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_a_failing_metric_is_an_error_and_no_score(fake: FakeLM, tmp_path: Path, optimizer: Optimizer) -> None:
    def broken(example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
        raise ZeroDivisionError("no such thing")

    task = Task("refine", program(fake.lm()).refine, broken, EIGHT, 2)
    with pytest.raises(OptimizerFailure, match="no such thing"), recording(tmp_path / "run"), context(fake.lm(cache=True)):
        improve(program(fake.lm()), [task], Recipe(optimizer, budget=BUDGET), writer(fake.lm(), 0), lambda text: None)


def test_what_an_optimizer_raises_itself_is_its_failure(fake: FakeLM, tmp_path: Path) -> None:
    task = Task("refine", program(fake.lm()).refine, lambda example, prediction: 1.0, EIGHT, 2)
    with pytest.raises(OptimizerFailure, match=r"gepa failed on refine \(TypeError") as caught, recording(tmp_path / "run"):
        with context(fake.lm(cache=True)):
            improve(program(fake.lm()), [task], Recipe("gepa", budget=BUDGET), writer(fake.lm(), 0), lambda text: None)
    assert isinstance(caught.value, CragError)


@pytest.mark.parametrize("optimizer", ["few-shot", "random-search"])
def test_nothing_is_printed(fake: FakeLM, tmp_path: Path, capfd: pytest.CaptureFixture[str], optimizer: Optimizer) -> None:
    compiled(fake, tmp_path / "run", optimizer)
    said = capfd.readouterr().out
    assert "candidate" not in said and "Bootstrapped" not in said


def test_a_reply_with_two_fields_out_of_format_is_refused(fake: FakeLM) -> None:
    with pytest.raises(dspy.utils.exceptions.AdapterParseError):
        Lenient().parse(dspy.Signature("question -> answer, reason"), "hm")


def test_another_seed_is_another_order(fake: FakeLM, tmp_path: Path) -> None:
    lm = fake.lm()
    orders = [[o.row.id for o in prepare(program(lm), rows(), TODAY, Recipe(seed=seed)).seen] for seed in (0, 1, 1, 2)]
    assert orders[0] == [row.id for row in rows()] and orders[1] == orders[2] != orders[0] and orders[3] not in orders[:3]
