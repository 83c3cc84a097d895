"""What counts as right: pure functions of a row, an answer and its trace."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from crag_dspy.types import Answer
from optimize.dataset import ACTION_OF, Row

MAX_WORDS = 80  # an answer that recites its evidence is no answer
_NOT_WORD = re.compile(r"[^\w.,%€$+-]+|(?<!\d)[.,]|[.,](?!\d)|(?<!\w)-|-(?!\w)")


def normalise(text: str) -> str:
    """Return lower-case words and numbers separated by single spaces, punctuation gone except inside numbers."""
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    return " ".join(_NOT_WORD.sub(" ", text.replace("€", " € ").replace("-", " ")).split())


def holds(text: str, fact: Sequence[str]) -> bool:
    """Return whether a text holds a fact in one of its accepted spellings, at word boundaries."""
    padded = f" {normalise(text)} "
    return any(f" {spelling} " in padded for spelling in map(normalise, fact) if spelling)


def answer_right(row: Row, answer: Answer) -> bool:
    """Answer correctness: every fact stands in an answer of at most 80 words; where nobody knows, an abstention (exact match over
    accepted spellings, as in SQuAD's alias sets, per fact).
    """
    if not row.answerable:
        return answer.status == "abstained"
    text = " ".join(claim.text for claim in answer.claims)
    return answer.status == "answered" and len(text.split()) <= MAX_WORDS and all(holds(text, fact) for fact in row.facts)


def cites_gold(row: Row, answer: Answer) -> bool:
    """Return whether one cited source at least is a gold source (a copy of one counts)."""
    return any(row.is_gold(name) for c in answer.citations for name in (c.url or c.id, *c.copies))


def action_right(row: Row, answer: Answer) -> bool | None:
    """Return whether the action is the one that the row's need calls for; None where the row names no need."""
    return None if row.need is None else answer.action == ACTION_OF[row.need]


class Precision(NamedTuple):
    """Precision, recall and F1, 0-1; 1 where nothing was to be found and nothing was."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def precision_recall(said: Iterable[bool], true: Iterable[bool]) -> Precision:
    """Compare predictions with the truth, pair by pair."""
    pairs = list(zip(said, true, strict=True))
    hit = sum(s and t for s, t in pairs)
    positives, wanted = sum(s for s, _ in pairs), sum(t for _, t in pairs)
    return Precision(hit / positives if positives else 1.0, hit / wanted if wanted else 1.0)


def citation_precision(row: Row, answer: Answer) -> list[bool]:
    """Return for every citation of every claim whether its source holds a gold sentence's facts.

    ALCE (Gao et al. 2023, section 3) asks an entailment model; here the gold labels decide: a citation counts if its source is a
    gold source, or a copy of one, or its quote holds one of the row's facts.
    """
    by_number = {c.n: c for c in answer.citations}
    verdicts = []
    for claim in answer.claims:
        for n in claim.citations:
            c = by_number[n]
            gold = any(row.is_gold(name) for name in (c.url or c.id, *c.copies))
            verdicts.append(gold or any(holds(c.quote, fact) for fact in row.facts if row.answerable))
    return verdicts
