"""Two runs on the same questions: gains by need and kind with intervals, what cannot be measured, versions that cannot be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlflow
import pytest
from conftest import TODAY

from crag_dspy.errors import StateError
from crag_dspy.policy import Policy
from crag_dspy.types import Action, Answer, Claim, Grade, Passage, Trace, Usage
from optimize import compare
from optimize.dataset import Row
from optimize.evaluate import Outcome
from optimize.proof import gains, prove, threshold_curve, unmeasured
from optimize.report import lines


def outcome(row: Row, right: bool, *relevances: float, action: Action = "correct", searches: int = 0) -> Outcome:
    text = row.answer if right else "Something else."
    status: Any = "answered" if row.answerable or not right else "abstained"
    answer = Answer(
        question=row.question, text=text or "Nothing.", status=status, action=action, assessment="sufficient", confidence=0.5,
        claims=(Claim(text=text, citations=()),) if status == "answered" else (), stop_reason="covered", usage=Usage(searches=searches),
    )  # fmt: skip
    grades = tuple(
        Grade(passage=Passage(id=f"p{i}", document_id="a.md", title="", text="x"), scores=(value,), strips=(), needs=(value,),
              relevance=value, verdict="ambiguous", graded_by="cross-encoder")
        for i, value in enumerate(relevances)
    )  # fmt: skip
    return Outcome(row, answer, Trace(kind="general", needs=(row.question,), internal=grades), None)


def row(i: int, need: Any = None, kind: Any = None, **more: Any) -> Row:
    return Row(id=f"q{i}", question=f"What is {i}?", answer="" if need == "none" else f"red {i}", need=need, kind=kind, **more)


ROWS = [row(i, ("internal", "web", "none")[i % 3], "pricing" if i < 3 else "factual") for i in range(18)]


def test_gains_are_told_for_all_questions_and_by_need_and_kind() -> None:
    before, after = [outcome(r, r.need == "internal") for r in ROWS], [outcome(r, r.need != "web") for r in ROWS]
    found = {gain.group: gain for gain in gains(before, after)}
    assert {name: gain.questions for name, gain in found.items()} == {
        "all": 18, "internal": 6, "web": 6, "none": 6, "pricing": 3, "factual": 15,
    }  # fmt: skip
    assert (found["all"].right.before, found["all"].right.after) == (6 / 18, 12 / 18)
    interval = found["all"].right.difference
    assert interval and interval.value == pytest.approx(1 / 3) and 0 < interval.low < 1 / 3 < interval.high < 1
    assert found["none"].right.difference == (1.0, 1.0, 1.0) and found["web"].right.difference == (0.0, 0.0, 0.0)
    assert found["pricing"].right.difference is None  # three questions tell nothing
    assert found["none"].objective.after == 1.0 and found["none"].objective.before == 0.0


@pytest.mark.parametrize("other", [ROWS[:-1], ROWS[::-1], []])
def test_only_the_same_questions_in_the_same_order_are_compared(other: list[Row]) -> None:
    with pytest.raises(ValueError, match="not over the same questions"):
        gains([outcome(r, True) for r in ROWS], [outcome(r, True) for r in other])


def test_the_table_has_a_column_for_every_program_and_an_interval_for_the_first_two() -> None:
    runs = {"uncompiled": [outcome(r, r.need == "web") for r in ROWS], "compiled": [outcome(r, True) for r in ROWS]}
    table = {line.name: line for line in lines(prove(runs | {"NaiveRAG": [outcome(r, r.need == "none") for r in ROWS]}))}
    assert table["answers right"].values == ("33%", "100%", "33%") and table["answers right"].difference.startswith("+67 (+")
    assert table["none (6)"].values == ("0%", "100%", "100%") and table["none (6)"].part  # the objective's, which comes second
    assert table["pricing (3)"].difference == "too few"
    assert table["abstention f1"].difference == "" and "citation precision" not in table


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [row(0)],
            ["citations, groundedness and retrieval; no question names", "(support)", "their need", "their kind", "has an empty answer"],
        ),
        ([row(0, "internal", "pricing", gold_docs=("a",), support=("b",)), row(1, "none", "pricing")], []),
        (
            [row(0, "web", "pricing", gold_urls=("a",), support=("b",)), row(1, None, "pricing"), row(2, "none", "pricing")],
            ["on 1 of 2 questions only: citations", "on 1 of 2 questions only: grader", "on 2 of 3 questions only: routes"],
        ),
    ],
)
def test_what_cannot_be_measured_is_said(rows: list[Row], said: list[str]) -> None:
    found = unmeasured(rows)
    assert len(found) == len(said) and all(words in sentence for words, sentence in zip(said, found, strict=True))


def test_the_threshold_curve_replays_the_routes() -> None:
    known = outcome(row(0, "internal"), True, 0.62, 0.01)
    unknown = outcome(row(1, "web"), True, 0.32)
    curve = {point.upper: point.worth for point in threshold_curve([known, unknown], Policy())}
    # Up to 0.30 both stay with the index (worth 1 and 0); from 0.35 the second, from 0.65 the first goes to the web as well (0.75, 0.5).
    assert curve[0.3] == 0.5 and curve[0.35] == curve[0.6] == (1.0 + 0.75) / 2 and curve[0.65] == (0.5 + 0.75) / 2
    assert threshold_curve([outcome(row(0), True, 0.6)], Policy()) == []


def test_a_version_that_is_not_there_is_an_error_with_a_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(StateError, match=r"models:/crag/77 could not be run.*python -m optimize"):
        compare.ask("models:/crag/77", [row(0)], TODAY)
