"""What the web is asked for next: each reason for a gap, the name that turned up, and never the same query twice."""

from __future__ import annotations

import copy
from datetime import date, timedelta

import pytest
from fake_lm import FakeLM
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_program import FRESH, NEWS, NO_JUNK, QUESTION, STALE, Web, build, run

from crag_dspy.followup import Gap, gaps, new_term, other_query, words
from crag_dspy.plan import Plan
from crag_dspy.policy import Policy
from crag_dspy.search import shorten
from crag_dspy.types import Grade, Passage, Strip

repeatable = settings(max_examples=300)
POLICY = Policy(lower=0.3)  # and 0.4 is sure for a general question
NEED = "How long does the Corvane warranty last?"
ONE = Plan(kind="general", needs=(NEED,))
TWO = Plan(kind="general", needs=(NEED, "What does the Tidewarden buoy weigh?"))
LASTS, LONGER = "The Corvane warranty lasts 26 months.", "The Corvane warranty lasts 31 months."


def grade(*needs: float, text: str = LASTS, stale: bool = False, age: int | None = 5, id: str = "a", reply: str | None = None) -> Grade:
    passage = Passage(id=id, document_id=f"{id}.md", title="", text=text)
    strip = Strip(passage=passage, start=0, end=len(text), scores=needs)
    return Grade(
        passage=passage, scores=needs, strips=(strip,), needs=needs, relevance=max(needs), verdict="correct", graded_by="cross-encoder",
        stale=stale, age_days=age, reply=reply,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "grades", "found"),
    [
        (ONE, [], [Gap(0, "unsupported")]),
        (ONE, [grade(0.9)], []),
        (ONE, [grade(0.4)], []),
        (ONE, [grade(0.39)], [Gap(0, "unsupported")]),
        (ONE, [grade(0.1)], [Gap(0, "unsupported")]),
        (ONE, [grade(0.9, stale=True)], [Gap(0, "stale")]),
        (ONE, [grade(0.9, stale=True), grade(0.5, id="b")], []),
        (ONE, [grade(0.9, reply="I'd rather not say")], [Gap(0, "unsupported")]),
        (ONE, [grade(0.35, text="A warranty is given by the Port of Ravnsund.")], [Gap(0, "new_term", "Port")]),
        (ONE, [grade(0.35, text="The warranty of a Zephyr Nine is longer.")], [Gap(0, "new_term", "Zephyr Nine")]),
        (ONE, [grade(0.2, text="The warranty of a Zephyr Nine is longer.")], [Gap(0, "unsupported")]),  # irrelevant, so is its name
        (ONE, [grade(0.9), grade(0.9, text=LONGER, id="b")], [Gap(0, "conflict")]),
        (ONE, [grade(0.9, age=None), grade(0.9, text=LONGER, id="b", age=None)], [Gap(0, "conflict")]),
        (ONE, [grade(0.9), grade(0.9, text=LONGER, id="b", age=900)], []),  # the dates decide
        (ONE, [grade(0.9), grade(0.9, text=LONGER, id="a")], []),  # one source
        (ONE, [grade(0.9), grade(0.2, text=LONGER, id="b")], []),
        (TWO, [], [Gap(0, "unsupported"), Gap(1, "unsupported")]),
        (TWO, [grade(0.9, 0.1)], [Gap(1, "unsupported")]),
        (TWO, [grade(0.9, 0.1, stale=True)], [Gap(0, "stale"), Gap(1, "unsupported")]),
        (TWO, [grade(0.9, 0.1), grade(0.1, 0.9, id="b")], []),
    ],
)
def test_each_gap_has_its_reason(plan: Plan, grades: list[Grade], found: list[Gap]) -> None:
    assert gaps(grades, plan, POLICY) == found


