"""What is scored, and in which pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from conftest import WordScorer

from crag_dspy.retrieve import narrow, score
from crag_dspy.split import split
from crag_dspy.types import Document, Passage


def passage(id: str, text: str) -> Passage:
    return Passage(id=id, document_id=id, title="Page", text=text, end=len(text))


def test_of_long_pages_the_passages_that_match_are_scored() -> None:
    noise = [passage(f"n{i:03}", f"Bread number {i} needs flour, water and salt.") for i in range(200)]
    wanted = [passage("w1", "The Tidewarden buoy weighs 12 kilograms."), passage("w2", "Firmware 4.0 shortens the averaging window.")]
    pages = [*noise[:150], wanted[0], *noise[150:], wanted[1]]
    kept = narrow(pages, ["What does the Tidewarden buoy weigh?", "What does firmware 4.0 shorten?"], 10)
    assert set(wanted) <= set(kept) and len(kept) <= 10
    assert [p.id for p in kept] == [p.id for p in pages if p in kept]


@pytest.mark.parametrize("count", [0, 1, 10])
def test_few_passages_are_all_scored(count: int) -> None:
    pages = [passage(str(i), "Bread needs flour.") for i in range(count)]
    assert narrow(pages, ["What does the buoy weigh?"], 10) == pages


class PairScorer:
    """Scores the whole passage and the two sentences together, no sentence alone."""

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        return np.array([0.95 if "Tidewarden" in text and "12 kilograms" in text else 0.02 for text in texts], dtype=np.float32)


TEXT = (
    "The Tidewarden buoy was launched in the spring of last year by the harbour office. "
    "It weighs 12 kilograms and is painted in yellow all over its upper half. "
    "Bread needs flour and water and salt to rise well in the oven of a house."
)


def test_a_sentence_whose_subject_stands_in_the_one_before_comes_with_it() -> None:
    (one,) = score(PairScorer(), ["What does the Tidewarden buoy weigh?"], [passage("p", TEXT)])
    best = max(one.strips, key=lambda strip: strip.scores[0])
    assert best.text == TEXT[: TEXT.index(" Bread")] and best.scores == (pytest.approx(0.95),)
    assert [strip.text for strip in one.strips] == [best.text, TEXT[TEXT.index("Bread") :]]


def test_a_sentence_that_answers_alone_stays_alone() -> None:
    (one,) = score(WordScorer(), ["How many kilograms weighs yellow?"], [passage("p", TEXT)])
    assert len(one.strips) == 3


def test_passages_come_best_first_and_equals_by_id() -> None:
    passages = [p for i in "cab" for p in split(Document(id=i, title="T", text="The Tidewarden buoy weighs 12 kilograms."))]
    found = score(WordScorer(), ["What does the Tidewarden buoy weigh?"], passages)
    assert [item.passage.id for item in found] == sorted(p.id for p in passages)
