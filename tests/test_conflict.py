"""Sources that disagree: about one thing and one unit, whatever the notation; both sides are told, the newer first."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from conftest import TODAY
from fake_lm import FakeLM
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_program import NEWS, QUESTION, STALE, Web, run

from crag_dspy.cite import render
from crag_dspy.conflict import conflicts, disagreement, values, with_conflicts
from crag_dspy.types import Claim, Evidence, Passage

NEED = "How long does the Corvane warranty last?"
LASTS, LONGER = "The Corvane warranty lasts 26 months.", "The Corvane warranty lasts 31 months."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LASTS, LONGER),
        ("The fee is EUR 12 per month.", "The fee is EUR 14 per month."),
        ("The fee is €12.50.", "The fee is €12.90."),
        ("The fee is 12,50 EUR.", "The fee is 12,90 EUR."),
        ("The list price is EUR 5,340.", "The list price is EUR 5,430."),
        ("The list price is $1,200,000.", "The list price is $1,300,000."),
        ("The list price is 1 200 CHF.", "The list price is 1 300 CHF."),
        ("The discount is 10%.", "The discount is 15 percent."),
        ("The contract runs for 2 years.", "The contract runs for 3 years."),
        ("The desk opens at 8:30.", "The desk opens at 9:00."),
        ("The desk opens at 9 a.m. on weekdays.", "The desk opens at 10 a.m. on weekdays."),
        ("The probe works down to -10 °C.", "The probe works down to -20 °C."),
        ("The mast is 12 m tall.", "The mast is 14m tall."),
        ("The contest ends on 5 March.", "The contest ends on 7 March."),
        ("From 1 February 2026 the list price of the Tidewarden R3 is EUR 5,340.", "The list price of the Tidewarden R3 is EUR 4,980."),
        ("Since January, the Corvane warranty lasts 31 months.", LASTS),
        ("Currently the Corvane warranty lasts 31 months.", "Previously the Corvane warranty lasted 26 months."),
        ("Hello there. " + LASTS, "Something else is said here. " + LONGER),
        (f"| {LASTS} |", f"- {LONGER}"),
        ("It weighs 12 kg and costs EUR 10.", "It weighs 12 kg and costs EUR 15."),
        ("The desk is open 9:00 to 17:00.", "The desk is open 9:00 to 18:00."),
        ("The desk opens at 9 pm.", "The desk opens at 22:00."),
        ("The VAT rate is VAT 19 %.", "The VAT rate is VAT 21 %."),
        ("The turnover was EUR 1.2 million.", "The turnover was EUR 1,300,000."),
        ("Returns are accepted within 30 days.", "Returns are accepted within 14 days of purchase."),
    ],
)
def test_another_value_of_one_unit_is_a_conflict(one: str, other: str) -> None:
    found, turned = disagreement(one, other), disagreement(other, one)
    assert found and turned and found == turned[::-1]
    assert found[0] in one and found[1] in other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LASTS, LASTS),
        (LASTS, "The Corvane warranty: it lasts 26 months."),
        ("The fee is EUR 12.", "The fee is 12 euros."),
        ("The fee is EUR 12.00.", "The fee is €12."),
        ("The fee is EUR 12.50.", "The fee is 12,50 EUR."),
        ("The list price is EUR 5,340.", "The list price is 5340 EUR."),
        ("The list price is EUR 5,340.", "The list price is 5.340 €."),
        ("The list price is EUR 5,340.00.", "The list price is EUR 5.340,00."),
        ("The list price is EUR 5 340.", "The list price is EUR 5,340."),
        ("The list price is CHF 5'340.", "The list price is CHF 5,340."),
        ("The list price is EUR 5\u00a0340.", "The list price is EUR 5340."),
        ("The turnover was EUR 1.2 million.", "The turnover was EUR 1,200,000."),
        ("The desk opens at 9 pm.", "The desk opens at 21:00."),
        ("The parcel weighs 1.250 kg.", "The parcel weighs 1.25 kg."),
        ("The list price is $10.", "The list price is USD 10."),
        ("The discount is 10%.", "The discount is 10 percent."),
        ("The discount is 10 %.", "The discount is 10 per cent."),
        ("The desk opens at 8:30.", "The desk opens at 08:30."),
        ("The desk opens at 9:00 on weekdays.", "The desk opens at 9 a.m. on weekdays."),
        ("The mast is 12 m tall.", "The mast is 12m tall."),
        ("The mast is 1.5 m tall.", "The mast is 1,5 m tall."),
        ("The mast is 12 metres tall.", "The mast is 12 meters tall."),
        ("The contract runs for 1 year.", "The contract runs for 1 years."),
        ("The contract runs for 2 years.", "The contract runs for 24 months."),
        ("The battery lasts 3 hours.", "The battery lasts 180 minutes."),
        ("The battery lasts 3 h.", "The battery lasts 3 hours."),
        ("The probe weighs 2 kg.", "The probe weighs 2000 g."),
        ("The desk is open 9:00 to 17:00.", "The desk is open from 9:00 until 17:00 and on call at 20:00."),
    ],
)
def test_one_value_in_another_notation_is_none(one: str, other: str) -> None:
    assert disagreement(one, other) is None and disagreement(other, one) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The Kestrel 3 measures for 26 hours.", "The Kestrel 5 measures for 31 hours."),
        ("The Tidewarden R3 costs EUR 5,340.", "The Tidewarden R5 costs EUR 7,100."),
        ("The iPhone 15 lasts 20 hours.", "The iPhone 16 lasts 22 hours."),
        ("With firmware version 2.1 it reads 10 sensors.", "With firmware version 2.2 it reads 12 sensors."),
        ("The 2025 plan costs EUR 10.", "The 2026 plan costs EUR 12."),
        (LASTS, "The Tidewarden warranty lasts 31 months."),
        ("The warranty of the Corvane lasts 26 months.", "The warranty of the Tidewarden lasts 31 months."),
        ("Members pay EUR 10 per day.", "Guests pay EUR 12 per day."),
        ("The desk in Oslo opens at 8:30.", "The desk in Bergen opens at 9:00."),
        ("The basic plan costs EUR 10 per month.", "The premium plan costs EUR 25 per month."),
        ("Children pay 10 EUR for a ticket.", "Pensioners pay 12 EUR for a ticket."),
        ("The day tariff is 19 cents per kilowatt hour.", "The night tariff is 17 cents per kilowatt hour."),
        ("The plan costs EUR 10 per month.", "The plan costs EUR 100 per year."),
        ("A ticket costs 10 EUR for adults.", "A ticket costs 5 EUR for children."),
        ("The fee is EUR 12.", "The deposit is EUR 50."),
        ("The fee rose from EUR 10 to EUR 12.", "The fee is EUR 12."),
        ("The probe weighs 2 kilograms.", "The contract runs for 3 years."),
        ("The fee is EUR 12.", "The battery of the buoy lasts 12 hours."),
        ("The mast is 12 m tall.", "The mast has 14 bolts."),
        ("Support answers within 4 hours on weekdays.", "Support answers within 12 hours at weekends."),
        ("As of 5 March 2026 the fee is EUR 12.", "As of 7 March 2026 the fee is EUR 12."),
        ("No number is named here.", LASTS),
        ("", LASTS),
    ],
)
def test_two_things_are_no_conflict(one: str, other: str) -> None:
    assert disagreement(one, other) is None and disagreement(other, one) is None


pieces = st.sampled_from("The Corvane warranty lasts 26 31 months EUR € 5,340 5.340,00 . : 8:30 p.m. °C % 5 March - 'k [1] R3".split())


@settings(max_examples=200)
@given(st.lists(pieces, max_size=14).map(" ".join) | st.text(), st.lists(pieces, max_size=14).map(" ".join))
def test_no_text_disagrees_with_itself_and_order_does_not_matter(one: str, other: str) -> None:
    assert disagreement(one, one) is None
    found, turned = disagreement(one, other), disagreement(other, one)
    assert (found is None) == (turned is None)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("EUR 5,340.50 and 12 %", {"eur": {"5340.5"}, "%": {"12"}}),
        ("£3 to £4", {"gbp": {"3", "4"}}),
        ("open 08:30, closed 17:00", {"clock": {"8:30", "17:00"}}),
        ("in 2026 and at 9", {}),
        ("R3, A4-paper, 192.168.0.1", {}),
        ("", {}),
    ],
)
def test_values_by_unit(text: str, found: dict[str, set[str]]) -> None:
    assert values(text) == found


def evidence(n: int, text: str, day: date | None, *, source: str = "", need: float = 0.9, title: str = "") -> Evidence:
    passage = Passage(id=f"p{n}", document_id=source or f"{n}.md", title=title or f"Note {n}", text=text, published_at=day)
    return Evidence(n=n, passage=passage, text=text, relevance=0.9, needs=(need,))


OLD, NEW = TODAY - timedelta(days=700), TODAY - timedelta(days=10)


@pytest.mark.parametrize(
    ("items", "pairs"),
    [
        ([evidence(1, LONGER, NEW), evidence(2, LASTS, OLD)], [(1, 2)]),
        ([evidence(1, LASTS, OLD), evidence(2, LONGER, NEW)], [(2, 1)]),
        ([evidence(1, LASTS, None), evidence(2, LONGER, OLD)], [(2, 1)]),  # no date counts as older
        ([evidence(1, LONGER, NEW, source="a.md"), evidence(2, LASTS, OLD, source="a.md")], []),  # one source
        ([evidence(1, LONGER, NEW), evidence(2, LONGER, OLD)], []),
        ([evidence(1, LONGER, NEW), evidence(2, LASTS, OLD, need=0.3)], []),  # not sure to be about it
        ([evidence(1, LONGER, NEW), evidence(2, LONGER, NEW), evidence(3, LASTS, OLD)], [(1, 3)]),  # told once
        ([evidence(1, LASTS, NEW), evidence(2, LONGER, OLD), evidence(3, LONGER.replace("31", "40"), OLD)], [(1, 2), (1, 3)]),
        ([], []),
    ],
)
def test_the_newest_source_stands_against_each_older_one(items: list[Evidence], pairs: list[tuple[int, int]]) -> None:
    assert [(c.newer, c.older) for c in conflicts(items, [NEED], 0.5)] == pairs


def told(items: list[Evidence], said: str, *cited: int) -> tuple[str, list[str]]:
    """Return the answer's text with what it owes its reader, and the statements added."""
    claims, _ = with_conflicts([Claim(text=said, citations=cited)], items, [NEED], 0.5)
    return render(claims), [claim.text for claim in claims[1:]]