def test_the_threshold_is_that_of_the_kind() -> None:
    pricing = ONE.model_copy(update={"kind": "pricing"})
    assert gaps([grade(0.5)], ONE, POLICY) == [] and gaps([grade(0.5)], pricing, POLICY) == [Gap(0, "unsupported")]


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("It was replaced by the Zephyr Nine.", "Zephyr Nine"),
        ("It is made by Ravnsund, and Ravnsund answers for it, not Oslo.", "Ravnsund"),  # named most
        ("It is sold in Oslo and in Bergen.", "Bergen"),  # else by name, not by chance
        ("Zephyr replaced it.", ""),  # a capital letter at the start is none
        ("The Corvane is sold by others.", ""),  # asked for already
        ("It runs on the Zephyr 9 only.", "Zephyr 9"),
        ("nothing of the kind", ""),
        ("", ""),
    ],
)
def test_a_new_term_is_a_name_that_the_question_lacks(text: str, term: str) -> None:
    assert new_term(NEED, [grade(0.5, text=text)], 0) == term


def test_of_a_passage_only_the_best_strip_gives_its_name() -> None:
    text = "It was replaced by the Zephyr. It was made in Oslo, near Oslo, at Oslo."
    g = grade(0.5, text=text)
    strips = tuple(Strip(passage=g.passage, start=a, end=b, scores=(s,)) for a, b, s in ((0, 30, 0.9), (31, len(text), 0.1)))
    assert new_term(NEED, [g.model_copy(update={"strips": strips})], 0) == "Zephyr"


@pytest.mark.parametrize(
    ("gap", "tried", "query"),
    [
        (Gap(0, "unsupported"), [], "How long does the Corvane warranty last"),
        (Gap(0, "stale"), ["corvane warranty"], "How long does the Corvane warranty last"),
        (Gap(0, "stale"), [NEED], "How long does the Corvane warranty last 2026"),
        (Gap(0, "stale"), ["LAST long how, does the corvane: warranty"], "How long does the Corvane warranty last 2026"),  # in any order
        (Gap(0, "stale"), [NEED, f"2026 {NEED}"], None),
        (Gap(0, "new_term", "Zephyr"), [], "How long does the Corvane warranty last Zephyr"),
        (Gap(0, "new_term", "Zephyr"), [f"{NEED} Zephyr"], "How long does the Corvane warranty last"),
        (Gap(0, "new_term", "Zephyr"), [f"{NEED} Zephyr", NEED, f"{NEED} 2026"], None),
    ],
)
def test_another_query_has_other_words(gap: Gap, tried: list[str], query: str | None) -> None:
    found = other_query(NEED, gap, tried, 2026)
    assert found == query or (found and query and found.split() == query.split())


needs = st.lists(st.sampled_from("how long does the Corvane warranty last? 2026 ? Zephyr x".split()), max_size=9).map(" ".join)
long_needs = st.integers(1, 120).map(lambda n: " ".join(f"word{i}" for i in range(n)))


@repeatable
@given(needs | long_needs | st.text(max_size=450), st.sampled_from(["", "Zephyr", "Zephyr Nine"]), st.lists(needs, max_size=3))
def test_no_query_is_tried_twice(need: str, term: str, tried: list[str]) -> None:
    tried = list(tried)
    for _ in range(9):
        query = other_query(need, Gap(0, "new_term" if term else "stale", term), tried, 2026)
        if query is None:
            break
        assert query and len(query) <= 400
        assert frozenset(words(query)) not in {frozenset(words(other)) for other in tried}
        tried.append(query)
    else:
        pytest.fail("it never ends")


grades = st.lists(
    st.builds(
        grade,
        st.floats(0, 1),
        st.floats(0, 1),
        text=st.sampled_from([LASTS, LONGER, "The buoy of Ravnsund weighs 12 kilograms.", "The buoy of Oslo weighs 13 kilograms."]),
        stale=st.booleans(),
        age=st.none() | st.integers(0, 3),
        id=st.sampled_from("abcd"),
        reply=st.none() | st.just("?"),
    ),
    max_size=6,
)


