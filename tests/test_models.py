"""The bundled models: they work without a network and judge as they should."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from crag_dspy.index import Index, open_client
from crag_dspy.models import CrossEncoder, Embedder
from crag_dspy.split import split
from crag_dspy.types import Document

PRICE = "The annual licence of the small gateway costs 129 euro."
HEIGHT = "The mast of the weather station is nine metres high."
LEAVE = "Employees have thirty days of paid leave a year."
TEXTS = [PRICE, HEIGHT, LEAVE]
QUESTIONS = ["How much is the licence for the gateway?", "How tall is the mast?", "How many vacation days do I get?"]
ODD = ["", " ", "\x00", "é 今天 👩‍👩‍👧", "lone \ud83d surrogate", "[CLS] [SEP] [MASK]", "x" * 5000, "word " * 3000]


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    return Embedder()


@pytest.fixture(scope="module")
def scorer() -> CrossEncoder:
    return CrossEncoder()


def test_vectors_have_the_promised_dimension_and_unit_length(embedder: Embedder) -> None:
    vectors = np.array([*embedder.passages(TEXTS), embedder.query(QUESTIONS[0])])
    assert vectors.shape == (4, embedder.dimension)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert embedder.passages([]) == []


def test_each_question_is_nearest_to_its_passage(embedder: Embedder) -> None:
    nearness = np.array([embedder.query(question) for question in QUESTIONS]) @ np.array(embedder.passages(TEXTS)).T
    assert nearness.argmax(axis=1).tolist() == [0, 1, 2]


def test_a_text_has_the_same_vector_whatever_its_neighbours(embedder: Embedder) -> None:
    alone = embedder.passages([PRICE])[0]
    assert embedder.passages([HEIGHT, LEAVE * 20, PRICE, "x"])[2] == pytest.approx(alone, abs=1e-6)


def test_scores_are_probabilities_and_highest_for_the_answer(scorer: CrossEncoder) -> None:
    table = np.array([scorer.scores(question, TEXTS) for question in QUESTIONS])
    assert table.argmax(axis=1).tolist() == [0, 1, 2]
    assert np.diag(table).min() > 0.1
    assert (table[~np.eye(3, dtype=bool)] < 0.001).all()
    assert (table >= 0).all()
    assert (table <= 1).all()


def test_the_order_of_the_texts_does_not_matter(scorer: CrossEncoder) -> None:
    forward, backward = scorer.scores(QUESTIONS[0], TEXTS), scorer.scores(QUESTIONS[0], TEXTS[::-1])
    assert forward.tolist() == backward[::-1].tolist()


def test_no_texts_no_scores(scorer: CrossEncoder) -> None:
    assert scorer.scores(QUESTIONS[0], []).shape == (0,)


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text[:12]))
def test_odd_texts_are_read(embedder: Embedder, scorer: CrossEncoder, text: str) -> None:
    assert np.isfinite(embedder.passages([text])).all()
    assert np.isfinite(embedder.query(text)).all()
    scores = scorer.scores(text, [text, PRICE])
    assert ((scores >= 0) & (scores <= 1)).all()


def test_threads_get_the_same_results_as_one(embedder: Embedder, scorer: CrossEncoder) -> None:
    with ThreadPoolExecutor(4) as pool:
        vectors = list(pool.map(embedder.query, QUESTIONS * 3))
        scores = list(pool.map(lambda question: scorer.scores(question, TEXTS).tolist(), QUESTIONS * 3))
    assert vectors == [embedder.query(question) for question in QUESTIONS] * 3
    assert scores == [scorer.scores(question, TEXTS).tolist() for question in QUESTIONS] * 3


def test_the_index_finds_by_meaning(embedder: Embedder, tmp_path: Path) -> None:
    index = Index(open_client(tmp_path), "crag", embedder, create=True)
    for id, text in zip("abc", TEXTS, strict=True):
        document = Document(id=id, title="Handbook", text=text)
        index.upsert(document, split(document))
    assert [index.search(question, 1)[0].passage.document_id for question in QUESTIONS] == ["a", "b", "c"]
