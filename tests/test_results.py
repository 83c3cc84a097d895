"""What becomes of a provider's rows: odd ones are dropped alone, the rest is normalised."""

from __future__ import annotations

from datetime import date

import pytest
from tavily_server import GOOD, Tavily

pytest_plugins = ["tavily_server"]


@pytest.mark.parametrize(
    "odd",
    [
        None,
        7,
        "text",
        [],
        {},
        {"title": "no address"},
        GOOD | {"url": None},
        GOOD | {"url": ""},
        GOOD | {"url": 7},
        GOOD | {"url": ["https://harbour.example/x"]},
        GOOD | {"url": "gate times"},
        GOOD | {"url": "http://[::1"},
        GOOD | {"url": "https://harbour.example:port/"},
        GOOD | {"url": "https://harbour.example/x", "score": "high"},
        GOOD | {"url": "https://harbour.example/x", "score": [0.9]},
    ],
)
def test_an_odd_row_is_dropped_alone(odd: object, tavily: Tavily) -> None:
    tavily.rows(odd, GOOD, odd)
    assert [result.url for result in tavily.client()("gate times", 5)] == ["https://harbour.example/gate"]


@pytest.mark.parametrize(
    ("fields", "title", "snippet"),
    [
        ({}, "Gate times", "Opens at seven."),
        ({"title": None}, "harbour.example/gate", "Opens at seven."),
        ({"title": " \n "}, "harbour.example/gate", "Opens at seven."),
        ({"title": 7}, "harbour.example/gate", "Opens at seven."),
        ({"title": ["Gate"]}, "harbour.example/gate", "Opens at seven."),
        ({"title": "Gate\n  times"}, "Gate times", "Opens at seven."),
        ({"title": "x" * 3000}, "x" * 200, "Opens at seven."),
        ({"content": None}, "Gate times", ""),
        ({"content": {"text": "Opens"}}, "Gate times", ""),
        ({"content": " Opens \n at  seven."}, "Gate times", "Opens at seven."),
        ({"title": "Gate \ud83c", "content": "\udf0a seven"}, "Gate ?", "? seven"),
        ({"score": None}, "Gate times", "Opens at seven."),
        ({"raw_content": None}, "Gate times", "Opens at seven."),
        ({"score": float("inf")}, "Gate times", "Opens at seven."),
        ({"raw_content": "<p>Opens at nine.</p>"}, "Gate times", "Opens at seven."),
    ],
)
def test_what_a_row_lacks_has_a_fallback(fields: dict[str, object], title: str, snippet: str, tavily: Tavily) -> None:
    tavily.rows(GOOD | fields)
    [result] = tavily.client()("gate times", 5)
    assert (result.title, result.snippet) == (title, snippet)


def test_a_row_without_a_title_key_is_named_by_its_address(tavily: Tavily) -> None:
    tavily.rows({"url": "https://harbour.example/" + "x" * 300})
    [result] = tavily.client()("gate times", 5)
    assert result.title == ("harbour.example/" + "x" * 300)[:200]


@pytest.mark.parametrize(
    ("written", "day"),
    [
        ("2026-02-14", date(2026, 2, 14)),
        ("2026-02-14T08:00:00Z", date(2026, 2, 14)),
        ("Sat, 14 Feb 2026 08:00:00 GMT", date(2026, 2, 14)),
        ("2026-02-30", None),
        ("yesterday", None),
        ("Sat, 99 Feb", None),
        ("", None),
        (None, None),
        (["2026-02-14"], None),
    ],
)
def test_dates_are_read_or_left_open(written: object, day: date | None, tavily: Tavily) -> None:
    tavily.rows(GOOD | {"published_date": written})
    assert tavily.client()("gate times", 5)[0].published_at == day


def test_one_page_is_one_result_and_no_more_come_than_were_asked_for(tavily: Tavily) -> None:
    urls = [
        "https://Harbour.example/gate/?utm_source=news#top",
        "https://harbour.example/gate",
        "https://harbour.example/b",
        "https://c.example/",
    ]
    tavily.rows(*({"url": url} for url in urls))
    assert [result.url for result in tavily.client()("gate times", 2)] == [urls[0], urls[2]]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://harbour.example/gate", "http://reader@harbour.example/gate", "http://[::1]/"])
def test_addresses_that_must_not_be_fetched_reach_the_fetcher_unchanged(url: str, tavily: Tavily) -> None:
    """It refuses them and says so; cleaned of its user-info here, such an address would be fetched."""
    tavily.rows({"url": url}, {"url": "http://harbour.example/gate"})
    assert [result.url for result in tavily.client()("gate times", 5)] == [url, "http://harbour.example/gate"]
