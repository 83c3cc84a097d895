"""What counts as right, what it rested on and what it cost: pure functions of rows, answers and traces.

The stages in between are measured in `stages`, citations in `citing`, the confidence in `reliability`, differences in `statistics`.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from crag_dspy.types import Answer, Citation, Trace
from optimize.dataset import ACTION_OF, Row

MAX_WORDS = 80  # an answer that recites its evidence is no answer

WEIGHTS: Mapping[str, float] = {
    "answers_right": 0.60,  # more than all others together
    "citation_precision": 0.10,
    "groundedness": 0.10,
    "abstention_f1": 0.10,
    "fallback_f1": 0.10,
}
"""What the composite objective is made of; each measure is a share in 0-1."""
LM_CALL_PENALTY, MOST_PENALTY = 0.005, 0.05
"""Taken off for each LM call per question, and at most: cost separates programs that are equally right, no more."""

_NOT_WORD = re.compile(r"[^\w.,%€$£¥+-]+|(?<!\d)[.,]|[.,](?!\d)")
_HYPHEN = re.compile(r"(?<=\w)-|-(?!\d)")  # what is left of "-" is a minus sign
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")


def normalise(text: str) -> str:
    """Return lower-case words and numbers separated by single spaces, punctuation gone except inside numbers.

    Numbers: a minus sign stays ("-5" is not "5"), while a hyphen after a letter or digit separates ("26-month", "10-20",
    "2026-03-02"). A comma before exactly three digits separates thousands ("1,500" is "1500"); before any other number of digits it is
    a decimal comma ("1,5" is "1.5"). A point is never a thousands separator and zeros at the end stay ("1.265" is not "1265", "5.50"
    not "5.5", for versions are written so): where an answer may be spelt in these ways, a row lists them as aliases. Currency and per
    cent signs are words of their own.
    """
    text = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    text = re.sub(r"[−–]", "-", text)
    text = re.sub(r"(?<!\w)-([€$£¥])\s*(?=\d)", r"\1-", text)  # "-€5" is "€-5"
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = re.sub(r"(?<=\d),(?=\d)", ".", text)
    return " ".join(re.sub(r"([€$£¥%])", r" \1 ", _NOT_WORD.sub(" ", _HYPHEN.sub(" ", text))).split())


def holds(text: str, fact: Sequence[str]) -> bool:
    """Return whether a text holds a fact in one of its accepted spellings, at word boundaries (alias match)."""
    padded = f" {normalise(text)} "
    return any(f" {spelling} " in padded for spelling in map(normalise, fact) if spelling)


def alias_match(text: str, facts: Iterable[Sequence[str]]) -> bool:
    """Return whether a text holds every fact.

    SQuAD's sets of accepted answers (Rajpurkar et al. 2016, section 6.1), here one set per fact and found inside a sentence.
    """
    return all(holds(text, fact) for fact in facts)


def exact_match(text: str, references: Iterable[str]) -> bool:
    """Return whether a text is one of the references but for case, articles and punctuation (Rajpurkar et al. 2016, section 6.1)."""
    return any(_words(text) == _words(reference) for reference in references)


def token_f1(text: str, references: Iterable[str]) -> float:
    """Return the F1, 0-1, of the words shared with the best reference, articles left out (Rajpurkar et al. 2016, section 6.1).

    Where text or reference is empty it is 1 if both are (SQuAD 2.0, Rajpurkar et al. 2018), else 0.
    """
    return max((_overlap(_words(text), _words(reference)) for reference in references), default=0.0)


def _words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", normalise(text)).split()


def _overlap(said: list[str], wanted: list[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    return 2 * sum((Counter(said) & Counter(wanted)).values()) / (len(said) + len(wanted))


def stated(answer: Answer) -> str:
    """Return the answer's statements without markers; the empty text of an abstention."""
    return " ".join(claim.text for claim in answer.claims)


def answer_right(row: Row, answer: Answer) -> bool:
    """Answer correctness: every fact stands in an answer of at most 80 words; where nobody knows, an abstention."""
    if not row.answerable:
        return answer.status == "abstained"
    text = stated(answer)
    return answer.status == "answered" and len(text.split()) <= MAX_WORDS and alias_match(text, row.facts)


def action_right(row: Row, answer: Answer) -> bool | None:
    """Return whether the action is the one that the row's need calls for; None where the row names no need.

    Action accuracy is the share of these.
    """
    return None if row.need is None else answer.action == ACTION_OF[row.need]


def cites_gold(row: Row, answer: Answer) -> bool:
    """Return whether one cited source at least is a gold source (a copy of one counts)."""
    return any(_is_gold(row, citation) for citation in answer.citations)


