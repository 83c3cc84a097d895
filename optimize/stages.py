"""The stages before the answer: retrieval, grading and strips, against the gold sources and sentences of a row."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from crag_dspy.retrieve import Scorer
from crag_dspy.types import Grade, Trace
from optimize.calibrate import contains, gold_needs
from optimize.dataset import Row

RELEVANT = 0.5  # relevance and scores are probabilities in 0-1: from here on relevant is likelier than not
FEWEST_WORDS = 4  # a shorter strip stands in many a sentence without being part of what it says

Pair = tuple[str, int]
"""(passage id, need): what is graded."""


def ranked_sources(row: Row, grades: Iterable[Grade]) -> list[str]:
    """Return the sources in the order of their best passage, gold ones under the name that the row gives them.

    A document ranks where its first passage does (MaxP, Dai & Callan 2019, section 3).
    """
    names = {}
    for grade in grades:
        source = grade.passage.source
        gold = next((name for name in (*row.gold_docs, *row.gold_urls) if source == name or source.endswith(f"/{name}")), source)
        names[gold] = True
    return list(names)


def recall_at_k(ranked: Sequence[str], gold: Collection[str], k: int) -> float | None:
    """Return the share of gold sources among the first `k` of a ranking, 0-1; None without gold sources."""
    return len(set(ranked[:k]) & set(gold)) / len(set(gold)) if gold else None


def ndcg_at_k(ranked: Sequence[str], gains: Mapping[str, float], k: int) -> float | None:
    """Return the normalised discounted cumulative gain of the first `k`, 0-1 (nDCG, Järvelin & Kekäläinen 2002).

    A source at rank i, from 1, is worth its gain / log2(i + 1), the discount of Burges et al. (2005).
    Gains are graded, or 1 for every gold source; None without any.
    """
    ideal = _discounted(sorted(gains.values(), reverse=True)[:k])
    return _discounted([gains.get(name, 0.0) for name in ranked[:k]]) / ideal if ideal else None


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))


@dataclass(frozen=True)
class Confusion:
    """How often predictions and truth met; counts add up over questions (micro average)."""

    true_positive: int = 0
    false_positive: int = 0
    false_negative: int = 0
    true_negative: int = 0

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(
            self.true_positive + other.true_positive,
            self.false_positive + other.false_positive,
            self.false_negative + other.false_negative,
            self.true_negative + other.true_negative,
        )

    @property
    def precision(self) -> float | None:
        """Share of what was said relevant that is; None where nothing was said to be."""
        return _share(self.true_positive, self.false_positive)

    @property
    def recall(self) -> float | None:
        """Share of the relevant that was found (sensitivity); None where nothing is relevant."""
        return _share(self.true_positive, self.false_negative)

    @property
    def specificity(self) -> float | None:
        """Share of the irrelevant that was told apart; None where nothing is irrelevant."""
        return _share(self.true_negative, self.false_positive)

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean of recall and specificity (Brodersen et al. 2010); None unless there are both relevant and irrelevant pairs."""
        recall, specificity = self.recall, self.specificity
        return None if recall is None or specificity is None else (recall + specificity) / 2


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def gold_pairs(row: Row, trace: Trace, scorer: Scorer) -> frozenset[Pair]:
    """Return the (passage id, need) pairs of a trace whose passage holds a gold sentence for that need.

    The scorer only tells to which part of a compound question a sentence belongs (see `calibrate.gold_needs`).
    """
    passages = {grade.passage.id: grade.passage for grade in (*trace.internal, *trace.external)}
    return frozenset((key, need) for key, passage in passages.items() for need in gold_needs(row, trace.needs, passage, scorer))


def relevance_pairs(trace: Trace) -> dict[Pair, float]:
    """Return the grader's relevance, 0-1, of every graded (passage, need), before freshness: age makes no passage irrelevant."""
    return {(g.passage.id, need): value for g in (*trace.internal, *trace.external) for need, value in enumerate(g.needs)}


def grader_confusion(pairs: Mapping[Pair, float], gold: Collection[Pair], threshold: float = RELEVANT) -> Confusion:
    """Count a grader's decisions: relevant is what scores at least the threshold, in truth what holds a gold sentence.

    Args:
        pairs: scores by (passage id, need), for example of `relevance_pairs`.
        gold: the pairs that are relevant, from `gold_pairs` or `Observation.gold`.
        threshold: by default what a probability means; the policy's `lower` asks instead what the program would not throw away.
    """
    said = [(score >= threshold, pair in gold) for pair, score in pairs.items()]
    return Confusion(
        said.count((True, True)),
        said.count((True, False)),
        said.count((False, True)),
        said.count((False, False)),
    )


@dataclass(frozen=True)
class StripCounts:
    """What became of the gold sentences on the way to the evidence; counts add up over questions (micro average)."""

    kept: int = 0
    """Strips in the evidence."""
    hits: int = 0
    """Of these, the ones that carry a gold sentence or part of one."""
    sentences: int = 0
    """Gold sentences."""
    retrieved: int = 0
    """Of these, the ones that stand in a retrieved passage."""
    found: int = 0
    """Of these, the ones that a kept strip carries."""

    def __add__(self, other: StripCounts) -> StripCounts:
        return StripCounts(
            self.kept + other.kept,
            self.hits + other.hits,
            self.sentences + other.sentences,
            self.retrieved + other.retrieved,
            self.found + other.found,
        )

    @property
    def precision(self) -> float | None:
        """Share of kept strips that carry a gold sentence; None where none was kept."""
        return self.hits / self.kept if self.kept else None

    @property
    def recall(self) -> float | None:
        """Share of all gold sentences that were kept; None without any."""
        return self.found / self.sentences if self.sentences else None

    @property
    def recall_of_retrieved(self) -> float | None:
        """Share of the gold sentences within reach that were kept: grading and refining alone; None where none was retrieved."""
        return self.found / self.retrieved if self.retrieved else None


def strip_counts(row: Row, trace: Trace) -> StripCounts:
    """Compare the strips in the evidence with the row's supporting sentences (knowledge refinement, Yan et al. 2024, section 4.4).

    A strip is a hit if its source, or a copy, is a gold source and it contains a gold sentence, or is contained in one with four words
    or more.
    """
    passages = [g.passage for g in (*trace.internal, *trace.external)] + [item.passage for item in trace.evidence]
    strips = [
        (text, any(row.is_gold(name) for name in (item.passage.source, *item.copies)))
        for item in trace.evidence
        for text in ([strip.text for strip in item.strips] or [item.text])
    ]
    carried = [{s for s in row.support if gold and _carries(text, s)} for text, gold in strips]
    return StripCounts(
        kept=len(strips),
        hits=sum(map(bool, carried)),
        sentences=len(row.support),
        retrieved=sum(any(row.is_gold(p.source) and contains(p.text, s) for p in passages) for s in row.support),
        found=len(set().union(*carried)),
    )


def _carries(strip: str, sentence: str) -> bool:
    return contains(strip, sentence) or (len(strip.split()) >= FEWEST_WORDS and contains(sentence, strip))
