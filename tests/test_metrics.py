"""What counts as right, and the summary of a run: pure functions of rows and made-up answers."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.types import Answer, Citation, Claim, Evidence, Grade, Passage, Trace, Usage
from optimize.dataset import Row
from optimize.evaluate import Outcome, summarise
from optimize.metrics import (
    LM_CALL_PENALTY,
    MAX_WORDS,
    MOST_PENALTY,
    WEIGHTS,
    abstention,
    action_right,
    answer_right,
    citation_precision,
    cites_gold,
    exact_match,
    fallback,
    fallback_by_effect,
    holds,
    normalise,
    objective,
    precision_recall,
    spread,
    token_f1,
)

ROW = Row(
    id="q1",
    question="How long does the warranty last?",
    answer="It lasts 26 months.",
    need="internal",
    aliases=(("26 months", "two years and two months"),),
    gold_docs=("warranty.md",),
    gold_urls=("http://a.example/warranty",),
)
NONE = Row(id="q2", question="Who painted the mural?", answer="", need="none")


def answer(claim: str = "The warranty lasts 26 months.", *citations: Citation, **fields: Any) -> Answer:
    claims = (Claim(text=claim, citations=tuple(c.n for c in citations) or (1,)),) if claim else ()
    defaults: dict[str, Any] = {
        "question": "?",
        "text": claim,
        "status": "answered" if claim else "abstained",
        "claims": claims,
        "citations": citations,
        "action": "correct",
        "assessment": "sufficient",
        "confidence": 0.5,
        "stop_reason": "covered",
    }
    return Answer(**(defaults | fields))


def cited(n: int, id: str, *copies: str, quote: str = "Red.", url: str | None = None) -> Citation:
    return Citation(n=n, id=id, source_type="web" if url else "internal", title="T", url=url, quote=quote, copies=copies)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("The warranty lasts 26 months.", ["26 months"]),
        ("The warranty lasts 26-month terms", ["26 month"]),
        ("THE WARRANTY, 26\nMONTHS!", ["26 months"]),
        ("It costs €1,234.50.", ["€1234.50"]),
        ("It costs € 5.", ["€5"]),
        ("It’s Søren’s mast", ["Søren's mast"]),
        ("It is 5%.", ["6%", "5%"]),
        ("firmware v4.2, then", ["v4.2"]),
        ("on 2026-03-02", ["2026 03 02"]),
        ("The U\u2011turn", ["u-turn"]),
        ("Größe", ["GRÖSSE"]),
        ("It bears -5 degrees.", ["-5"]),
        ("It bears −5 °C.", ["-5 °C"]),  # the typographic minus sign
        ("It bears –5 degrees.", ["−5"]),
        ("A refund of -€ 5 is due.", ["€-5", "nothing"]),
        ("It takes 10-20 days.", ["20 days"]),  # a hyphen between numbers is no minus sign
        ("It takes 10–20 days.", ["10-20 days"]),
        ("It weighs 1,5 kg.", ["1.5 kg"]),  # a decimal comma
        ("It weighs 1.5 kg.", ["1,5 kg"]),
        ("1,234,567.5 in all", ["1234567,5"]),
        ("It is 5 %.", ["5%"]),
        ("It costs $5.", ["$ 5"]),
    ],
)
def test_a_fact_is_found_in_any_spelling(text: str, fact: list[str]) -> None:
    assert holds(text, fact)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("It lasts 126 months.", ["26 months"]),
        ("It lasts 26 monthsx.", ["26 months"]),
        ("It costs 5.50 EUR.", ["5 EUR"]),
        ("It costs 5.50 EUR.", ["50 EUR"]),
        ("It costs 15 EUR.", ["5 EUR"]),
        ("It costs 1,500 EUR.", ["500 EUR", "1 EUR"]),
        ("firmware v4.21", ["v4.2"]),
        ("C++", ["C"]),
        ("It bears -5 degrees.", ["5", "5 degrees"]),
        ("It bears −5 degrees.", ["5 degrees"]),
        ("It bears 5 degrees.", ["-5"]),
        ("A refund of -€5", ["€5", "5"]),
        ("It weighs 1,5 kg.", ["15 kg", "5 kg", "1 kg", "1,500 kg"]),
        ("It costs 1.265 EUR.", ["1265"]),  # a point never separates thousands: list it as an alias
        ("firmware 4.20", ["4.2"]),  # zeros at the end count
        ("It costs £5.", ["€5", "$5"]),
        ("", ["26 months"]),
        ("anything", []),
        ("anything", ["", " "]),
        ("", ["..."]),
    ],
)
def test_a_fact_is_not_found_inside_another(text: str, fact: list[str]) -> None:
    assert not holds(text, fact)


@settings(max_examples=200)
@given(st.text(max_size=30), st.text(max_size=30))
def test_a_fact_between_words_is_held_and_normalising_is_stable(before: str, fact: str) -> None:
    assert normalise(normalise(before)) == normalise(before)
    assert holds(f"{before} ; {fact} ; {before}", [fact]) == bool(normalise(fact))


@pytest.mark.parametrize(
    ("text", "references", "exact", "f1"),
    [
        ("The 26 months.", ["26 months"], True, 1.0),  # articles and punctuation do not count
        ("26 MONTHS", ["two years", "26 months"], True, 1.0),
        ("It lasts 26 months", ["26 months"], False, 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("26 months", ["26 months in all"], False, 2 * 1 * (2 / 4) / (1 + 2 / 4)),
        ("27 months", ["26 months"], False, 0.5),
        ("-5", ["5"], False, 0.0),
        ("a red red car", ["red car"], False, 0.8),
        ("red red car", ["red red bus"], False, 2 / 3),  # a word counts as often as it stands in both
        ("", ["26 months"], False, 0.0),
        ("26 months", [""], False, 0.0),
        ("", [""], True, 1.0),
        ("26 months", [], False, 0.0),
    ],
)
def test_exact_match_and_token_f1(text: str, references: list[str], exact: bool, f1: float) -> None:
    assert exact_match(text, references) is exact and token_f1(text, references) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("row", "given_answer", "right"),
    [
        (ROW, answer(), True),
        (ROW, answer("It lasts two years and two months."), True),
        (ROW, answer("It lasts 27 months."), False),
        (ROW, answer("", text="26 months"), False),  # an abstention is no answer, whatever its text
        (ROW, answer(f"It lasts 26 months {'and so on ' * 30}."), False),
        (ROW, answer("26 months " + "x " * (MAX_WORDS - 2)), True),
        (ROW, answer("26 months " + "x " * (MAX_WORDS - 1)), False),
        (NONE, answer(""), True),
        (NONE, answer("Nobody knows."), False),
        (ROW.model_copy(update={"aliases": (("26 months",), ("yearly",))}), answer(), False),
        (ROW.model_copy(update={"aliases": (("26 months",), ("yearly",))}), answer("26 months, renewed yearly."), True),
        (ROW.model_copy(update={"aliases": ()}), answer("It lasts 26 months."), True),  # the answer itself is the fact
        (ROW.model_copy(update={"aliases": ()}), answer(), False),
    ],
)
def test_an_answer_is_right_if_it_holds_every_fact(row: Row, given_answer: Answer, right: bool) -> None:
    assert answer_right(row, given_answer) is right


def test_facts_are_looked_for_in_all_claims_together() -> None:
    row = ROW.model_copy(update={"aliases": (("26 months",), ("yearly",))})
    claims = (Claim(text="It lasts 26 months.", citations=(1,)), Claim(text="It is renewed yearly.", citations=(2,)))
    assert answer_right(row, answer(claims=claims))


@pytest.mark.parametrize(
    ("citation", "gold"),
    [
        (cited(1, "warranty.md"), True),
        (cited(1, "docs/2026/warranty.md"), True),
        (cited(1, "old-warranty.md"), False),
        (cited(1, "x", url="http://a.example/warranty"), True),
        (cited(1, "x", url="http://b.example/warranty"), False),
        (cited(1, "x", "http://a.example/warranty", url="http://b.example/warranty"), True),  # a copy of a gold source
        (cited(1, "x", "docs/warranty.md"), True),
    ],
)
def test_a_gold_source_is_known_by_path_url_or_copy(citation: Citation, gold: bool) -> None:
    given_answer = answer("It is red.", citation)
    assert cites_gold(ROW, given_answer) is gold and citation_precision(ROW, given_answer) == [gold]


def test_citation_precision_judges_every_citation_of_every_claim() -> None:
    sources = (cited(1, "warranty.md"), cited(2, "x.md"), cited(3, "y.md", quote="It lasts 26 months."))
    claims = (Claim(text="A.", citations=(1, 2)), Claim(text="B.", citations=(3,)), Claim(text="C.", citations=(2,)))
    assert citation_precision(ROW, answer("A.", *sources, claims=claims)) == [True, False, True, False]
    assert citation_precision(NONE, answer("A.", *sources, claims=claims)) == [False] * 4
    assert citation_precision(ROW, answer("")) == []


@pytest.mark.parametrize(
    ("need", "action", "right"),
    [
        ("internal", "correct", True),
        ("internal", "ambiguous", False),
        ("both", "ambiguous", True),
        ("web", "incorrect", True),
        (None, "correct", None),
    ],
)
def test_the_right_action_follows_the_need(need: Any, action: Any, right: bool | None) -> None:
    assert action_right(ROW.model_copy(update={"need": need}), answer(action=action)) is right
    assert action_right(NONE, answer("", action="incorrect")) is True


@pytest.mark.parametrize(
    ("said", "true", "precision", "recall", "f1"),
    [
        ([], [], 1, 1, 1),
        ([False], [False], 1, 1, 1),
        ([True, True, False, False], [True, False, True, False], 0.5, 0.5, 0.5),
        ([True, True], [True, False], 0.5, 1, 2 / 3),
        ([False], [True], 1, 0, 0),
        ([True], [False], 0, 1, 0),
        ([True, False], [False, True], 0, 0, 0),
    ],
)
def test_precision_and_recall(said: list[bool], true: list[bool], precision: float, recall: float, f1: float) -> None:
    found = precision_recall(said, true)
    assert (found.precision, found.recall, found.f1) == pytest.approx((precision, recall, f1))


def test_pairs_of_unequal_number_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        precision_recall([True], [True, False])


def asked(need: Any, searched: bool = False, status: str = "answered") -> tuple[Row, Answer]:
    row = NONE if need == "none" else ROW.model_copy(update={"need": need})
    return row, answer("" if status == "abstained" else "26 months", usage=Usage(searches=int(searched)))


def test_abstention_compares_what_was_said_with_what_can_be_known() -> None:
    found = abstention([asked("none", status="abstained"), asked("none"), asked("web", status="abstained"), asked("internal")])
    assert (found.precision, found.recall, found.f1) == (0.5, 0.5, 0.5)
    assert abstention(iter([asked("internal")])).f1 == 1.0  # nothing to abstain from, and it did not


def test_fallback_by_label_leaves_out_what_nobody_knows_or_nobody_labelled() -> None:
    rows = [asked("internal", True), asked("web", True), asked("both", False), asked("internal", False)]
    assert fallback(rows) == (0.5, 0.5)
    assert fallback([*rows, asked("none", True), asked(None, True)]) == (0.5, 0.5)


INSIDE = Passage(id="p", document_id="warranty.md", title="T", text="26 months.")
GOLD_PAGE = INSIDE.model_copy(update={"source_type": "web", "url": "http://a.example/warranty"})
COPY, OTHER = (INSIDE.model_copy(update={"source_type": "web", "url": f"http://{host}.example/page"}) for host in "bc")


def traced(*evidence: Passage, internal: tuple[Passage, ...] = (), copies: tuple[str, ...] = ()) -> Trace:
    grades = [
        Grade(passage=p, scores=(0.9,), strips=(), needs=(0.9,), relevance=0.9, verdict="correct", graded_by="cross-encoder")
        for p in internal
    ]
    items = [Evidence(n=n, passage=p, text=p.text, relevance=0.9, copies=copies) for n, p in enumerate(evidence, 1)]
    return Trace(kind="general", needs=("?",), internal=tuple(grades), evidence=tuple(items))


@pytest.mark.parametrize(
    ("trace", "added"),
    [
        (traced(GOLD_PAGE), True),
        (traced(OTHER), False),
        (traced(INSIDE), False),  # gold, but from the index
        (traced(COPY, copies=("http://a.example/warranty",)), True),  # a copy of the gold page is as good
        (traced(GOLD_PAGE, internal=(GOLD_PAGE,)), False),  # the index had returned this page already
        (traced(INSIDE, OTHER, GOLD_PAGE, internal=(INSIDE,)), True),
        (traced(), False),
    ],
)
def test_a_search_counts_by_effect_if_it_brought_a_gold_page_that_was_not_there(trace: Trace, added: bool) -> None:
    assert fallback_by_effect([(*asked("web", True), trace)]) == (float(added), 1.0)


def test_fallback_by_effect_over_several_questions() -> None:
    runs = [
        (*asked("web", True), traced(GOLD_PAGE)),
        (*asked("both", True), traced(OTHER)),  # needed, but it brought nothing: by label a hit, by effect none
        (*asked("internal", True), traced(GOLD_PAGE)),  # unneeded by label, yet it added a gold source
        (*asked("none", True), traced()),  # nobody could know without looking
        (*asked("web", False), traced()),
        (*asked("internal", False), traced(INSIDE)),
    ]
    assert fallback_by_effect(runs) == pytest.approx((3 / 4, 2 / 3))
    assert fallback((row, a) for row, a, _ in runs) == pytest.approx((2 / 3, 2 / 3))
    unlabelled = Row(question="How long?", answer="26 months")
    assert fallback_by_effect([(unlabelled, answer(usage=Usage(searches=1)), traced(OTHER))]) == (1.0, 1.0)  # no gold source is named


def test_costs_are_spread() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 10.0]) == pytest.approx((4.0, 3.0, 8.8))  # 95 % of the way: 4 + 0.8 * 6
    assert spread([7.0]) == (7.0, 7.0, 7.0)
    with pytest.raises(ValueError, match="one value"):
        spread([])


ALL_RIGHT = dict.fromkeys(WEIGHTS, 1.0)


@pytest.mark.parametrize(
    ("measured", "value"),
    [
        (ALL_RIGHT, 1.0),
        (dict.fromkeys(WEIGHTS, 0.0) | {"lm_calls": 99.0}, 0.0),  # the penalty does not go below 0
        (ALL_RIGHT | {"answers_right": 0.5}, 0.7),
        (ALL_RIGHT | {"citation_precision": 0.5}, 0.95),
        (ALL_RIGHT | {"lm_calls": 2.0}, 1 - 2 * LM_CALL_PENALTY),
        (ALL_RIGHT | {"lm_calls": 1000.0}, 1 - MOST_PENALTY),
        ({"answers_right": 0.5}, 0.5),  # the weights of what is missing go to the rest
        ({"answers_right": 0.5, "abstention_f1": 1.0, "groundedness": None, "fallback_f1": float("nan")}, (0.6 * 0.5 + 0.1) / 0.7),
        ({"answers_right": 1.0, "fallback_precision": 0.5, "fallback_recall": 1.0}, (0.6 + 0.1 * 2 / 3) / 0.7),
        ({"answers_right": 1.0, "seconds": 40.0, "cites_gold": 0.0}, 1.0),  # what has no weight does not count
    ],
)
def test_the_objective_weighs_what_was_measured(measured: dict[str, float | None], value: float) -> None:
    assert objective(measured) == pytest.approx(value)


def test_the_objective_is_led_by_right_answers_and_needs_something_measured() -> None:
    assert sum(WEIGHTS.values()) == pytest.approx(1) and WEIGHTS["answers_right"] > 0.5
    worst_right = objective(dict.fromkeys(WEIGHTS, 0.0) | {"answers_right": 1.0, "lm_calls": 100.0})
    assert worst_right > objective(ALL_RIGHT | {"answers_right": 0.0, "lm_calls": 0.0})
    with pytest.raises(ValueError, match="answers_right"):
        objective({"lm_calls": 2.0, "answers_right": None})


TRACE = Trace(kind="factual", needs=("How long does it last?",))


def test_a_run_is_summarised() -> None:
    searched = Usage(lm_calls=3, searches=1, pages=2, prompt_tokens=100, completion_tokens=10, seconds=2.0)
    quiet = Usage(lm_calls=1, prompt_tokens=50, completion_tokens=10, seconds=1.0)
    web = ROW.model_copy(update={"id": "q3", "need": "web"})
    outcomes = [
        Outcome(ROW, answer("It lasts 26 months.", cited(1, "warranty.md"), usage=quiet), TRACE, None),
        Outcome(ROW, answer("It lasts 27 months.", cited(1, "x.md"), usage=searched), TRACE, None),
        Outcome(web, answer("", action="incorrect", usage=searched), TRACE, None),
        Outcome(NONE, answer("", action="ambiguous", usage=searched), TRACE, None),
        Outcome(web, None, None, "QuestionError: no"),
    ]
    found = summarise(outcomes)
    expected = {
        "questions": 5,
        "errors": 1,
        "answers_right": 2 / 5,  # an error is a wrong answer
        "answers_right_internal": 0.5,
        "answers_right_web": 0.0,
        "answers_right_none": 1.0,
        "action_accuracy": 3 / 4,
        "fallback_precision": 0.5,
        "fallback_recall": 1.0,
        "abstention_precision": 0.5,
        "abstention_recall": 1.0,
        "abstention_f1": 2 / 3,
        "cites_gold": 1 / 3,
        "lm_calls": 2.5,
        "searches": 0.75,
        "pages": 1.5,
        "prompt_tokens": 87.5,
        "completion_tokens": 10,
        "seconds": 1.75,
        "seconds_p95": 2.0,
        "answer_exact": 1 / 3,  # "It lasts 26 months.", one wrong month, nothing
        "answer_f1": (1 + 3 / 4 + 0) / 3,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected) and 0 < found["objective"] < 1


def test_money_is_a_mean_only_where_every_answer_has_a_price() -> None:
    asked = [Outcome(ROW, answer("", usage=Usage(usd=price)), TRACE, None) for price in (0.01, 0.03, None)]
    assert summarise(asked[:2])["usd"] == pytest.approx(0.02) and "usd" not in summarise(asked)


def test_sources_are_measured_where_they_are_cited_and_the_day_is_known() -> None:
    """One site twice, a year apart, and a page that nobody cites."""
    old, new, idle = (
        Passage(id=f"p{n}", document_id=url, text=text, title="T", url=url, source_type="web", published_at=day)
        for n, url, text, day in (
            (1, "http://a.example/old", "It lasts 24 months.", date(2025, 3, 2)),
            (2, "http://a.example/new", "The guarantee runs for 26 months.", date(2026, 3, 2)),
            (3, "http://b.example/idle", "Boats are moored here.", date(2016, 3, 2)),
        )
    )
    evidence = tuple(Evidence(n=n, passage=p, text=p.text, relevance=0.9) for n, p in enumerate((old, new, idle), 1))
    trace = TRACE.model_copy(update={"evidence": evidence})
    outcome = Outcome(ROW, answer("It lasts 26 months.", cited(1, "old"), cited(2, "new")), trace, None, as_of=date(2026, 3, 2))
    found = summarise([outcome])
    assert found["source_freshness"] == pytest.approx((0.5 + 1) / 2) and found["source_independence"] == pytest.approx(1 / 1.5)
    assert 0 < found["source_authority"] < 1
    assert "source_freshness" not in summarise([outcome._replace(as_of=None)])


def test_what_needs_labels_that_rows_lack_is_left_out() -> None:
    bare = Row(question="How long?", answer="26 months")
    found = summarise([Outcome(bare, answer(), TRACE, None)])
    assert found["answers_right"] == 1.0
    assert not {name for name in found if name.startswith(("answers_right_", "action", "fallback", "cites", "citation"))}


@pytest.mark.parametrize(("outcomes", "count"), [([], 0), ([Outcome(ROW, None, None, "LMError: down")], 1)])
def test_a_run_without_answers_is_summarised_too(outcomes: list[Outcome], count: int) -> None:
    found = summarise(outcomes)
    assert (found["questions"], found["errors"], found["answers_right"]) == (count, count, 0.0) and "seconds" not in found