def test_both_dates_and_both_values_are_told_the_newer_first() -> None:
    items = [evidence(1, LONGER, NEW), evidence(2, LASTS, OLD)]
    for said, cited in ((LONGER, 1), (LASTS, 2)):
        text, added = told(items, said, cited)
        assert len(added) == 1 and text.endswith("[1][2].")
        assert "31 months" in text and "26 months" in text
        assert added[0].index(NEW.isoformat()) < added[0].index(OLD.isoformat())
    text, [added] = told(items, LASTS, 2)
    assert added.index("31 months") < added.index("26 months") and "Note 1" in added and "Note 2" in added


@pytest.mark.parametrize(
    ("said", "cited"),
    [
        (f"{LONGER[:-1]}; it was 26 months before.", (1, 2)),  # both sides are stated already
        ("The Corvane is painted yellow.", (1,)),  # not what was asked
        ("The mast weighs 40 kilograms.", (1,)),
        (LONGER, (3,)),  # neither side is cited
    ],
)
def test_nothing_is_added_where_nothing_is_owed(said: str, cited: tuple[int, ...]) -> None:
    items = [evidence(1, LONGER, NEW), evidence(2, LASTS, OLD), evidence(3, "Bread needs flour.", NEW)]
    assert told(items, said, *cited)[1] == []


