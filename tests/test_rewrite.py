"""The query: one line, short enough, and about what was asked."""

from __future__ import annotations

import pytest

from crag_dspy.rewrite import clean_query, with_names


@pytest.mark.parametrize(
    ("reply", "query"),
    [
        ('"tidewarden r3 price"', "tidewarden r3 price"),
        ("Query: tidewarden r3 price\nBecause it names the gauge.", "tidewarden r3 price"),
        ("**Search query:** tidewarden `r3`", "tidewarden r3"),
        ("\n\n  tidewarden   r3\n", "tidewarden r3"),
        ("", ""),
        ("word " * 200, ("word " * 80).strip()),
    ],
)
def test_a_reply_becomes_one_clean_line(reply: str, query: str) -> None:
    assert clean_query(reply) == query


@pytest.mark.parametrize(
    ("query", "question", "sent"),
    [
        ("firewall udp port", "The firewall blocks me. Which UDP port does the Tunnelrook client need?", "firewall udp port Tunnelrook"),
        ("radar price", "What does a Tidewarden R3 cost in 2026?", "radar price Tidewarden R3 2026"),
        ("tidewarden r3 price", "What does a Tidewarden R3 cost?", "tidewarden r3 price"),
        ("warranty", "How long do I have?", "warranty"),
        ("valve", "Is the AB-12.5 valve fit for 4 bar?", "valve AB-12.5 4"),
    ],
)
def test_names_and_numbers_that_the_lm_left_out_come_back(query: str, question: str, sent: str) -> None:
    assert with_names(query, question) == sent


def test_a_query_with_names_stays_within_the_limit() -> None:
    assert len(with_names("x " * 190, "Does " + " ".join(f"Name{i}" for i in range(80)) + " work?")) <= 400
