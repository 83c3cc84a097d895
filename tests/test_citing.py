"""Citations after ALCE, groundedness by facts, and what sources are worth."""

from __future__ import annotations

from datetime import date

import pytest

from crag_dspy.types import Answer, Citation, Claim
from optimize.citing import (
    alce,
    by_facts,
    grounded_by_facts,
)
from optimize.dataset import Row

TODAY = date(2026, 3, 2)
ROW = Row(
    question="How long does the warranty of the R3 last in 2026?",
    answer="26 months, renewed yearly.",
    aliases=(("26 months", "two years and two months"), ("yearly", "each year")),
)


def source(n: int, quote: str, *copies: str, url: str | None = None, day: date | None = None) -> Citation:
    return Citation(
        n=n, id=f"{n}.md", source_type="web" if url else "internal", title="Terms", url=url, quote=quote, copies=copies, published_at=day
    )


def answer(claims: list[tuple[str, tuple[int, ...]]], *sources: Citation, support: float = 0.0) -> Answer:
    return Answer(
        question="?",
        text="",
        status="answered",
        claims=tuple(Claim(text=text, citations=numbers, support=support) for text, numbers in claims),
        citations=sources,
        action="correct",
        assessment="sufficient",
        confidence=0.5,
        stop_reason="covered",
    )


def words(premise: str, claim: str) -> bool:
    """Entail by words: every word of the claim stands in the premise."""
    return set(claim.split()) <= set(premise.split())


SOURCES = source(1, "red"), source(2, "green"), source(3, "red green"), source(4, "blue")


@pytest.mark.parametrize(
    ("claims", "recall", "precision"),
    [
        ([("red", (1,))], [True], [True]),
        ([("red", (4,))], [False], [False]),
        ([("red", ())], [False], []),  # nothing cited
        ([("red green", (1, 2))], [True], [True, True]),  # only together, so neither is idle
        ([("red green", (3, 4))], [True], [True, False]),  # 4 is idle: alone it says nothing, and 3 does without it
        ([("red green", (1, 3))], [True], [False, True]),  # 1 supports a part alone, which is not enough
        ([("red", (1, 3))], [True], [True, True]),  # each would do: both are to the point
        ([("red blue", (1, 2))], [False], [False, False]),  # an unsupported statement makes its citations worthless
        ([("red", (1,)), ("blue", (1,))], [True, False], [True, False]),
        ([], [], []),
    ],
)
def test_citations_are_judged_as_in_alce(claims: list[tuple[str, tuple[int, ...]]], recall: list[bool], precision: list[bool]) -> None:
    assert alce(answer(claims, *SOURCES), words) == (recall, precision)


def test_a_statement_without_citations_is_unsupported_however_lenient_the_entailment() -> None:
    assert alce(answer([("red", ()), ("red", (4,))], *SOURCES), lambda premise, claim: True) == ([False, True], [True])


def test_a_statement_that_cannot_be_judged_is_left_out() -> None:
    found = alce(answer([("red", (1,)), ("green", (2,))], *SOURCES), lambda premise, claim: None if claim == "red" else True)
    assert found == ([True], [True])


@pytest.mark.parametrize(
    ("premise", "claim", "supported"),
    [
        ("It lasts 26 months.", "The warranty lasts 26 months.", True),
        ("It lasts two years and two months.", "The warranty lasts 26 months.", True),  # another spelling of the fact
        ("It lasts 31 months.", "The warranty lasts 26 months.", False),
        ("It lasts 26 months.", "It lasts 26 months and is renewed yearly.", False),  # one fact of two
        ("It lasts 26 months, each year anew.", "It lasts 26 months and is renewed yearly.", True),
        ("It lasts 26 months.", "The warranty lasts 27 months.", False),  # a number from nowhere
        ("It lasts 27 months.", "The warranty lasts 27 months.", True),  # wrong, but grounded in what it cites
        ("It lasts 26 months.", "In 2026 the R3 has 26 months.", True),  # 2026 and R3 are the question's
        ("It lasts 26 months.", "The R4 has 26 months.", False),
        ("It bears 5 degrees.", "It bears -5 degrees.", False),
        ("Since 2026-02-01.", "Since 1 2 2026.", True),
        ("Anything.", "The warranty is generous.", None),  # neither a fact nor a number
    ],
)
def test_facts_and_numbers_tell_whether_a_claim_is_supported(premise: str, claim: str, supported: bool | None) -> None:
    assert by_facts(ROW)(premise, claim) is supported


def test_groundedness_by_facts_reads_title_date_and_quote() -> None:
    sources = source(1, "It lasts 26 months.", day=date(2026, 1, 9)), source(2, "Nothing here.")
    claims = [("It has 26 months.", (1,)), ("As of 9 1 2026.", (1,)), ("It has 26 months.", (2,)), ("It is fine.", (2,))]
    assert grounded_by_facts(ROW, answer(claims, *sources)) == [True, True, False]
    unknown = Row(question="Who painted it?", answer="")
    assert grounded_by_facts(unknown, answer([("It was painted in 1999.", (1,)), ("Someone did.", (1,))], *sources)) == [False]
