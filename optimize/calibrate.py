"""The policy's numbers from the training set: score scales, the cascade's band, thresholds and ages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from crag_dspy.errors import SourceFailure
from crag_dspy.grade import ask_level, assess, combine, doubtful, expected_level
from crag_dspy.lm import Meter, as_data
from crag_dspy.plan import Start, plan
from crag_dspy.policy import Policy, logit, sigmoid
from crag_dspy.program import CRAG
from crag_dspy.retrieve import Scored, Scorer, narrow, retrieve, score
from crag_dspy.types import Action, Grade, Kind, Passage
from crag_dspy.web import read_pages
from optimize.dataset import Row

SAME_SENTENCE = 90.0  # rapidfuzz partial ratio, 0-100: a gold sentence stands in a passage in spite of line breaks or markup
ERROR_BOUND = 0.05  # share of wrong decisions that the cross-encoder may make alone, on either side of the band
_DIGITS = re.compile(r"\d+")
FOLDS = 5  # of the cross-validation
DECISIVE = 2  # passages of each need, the best: what the action and the gate turn on
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
    time_sensitive: bool = True
    start: Start = "index"


def observe(program: CRAG, rows: Iterable[Row], as_of: date, progress: Callable[[str], None] = lambda text: None) -> list[Observation]:
    """Retrieve from index and web for every question, the web by the question itself, and let the cross-encoder score; no LM call."""
    parts = program.parts
    found = []
    for row in rows:
        progress(row.question)
        asked = plan(as_data(row.question))
        internal = retrieve(parts.index, row.question, asked.needs, parts.top_k, parts.where)
        external: list[Passage] = []
        if parts.search is not None:
            try:
                external = read_pages(parts.search(row.question, parts.pages_per_search), parts.fetch, as_of, parts.workers)[0]
                external = narrow(external, asked.needs)
            except SourceFailure:
                external = []  # calibration goes on from the index; the program itself reports the failure
        inside, outside = (score(parts.cross_encoder, asked.needs, passages) for passages in (internal, external))
        gold = frozenset(
            (item.passage.id, need)
            for item in (*inside, *outside)
            for need in gold_needs(row, asked.needs, item.passage, parts.cross_encoder)
        )
        found.append(Observation(row, asked.kind, asked.needs, inside, outside, gold, {}, asked.time_sensitive, asked.start))
    return found


def gold_needs(row: Row, needs: Sequence[str], passage: Passage, scorer: Scorer) -> list[int]:
    """Return the needs for which a passage holds a gold sentence; in a compound question a sentence belongs to the need it fits best."""
    if not row.is_gold(passage.source):
        return []
    found = set()
    for sentence in row.support:
        if contains(passage.text, sentence):
            fits = [float(scorer.scores(need, [f"{passage.title}\n{sentence}"])[0]) for need in needs]
            found.add(fits.index(max(fits)))
    return sorted(found)


def contains(text: str, sentence: str) -> bool:
    """Return whether a text contains a sentence, number by number, give or take white space and markup."""
    sentence, text = " ".join(sentence.split()), " ".join(text.split())
    if not sentence or len(text) < len(sentence) * SAME_SENTENCE / 100 or not set(_DIGITS.findall(sentence)) <= set(_DIGITS.findall(text)):
        return False
    return fuzz.partial_ratio(sentence, text) >= SAME_SENTENCE


def ask_levels(
    program: CRAG,
    observations: Sequence[Observation],
    policy: Policy,
    most: int,
    progress: Callable[[str], None] = lambda text: None,
) -> list[Observation]:
    """Let the LM grade the pairs that the cascade would send to it, at most `most` in all, spread over the questions.

    It is not asked on where its first 20 grades are no higher, on average, for what is relevant than for what is not.
    """
    meter = Meter()
    wanted = [(o, job) for o in observations for side in (o.internal, o.external) for job in doubtful(side, policy)]
    step = max(1, math.ceil(len(wanted) / max(most, 1)))
    levels: dict[str, dict[tuple[str, int], float]] = {}
    given: dict[bool, list[float]] = {True: [], False: []}
    for asked, (o, (item, need)) in enumerate(wanted[::step][:most]):
        if asked == FEWEST_LEVELS and all(given.values()) and fmean(given[True]) <= fmean(given[False]):
            break
        progress(o.needs[need])
        level = expected_level(ask_level(program.grade, meter, o.needs[need], item.passage))
        if level is not None:
            levels.setdefault(o.row.id, {})[item.passage.id, need] = level
            given[(item.passage.id, need) in o.gold].append(level)
    return [o._replace(levels=levels.get(o.row.id, {})) for o in observations]


def replay(o: Observation, side: Sequence[Scored], policy: Policy, as_of: date) -> list[Grade]:
    """Return the grades that the program would give under a policy, from what was observed."""
    asked = {(item.passage.id, need) for item, need in doubtful(side, policy)}
    levels = {key: level for key, level in o.levels.items() if key in asked}
    return combine(side, levels, kind=o.kind, policy=policy, as_of=as_of, time_sensitive=o.time_sensitive)


def fit_scale(observations: Sequence[Observation], policy: Policy) -> Policy:
    """Fit the scale of the cross-encoder's scores by logistic regression (Platt 1999), and the cascade's band by the error bound.

    The scale is fitted on the two best passages of each need, for decisions turn on these: the many that are plainly about something
    else would bend the line where nothing is in doubt. Above the band at most 5 % of what the cross-encoder takes for relevant is not,
    on all passages observed; below it lie at most 5 % of the relevant ones.
    """
    pairs: list[tuple[list[float], bool]] = []
    decisive: list[tuple[list[float], bool]] = []
    for o in observations:
        for need in range(len(o.needs)):
            items = sorted(
                [*o.internal, *o.external],
                key=lambda item: (-policy.relevance(item.scores[need], item.best_strip(need)), item.passage.id),
            )
            found = [([logit(i.scores[need]), logit(i.best_strip(need))], (i.passage.id, need) in o.gold) for i in items]
            pairs += found
            decisive += found[:DECISIVE]
    if len({gold for _, gold in decisive}) < 2:
        return policy
    fitted = policy.model_copy(update={"platt": _logistic([x for x, _ in decisive], [gold for _, gold in decisive])})
    relevance = np.array([fitted.relevance(sigmoid(own), sigmoid(strip)) for (own, strip), _ in pairs])
    return fitted.model_copy(update={"band": error_band(relevance, np.array([gold for _, gold in pairs]))})


def error_band(relevance: NDArray[np.float64], gold: NDArray[np.bool_], bound: float = ERROR_BOUND) -> tuple[float, float]:
    """Return the widest decisions that keep the error bound: (highest lower end, lowest upper end) of the doubtful band."""
    order = np.sort(relevance[gold])
    low, high = float(order[int(bound * len(order))]), sure_from(relevance, gold, bound)
    return (low, high) if low < high else (1.0, 1.0)


def sure_from(relevance: NDArray[np.float64], gold: NDArray[np.bool_], bound: float = ERROR_BOUND) -> float:
    """Return the lowest relevance from which on at most a share `bound` is not gold; 1 where there is none."""
    for value in np.unique(relevance):
        above = gold[relevance >= value]
        if np.sum(~above) <= bound * len(above):
            return float(value)
    return 1.0


def fit(observations: Sequence[Observation], policy: Policy, as_of: date) -> Policy:
    """Fit what depends on the LM's grades and the questions' needs: its scale, thresholds and ages, the gate and the bound to quote."""
    policy = fit_levels(observations, policy)
    labelled = [o for o in observations if o.row.need]
    if labelled:
        policy = fit_thresholds(labelled, policy, as_of)
    return fit_quote(observations, fit_gate(observations, policy, as_of))


def in_doubt(observations: Sequence[Observation], policy: Policy, as_of: date) -> list[Observation]:
    """Return the questions for which something uncertain was found, nothing that would be quoted: there the generator's word counts."""
    return [o for o in observations if policy.lower <= reached(o, policy, as_of) < policy.quote]


