"""The policy's numbers from the training set: score scales, the cascade's band, thresholds and ages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import NamedTuple

import numpy as np
from rapidfuzz import fuzz
from sklearn.linear_model import LogisticRegression

from crag_dspy.errors import SourceFailure
from crag_dspy.grade import ask_level, assess, combine, doubtful, expected_level
from crag_dspy.lm import Meter, as_data
from crag_dspy.plan import plan
from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from crag_dspy.retrieve import Scored, Scorer, retrieve, score
from crag_dspy.types import Grade, Kind, Passage
from crag_dspy.web import read_pages
from optimize.dataset import ACTION_OF, Row

SAME_SENTENCE = 90.0  # rapidfuzz partial ratio, 0-100: a gold sentence stands in a passage in spite of line breaks or markup
ERROR_BOUND = 0.05  # share of wrong decisions that the cross-encoder may make alone, on either side of the band
FEWEST_LEVELS = 20  # LM grades below which its weight is not fitted


class Observation(NamedTuple):
    """What the program would see of one training question, and which passages hold its gold sentences."""

    row: Row
    kind: Kind
    needs: tuple[str, ...]
    internal: list[Scored]
    external: list[Scored]
    gold: frozenset[tuple[str, int]]
    """(passage id, need)."""
    levels: Mapping[tuple[str, int], float]
    """The LM's grades in 0-1 by (passage id, need), as far as it was asked."""


def observe(program: CRAG, rows: Iterable[Row], as_of: date, progress: Callable[[str], None] = lambda text: None) -> list[Observation]:
    """Retrieve from index and web for every question, the web by the question itself, and let the cross-encoder score; no LM call."""
    parts = program.parts
    found = []
    for row in rows:
        progress(row.question)
        asked = plan(as_data(row.question))
        internal = retrieve(parts.index, row.question, asked.needs, parts.top_k)
        external: list[Passage] = []
        if parts.search is not None:
            try:
                external = read_pages(parts.search(row.question, parts.max_pages), parts.fetch, as_of, parts.workers)[0]
            except SourceFailure:
                external = []  # calibration goes on from the index; the program itself reports the failure
        sides = [score(parts.cross_encoder, asked.needs, passages) for passages in (internal, external)]
        gold = frozenset(
            (item.passage.id, need) for side in sides for item in side for need in gold_needs(row, asked.needs, item.passage, parts.cross_encoder)
        )
        found.append(Observation(row, asked.kind, asked.needs, *sides, gold, {}))
    return found


def gold_needs(row: Row, needs: Sequence[str], passage: Passage, scorer: Scorer) -> list[int]:
    """Return the needs for which a passage holds a gold sentence; in a compound question a sentence belongs to the need it fits best."""
    if not row.is_gold(passage.url or passage.document_id):
        return []
    found = set()
    for sentence in row.support:
        if contains(passage.text, sentence):
            fits = [float(scorer.scores(need, [f"{passage.title}\n{sentence}"])[0]) for need in needs]
            found.add(fits.index(max(fits)))
    return sorted(found)


def contains(text: str, sentence: str) -> bool:
    """Return whether a text contains a sentence, give or take white space and markup."""
    return fuzz.partial_ratio(" ".join(sentence.split()), " ".join(text.split())) >= SAME_SENTENCE


def ask_levels(
    program: CRAG, observations: Sequence[Observation], policy: Policy, most: int, progress: Callable[[str], None] = lambda text: None
) -> list[Observation]:
    """Let the LM grade the pairs that the cascade would send to it, at most `most` in all, spread over the questions."""
    meter = Meter()
    wanted = [(o, job) for o in observations for side in (o.internal, o.external) for job in doubtful(side, policy)]
    step = max(1, math.ceil(len(wanted) / most)) if most else len(wanted) + 1
    levels: dict[str, dict[tuple[str, int], float]] = {}
    for o, (item, need) in wanted[::step]:
        progress(o.needs[need])
        level = expected_level(ask_level(program.grade, meter, o.needs[need], item.passage))
        if level is not None:
            levels.setdefault(o.row.id, {})[item.passage.id, need] = level
    return [o._replace(levels=levels.get(o.row.id, {})) for o in observations]


def replay(o: Observation, side: Sequence[Scored], policy: Policy, as_of: date) -> list[Grade]:
    """Return the grades that the program would give under a policy, from what was observed."""
    asked = {(item.passage.id, need) for item, need in doubtful(side, policy)}
    return combine(side, {key: level for key, level in o.levels.items() if key in asked}, kind=o.kind, policy=policy, as_of=as_of)
