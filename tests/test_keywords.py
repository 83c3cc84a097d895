"""Keywords: codes, versions, numbers and words of any language meet as a person would expect; rankings follow changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crag_dspy.keywords import Keywords, tokens


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("TW4410", "the TW-4410 gateway"),
        ("tw‑4410", "TW-4410"),  # non-breaking hyphen
        ("4410", "TW-4410"),
        ("2.1", "release v2.1"),
        ("V2.1", "release v2.1."),
        ("5340", "EUR 5,340"),
        ("5 340 euro", "5 340 euro"),
        ("cafe", "Café"),
        ("Strasse", "STRAẞE"),
        ("ﬁle", "file"),
        ("naïve", "naive"),
        ("email", "e-mail"),
        ("corvane", "Corvane’s warranty"),
        ("leave.md", "docs/leave.md"),
        ("東京", "東京タワー"),
        ("タワー", "東京タワー"),
        ("hauptstadt", "東京はHauptstadtです"),
        ("दस्तावेज़", "नया दस्तावेज़ है"),
        ("ΆΡΓΟΣ", "άργος"),
        ("Ｒ３", "R3"),
    ],
)
def test_a_word_is_found_however_it_is_written(asked: str, written: str) -> None:
    assert Keywords().updated({"it": written, "other": "nothing alike"}, ()).rank(asked, 2) == ["it"]


@pytest.mark.parametrize(
    ("asked", "written"), [("v2.1", "v2.4 of 21 May"), ("кот", "кит"), ("दिन", "दान"), ("5340", "5,34"), ("cable", "capable"), ("", "text")]
)
def test_what_is_not_the_same_word_is_not_found(asked: str, written: str) -> None:
    whole = set(tokens(asked)) - {"v"}
    assert not whole & set(tokens(written))


def test_the_whole_code_outranks_its_parts() -> None:
    texts = {"a": "order 4410 of the TW line", "b": "gateway TW-4410 and its order", "c": "order TW-4411 with the gateway 12"}
    assert Keywords().updated(texts, ()).rank("tw-4410", 3)[0] == "b"


@pytest.mark.parametrize("texts", [{}, {"a": ""}, {"a": " … ", "b": "\n"}])
def test_without_words_nothing_matches(texts: dict[str, str]) -> None:
    assert Keywords().updated(texts, ()).rank("anything", 5) == []


def test_ties_are_broken_by_id_and_n_cuts_last() -> None:
    keywords = Keywords().updated({key: "the same lantern" for key in "dacb"} | {"e": "none"}, ())
    assert keywords.rank("lantern", 3) == ["a", "b", "c"]
    assert keywords.rank("lantern", 3, among=["d", "c"]) == ["c", "d"]
    assert keywords.rank("lantern", 3, among=[]) == []
    assert keywords.rank("lantern", 0) == []


word = st.sampled_from("lantern mast price gateway TW-4410 v2.1 東京".split())
texts = st.dictionaries(st.sampled_from("abcdef"), st.lists(word, max_size=6).map(" ".join), max_size=6)


@given(before=texts, removed=st.sets(st.sampled_from("abcdef")), added=texts, question=st.lists(word, min_size=1, max_size=3).map(" ".join))
def test_an_updated_ranking_equals_one_made_afresh(before: dict[str, str], removed: set[str], added: dict[str, str], question: str) -> None:
    old = Keywords().updated(before, ())
    wanted_before = old.rank(question, 9)
    wanted = {key: text for key, text in before.items() if key not in removed} | added
    assert old.updated(added, removed).rank(question, 9) == Keywords().updated(wanted, ()).rank(question, 9)
    assert old.rank(question, 9) == wanted_before


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert "" not in set(tokens(text))
    assert Keywords().updated({"a": text}, ()).rank(text, 1) == (["a"] if list(tokens(text)) else [])