def fit_levels(observations: Sequence[Observation], policy: Policy) -> Policy:
    """Fit the scale that joins the LM's level to the cross-encoder's scores.

    The LM is not asked any more (the band closes) where it adds nothing to the cross-encoder in cross-validation, or where it
    graded fewer than 20 pairs, too few to tell.
    """
    inputs, gold = [], []
    for o in observations:
        items = {item.passage.id: item for item in (*o.internal, *o.external)}
        for (key, need), level in o.levels.items():
            inputs.append([logit(items[key].scores[need]), logit(items[key].best_strip(need)), level])
            gold.append((key, need) in o.gold)
    if len(inputs) < FEWEST_LEVELS or min(sum(gold), len(gold) - sum(gold)) < FOLDS:
        return policy.model_copy(update={"band": (1.0, 1.0)})
    without = cross_val_score(LogisticRegression(), [row[:2] for row in inputs], gold, cv=FOLDS, scoring="neg_log_loss").mean()
    joined = cross_val_score(LogisticRegression(), inputs, gold, cv=FOLDS, scoring="neg_log_loss").mean()
    scale = _logistic(inputs, gold)
    if joined <= without or scale[-1] == 0.0:
        return policy.model_copy(update={"band": (1.0, 1.0)})
    return policy.model_copy(update={"platt_lm": scale})


