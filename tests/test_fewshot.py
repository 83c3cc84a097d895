"""Few-shot: demonstrations stay where they help on examples that they do not show."""

from __future__ import annotations

import dspy
from compile_world import THINGS, program, prompts, rows
from conftest import TODAY
from fake_lm import Call, FakeLM

from crag_dspy.crag import context
from optimize.compile import Compiled, Effort, compile_program, prepare
from optimize.examples import answers_right
from optimize.fewshot import few_shot
from optimize.optimizers import Recipe, Task, writer

EFFORT = Effort(levels=0, tries=6, checks=4, doubts=4)


def compiled(fake: FakeLM) -> Compiled:
    lm = fake.lm()
    student = program(lm)
    with context(lm), dspy.context(disable_history=True):
        return compile_program(student, prepare(student, rows(), TODAY, Recipe()), TODAY, EFFORT, Recipe(), writer(lm, 0))


def shows(fake: FakeLM, field: str) -> bool:
    """Whether the prompt holds demonstrations: the layout and the question name each input once."""
    return fake.calls[-1].prompt.count(f"[[ ## {field} ## ]]") > 2


def demos(found: Compiled, name: str) -> list[dspy.Example]:
    return list(prompts(found.program)[name][1])


def test_labelled_demonstrations_that_help_stay(fake_lm: FakeLM) -> None:
    """Shown what a level is, this LM grades as it should; else it finds everything relevant."""
    plain = fake_lm.rules["level"]
    fake_lm.rules["level"] = lambda inputs: plain(inputs) if shows(fake_lm, "passage") else "3"
    found = compiled(fake_lm)
    assert found.demos["grade"] == len(demos(found, "grade")) == 4
    assert {demo["level"] for demo in demos(found, "grade")} > {"3"}
    shown = {(demo["question"], demo["passage"]) for demo in demos(found, "grade")}
    checked = [call.inputs for call in fake_lm.asked("level") if call.prompt.count("[[ ## passage ## ]]") > 2]
    assert checked and not {(inputs["question"], inputs["passage"]) for inputs in checked} & shown


def test_own_demonstrations_that_help_stay(fake_lm: FakeLM) -> None:
    """This LM names every second thing by itself, and all of them once it has seen how."""

    def names_it(inputs: dict[str, str]) -> str:
        helped = shows(fake_lm, "question") or any(thing in inputs["question"] for thing in THINGS[::2])
        return inputs["question"] if helped else "a thing"

    fake_lm.rules["query"] = names_it
    assert len(demos(compiled(fake_lm), "rewrite")) >= 1


def test_demonstrations_that_do_not_help_go(fake_lm: FakeLM) -> None:
    """This LM names most things by itself, and none once it has seen how: it is not asked more often than that takes."""

    def names_it(inputs: dict[str, str]) -> str:
        named = not shows(fake_lm, "question") and any(thing in inputs["question"] for thing in THINGS[2:])
        return inputs["question"] if named else "a thing"

    fake_lm.rules["query"] = names_it
    found = compiled(fake_lm)
    assert demos(found, "rewrite") == [] and found.demos["rewrite"] == 0
    assert "without them 2 of 3 right, with them 0 of 1" in next(note for note in found.warnings if note.startswith("rewrite: its"))
    assert len(with_demonstrations(fake_lm)) == 1


def test_demonstrations_are_not_tried_where_all_is_right_without(fake_lm: FakeLM) -> None:
    found = compiled(fake_lm)
    assert "without them 3 of 3 right, with them not tried" in next(note for note in found.warnings if note.startswith("rewrite: its"))
    assert not with_demonstrations(fake_lm)


def test_demonstrations_are_tried_first_where_it_went_wrong_without(fake_lm: FakeLM) -> None:
    """This LM fails on one thing, with demonstrations as without: no other has to be asked with them."""
    tried = []
    for unnamed in THINGS:
        fake_lm.calls.clear()
        fake_lm.rules["query"] = lambda inputs, unnamed=unnamed: "a thing" if unnamed in inputs["question"] else inputs["question"]
        assert demos(compiled(fake_lm), "rewrite") == []
        calls = with_demonstrations(fake_lm)
        assert all(unnamed in call.inputs["question"] for call in calls)
        tried += calls
    assert len(tried) == len(THINGS) // 2  # the half that is not shown, each once


def with_demonstrations(fake: FakeLM) -> list[Call]:
    return [call for call in fake.asked("query") if call.prompt.count("[[ ## question ## ]]") > 2]


def test_the_generator_is_shown_one_refusal_in_the_middle(fake_lm: FakeLM) -> None:
    def example(thing: str, need: str) -> dspy.Example:
        text = "It is late." if need == "none" else f"The warranty of the {thing} lasts 26 months."
        facts, markers, answer = ([], [], "NOT IN EVIDENCE") if need == "none" else ([["26 months"]], [1], "26 months [1].")
        made = dspy.Example(question=f"How long does the warranty of the {thing} last?", evidence=f"[1] (2026-01-01) Note: {text}")
        return dspy.Example(made, answer=answer, facts=facts, markers=markers, need=need).with_inputs("question", "evidence")

    lm = fake_lm.lm()
    student = program(lm)
    known = [example(thing, need) for thing in THINGS for need in ("internal", "none")]
    with context(lm), dspy.context(disable_history=True):
        few_shot(student, [Task("generate", student.generate, answers_right, known, 4)], 6, 0, lambda text: None)
    refusals = [demo["answer"] == "NOT IN EVIDENCE" for demo in student.generate.demos]
    assert refusals == [False, True, False, False]


def test_one_example_is_shown_unchecked(fake_lm: FakeLM) -> None:
    """Nothing is left to check on, so what the person labelled is believed."""
    lm = fake_lm.lm()
    student = program(lm)
    few = [row for row in rows() if row.need == "web"][:1] + [row for row in rows() if row.need == "internal"][:1]
    with context(lm), dspy.context(disable_history=True):
        prepared = prepare(student, few, TODAY, Recipe())
        found = compile_program(student, prepared, TODAY, EFFORT, Recipe(), writer(lm, 0))
    assert found.demos["rewrite"] == 1
