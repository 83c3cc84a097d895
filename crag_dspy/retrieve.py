"""Passages for the information needs, each scored by the cross-encoder for every need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from crag_dspy.index import Hit, in_context
from crag_dspy.types import Passage


class Scorer(Protocol):
    """A cross-encoder: one score in 0-1 per text."""

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]: ...  # noqa: D102


class Searchable(Protocol):
    """An index of passages."""

    def search(self, question: str, k: int) -> list[Hit]: ...  # noqa: D102


class Scored(NamedTuple):
    """A passage and its cross-encoder score per need, 0-1."""

    passage: Passage
    scores: tuple[float, ...]


def retrieve(index: Searchable, question: str, needs: Sequence[str], k: int) -> list[Passage]:
    """Return the `k` nearest passages of the question and of each need, without repetition."""
    queries = dict.fromkeys([question, *needs])
    found = {hit.passage.id: hit.passage for query in queries for hit in index.search(query, k)}
    return list(found.values())


def score(scorer: Scorer, needs: Sequence[str], passages: Sequence[Passage]) -> list[Scored]:
    """Return every passage with its scores, best first, ties by id."""
    texts = [in_context(passage) for passage in passages]
    table = [scorer.scores(need, texts) for need in needs]
    scored = [Scored(passage, tuple(float(row[i]) for row in table)) for i, passage in enumerate(passages)]
    return sorted(scored, key=lambda item: (-max(item.scores), item.passage.id))