# What an action is worth for a question of each need, 0-1: 0 where it loses the answer, less than 1 where it costs a search
# or brings noise.
WORTH: dict[str, dict[Action, float]] = {
    "internal": {"correct": 1.0, "ambiguous": 0.5, "incorrect": 0.0},
    "both": {"correct": 0.0, "ambiguous": 1.0, "incorrect": 0.25},
    "web": {"correct": 0.0, "ambiguous": 0.75, "incorrect": 1.0},
    "none": {"correct": 0.0, "ambiguous": 0.75, "incorrect": 1.0},
}
UPPERS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LOWERS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
AGES: dict[Kind, tuple[int, ...]] = {
    "pricing": (14, 30, 45, 60, 75, 90, 120), "technical": (60, 90, 120, 150, 180, 210, 240, 300),
    "factual": (180, 270, 365, 420, 480, 540), "general": (180, 270, 365, 420, 480, 540),
}  # fmt: skip
GAIN = 0.9  # worth that a number of one kind must gain, as much as two better routes: less is chance


def fit_thresholds(observations: Sequence[Observation], policy: Policy, as_of: date) -> Policy:
    """Choose thresholds and ages for the actions' worth on the training questions, one number at a time, twice round.

    Of equally good values the middle one is taken. A kind leaves the common upper threshold, or its age at the start, only for
    a gain as large as two better routes, so that a handful of questions cannot bend it.
    """

    def worth(p: Policy) -> float:
        total = 0.0
        for o in observations:
            action = assess(replay(o, o.internal, p, as_of), o.needs, o.kind, p, o.start).action
            total += WORTH[o.row.need or "none"][action]
        return total

    for _ in range(2):
        policy = _best(
            policy,
            [policy.model_copy(update={"upper": dict.fromkeys(policy.upper, value)}) for value in UPPERS],
            worth,
            0.0,
        )
        policy = _best(policy, [policy.model_copy(update={"lower": value}) for value in LOWERS], worth, 0.0)
        for kind in AGES:
            ages = [policy.model_copy(update={"max_age_days": {**policy.max_age_days, kind: days}}) for days in AGES[kind]]
            policy = _best(policy, ages, worth, GAIN)
    for kind in AGES:
        uppers = [policy.model_copy(update={"upper": {**policy.upper, kind: value}}) for value in UPPERS]
        policy = _best(policy, uppers, worth, GAIN)
    return policy


