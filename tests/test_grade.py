"""Grades: levels read in any dress, scores joined with levels and ages, verdicts, and what a set amounts to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from conftest import TODAY
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.grade import assess, combine, doubtful, expected_level, freshness, grade, kept, parse_level, verdict
from crag_dspy.lm import Meter, Reply
from crag_dspy.policy import Policy
from crag_dspy.retrieve import Scored
from crag_dspy.types import Grade, Kind, Passage, Strip

# Relevance by strip and level alone, so that expectations can be read off: sigmoid(logit(strip)) is the strip's score.
POLICY = Policy(platt=(0.0, 0.0, 1.0), platt_lm=(-3.0, 0.0, 0.0, 6.0), band=(0.2, 0.8), lower=0.1, upper=dict.fromkeys(Policy().upper, 0.5))
DRESSES = ("{}", "**{}**", "`{}`", '"{}"', "{}.", "Level: {}.", "level={}", "\n {}\n")
score01 = st.floats(0, 1)
repeatable = settings(max_examples=100)


def scored(id: str, *scores: float, age: int | None = None) -> Scored:
    published = None if age is None else TODAY - timedelta(days=age)
    passage = Passage(id=id, document_id=f"{id}.md", title=id, text="The mast is red.", published_at=published)
    return Scored(passage, scores, (Strip(passage=passage, start=0, end=16, scores=scores),))


def graded(id: str, *needs: float, stale: bool = False, age: int | None = None) -> Grade:
    item = scored(id, *needs)
    return Grade(
        passage=item.passage,
        scores=needs,
        strips=item.strips,
        needs=needs,
        relevance=max(needs),
        verdict=verdict(max(needs), "factual", POLICY),
        graded_by="cross-encoder",
        stale=stale,
        age_days=age,
    )


@pytest.mark.parametrize(
    ("reply", "level"),
    [
        *((dress.format(n), n) for n in range(4) for dress in DRESSES),
        ("0 - off topic", 0),
        ("2 (part of the answer)", 2),
        ("3/3", 3),
        ("2 of 3", 2),
        ("2\n\nIt names 1 of both prices.", 2),
        ("The passage names 2 plans, but no price. Level: 1", 1),
        ("**Level**: 3", 3),
        ("The grade is 2.", 2),
        ("incorrect", 0),
        ("Incorrect.", 0),
        ("INCORRECT", 0),
        ("**incorrect**", 0),
        ("incorrect - off topic", 0),
        ("correct", 3),
        ("`Correct`", 3),
        ("correct because it says so", 3),
        ("ambiguous", 2),
        ("partially relevant", 2),
        ("partly relevant", 2),
        ("relevant", 3),
        ("Irrelevant!", 0),
        ("not relevant", 0),
        ("It isn't really relevant.", 0),
        ("not correct", 0),
        ("Off-topic", 0),
        ("about something else", 0),
        ("On the topic, but the answer is not in it", 1),
        ("It doesn't answer the question.", 1),
        ("the answer is in it", 3),
    ],
)
def test_a_level_is_read_in_any_dress(reply: str, level: int) -> None:
    assert parse_level(reply) == level


@pytest.mark.parametrize("reply", ["", "   ", "None", "4", "10", "-", "2.5", "0.5", "It costs 20 or 30 euros.", "I would rather not say"])
def test_what_names_no_level_is_none(reply: str) -> None:
    assert parse_level(reply) is None


@repeatable
@given(st.text())
def test_any_reply_is_a_level_or_none(reply: str) -> None:
    assert parse_level(reply) in (None, 0, 1, 2, 3)


def reply_with(level: str, logprobs: Any = None) -> Reply:
    return Reply(dspy.Prediction(level=level, **({"logprobs": logprobs} if logprobs is not None else {})), "")


def token(text: str, **tops: float) -> dict[str, Any]:
    named = [{"token": name.strip("_"), "logprob": math.log(p) if p else -9999.0} for name, p in tops.items()]
    return {"token": text, "logprob": 0.0, "top_logprobs": named}


@pytest.mark.parametrize(
    ("level", "logprobs", "expected"),
    [
        ("2", None, 2 / 3),
        ("**0**", None, 0.0),
        ("3", {"content": []}, 1.0),
        ("2", {"content": [token("[["), token(" 2", _2=0.5, _3=0.5)]}, 2.5 / 3),
        ("3", {"content": [token("3", _3=0.75, _0=0.25)]}, 0.75),
        ("1", {"content": [token("1", _1=0.2, maybe=0.8)]}, 1 / 3),
        ("2", {"content": [token("The", _0=1.0), token("2", _2=1.0)]}, 2 / 3),
        ("1", {"content": [token("1", _1=0.0)]}, 1 / 3),
        ("1", {"content": [token("one", _3=1.0)]}, 1 / 3),
        ("who knows", {"content": [token("3", _3=1.0)]}, None),
    ],
)
def test_the_level_is_expected_over_the_token_probabilities(level: str, logprobs: Any, expected: float | None) -> None:
    assert expected_level(reply_with(level, logprobs)) == (None if expected is None else pytest.approx(expected))


def test_logprobs_as_objects_are_read_like_dicts() -> None:
    tops = [SimpleNamespace(token="2", logprob=math.log(0.5)), SimpleNamespace(token="1", logprob=math.log(0.5))]
    logprobs = SimpleNamespace(content=[SimpleNamespace(token="2", logprob=0.0, top_logprobs=tops)])
    assert expected_level(reply_with("2", logprobs)) == pytest.approx(0.5)


def test_a_level_is_salvaged_from_a_reply_out_of_format() -> None:
    assert expected_level(Reply(None, "[[ ## level ## ]] 3 [[ ## completed ## ]]")) == 1.0
    assert expected_level(Reply(None, "no comment")) is None


@pytest.mark.parametrize(
    ("items", "asked"),
    [
        ([], []),
        ([scored("a", 0.9), scored("b", 0.5)], []),  # the need is met without a doubt
        ([scored("a", 0.1), scored("b", 0.19)], []),  # and here it is not met, without a doubt
        ([scored("a", 0.5)], [("a", 0)]),
        ([scored("a", 0.3), scored("b", 0.5), scored("c", 0.4), scored("d", 0.1)], [("b", 0), ("c", 0)]),
        ([scored("b", 0.5), scored("a", 0.5), scored("c", 0.5)], [("a", 0), ("b", 0)]),
        ([scored("a", 0.9, 0.5), scored("b", 0.5, 0.1)], [("a", 1)]),
        ([scored("a", 0.5, 0.3), scored("b", 0.1, 0.4)], [("a", 0), ("b", 1), ("a", 1)]),
    ],
)
def test_the_lm_is_asked_where_it_could_change_the_action(items: list[Scored], asked: list[tuple[str, int]]) -> None:
    assert [(item.passage.id, need) for item, need in doubtful(items, POLICY)] == asked


@pytest.mark.parametrize(("band", "asked"), [((1.0, 1.0), 0), ((0.0, 1.0), 2)])
def test_the_band_can_close_and_open_wholly(band: tuple[float, float], asked: int) -> None:
    items = [scored("a", 0.99), scored("b", 0.5), scored("c", 0.01)]
    assert len(doubtful(items, POLICY.model_copy(update={"band": band}))) == asked


def joined(items: Sequence[Scored], levels: dict[tuple[str, int], float] | None = None, kind: Kind = "factual", **more: Any) -> list[Grade]:
    return combine(items, levels or {}, kind=kind, policy=POLICY, as_of=TODAY, **more)


def test_a_level_outweighs_the_scores_only_where_it_was_given() -> None:
    low, high, other = joined([scored("a", 0.5), scored("b", 0.5), scored("c", 0.5)], {("a", 0): 0.0, ("b", 0): 1.0})[::-1]
    assert (low.passage.id, low.verdict, low.graded_by) == ("a", "incorrect", "lm")
    assert [(g.passage.id, g.graded_by) for g in (high, other)] == [("c", "cross-encoder"), ("b", "lm")]
    assert other.relevance > high.relevance == pytest.approx(0.5) and "level 3.0 of 3" in other.why


def test_a_level_counts_for_its_need_alone() -> None:
    (only,) = joined([scored("a", 0.3, 0.6)], {("a", 0): 1.0})
    assert only.needs == (pytest.approx(1 / (1 + math.exp(-3))), pytest.approx(0.6)) and only.relevance == only.needs[0]


def test_an_unread_reply_counts_for_nothing_and_is_kept() -> None:
    (only,) = joined([scored("a", 0.4)], unread={"a": "hm"})
    assert (only.relevance, only.verdict, only.graded_by, only.reply) == (pytest.approx(0.4), "ambiguous", "cross-encoder", "hm")


@pytest.mark.parametrize(
    ("kind", "age", "stale"),
    [
        ("pricing", 30, False),
        ("pricing", 31, True),
        ("technical", 31, False),
        ("technical", 181, True),
        ("factual", 365, False),
        ("factual", 366, True),
        ("general", None, False),
        ("pricing", -3, False),
    ],
)
def test_age_is_judged_by_kind(kind: Kind, age: int | None, stale: bool) -> None:
    (only,) = joined([scored("a", 0.9, age=age)], kind=kind)
    assert (only.stale, only.age_days) == (stale, age)
    assert (only.relevance < 0.9 - 1e-6) == stale and only.needs == (pytest.approx(0.9),)
    assert ("days old" in only.why) == stale


def test_grades_come_best_first_and_ties_by_id() -> None:
    items = [scored("c", 0.5), scored("b", 0.5), scored("a", 0.1), scored("d", 0.9), scored("e", 0.95, age=1000)]
    assert [g.passage.id for g in joined(items)] == ["d", "e", "b", "c", "a"]


@repeatable
@given(st.none() | st.integers(-1000, 10_000), st.integers(0, 1000))
def test_freshness_lies_between_seven_tenths_and_one(age: int | None, most: int) -> None:
    factor = freshness(age, most)
    assert 0.7 <= factor <= 1 and (factor < 1) == (age is not None and age > most)
    assert age is None or freshness(age + 1, most) <= factor


@repeatable
@given(score01, score01)
def test_the_verdict_follows_the_thresholds(relevance: float, lower: float) -> None:
    policy = POLICY.model_copy(update={"lower": min(lower, 0.5), "upper": {**POLICY.upper, "pricing": 0.7}})
    said = verdict(relevance, "pricing", policy)
    assert (said == "correct") == (relevance >= 0.7) and (said == "incorrect") == (relevance < policy.lower)
    assert verdict(0.6, "factual", policy) == "correct" and verdict(0.6, "pricing", policy) == "ambiguous"


@pytest.mark.parametrize(
    ("grades", "needs", "assessment", "action", "open_needs"),
    [
        ([], 1, "empty", "incorrect", (0,)),
        ([], 2, "empty", "incorrect", (0, 1)),
        ([graded("a", 0.5)], 1, "sufficient", "correct", ()),
        ([graded("a", 0.01), graded("b", 0.05)], 1, "irrelevant", "incorrect", (0,)),
        ([graded("a", 0.1)], 1, "partial", "ambiguous", (0,)),
        ([graded("a", 0.9, stale=True, age=400)], 1, "stale", "ambiguous", (0,)),
        ([graded("a", 0.9, stale=True, age=400), graded("b", 0.5)], 1, "sufficient", "correct", ()),
        ([graded("a", 0.9, stale=True, age=400), graded("b", 0.4)], 1, "stale", "ambiguous", (0,)),
        ([graded("a", 0.9, 0.01), graded("b", 0.01, 0.9)], 2, "sufficient", "correct", ()),
        ([graded("a", 0.9, 0.01)], 2, "partial", "ambiguous", (1,)),  # one covered need cannot hide an uncovered one
        ([graded("a", 0.9, 0.3)], 2, "partial", "ambiguous", (1,)),
        ([graded("a", 0.01, 0.02)], 2, "irrelevant", "incorrect", (0, 1)),
        ([graded("a", 0.01, 0.2)], 2, "partial", "ambiguous", (0, 1)),
        ([graded("a", 0.9, 0.01), graded("b", 0.01, 0.9, stale=True, age=400)], 2, "stale", "ambiguous", (1,)),
        ([graded("a", 0.9, 0.01, stale=True, age=400)], 2, "partial", "ambiguous", (0, 1)),
    ],
)
def test_a_set_is_judged_per_need(grades: list[Grade], needs: int, assessment: str, action: str, open_needs: tuple[int, ...]) -> None:
    judged = assess(grades, ["need"] * needs, "factual", POLICY)
    assert (judged.assessment, judged.action, judged.open_needs) == (assessment, action, open_needs)


def test_the_reason_names_the_oldest_age_and_the_limit() -> None:
    grades = [graded("a", 0.9, stale=True, age=400), graded("b", 0.7, stale=True, age=800), graded("c", 0.1, stale=True, age=2000)]
    assert assess(grades, ["need"], "factual", POLICY).reason == "what covers it is up to 800 days old, past 365 for factual questions"


sets = st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(st.tuples(*[score01] * n), st.booleans()), max_size=5))


@repeatable
@given(sets)
def test_a_set_is_sufficient_exactly_if_every_need_is_freshly_covered(drawn: list[tuple[tuple[float, ...], bool]]) -> None:
    grades = [graded(str(i), *needs, stale=stale, age=400 if stale else 1) for i, (needs, stale) in enumerate(drawn)]
    needs = len(drawn[0][0]) if drawn else 2
    judged = assess(grades, ["need"] * needs, "factual", POLICY)
    covered = {i for g in grades if not g.stale for i in range(needs) if g.needs[i] >= 0.5}
    assert set(judged.open_needs) == set(range(needs)) - covered and bool(judged.reason)
    assert (judged.action == "correct") == (judged.assessment == "sufficient") == (len(covered) == needs)
    assert (judged.action == "incorrect") == all(score < POLICY.lower for g in grades for score in g.needs)


def test_kept_is_the_best_of_each_need_without_the_incorrect() -> None:
    grades = [graded("a", 0.9, 0.01), graded("b", 0.8, 0.01), graded("c", 0.7, 0.02), graded("d", 0.01, 0.3), graded("e", 0.05, 0.05)]
    assert [g.passage.id for g in kept(grades, POLICY, 2)] == ["a", "b", "d"]
    assert kept([], POLICY, 2) == [] and kept(grades[-1:], POLICY, 2) == []


def test_a_fresh_passage_goes_before_a_stale_one_of_like_relevance() -> None:
    grades = joined([scored("old", 0.9, age=1000), scored("new", 0.85, age=1)])
    assert [g.passage.id for g in kept(grades, POLICY, 1)] == ["new"]


@repeatable
@given(sets, st.integers(1, 3))
def test_kept_keeps_at_most_so_many_per_need_and_no_incorrect_one(drawn: list[tuple[tuple[float, ...], bool]], most: int) -> None:
    grades = [graded(str(i), *needs, stale=stale) for i, (needs, stale) in enumerate(drawn)]
    chosen = kept(grades, POLICY, most)
    assert all(g in grades and g.verdict != "incorrect" for g in chosen)
    assert len({g.passage.id for g in chosen}) == len(chosen) <= most * max((len(g.needs) for g in grades), default=0)
    assert bool(chosen) == any(g.verdict != "incorrect" for g in grades)


class Says(dspy.Module):  # type: ignore[misc]
    """A grader that replies by passage."""

    def __init__(self, **replies: str) -> None:
        super().__init__()
        self.replies = replies

    def forward(self, question: str, passage: str) -> dspy.Prediction:
        return dspy.Prediction(level=self.replies[passage.split("\n")[0]])


def test_the_cascade_asks_about_the_doubtful_and_takes_the_rest_as_scored() -> None:
    meter = Meter()
    items = [scored("low", 0.1), scored("mid", 0.5), scored("odd", 0.4)]
    grader = Says(mid="Level: 3", odd="no comment")
    grades = grade(grader, meter, items, ["Which colour?"], kind="factual", policy=POLICY, as_of=TODAY, workers=4)
    assert meter.lm_calls == 2
    assert [(g.passage.id, g.verdict, g.graded_by, g.reply) for g in grades] == [
        ("mid", "correct", "lm", None),
        ("odd", "ambiguous", "cross-encoder", "no comment"),
        ("low", "ambiguous", "cross-encoder", None),
    ]
