"""Passages for the information needs, each scored by the cross-encoder for every need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from crag_dspy.index import Hit, Where, fuse, in_context
from crag_dspy.keywords import Keywords
from crag_dspy.split import strips
from crag_dspy.types import Document, Passage, Strip

WORTH_STRIPPING = 0.05  # a passage scoring below for every need is irrelevant whatever its strips; it stands for its one strip
MOST_SCORED = 40  # passages of one round of web pages: about a second for the cross-encoder
DOUBT = 0.5  # below, the cross-encoder rather takes a text for no answer


class Scorer(Protocol):
    """A cross-encoder: one score in 0-1 per text."""

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]: ...  # noqa: D102


class Searchable(Protocol):
    """An index of passages."""

    def search(self, question: str, k: int, where: Where | None = None) -> list[Hit]: ...  # noqa: D102
    def remember(self, document: Document, passages: Sequence[Passage]) -> None: ...  # noqa: D102


class Scored(NamedTuple):
    """A passage as the cross-encoder sees it: its own score per need, and its strips' (in `Strip.scores`), 0-1."""

    passage: Passage
    scores: tuple[float, ...]
    strips: tuple[Strip, ...]

    def best_strip(self, need: int) -> float:
        """Return the best strip's score for a need."""
        return max(strip.scores[need] for strip in self.strips)


def retrieve(index: Searchable, question: str, needs: Sequence[str], k: int, where: Where | None = None) -> list[Passage]:
    """Return the `k` best passages of the question and of each need (vectors and keywords fused), without repetition."""
    queries = dict.fromkeys([question, *needs])
    found = {hit.passage.id: hit.passage for query in queries for hit in index.search(query, k, where)}
    return list(found.values())


def narrow(passages: Sequence[Passage], needs: Sequence[str], most: int = MOST_SCORED) -> list[Passage]:
    """Return the `most` passages that match the needs best by keywords (BM25), in their order; long pages would take minutes to score."""
    if len(passages) <= most:
        return list(passages)
    keywords = Keywords().updated({passage.id: in_context(passage) for passage in passages}, ())
    best = {key for key, _ in fuse(*(keywords.rank(need, most) for need in needs))[:most]}
    return [passage for passage in passages if passage.id in best]


def score(scorer: Scorer, needs: Sequence[str], passages: Sequence[Passage]) -> list[Scored]:
    """Return every passage with its scores, best first, ties by id.

    A passage is read under its title and section, its strips bare: a title that names the topic lifts every passage of its
    document, but only the strip that answers scores high by itself.
    """
    texts = [in_context(passage) for passage in passages]
    table = [scorer.scores(need, texts) for need in needs]
    scored = []
    for i, passage in enumerate(passages):
        scores = tuple(float(row[i]) for row in table)
        parts = strips(passage) if max(scores) >= WORTH_STRIPPING else []
        rated = _in_pairs(scorer, needs, _rated(scorer, needs, parts), scores)
        whole = Strip(passage=passage, start=0, end=len(passage.text), scores=scores)
        scored.append(Scored(passage, scores, tuple(rated) or (whole,)))
    return sorted(scored, key=lambda item: (-max(item.scores), item.passage.id))


def _rated(scorer: Scorer, needs: Sequence[str], parts: Sequence[Strip]) -> list[Strip]:
    columns = [scorer.scores(need, [strip.text for strip in parts]) for need in needs]
    return [strip.model_copy(update={"scores": tuple(float(column[j]) for column in columns)}) for j, strip in enumerate(parts)]


def _in_pairs(scorer: Scorer, needs: Sequence[str], parts: list[Strip], whole: Sequence[float]) -> list[Strip]:
    """Join two neighbours where the passage answers and no strip alone does: prose often names its subject a sentence earlier."""
    for need, score in enumerate(whole):
        if score < DOUBT or len(parts) < 2 or max(strip.scores[need] for strip in parts) >= DOUBT:
            continue
        pairs = [Strip(passage=one.passage, start=one.start, end=two.end) for one, two in pairwise(parts)]
        rated = _rated(scorer, needs, pairs)
        best = max(range(len(rated)), key=lambda i: rated[i].scores[need])
        if rated[best].scores[need] > max(strip.scores[need] for strip in parts):
            parts = [*parts[:best], rated[best], *parts[best + 2 :]]
    return parts
