"""What counts as right, and the summary of a run: pure functions of rows and made-up answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.types import Answer, Citation, Claim, Usage
from optimize.dataset import Row
from optimize.evaluate import Outcome, summarise
from optimize.metrics import MAX_WORDS, action_right, answer_right, citation_precision, cites_gold, holds, normalise, precision_recall

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
        ("", ["26 months"]),
        ("anything", []),
        ("anything", ["", " "]),
        ("", ["..."]),
    ],
)
def test_a_fact_is_not_found_inside_another(text: str, fact: list[str]) -> None:
    assert not holds(text, fact)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_a_fact_between_words_is_held_and_normalising_is_stable(before: str, fact: str) -> None:
    assert normalise(normalise(before)) == normalise(before)
    assert holds(f"{before} ; {fact} ; {before}", [fact]) == bool(normalise(fact))


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


def test_a_run_is_summarised() -> None:
    searched = Usage(lm_calls=3, searches=1, pages=2, prompt_tokens=100, completion_tokens=10, seconds=2.0)
    quiet = Usage(lm_calls=1, prompt_tokens=50, completion_tokens=10, seconds=1.0)
    web = ROW.model_copy(update={"id": "q3", "need": "web"})
    outcomes = [
        Outcome(ROW, answer("It lasts 26 months.", cited(1, "warranty.md"), usage=quiet), None, None),
        Outcome(ROW, answer("It lasts 27 months.", cited(1, "x.md"), usage=searched), None, None),
        Outcome(web, answer("", action="incorrect", usage=searched), None, None),
        Outcome(NONE, answer("", action="ambiguous", usage=searched), None, None),
        Outcome(web, None, None, "QuestionError: no"),
    ]
    assert summarise(outcomes) == pytest.approx(
        {
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
            "citation_precision": 0.5,
            "lm_calls": 2.5,
            "searches": 0.75,
            "pages": 1.5,
            "prompt_tokens": 87.5,
            "completion_tokens": 10,
            "seconds": 1.75,
        }
    )


def test_what_needs_labels_that_rows_lack_is_left_out() -> None:
    bare = Row(question="How long?", answer="26 months")
    found = summarise([Outcome(bare, answer(), None, None)])
    assert found["answers_right"] == 1.0
    assert not {name for name in found if name.startswith(("answers_right_", "action", "fallback", "cites", "citation"))}


@pytest.mark.parametrize(("outcomes", "count"), [([], 0), ([Outcome(ROW, None, None, "LMError: down")], 1)])
def test_a_run_without_answers_is_summarised_too(outcomes: list[Outcome], count: int) -> None:
    found = summarise(outcomes)
    assert (found["questions"], found["errors"], found["answers_right"]) == (count, count, 0.0) and "seconds" not in found
