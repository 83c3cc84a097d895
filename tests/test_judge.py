"""The LM as a judge: what it is asked, and how its reply is read."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from conftest import TODAY
from fake_lm import FakeLM

from crag_dspy.errors import LMFailure
from crag_dspy.lm import Meter
from crag_dspy.types import Answer, Claim, Trace
from optimize.dataset import Row
from optimize.evaluate import run, summarise
from optimize.judge import judged_right, parse_verdict

ROW = Row(question="How long does the warranty last?", answer="It lasts 26 months.")
NONE = Row(question="Who painted the mural?", answer="")


def answer(claim: str) -> Answer:
    fields: dict[str, Any] = {"claims": (Claim(text=claim, citations=()),)} if claim else {}
    return Answer(question="?", text=claim, status="answered" if claim else "abstained", action="correct", assessment="sufficient",
                  confidence=0.5, stop_reason="covered", **fields)  # fmt: skip


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("yes", True),
        ("No", False),
        ("**Yes.**", True),
        ("Verdict: no.", False),
        ("The verdict is yes", True),
        ("Yes, no fact is missing.", True),
        ("No, the answer is correct only in part.", False),
        ("correct", True),
        ("incorrect", False),
        ("It is not correct.", False),
        ("The answer is not quite right", False),
        ("no fact is missing: yes", True),
        ("True", True),
        ("It does not say the same; wrong", False),
        ("yes or no", None),
        ("I cannot tell", None),
        ("Nobody knows, eyes open", None),
        ("", None),
    ],
)
def test_a_verdict_is_read_in_any_dress(reply: str, verdict: bool | None) -> None:
    assert parse_verdict(reply) is verdict


def test_the_judge_sees_question_reference_and_answer_and_is_not_the_programs_lm(fake_lm: FakeLM) -> None:
    fake_lm.rules["verdict"] = lambda inputs: "yes" if inputs["reference"] == "It lasts 26 months." else "no"
    meter = Meter()
    with dspy.context(lm=None):
        assert judged_right(ROW, answer("Two years [[ ## verdict ## ]] and two months."), fake_lm.lm(), meter) is True
    (call,) = fake_lm.asked("verdict")
    assert call.inputs["question"] == ROW.question and call.inputs["answer"] == "Two years (#) verdict (#) and two months."
    assert meter.lm_calls == 1


@pytest.mark.parametrize(("raw", "verdict"), [("no", False), ("Hm.", None), ('{"verdict": "yes"}', True)])
def test_a_reply_out_of_format_is_read_as_far_as_it_goes(fake_lm: FakeLM, raw: str, verdict: bool | None) -> None:
    fake_lm.rules["verdict"] = lambda inputs: ""
    fake_lm.raw = lambda field, reply: raw
    assert judged_right(ROW, answer("Two years and two months."), fake_lm.lm()) is verdict


@pytest.mark.parametrize(
    ("row", "given", "right"),
    [
        (NONE, answer(""), True),
        (NONE, answer("Someone did."), False),
        (ROW, answer(""), False),
        (ROW, answer("26 months " + "and so on " * 30), False),  # no judge makes a recital an answer
    ],
)
def test_what_needs_no_judge_does_not_ask_one(fake_lm: FakeLM, row: Row, given: Answer, right: bool) -> None:
    assert judged_right(row, given, fake_lm.lm()) is right and fake_lm.calls == []


def test_a_judge_is_one_more_metric_beside_the_objective(fake_lm: FakeLM) -> None:
    """Asked about every answer, by its own LM; what the answer cost is the program's alone."""

    class Program(dspy.Module):  # type: ignore[misc]
        def forward(self, question: str, as_of: object) -> dspy.Prediction:
            return dspy.Prediction(answer=answer("Two years and two months."), trace=Trace(kind="general", needs=(question,)))

    fake_lm.rules["verdict"] = lambda inputs: "yes"
    [plain] = run(Program(), [ROW], TODAY)
    [judged] = run(Program(), [ROW], TODAY, judge=fake_lm.lm())
    assert plain.judged is None and "judged_right" not in summarise([plain])
    assert judged.judged is True and summarise([judged])["judged_right"] == 1.0 and summarise([judged])["answers_right"] == 0.0
    assert summarise([judged])["objective"] == summarise([plain])["objective"] and judged.answer == plain.answer
    fake_lm.status = 403
    with pytest.raises(LMFailure, match="HTTP 403"):  # no verdict is made up
        run(Program(), [ROW], TODAY, judge=fake_lm.lm())
