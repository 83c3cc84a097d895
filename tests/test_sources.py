"""How far sources are believed: a table of sites, ages and copies."""

from __future__ import annotations

from datetime import date
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crag_dspy.sources import authority, freshness, independence, quality
from crag_dspy.types import Passage

TODAY = date(2026, 3, 2)
RELEASE = "Tidewarden announced that the list price of the R3 rises to EUR 5,340 on 1 February, the first change in two years."


def passage(url: str | None, text: str = RELEASE, day: date | None = TODAY) -> Passage:
    source = url or "docs/prices.md"
    return Passage(id=f"{source}#{text[:20]}", document_id=source, title="t", text=text, url=url, published_at=day)


@pytest.mark.parametrize(
    ("host", "at_least", "at_most"),
    [
        ("www.gov.uk", 0.9, 1.0),
        ("GOV.UK.", 0.9, 1.0),
        ("data.census.gov", 0.9, 1.0),
        ("evilgov.uk", 0.5, 0.5),
        ("gov.uk.evil.com", 0.5, 0.5),
        ("notiso.org", 0.5, 0.5),
        ("datatracker.ietf.org", 0.9, 1.0),
        ("docs.python.org", 0.8, 0.9),
        ("docs.some-product.io", 0.8, 0.9),
        ("docs.com", 0.5, 0.5),
        ("cs.stanford.edu", 0.8, 0.9),
        ("en.wikipedia.org", 0.6, 0.7),
        ("news.google.com", 0.2, 0.3),
        ("cloud.google.com", 0.8, 0.9),
        ("old.reddit.com", 0.2, 0.3),
        ("someone.medium.com", 0.2, 0.3),
        ("docs.reddit.com", 0.2, 0.3),
        ("forum.anything.org", 0.2, 0.3),
        ("unknown.example", 0.5, 0.5),
        ("93.184.216.34", 0.5, 0.5),
        ("", 0.5, 0.5),
    ],
)
def test_sites_are_believed_by_what_they_are(host: str, at_least: float, at_most: float) -> None:
    assert at_least <= authority(host) <= at_most


@pytest.mark.parametrize(
    ("host", "question", "subject"),
    [
        ("blog.tidewarden.example", "What does a Tidewarden R3 cost?", True),
        ("tidewarden.example", "tidewarden.example price", True),
        ("www.tide-warden.example", "What does a Tide-Warden cost?", True),
        ("tidewarden-deals.example", "What does a Tidewarden R3 cost?", False),
        ("tidewarden.blogspot.com", "What does a Tidewarden R3 cost?", False),
        ("weather.example", "What is the weather like?", False),
        ("reddit.com", "What does Reddit say?", False),
        ("gaugepicks.example", "What does a Tidewarden R3 cost?", False),
    ],
)
def test_the_site_that_a_question_is_about_is_a_primary_source(host: str, question: str, subject: bool) -> None:
    assert (authority(host, question) >= 0.9) is subject


@pytest.mark.parametrize(
    ("day", "value"),
    [(TODAY, 1.0), (date(2025, 3, 2), 0.5), (date(2024, 3, 2), 0.25), (None, 0.5), (date(2026, 3, 3), 0.5), (date(1, 1, 1), 0.0)],
)
def test_freshness_halves_every_year(day: date | None, value: float) -> None:
    assert freshness(day, TODAY) == pytest.approx(value, abs=0.002)


def test_copies_of_one_release_count_once_together() -> None:
    copies = [passage(f"https://{name}.example/x", f"{RELEASE}  ({name})") for name in ("wire", "daily", "herald", "post", "times")]
    weights = [independence(copy, [other for other in copies if other is not copy]) for copy in copies]
    assert sum(weights) == pytest.approx(1.0)
    assert independence(copies[0], []) == 1.0


@pytest.mark.parametrize(
    ("other", "weight"),
    [
        (passage("https://other.example/y", "The harbour office opens at eight and closes at five on weekdays, all year."), 1.0),
        (passage("https://other.example/y", "He said: " + RELEASE * 1 + " More news in brief follows below this line today. " * 6), 0.5),
        (passage("https://b.wire.example/y", "The harbour office opens at eight and closes at five on weekdays, all year."), 1 / 1.5),
        (passage("https://wire.example/x", "Another passage of the same page says what the warranty covers and for how long."), 1.0),
        (passage(None, "The harbour office opens at eight and closes at five on weekdays, all year."), 1.0),
        (passage(None, RELEASE.upper()), 0.5),
    ],
    ids=["another site", "quoted in full", "the same site", "the same page", "a document", "copied into a document"],
)
def test_what_another_source_takes_away(other: Passage, weight: float) -> None:
    assert independence(passage("https://wire.example/x"), [other]) == pytest.approx(weight)


def test_numbers_that_differ_in_one_place_are_still_copies_but_short_words_in_common_are_not() -> None:
    short = passage("https://a.example/x", "The R3 costs EUR 5,340.")
    assert independence(short, [passage("https://b.example/x", "The R3 costs EUR 5,340. " + "It rained. " * 30)]) == 1.0


@pytest.mark.parametrize(
    "order",
    [
        [passage("https://www.gov.uk/a"), passage("https://unknown.example/a"), passage("https://reddit.com/a")],
        [passage(None), passage("https://unknown.example/a"), passage("https://deals.unknown.example/a")],
        [
            passage("https://a.example/"),
            passage("https://a.example/", day=date(2025, 3, 2)),
            passage("https://a.example/", day=date(2020, 1, 1)),
        ],
        [passage("https://www.gov.uk/a"), passage("https://www.gov.uk/a", day=None), passage("https://reddit.com/a", day=None)],
    ],
)
def test_better_sources_rank_higher(order: list[Passage]) -> None:
    values = [quality(item, [], TODAY).overall for item in order]
    assert all(better > worse for better, worse in pairwise(values))


def test_a_copy_ranks_below_the_same_page_alone() -> None:
    mine, copy = passage("https://a.example/x"), passage("https://b.example/x")
    assert quality(mine, [copy], TODAY).overall < quality(mine, [], TODAY).overall


@given(
    st.text(max_size=60),
    st.lists(
        st.tuples(st.sampled_from([None, "https://a.example/x", "https://b.a.example/", "https://www.gov.uk/"]), st.text(max_size=60)),
        max_size=4,
    ),
    st.one_of(st.none(), st.dates()),
)
def test_quality_stays_between_nothing_and_all(text: str, others: list[tuple[str | None, str]], day: date | None) -> None:
    found = quality(passage("https://a.example/q", text, day), [passage(url, other) for url, other in others], TODAY, text)
    assert all(0.0 <= value <= 1.0 for value in (*found, found.overall))