@repeatable
@given(grades, st.randoms(use_true_random=False))
def test_gaps_are_a_pure_function_of_the_set(drawn: list[Grade], chance: object) -> None:
    before = copy.deepcopy(drawn)
    found = gaps(drawn, TWO, POLICY)
    assert drawn == before and gaps(drawn, TWO, POLICY) == found
    assert [gap.need for gap in found] == sorted({gap.need for gap in found})  # one each, in order
    for gap in found:
        assert bool(gap.term) == (gap.reason == "new_term")
    fresh = [any(g.needs[i] >= 0.4 and not g.stale and g.reply is None for g in drawn) for i in range(2)]
    assert all(gap.reason == "conflict" if fresh[gap.need] else gap.reason != "conflict" for gap in found)
    assert {i for i in range(2) if not fresh[i]} <= {gap.need for gap in found}


def test_what_is_added_to_a_long_need_is_not_cut_off() -> None:
    need = " ".join(f"word{i}" for i in range(80)) + "?"
    first = other_query(need, Gap(0, "new_term", "Zephyr"), [], 2026) or ""
    second = other_query(need, Gap(0, "stale"), [shorten(need)], 2026) or ""
    assert "Zephyr" in first and "2026" in second and max(len(first), len(second)) <= 400


@pytest.mark.parametrize(
    ("max_rounds", "searches", "stop"),
    [
        (0, 0, "nothing_supported"),
        (1, 1, "nothing_supported"),
        (2, 2, "nothing_supported"),
        (3, 3, "nothing_supported"),
        (9, 3, "nothing_new"),
    ],
)
def test_a_grader_that_always_says_no_and_a_web_of_junk_end(fake_lm: FakeLM, max_rounds: int, searches: int, stop: str) -> None:
    fake_lm.rules["level"] = lambda inputs: "0"
    web = Web(find=lambda query: [f"http://junk{len(web.queries)}.example/"])
    answer, _ = run(fake_lm.lm(), QUESTION, FRESH, web=web, max_rounds=max_rounds)
    assert (answer.action, answer.status, answer.stop_reason) == ("incorrect", "abstained", stop)
    assert len(web.queries) == len({query.lower() for query in web.queries}) == answer.usage.searches == searches
    assert (len(fake_lm.asked("query")), len(fake_lm.asked("answer"))) == (min(searches, 1), 0)
    assert len(fake_lm.asked("level")) == 1 + searches == answer.usage.lm_calls - min(searches, 1)
    assert answer.claims == answer.citations == answer.consulted == () and answer.missing == (QUESTION,)


def test_the_day_asked_for_reaches_ages_pages_and_queries(fake_lm: FakeLM) -> None:
    fake_lm.rules |= NO_JUNK
    web = Web(NEWS, find=lambda query: list(NEWS) if "2024" in query else [f"http://junk{len(web.queries)}.example/"])
    crag = build(fake_lm.lm(), STALE, web=web, max_rounds=3)
    asked_then = STALE.published_at + timedelta(days=10)  # type: ignore[operator]
    assert crag(QUESTION, as_of=asked_then).assessment == "sufficient" and web.queries == []
    answer = build(fake_lm.lm(), web=web, max_rounds=3)(QUESTION, as_of=date(2024, 5, 5))
    assert "2024" in web.queries[-1] and answer.citations[0].published_at is None  # a later date than the question's is none


@pytest.mark.xfail(strict=True, reason="a query that finds nothing ends the search")
def test_a_query_that_finds_nothing_is_followed_by_the_needs_own_words(fake_lm: FakeLM) -> None:
    fake_lm.rules["query"] = lambda inputs: "zebra keywords"
    web = Web(NEWS, find=lambda query: [] if "zebra" in query else list(NEWS))
    answer, _ = run(fake_lm.lm(), QUESTION, web=web)
    assert len(web.queries) == 2 and answer.status == "answered"