def reached(o: Observation, policy: Policy, as_of: date) -> float:
    """Return the best relevance that anything found for a question has, 0-1: what the gate before the generator looks at."""
    grades = [*replay(o, o.internal, policy, as_of), *replay(o, o.external, policy, as_of)]
    return max((g.relevance for g in grades), default=0.0)


def fit_gate(
    observations: Sequence[Observation], policy: Policy, as_of: date, generated: Mapping[str, bool] = MappingProxyType({})
) -> Policy:
    """Choose the relevance from which an answer is tried: where most questions come out right, those that nobody can answer included.

    Args:
        observations: The training questions.
        policy: What was fitted so far.
        as_of: The day of the questions.
        generated: By row id, whether the compiled generator came out right on it. Of the others it is assumed that it answers what
            has an answer, and wrongly tries what has none.
    """
    found = [(reached(o, policy, as_of), o.row.answerable, generated.get(o.row.id, o.row.answerable)) for o in observations]
    known = sum(answerable for _, answerable, _ in found)
    if known in (0, len(found)):
        return policy

    def balanced(p: Policy) -> float:
        right = [(answerable, tried if value >= p.answerable else not answerable) for value, answerable, tried in found]
        hit = sum(ok for answerable, ok in right if answerable) / known
        held = sum(ok for answerable, ok in right if not answerable) / (len(found) - known)
        return (hit + held) / 2

    # What covers a question is enough to answer it, so the gate is no higher than any upper threshold; of equally good gates
    # the lowest is taken, for generator and citation check come after it.
    bounds = [value for i in range(1, 50) if (value := round(i / 50, 2)) <= min(policy.upper.values())]
    candidates = [policy.model_copy(update={"answerable": value}) for value in bounds]
    best = max(candidates, key=lambda p: (balanced(p), -p.answerable), default=policy)
    return best if balanced(best) > balanced(policy) else policy


def fit_quote(observations: Sequence[Observation], policy: Policy) -> Policy:
    """Choose the relevance from which a strip is quoted although the generator declines: where at most 5 % hold no gold sentence.

    Looked at is the best passage of each need, which is what would be quoted. One error more than was seen is assumed, so that few
    questions never prove a bound; the policy's own stays then.
    """
    best, gold = [], []
    for o in observations:
        items = [*o.internal, *o.external]
        for need in range(len(o.needs) if items else 0):
            relevance, key = max((policy.relevance(i.scores[need], i.best_strip(need)), i.passage.id) for i in items)
            best.append(relevance)
            gold.append((key, need) in o.gold)
    for value in sorted(set(best)):
        above = [right for relevance, right in zip(best, gold, strict=True) if relevance >= value]
        if above.count(False) + 1 <= ERROR_BOUND * (len(above) + 1):
            return policy.model_copy(update={"quote": max(value, policy.answerable)})
    return policy


def _best(start: Policy, candidates: Sequence[Policy], value: Callable[[Policy], float], gain: float) -> Policy:
    """Return the middle one of the best candidates, or `start` where none is better by more than `gain`."""
    scores = [value(candidate) for candidate in candidates]
    top = max(scores)
    if top <= value(start) + gain:
        return start
    winners = [candidate for candidate, score in zip(candidates, scores, strict=True) if score >= top - 1e-9]
    return winners[len(winners) // 2]


def _logistic(inputs: Sequence[Sequence[float]], gold: Sequence[bool]) -> tuple[float, ...]:
    """Return intercept and weights; none below zero, for a higher score must not make a passage less relevant."""
    fitted = LogisticRegression(max_iter=1000).fit(np.array(inputs), np.array(gold))
    return (round(float(fitted.intercept_[0]), 4), *(round(max(0.0, float(w)), 4) for w in fitted.coef_[0]))
