"""The policy's numbers from made-up observations: scales separate, bands keep their bound, thresholds move for a real gain only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import dspy
import numpy as np
import pytest
from conftest import TODAY, WordScorer
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.policy import Policy
from crag_dspy.retrieve import Scored
from crag_dspy.types import Kind, Passage, Strip
from optimize.calibrate import (
    ERROR_BOUND,
    UPPERS,
    Observation,
    ask_levels,
    contains,
    error_band,
    fit,
    fit_gate,
    fit_levels,
    fit_quote,
    fit_scale,
    fit_thresholds,
    gold_needs,
    in_doubt,
    replay,
)
from optimize.dataset import Need, Row

# A passage's relevance is its score, and the LM is never asked.
PLAIN = Policy(platt=(0.0, 0.0, 1.0), band=(1.0, 1.0), lower=0.05, upper=dict.fromkeys(Policy().upper, 0.5))


def scored(id: str, *scores: float, age: int | None = None) -> Scored:
    published = None if age is None else TODAY - timedelta(days=age)
    passage = Passage(id=id, document_id=f"{id}.md", title=id, text="The mast is red.", published_at=published)
    return Scored(passage, scores, (Strip(passage=passage, start=0, end=16, scores=scores),))


def observation(
    id: str,
    internal: Sequence[Scored] = (),
    need: Need = "internal",
    kind: Kind = "factual",
    gold: Sequence[str] = (),
    levels: dict[str, float] | None = None,
) -> Observation:
    row = Row(id=id, question=f"Question {id}?", answer="" if need == "none" else "Red", need=need)
    by_need = {(key, 0): level for key, level in (levels or {}).items()}
    return Observation(row, kind, (row.question,), list(internal), [], frozenset((key, 0) for key in gold), by_need)


def labelled(noise: float, seed: int = 7, count: int = 60) -> list[Observation]:
    """Return questions with a gold passage that scores high and one that does not; `noise` is the share that is the other way round."""
    chance = random.Random(seed)
    found = []
    for i in range(count):
        high, low = chance.uniform(0.6, 0.95), chance.uniform(0.05, 0.4)
        if chance.random() < noise:
            high, low = low, high
        found.append(observation(str(i), [scored(f"g{i}", high), scored(f"n{i}", low)], gold=[f"g{i}"]))
    return found


def relevances(seen: Sequence[Observation], policy: Policy) -> tuple[list[float], list[bool]]:
    items = [(o, item) for o in seen for item in o.internal]
    values = [policy.relevance(item.scores[0], item.best_strip(0)) for _, item in items]
    return values, [(item.passage.id, 0) in o.gold for o, item in items]


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
def test_the_scale_separates_gold_from_the_rest(noise: float) -> None:
    seen = labelled(noise)
    policy = fit_scale(seen, Policy())
    values, gold = relevances(seen, policy)
    right = [(value >= 0.5) == true for value, true in zip(values, gold, strict=True)]
    assert sum(right) / len(right) >= 1 - noise - 0.1
    assert policy.platt != Policy().platt and min(policy.platt[1:]) >= 0
    assert float(np.mean(values)) == pytest.approx(0.5, abs=0.05)  # a probability: its mean is the share of gold


def test_a_scale_never_falls_with_the_score_even_where_the_labels_do() -> None:
    policy = fit_scale(labelled(1.0), Policy())
    assert policy.platt[1:] == (0.0, 0.0)
    assert policy.relevance(0.9, 0.9) == policy.relevance(0.1, 0.1)


@pytest.mark.parametrize("gold", [True, False])
def test_one_class_of_labels_leaves_the_policy_alone(gold: bool) -> None:
    seen = [observation(str(i), [scored(f"p{i}", i / 10)], gold=[f"p{i}"] if gold else []) for i in range(10)]
    assert fit_scale(seen, PLAIN) is PLAIN and fit_scale([], PLAIN) is PLAIN


def wrong_shares(values: Sequence[float], gold: Sequence[bool], band: tuple[float, float]) -> tuple[float, float]:
    """Return which share of what lies above the band is no gold, and which share of the gold lies below it."""
    low, high = band
    above = [true for value, true in zip(values, gold, strict=True) if value >= high]
    below = [value < low for value, true in zip(values, gold, strict=True) if true]
    return (above.count(False) / len(above) if above else 0.0), sum(below) / len(below)


@pytest.mark.parametrize("noise", [0.1, 0.2, 0.3])
def test_the_band_of_a_fitted_scale_keeps_the_bound(noise: float) -> None:
    seen = labelled(noise, count=100)
    policy = fit_scale(seen, Policy())
    low, high = policy.band
    assert low < high and max(wrong_shares(*relevances(seen, policy), policy.band)) <= ERROR_BOUND


@settings(max_examples=300)
@given(st.lists(st.tuples(st.floats(0, 0.999) | st.sampled_from([0.123456, 0.5, 0.77777]), st.booleans()), min_size=2, max_size=60))
def test_the_band_keeps_its_bound(pairs: list[tuple[float, bool]]) -> None:
    pairs.append((0.6, True))
    values, gold = zip(*pairs, strict=True)
    band = error_band(np.array(values), np.array(gold))
    if band != (1.0, 1.0):
        assert band[0] < band[1] and max(wrong_shares(values, gold, band)) <= ERROR_BOUND


@pytest.mark.parametrize(
    ("values", "gold", "band"),
    [
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], (1.0, 1.0)),  # nothing is doubtful
        ([0.1, 0.3, 0.4, 0.9], [0, 1, 0, 1], (0.3, 0.9)),
        ([0.3, 0.3, 0.9], [1, 0, 1], (0.3, 0.9)),  # of equal scores none is above alone
        ([0.2, 0.9], [1, 0], (0.2, 1.0)),  # the best is wrong: nothing is beyond doubt
        ([0.1, *[0.2] * 19, 0.5, 0.5, 0.6], [1] * 20 + [0, 0, 1], (0.2, 0.6)),  # one gold of 21 may be lost
    ],
)
def test_the_band_is_where_the_scores_are_not_to_be_trusted(values: list[float], gold: list[int], band: tuple[float, float]) -> None:
    assert error_band(np.array(values), np.array(gold, dtype=bool)) == pytest.approx(band)


def with_levels(noise: float, informative: bool, count: int = 60) -> list[Observation]:
    chance = random.Random(3)
    return [
        o._replace(
            levels={
                (item.passage.id, 0): float((item.passage.id, 0) in o.gold) if informative else chance.choice([0.0, 1 / 3, 2 / 3, 1.0])
                for item in o.internal
            }
        )
        for o in labelled(noise, count=count)
    ]


def test_the_band_closes_where_the_lm_adds_nothing() -> None:
    policy = fit_levels(with_levels(0.2, informative=False), Policy())
    assert policy == Policy(band=(1.0, 1.0))


def test_an_lm_that_knows_is_asked_and_believed() -> None:
    seen = with_levels(0.4, informative=True)
    policy = fit_levels(seen, Policy())
    assert policy.band == Policy().band and policy.platt_lm != Policy().platt_lm and min(policy.platt_lm[1:]) >= 0
    assert policy.relevance(0.5, 0.5, 1.0) > 0.8 and policy.relevance(0.5, 0.5, 0.0) < 0.2


@pytest.mark.parametrize("seen", [[], with_levels(0.2, True, count=9), labelled(0.2)])
def test_too_few_grades_close_the_band(seen: list[Observation]) -> None:
    assert fit_levels(seen, Policy()) == Policy(band=(1.0, 1.0))


def test_grades_of_one_class_close_the_band() -> None:
    seen = [observation(str(i), [scored(f"p{i}", 0.5)], levels={f"p{i}": i % 2 / 2}) for i in range(40)]
    assert fit_levels(seen, Policy()).band == (1.0, 1.0)


def many(prefix: str, count: int, score: float, need: Need, kind: Kind = "factual", age: int | None = None) -> list[Observation]:
    return [observation(f"{prefix}{i}", [scored(f"{prefix}{i}", score, age=age)], need, kind) for i in range(count)]


def test_thresholds_part_what_is_to_be_parted() -> None:
    start = PLAIN.model_copy(update={"upper": dict.fromkeys(PLAIN.upper, 0.9)})
    seen = [*many("i", 5, 0.65, "internal"), *many("b", 5, 0.35, "both"), *many("w", 5, 0.12, "web")]
    policy = fit_thresholds(seen, start, TODAY)
    assert set(policy.upper.values()) == {0.5}  # 0.4, 0.5 and 0.6 are as good: the middle one
    assert 0.12 < policy.lower <= 0.35
    actions = {o.row.id[0]: replay(o, o.internal, policy, TODAY)[0].verdict for o in seen}
    assert actions == {"i": "correct", "b": "ambiguous", "w": "incorrect"}


@pytest.mark.parametrize(("questions", "upper"), [(1, 0.5), (4, 0.3)])
def test_a_kind_leaves_the_common_threshold_for_a_real_gain_only(questions: int, upper: float) -> None:
    """Factual web pages look relevant up to 0.45; pricing answers begin at 0.42."""
    seen = [*many("w", 20, 0.45, "web"), *many("i", 5, 0.55, "internal"), *many("p", questions, 0.42, "internal", "pricing")]
    policy = fit_thresholds(seen, PLAIN, TODAY)
    assert policy.upper == dict.fromkeys(PLAIN.upper, 0.5) | {"pricing": upper}


@pytest.mark.parametrize(("questions", "days"), [(1, 60), (3, 90)])
def test_an_age_moves_for_a_real_gain_only(questions: int, days: int) -> None:
    start = PLAIN.model_copy(update={"max_age_days": {**PLAIN.max_age_days, "pricing": 60}})
    seen = many("p", questions, 0.9, "internal", "pricing", age=70)
    policy = fit_thresholds(seen, start, TODAY)
    assert policy.max_age_days == {**start.max_age_days, "pricing": days}


def test_what_is_right_already_stays() -> None:
    seen = [*many("i", 5, 0.65, "internal"), *many("w", 5, 0.01, "web")]
    assert fit_thresholds(seen, PLAIN, TODAY) == PLAIN and fit_thresholds([], PLAIN, TODAY) == PLAIN


def test_the_gate_parts_what_can_be_answered() -> None:
    start = PLAIN.model_copy(update={"answerable": 0.9})
    known, unknown = many("i", 5, 0.6, "internal"), many("n", 5, 0.15, "none")
    policy = fit_gate([*known, *unknown], start, TODAY)
    assert 0.15 < policy.answerable <= 0.6
    assert fit_gate(known, start, TODAY) is start and fit_gate([], start, TODAY) is start


def test_the_gate_follows_the_generator_where_that_was_asked() -> None:
    """Known and unknown overlap between 0.2 and 0.4; a generator that declines there lets the gate lie below them all."""
    known = [*many("k", 4, 0.3, "internal"), *many("m", 6, 0.7, "internal")]
    unknown = [*many("u", 4, 0.32, "none"), *many("v", 6, 0.06, "none")]
    start = PLAIN.model_copy(update={"answerable": 0.45})
    declines = {o.row.id: True for o in unknown}
    assert fit_gate([*known, *unknown], start, TODAY, declines).answerable <= 0.3
    tries_all = {o.row.id: False for o in [*known[:4], *unknown]}
    assert fit_gate([*known, *unknown], start, TODAY, tries_all).answerable > 0.32


def test_in_doubt_is_what_was_hinted_at_and_would_not_be_quoted() -> None:
    seen = [*many("a", 1, 0.02, "none"), *many("b", 1, 0.3, "none"), *many("c", 1, 0.95, "internal")]
    assert [o.row.id for o in in_doubt(seen, PLAIN.model_copy(update={"quote": 0.9}), TODAY)] == [seen[1].row.id]


@pytest.mark.parametrize(
    ("right", "wrong", "bound"),
    [(40, 0, 0.7), (40, 6, 0.9), (10, 0, 0.9), (0, 20, 0.9)],
    ids=["all above are gold", "errors below", "too few to prove it", "nothing is gold"],
)
def test_what_is_quoted_is_almost_always_gold(right: int, wrong: int, bound: float) -> None:
    seen = [observation(f"r{i}", [scored(f"r{i}", 0.7)], gold=[f"r{i}"]) for i in range(right)]
    seen += [observation(f"w{i}", [scored(f"w{i}", 0.75)], need="none") for i in range(wrong)]
    assert fit_quote(seen, PLAIN.model_copy(update={"answerable": 0.3})).quote == pytest.approx(bound)


def test_questions_without_a_need_move_no_threshold() -> None:
    seen = [o._replace(row=o.row.model_copy(update={"need": None})) for o in many("i", 9, 0.42, "internal")]
    policy = fit(seen, PLAIN, TODAY)
    assert (policy.upper, policy.lower, policy.max_age_days) == (PLAIN.upper, PLAIN.lower, PLAIN.max_age_days)


def test_a_replay_uses_a_level_only_where_the_cascade_would_ask() -> None:
    o = observation("q", [scored("a", 0.5)], levels={"a": 1.0})
    open_band = PLAIN.model_copy(update={"band": (0.1, 0.9)})
    assert [g.graded_by for g in replay(o, o.internal, open_band, TODAY)] == ["lm"]
    assert [g.graded_by for g in replay(o, o.internal, PLAIN, TODAY)] == ["cross-encoder"]


class Grader(dspy.Module):  # type: ignore[misc]
    """Level 3 for every passage but one, which it cannot grade."""

    def forward(self, question: str, passage: str) -> dspy.Prediction:
        return dspy.Prediction(level="hm" if passage.startswith("p3\n") else "3")


@pytest.mark.parametrize(("most", "graded"), [(0, 0), (3, 3), (5, 5), (7, 5), (10, 9), (99, 9)])
def test_the_lm_grades_at_most_so_many_passages_spread_over_the_questions(most: int, graded: int) -> None:
    program: Any = SimpleNamespace(grade=Grader())
    seen = [observation(f"q{i}", [scored(f"p{i}", 0.5)]) for i in range(10)]
    policy = PLAIN.model_copy(update={"band": (0.1, 0.9)})
    found = ask_levels(program, seen, policy, most)
    levels = {key: level for o in found for key, level in o.levels.items()}
    assert len(levels) == graded <= most and ("p3", 0) not in levels and set(levels.values()) <= {1.0}
    assert all(set(o.levels) <= {(f"p{o.row.id[1:]}", 0)} for o in found)
    if 0 < most < 10:
        assert max(int(key[1:]) for key, _ in levels) >= 5  # not only the first questions


@pytest.mark.parametrize(("relevant", "other", "asked"), [("3", "1", 30), ("1", "3", 20), ("2", "2", 20)])
def test_an_lm_that_cannot_grade_is_not_asked_on(relevant: str, other: str, asked: int) -> None:
    class Judge(dspy.Module):  # type: ignore[misc]
        def forward(self, question: str, passage: str) -> dspy.Prediction:
            return dspy.Prediction(level=relevant if passage.startswith("gold") else other)

    program: Any = SimpleNamespace(grade=Judge())
    seen = [
        observation(f"q{i}", [scored(name := f"{'gold' if i % 3 else 'not'}{i}", 0.5)], gold=[name] if i % 3 else []) for i in range(30)
    ]
    found = ask_levels(program, seen, PLAIN.model_copy(update={"band": (0.1, 0.9)}), 30)
    assert sum(len(o.levels) for o in found) == asked


@pytest.mark.parametrize(
    ("text", "sentence", "inside"),
    [
        ("Intro. The mast is 3 m tall and red.\nMore.", "The mast is 3 m tall and red.", True),
        ("- The **mast** of the station\nis 3 m tall  and red.", "The mast of the station is 3 m tall and red.", True),
        ("The mast is 4 m tall and red.", "The mast is 3 m tall and red.", False),  # another number is another fact
        ("The hull is blue.", "The mast is 3 m tall and red.", False),
        ("mast", "The mast is 3 m tall and red.", False),
        ("", "The mast is red.", False),
        ("The mast is red.", "", False),
    ],
)
def test_a_gold_sentence_is_found_in_spite_of_markup(text: str, sentence: str, inside: bool) -> None:
    assert contains(text, sentence) is inside


def test_a_gold_sentence_belongs_to_the_need_that_it_fits_best() -> None:
    row = Row(
        question="What colour is the mast, and what does the ferry cost?",
        answer="Red; 5 EUR",
        gold_docs=("a.md",),
        support=("The mast has a red colour.", "The ferry has a cost of 5 EUR."),
    )
    needs = ("What colour is the mast?", "what does the ferry cost?")

    def found(document: str, *sentences: str) -> list[int]:
        return gold_needs(row, needs, Passage(id="p", document_id=document, title="T", text=" ".join(sentences)), WordScorer())

    assert found("a.md", row.support[0], "Birds sing.") == [0] and found("docs/a.md", row.support[1]) == [1]
    assert found("a.md", *row.support) == [0, 1] and found("a.md", "Birds sing.") == [] and found("b.md", *row.support) == []


def test_thresholds_are_tried_in_order() -> None:
    assert list(UPPERS) == sorted(UPPERS)  # "the middle one" of equally good values means their middle