def test_sources_without_dates_are_neither_newer_nor_older() -> None:
    for days in ((None, None), (NEW, None), (NEW, NEW)):
        items = [evidence(1, LONGER, days[0]), evidence(2, LASTS, days[1])]
        text, [added] = told(items, LONGER, 1)
        assert "newer" not in added and "older" not in added, days
        assert "26 months" in added and (days[1] or "no date") and text.endswith("[1][2].")
        assert all((day.isoformat() if day else "no date") in added for day in days)


def test_brackets_in_quotes_and_titles_never_become_markers() -> None:
    items = [
        evidence(1, "The Corvane warranty lasts 31 months [2][7].", NEW, title="Terms [9]"),
        evidence(2, "The Corvane warranty lasts 26 months 【3】 ［4］.", OLD, title="【1】 Old terms"),
    ]
    text, [added] = told(items, "The Corvane warranty lasts 26 months", 2)
    assert not set(added) & set("[]【】［］") and "(7)" in added and "(9)" in added
    assert text.count("[") == 3 and text.endswith("[1][2].")


def test_a_conflict_is_stated_with_both_dates_and_values(fake_lm: FakeLM) -> None:
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=Web(NEWS))
    assert answer.assessment == "stale" and [(c.newer_says, c.older_says) for c in answer.conflicts] == [(LONGER, LASTS)]
    for said in ("26 months", "31 months", str(TODAY - timedelta(days=2)), str(TODAY - timedelta(days=400))):
        assert said in answer.text
    assert [c.published_at for c in answer.citations] == [TODAY - timedelta(days=2), TODAY - timedelta(days=400)]