def citation_precision(row: Row, answer: Answer) -> list[bool]:
    """Return for every citation of every claim whether its source is a gold source, or its quote holds one of the row's facts.

    A reading of ALCE's citation precision (Gao et al. 2023, section 3) by gold sources alone; `citing.alce` follows the paper.
    """
    cited = {c.n: _is_gold(row, c) or any(holds(c.quote, fact) for fact in row.facts if row.answerable) for c in answer.citations}
    return [cited[n] for claim in answer.claims for n in claim.citations]


def _is_gold(row: Row, citation: Citation) -> bool:
    return any(row.is_gold(name) for name in (citation.url or citation.id, *citation.copies))


class Precision(NamedTuple):
    """Precision, recall and F1, 0-1; 1 where nothing was to be found and nothing was."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Harmonic mean of both."""
        return harmonic_mean(self.precision, self.recall)


def harmonic_mean(one: float, other: float) -> float:
    """Return the harmonic mean; 0 where both are 0."""
    return 2 * one * other / (one + other) if one + other else 0.0


def precision_recall(said: Iterable[bool], true: Iterable[bool]) -> Precision:
    """Compare predictions with the truth, pair by pair."""
    pairs = list(zip(said, true, strict=True))
    hit = sum(s and t for s, t in pairs)
    positives, wanted = sum(s for s, _ in pairs), sum(t for _, t in pairs)
    return Precision(hit / positives if positives else 1.0, hit / wanted if wanted else 1.0)


def abstention(asked: Iterable[tuple[Row, Answer]]) -> Precision:
    """Compare "abstained" with "nobody knows" (SQuAD 2.0's unanswerable questions, Rajpurkar et al. 2018)."""
    asked = list(asked)
    return precision_recall([a.status == "abstained" for _, a in asked], [not row.answerable for row, _ in asked])


def fallback(asked: Iterable[tuple[Row, Answer]]) -> Precision:
    """Compare "the web was searched" with the label "need is web or both".

    Rows without a need are left out, and those that nobody can answer: whether to search for them is no mistake either way.
    """
    known = [(row, answer) for row, answer in asked if row.need and row.answerable]
    return precision_recall([a.usage.searches > 0 for _, a in known], [row.need != "internal" for row, _ in known])


def fallback_by_effect(asked: Iterable[tuple[Row, Answer, Trace]]) -> Precision:
    """Compare "the web was searched" with what the search brought: called only when it added something, always when it was needed.

    Precision: of the answers that searched, those whose evidence holds a gold web source that the index had not returned
    (`web_added_gold`), or whose question nobody can answer, so that only the search could tell. A search that was needed but brought
    nothing of use counts against it, unlike in `fallback`; recall is the same as there. Answerable rows without gold sources are left
    out of precision.
    """
    asked = list(asked)
    searched = [
        not row.answerable or web_added_gold(row, trace)
        for row, answer, trace in asked
        if answer.usage.searches and (not row.answerable or row.gold_docs or row.gold_urls)
    ]
    precision = sum(searched) / len(searched) if searched else 1.0
    return Precision(precision, fallback((row, answer) for row, answer, _ in asked).recall)


def web_added_gold(row: Row, trace: Trace) -> bool:
    """Return whether the evidence holds a gold source (or a copy of one) from the web that the index had not returned."""
    known = {grade.passage.source for grade in trace.internal}
    return any(
        row.is_gold(source) and source not in known
        for item in trace.evidence
        if item.passage.source_type == "web"
        for source in (item.passage.source, *item.copies)
    )


class Spread(NamedTuple):
    """What one question costs: mean, median and 95th percentile."""

    mean: float
    p50: float
    p95: float


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and percentiles (linear between values) of a cost: seconds, LM calls, tokens, money.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a cost needs one value at least")
    return Spread(float(np.mean(values)), float(np.percentile(values, 50)), float(np.percentile(values, 95)))


def objective(measured: Mapping[str, float | None]) -> float:
    """Return the composite objective, 0-1: the weighted mean of `WEIGHTS` less a small penalty for LM calls.

    Args:
        measured: shares by the names in `WEIGHTS`, as `evaluate.summarise` gives them (`fallback_f1` may come as precision and recall),
            and `lm_calls` per question. What is missing, None or NaN could not be measured: it is left out and the weights of the rest
            make up for it.

    Raises:
        ValueError: nothing of it was measured.
    """
    known = {name: value for name, value in measured.items() if value is not None and not math.isnan(value)}
    if "fallback_precision" in known and "fallback_recall" in known:
        known.setdefault("fallback_f1", harmonic_mean(known["fallback_precision"], known["fallback_recall"]))
    weights = {name: weight for name, weight in WEIGHTS.items() if name in known}
    if not weights:
        raise ValueError(f"an objective needs one of {', '.join(WEIGHTS)}")
    mean = sum(weight * known[name] for name, weight in weights.items()) / sum(weights.values())
    return min(1.0, max(0.0, mean - min(MOST_PENALTY, LM_CALL_PENALTY * known.get("lm_calls", 0.0))))
