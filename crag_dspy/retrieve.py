"""Passages for the information needs, each scored by the cross-encoder for every need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from crag_dspy.index import Hit, in_context
from crag_dspy.split import strips
from crag_dspy.types import Passage, Strip

WORTH_STRIPPING = 0.05  # a passage scoring below for every need is irrelevant whatever its strips; it stands for its one strip


class Scorer(Protocol):
    """A cross-encoder: one score in 0-1 per text."""

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]: ...  # noqa: D102


class Searchable(Protocol):
    """An index of passages."""

    def search(self, question: str, k: int) -> list[Hit]: ...  # noqa: D102


class Scored(NamedTuple):
    """A passage as the cross-encoder sees it: its own score per need, and its strips' (in `Strip.scores`), 0-1."""

    passage: Passage
    scores: tuple[float, ...]
    strips: tuple[Strip, ...]

    def best_strip(self, need: int) -> float:
        """Return the best strip's score for a need."""
        return max(strip.scores[need] for strip in self.strips)


def retrieve(index: Searchable, question: str, needs: Sequence[str], k: int) -> list[Passage]:
    """Return the `k` nearest passages of the question and of each need, without repetition."""
    queries = dict.fromkeys([question, *needs])
    found = {hit.passage.id: hit.passage for query in queries for hit in index.search(query, k)}
    return list(found.values())


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
        columns = [scorer.scores(need, [strip.text for strip in parts]) for need in needs]
        rated = [strip.model_copy(update={"scores": tuple(float(column[j]) for column in columns)}) for j, strip in enumerate(parts)]
        whole = Strip(passage=passage, start=0, end=len(passage.text), scores=scores)
        scored.append(Scored(passage, scores, tuple(rated) or (whole,)))
    return sorted(scored, key=lambda item: (-max(item.scores), item.passage.id))
