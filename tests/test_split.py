"""Splitting: every passage and strip stands where it says, under the right heading, and nothing is lost or torn."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.split import PASSAGE_CHARS, headings, split, storable, strips
from crag_dspy.types import Document, Passage


def document(text: str, **fields: Any) -> Document:
    return Document(**{"id": "guide.md", "title": "Guide", **fields, "text": text})


def strip_texts(text: str) -> list[str]:
    return [strip.text for strip in strips(Passage(id="p", document_id="d", title="Guide", text=text))]


PIECES = [
    "word ",
    "Two words. ",
    "A",
    "J",
    ". ",
    "! ",
    "?",
    "1.5 ",
    "e.g. ",
    "v2.1",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\r\r",
    "# ",
    "## H\n\n",
    "- ",
    "1. ",
]
PIECES += [
    "| a | b |\n",
    "| --- |\n",
    "```\n",
    "~~~\n",
    "---\n",
    "===\n",
    "    ",
    "> ",
    "\t",
    "\x00",
    "\x0c",
    "\x85",
    "\xa0",
    "\u2028",
    "\u200b",
]
PIECES += [
    "\u3000",
    "\ufeff",
    "é",
    "e\u0301",
    "👩‍👩‍👧 ",
    "今天天气很好。",
    "<b>",
    "&amp;",
    "https://a.example/x.y?z=1.2 ",
    "[1]",
    "“Q.” ",
    "x" * 900,
]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_offsets_are_exact_and_no_text_is_lost_whatever_the_text(text: str) -> None:
    covered = [False] * len(text)
    for passage in split(document(text)):
        assert passage.text == text[passage.start : passage.end]
        assert passage.text.strip()
        assert len(passage.text) <= PASSAGE_CHARS[1]
        covered[passage.start : passage.end] = [True] * len(passage.text)
        end = 0
        for strip in strips(passage):
            assert strip.text.strip()
            assert strip.start >= end
            end = strip.end
        assert end <= len(passage.text)
    assert not "".join(char for char, kept in zip(text, covered, strict=True) if not kept).strip()


@given(
    st.lists(
        st.sampled_from(["The mast is nine metres high. ", "Yes. ", "It costs 1.5 euro, e.g. at noon.", "\n\n", "\n", "今天。"]),
        max_size=12,
    )
)
def test_every_word_of_prose_is_in_a_strip(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert "".join("".join(strip_texts(text)).split()) == "".join(text.split())


@pytest.mark.parametrize("end_of_line", ["\n", "\r\n", "\r"])
def test_a_passage_carries_the_path_of_headings_above_it(end_of_line: str) -> None:
    lines = [
        "Before any heading.",
        "",
        "# Install",
        "",
        "Unpack.",
        "",
        "## Mast",
        "",
        "Raise it.",
        "",
        "### Guy wires",
        "",
        "Tighten them.",
    ]
    lines += ["", "## Power", "", "Plug it in.", "", "# Use", "", "Look up.", "", "```", "# no heading", "```", "", "Then rest."]
    # Longer than a passage may be, so that each section stands alone.
    text = end_of_line.join(line + " and so on" * 50 if line.endswith(".") else line for line in lines)
    sections: dict[str, str] = {}
    for passage in split(document(text)):
        for word in ("Before", "Unpack", "Raise", "Tighten", "Plug", "Look", "Then"):
            if word in passage.text:
                sections[word] = passage.section
    assert sections == {
        "Before": "",
        "Unpack": "Install",
        "Raise": "Install > Mast",
        "Tighten": "Install > Mast > Guy wires",
        "Plug": "Install > Power",
        "Look": "Use",
        "Then": "Use",
    }


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("# Install\n\n## Mast\n\nRaise it.", "Install > Mast"),
        ("Install\n=======\n\nMast\n----\n\nRaise it.", "Install > Mast"),
        ("### Deep first\n\nRaise it.", "Deep first"),
        ("## Mast ##\n\nRaise it.", "Mast"),
        ("#hashtag is no heading", ""),
        ("```\n# Comment\n```\n\nRaise it.", ""),
        ("    # Comment in indented code\n\nRaise it.", ""),
    ],
)
def test_a_passage_that_begins_with_headings_belongs_below_them(text: str, section: str) -> None:
    (passage,) = split(document(text))
    assert passage.section == section


def test_headings_say_where_their_lines_are() -> None:
    text = "# One\n\nText.\n\nTwo\n---\n\nMore."
    assert [(text[h.start : h.end], h.level, h.title) for h in headings(text)] == [("# One\n", 1, "One"), ("Two\n---\n", 2, "Two")]


def test_a_passage_carries_the_facts_of_its_document() -> None:
    facts: dict[str, Any] = {
        "source_type": "web",
        "url": "https://a.example/x",
        "published_at": date(2026, 1, 2),
        "retrieved_at": datetime(2026, 3, 2, tzinfo=UTC),
        "snippet": True,
    }
    (passage,) = split(document("Raise the mast.", **facts))
    assert passage.document_id == "guide.md"
    assert {name: getattr(passage, name) for name in facts} == facts


@pytest.mark.parametrize("text", ["", " \n\n \t\n", "\r\n"])
def test_nothing_yields_no_passage(text: str) -> None:
    assert split(document(text)) == []


def test_ids_are_stable_and_differ_for_the_same_text_at_another_place() -> None:
    text = ("The same paragraph again. " * 20 + "\n\n") * 3
    ids = [passage.id for passage in split(document(text))]
    assert len(set(ids)) == len(ids) > 1
    assert ids == [passage.id for passage in split(document(text))]
    assert not set(ids) & {passage.id for passage in split(document(text, id="copy.md"))}


def test_lone_surrogates_become_question_marks_and_move_nothing() -> None:
    (passage,) = split(document("A \ud83d\ude00 smile 😀. Raise \udc00 it.", title="Gui\ud800de"))
    assert (passage.text, passage.title) == ("A ?? smile 😀. Raise ? it.", "Gui?de")
    assert storable(document("plain é 😀", url="https://a.example")) == document("plain é 😀", url="https://a.example")


LONG = "The second sentence is here to be long enough to stand for itself."


@pytest.mark.parametrize(
    "first",
    [
        "Use one of the long poles, e.g. the steel one, for every mast above nine metres.",
        "The gateway needs firmware v2.1 or later, i.e. everything that was sold since spring.",
        "The annual licence costs 1.5 percent more than last year and 3.25 percent more than before.",
        "The manual is at https://docs.example.com/v2.1/setup.html?lang=en.us and is free of charge.",
        "The U.S. office of Dr. Smith and Mr. Jones signed for parcel No. 5 on the next working day.",
        "Run python3.11 with config.yaml in its folder and with Node.js at hand, or nothing happens.",
        "Is the mast really as high as nine metres, and who is it that has measured it lately?",
        "Write to help@example.com and never to sales@example.co.uk when a sensor does not start!",
        "The opening hours (Mon. to Fri., see p. 4) do not hold in the month of August at all.",
    ],
)
@pytest.mark.parametrize("gap", [" ", "  ", "\n"])
def test_sentences_are_cut_where_they_end_and_nowhere_else(first: str, gap: str) -> None:
    assert strip_texts(first + gap + LONG) == [first, LONG]


def test_sentences_without_a_space_between_them_are_cut() -> None:
    first = "The annual licence of the small gateway is now at 129 euro for every customer."
    assert strip_texts(first + LONG + first) == [first, LONG, first]


@pytest.mark.parametrize("space", ["\xa0", "\u2009", "\u2028", "\u3000", "\x85"])
def test_a_space_outside_ascii_behind_an_initial_is_read(space: str) -> None:
    assert strip_texts(f"Take vitamin B{space}. Now.") == [f"Take vitamin B{space}. Now."]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"Yes. {LONG}", [f"Yes. {LONG}"]),
        (f"{LONG} Yes.", [f"{LONG} Yes."]),
        ("One. Two. Three. Four. Five.", ["One. Two.", "Three. Four.", "Five."]),
        (f"{LONG}\n\nYes.", [LONG, "Yes."]),
        (f"{LONG} {LONG}", [LONG, LONG]),
    ],
)
def test_a_short_sentence_joins_its_neighbour_in_the_paragraph(text: str, wanted: list[str]) -> None:
    assert strip_texts(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("- Red means hot.\n- Blue means cold.", ["- Red means hot.", "- Blue means cold."]),
        ("* Red means\n  very hot.\n* Blue.", ["* Red means\n  very hot.", "* Blue."]),
        ("Steps:\n1. Open it.\n2) Close it.\n• Rest.", ["Steps:", "1. Open it.", "2) Close it.", "• Rest."]),
        ("Up:\n- Down.\n  - Deeper down.", ["Up:", "- Down.", "  - Deeper down."]),
        (
            "The prices:\n\n| Plan | Price |\n|:-----|------:|\n| Small | 9 euro |\n| Large | 19 euro |",
            ["The prices:", "| Plan | Price |", "| Small | 9 euro |", "| Large | 19 euro |"],
        ),
        ("# Title\n\nText.\n\n## Next\nMore.", ["Text.", "More."]),
        ("Title\n=====\n\nText.\n\nNext\n---\nMore.", ["Text.", "More."]),
        ("Two lines of\nprose.\n---\nMore.", ["Two lines of\nprose.", "More."]),
        ("Text.\n\n---\n\nMore.\n\n***\n", ["Text.", "More."]),
        ("Run this:\n```\npip install x\n```\nThen rest.", ["Run this:", "pip install x", "Then rest."]),
        ("Run:\n\n~~~bash\n# comment\npip install x\n~~~\n\nRest.", ["Run:", "# comment\npip install x", "Rest."]),
        ("````\n```\nquoted\n```\n````\nRest.", ["```\nquoted\n```", "Rest."]),
        ("Cut off:\n```\npip install x", ["Cut off:", "pip install x"]),
        ("Run:\n\n    # comment\n    pip install x", ["Run:", "# comment\n    pip install x"]),
        ("```x``` is inline code.", ["```x``` is inline code."]),
        ("Text.\r\rMore.\r- Item.", ["Text.", "More.", "- Item."]),
        ("Text.\r\n\r\nMore.\r\n- Item.", ["Text.", "More.", "- Item."]),
        ("The range is\n-5 to 5 degrees.", ["The range is\n-5 to 5 degrees."]),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, str) else "",
)
def test_rows_items_and_code_are_strips_and_headings_are_not(text: str, wanted: list[str]) -> None:
    found = [strip.strip() for strip in strip_texts(text)]
    assert found == [strip.strip() for strip in wanted]
