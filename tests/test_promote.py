"""Promotion: a first champion is whatever is better, a later one must be better by more than chance and lose nothing that is guarded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from crag_dspy.types import Answer, Claim, Trace, Usage
from optimize.dataset import Row
from optimize.evaluate import Outcome
from optimize.promote import TOLERANCE, Measured, decide, measure

FINE = {"groundedness": 0.95, "abstention_f1": 0.8}


def measured(right: int, of: int = 48, guarded: Mapping[str, float] = FINE) -> Measured:
    """The first `right` questions are answered well, the others badly."""
    return Measured([0.9] * right + [0.3] * (of - right), guarded)


@pytest.mark.parametrize(
    ("candidate", "uncompiled", "champion"),
    [
        (measured(40), measured(30), "candidate"),
        (measured(30), measured(30), "candidate"),  # equal
        (measured(29), measured(30), "uncompiled"),
        (measured(3, 4), measured(2, 4), "candidate"),  # a small sample still leaves a champion
        (measured(3, 4, {}), measured(2, 4), "candidate"),
    ],
)
def test_the_first_champion_is_the_better_of_the_two(candidate: Measured, uncompiled: Measured, champion: str) -> None:
    assert decide("auto", candidate, uncompiled, None).champion == champion


@pytest.mark.parametrize(
    ("candidate", "champion", "promoted", "because"),
    [
        (measured(45), measured(30), True, "better than version 3 by more than chance"),
        (measured(30), measured(30), False, "not better than version 3 by more than chance"),
        (measured(31), measured(30), False, "not better than version 3 by more than chance"),  # one question more
        (measured(35), measured(30), False, "not better"),  # five gained and none lost of 48 come about by chance in 6 %
        (measured(30), measured(45), False, "not better"),
        (measured(8, 8), measured(4, 8), False, "not better"),  # too few to tell
        (measured(45, guarded=FINE | {"groundedness": 0.95 - TOLERANCE}), measured(30), True, "better"),
        (measured(45, guarded=FINE | {"groundedness": 0.94 - TOLERANCE}), measured(30), False, "groundedness fell from 95% to 89%"),
        (measured(45, guarded=FINE | {"abstention_f1": 0.5}), measured(30), False, "abstention f1 fell from 80% to 50%"),
        (measured(45, guarded={"abstention_f1": 0.8}), measured(30), False, "groundedness was 95% and cannot be measured any more"),
        (measured(45), measured(30, guarded={"abstention_f1": 0.8}), True, "not guarded, for it could not be measured: groundedness"),
        (measured(30, guarded=FINE | {"abstention_f1": 0.5}), measured(45), False, "abstention f1 fell"),  # both reasons are named
    ],
)
def test_a_champion_is_replaced_only_by_a_proven_one(candidate: Measured, champion: Measured, promoted: bool, because: str) -> None:
    decision = decide("auto", candidate, measured(1, len(candidate.objective)), champion, "version 3")
    assert decision.champion == ("candidate" if promoted else "unchanged")
    assert because in decision.reason and "95 % interval" in decision.reason


def test_asking_overrules_the_rule_and_the_reason_still_says_what_it_found() -> None:
    worse, better = measured(30), measured(45)
    forced = decide("force", worse, worse, better, "version 3")
    assert forced.champion == "candidate" and "as asked" in forced.reason and "not better than version 3" in forced.reason
    left = decide("never", better, worse, worse, "version 3")
    assert left.champion == "unchanged" and "as asked" in left.reason and "better than version 3 by more" in left.reason
    assert decide("never", better, worse, None).champion == "unchanged"


def outcome(row: Row, text: str, **usage: Any) -> Outcome:
    status: Any = "answered" if text else "abstained"
    claims = (Claim(text=text, citations=()),) if text else ()
    answer = Answer(
        question=row.question, text=text or "Nothing was found.", status=status, claims=claims, action="correct", assessment="sufficient",
        confidence=0.5, stop_reason="covered", usage=Usage(**usage),
    )  # fmt: skip
    return Outcome(row, answer, Trace(kind="general", needs=(row.question,)), None)


def test_what_is_measured_of_a_run() -> None:
    known, unknown = Row(id="a", question="Which colour?", answer="red"), Row(id="b", question="Whose?", answer="")
    right, wrong, error = outcome(known, "It is red."), outcome(known, "It is blue."), Outcome(known, None, None, "The LM is down.")
    found = measure([right, wrong, error, outcome(unknown, ""), outcome(unknown, "It is Ann's.")])
    assert found.objective[0] == found.objective[3] == 1.0
    assert found.objective[4] == found.objective[2] == 0.0 < found.objective[1] < 0.5
    assert found.guarded.keys() == {"abstention_f1"}  # nothing names gold sources
    assert measure([outcome(known, "It is red.", lm_calls=4)]).objective[0] == pytest.approx(0.98)
