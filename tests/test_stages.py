"""Retrieval, grading and strips against gold labels, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conftest import WordScorer

from crag_dspy.types import Evidence, Grade, Passage, Strip, Trace
from optimize.dataset import Row
from optimize.stages import (
    Confusion,
    StripCounts,
    gold_pairs,
    grader_confusion,
    ndcg_at_k,
    ranked_sources,
    recall_at_k,
    relevance_pairs,
    strip_counts,
)

LASTS, RENEWED = "The Corvane warranty lasts 26 months.", "The Corvane warranty is renewed every year."
ROW = Row(
    question="How long does the warranty last and when is it renewed?",
    answer="26 months, renewed every year.",
    gold_docs=("warranty.md",),
    gold_urls=("http://a.example/renewal",),
    support=(LASTS, RENEWED),
)
NEEDS = ("How many months does the Corvane warranty last?", "When is the warranty renewed?")


def passage(id: str, document: str, text: str = "Bread needs flour, water and salt.", url: str | None = None) -> Passage:
    return Passage(id=id, document_id=document, title="", text=text, url=url, source_type="web" if url else "internal")


def grade(p: Passage, *needs: float, scores: tuple[float, ...] = (), verdict: Any = "correct") -> Grade:
    return Grade(passage=p, scores=scores, strips=(), needs=needs, relevance=max(needs), verdict=verdict, graded_by="cross-encoder")


def trace(*internal: Grade, external: tuple[Grade, ...] = (), evidence: tuple[Evidence, ...] = (), needs: tuple[str, ...] = NEEDS) -> Trace:
    return Trace(kind="general", needs=needs, internal=internal, external=external, evidence=evidence)


@pytest.mark.parametrize(
    ("ranked", "gold", "recalls"),
    [
        (["a", "x", "b"], {"a", "b"}, {1: 0.5, 2: 0.5, 3: 1.0, 9: 1.0}),
        (["x", "y"], {"a"}, {1: 0.0, 2: 0.0}),
        ([], {"a"}, {5: 0.0}),
        (["a"], set(), {1: None}),
    ],
)
def test_recall_at_k(ranked: list[str], gold: set[str], recalls: dict[int, float | None]) -> None:
    assert {k: recall_at_k(ranked, gold, k) for k in recalls} == recalls


@pytest.mark.parametrize(
    ("ranked", "gains", "k", "value"),
    [
        (["a", "x"], {"a": 1}, 2, 1.0),
        (["x", "a"], {"a": 1}, 2, 1 / math.log2(3)),
        (["x", "a"], {"a": 1}, 1, 0.0),
        (["b", "a"], {"a": 3, "b": 1}, 2, (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))),  # graded: the better one comes second
        (["a", "x", "b"], {"a": 1, "b": 1}, 3, (1 + 1 / 2) / (1 + 1 / math.log2(3))),
        (["a"], {"a": 1, "b": 1}, 1, 1.0),  # the best that one place can hold
        (["a"], {}, 3, None),
    ],
)
def test_ndcg_at_k(ranked: list[str], gains: dict[str, float], k: int, value: float | None) -> None:
    assert ndcg_at_k(ranked, gains, k) == (None if value is None else pytest.approx(value))


def test_a_document_ranks_where_its_first_passage_does_under_the_rows_name() -> None:
    ranked = [passage("1", "docs/x.md"), passage("2", "docs/warranty.md"), passage("3", "docs/x.md"), passage("4", "docs/warranty.md"),
              passage("5", "w", url="http://a.example/renewal"), passage("6", "old-warranty.md")]  # fmt: skip
    found = ranked_sources(ROW, [grade(p, 0.5) for p in ranked])
    assert found == ["docs/x.md", "warranty.md", "http://a.example/renewal", "old-warranty.md"]


@pytest.mark.parametrize(
    ("counts", "precision", "recall", "specificity", "balanced"),
    [
        (Confusion(3, 1, 1, 5), 3 / 4, 3 / 4, 5 / 6, (3 / 4 + 5 / 6) / 2),
        (Confusion(0, 0, 2, 8), None, 0.0, 1.0, 0.5),  # "never relevant" is worth a coin, however rare the relevant are
        (Confusion(2, 8, 0, 0), 0.2, 1.0, 0.0, 0.5),
        (Confusion(2, 0, 0, 0), 1.0, 1.0, None, None),
        (Confusion(), None, None, None, None),
    ],
)
def test_a_confusion_gives_shares(counts: Confusion, precision: Any, recall: Any, specificity: Any, balanced: Any) -> None:
    assert (counts.precision, counts.recall, counts.specificity, counts.balanced_accuracy) == (precision, recall, specificity, balanced)


def test_confusions_add_up_over_questions() -> None:
    total = sum([Confusion(1, 2, 3, 4), Confusion(10, 20, 30, 40)], Confusion())
    assert total == Confusion(11, 22, 33, 44)


HOLDS = passage("p1", "warranty.md", f"{LASTS} It covers the mast.")
PAGE = passage("p2", "w", f"News. {RENEWED}", url="http://a.example/renewal")
COPIED = passage("p3", "other.md", LASTS)  # the same words, but no gold source
EMPTY = passage("p4", "warranty.md")


def test_a_pair_is_gold_where_the_passage_holds_the_sentence_that_meets_this_need() -> None:
    judged = trace(grade(HOLDS, 0.9, 0.1), grade(COPIED, 0.9, 0.1), grade(EMPTY, 0.1, 0.1), external=(grade(PAGE, 0.1, 0.9),))
    assert gold_pairs(ROW, judged, WordScorer()) == {("p1", 0), ("p2", 1)}


def test_the_grader_is_judged_pair_by_pair() -> None:
    judged = trace(
        grade(HOLDS, 0.9, 0.6, scores=(0.2, 0.1)),
        grade(EMPTY, 0.1, 0.5, scores=(0.8, 0.3)),
        external=(grade(PAGE, 0.4, 0.3, scores=(0.4, 0.9)),),
    )
    gold = {("p1", 0), ("p2", 1)}
    assert grader_confusion(relevance_pairs(judged), gold) == Confusion(1, 2, 1, 2)
    assert grader_confusion(relevance_pairs(judged), gold, threshold=0.05) == Confusion(2, 4, 0, 0)
    assert grader_confusion({("p1", 0): 1.0, ("p4", 0): 1 / 3}, gold) == Confusion(1, 0, 0, 1)  # the LM alone, where it was asked


def kept(p: Passage, text: str, *copies: str) -> Evidence:
    return Evidence(n=1, passage=p, text=text, relevance=0.9, copies=copies)


def stripped(p: Passage, *texts: str) -> Evidence:
    strips = [Strip(passage=p, start=p.text.index(text), end=p.text.index(text) + len(text)) for text in texts]
    return Evidence(n=1, passage=p, text=" … ".join(texts), strips=tuple(strips), relevance=0.9)


@pytest.mark.parametrize(
    ("evidence", "counts"),
    [
        ([kept(HOLDS, LASTS)], StripCounts(kept=1, hits=1, sentences=2, retrieved=2, found=1)),
        ([kept(HOLDS, f"{LASTS} It covers the mast.")], StripCounts(1, 1, 2, 2, 1)),  # more than the sentence
        ([stripped(HOLDS, LASTS, "It covers the mast.")], StripCounts(2, 1, 2, 2, 1)),  # two strips of one passage
        ([kept(HOLDS, "The Corvane warranty lasts")], StripCounts(1, 1, 2, 2, 1)),  # a part of it
        ([kept(HOLDS, "The Corvane")], StripCounts(1, 0, 2, 2, 0)),  # too short to say anything of it
        ([kept(HOLDS, "The Corvane warranty lasts 27 months.")], StripCounts(1, 0, 2, 2, 0)),
        ([kept(HOLDS, LASTS), kept(PAGE, RENEWED)], StripCounts(2, 2, 2, 2, 2)),
        ([kept(HOLDS, LASTS), kept(PAGE, LASTS)], StripCounts(2, 2, 2, 2, 1)),  # found once, whatever the number of copies
        ([kept(COPIED, LASTS)], StripCounts(1, 0, 2, 2, 0)),  # no gold source
        ([kept(COPIED, LASTS, "docs/warranty.md")], StripCounts(1, 1, 2, 2, 1)),  # it stands for one
        ([], StripCounts(0, 0, 2, 2, 0)),
    ],
)
def test_strips_are_compared_with_the_gold_sentences(evidence: list[Evidence], counts: StripCounts) -> None:
    judged = trace(grade(HOLDS, 0.9, 0.1), external=(grade(PAGE, 0.1, 0.9),), evidence=tuple(evidence))
    assert strip_counts(ROW, judged) == counts


def test_what_was_never_retrieved_is_not_the_strip_filters_fault() -> None:
    found = strip_counts(ROW, trace(grade(HOLDS, 0.9, 0.1), grade(EMPTY, 0.1, 0.1), evidence=(kept(HOLDS, LASTS),)))
    assert (found.precision, found.recall, found.recall_of_retrieved) == (1.0, 0.5, 1.0)
    total = sum([found, strip_counts(ROW, trace())], StripCounts())
    assert total == StripCounts(1, 1, 4, 1, 1)
    assert (StripCounts().precision, StripCounts().recall, StripCounts().recall_of_retrieved) == (None, None, None)
