"""Is it better, or is it chance: paired comparisons of two programs on the same questions.

Everything is paired: position i of both sequences is the same question. Randomness comes from a seed, so a comparison can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
SIGNIFICANCE = 0.05
_CHUNK = 1_000  # resamples held in memory at once


class Difference(NamedTuple):
    """By how much the second program is better, with a percentile interval of its resamples."""

    value: float
    low: float
    high: float


def paired_bootstrap(
    before: Sequence[float],
    after: Sequence[float],
    *,
    resamples: int = RESAMPLES,
    confidence: float = 1 - SIGNIFICANCE,
    seed: int = 0,
) -> Difference:
    """Return the mean of after - before per question and its interval (paired bootstrap resampling, Koehn 2004).

    Questions are drawn with replacement, both programs' scores of a question together; the interval is the percentile interval
    (Efron & Tibshirani 1993, chapter 13).

    Raises:
        ValueError: the sequences differ in length, or are empty.
    """
    gains = _gains(before, after)
    rng = np.random.default_rng(seed)
    means: list[NDArray[np.float64]] = []
    for start in range(0, resamples, _CHUNK):
        drawn = rng.integers(0, len(gains), (min(_CHUNK, resamples - start), len(gains)))
        means.append(gains[drawn].mean(axis=1))
    return _interval(float(gains.mean()), np.concatenate(means), confidence)


def mcnemar_exact(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Return the two-sided p, 0-1, that two programs are right equally often (McNemar 1947, exact binomial form).

    Only the questions on which they differ count: p is the chance that as many of n fair coins, or more, show the same side.

    Raises:
        ValueError: the sequences differ in length, or are empty.
    """
    _same_length(before, after)
    gained = sum(bool(a) and not b for b, a in zip(before, after, strict=True))
    lost = sum(bool(b) and not a for b, a in zip(before, after, strict=True))
    n = gained + lost
    tail = sum(math.comb(n, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / (1 << n))


def permutation_test(before: Sequence[float], after: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """Return the two-sided p, 0-1, that it does not matter which program gave which score (paired permutation test, Fisher 1935).

    Signs of the differences are drawn at random; the observed ones count as one draw more, so p is never 0 (Phipson & Smyth 2010).

    Raises:
        ValueError: the sequences differ in length, or are empty.
    """
    gains = _gains(before, after)
    rng = np.random.default_rng(seed)
    observed, extreme = np.abs(gains.sum()), 0
    for start in range(0, resamples, _CHUNK):
        signs = rng.choice((-1.0, 1.0), (min(_CHUNK, resamples - start), len(gains)))
        extreme += int(np.sum(np.abs(signs @ gains) >= observed - 1e-9))
    return (extreme + 1) / (resamples + 1)


def better_by_more_than_noise(before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> bool:
    """Return whether the second program is better by more than chance explains, question by question.

    Two tests have to agree at 5 %: the bootstrap interval of the mean difference lies above 0, and the paired test (McNemar's exact one
    where all scores are right or wrong, else the permutation test) gives p < 0.05. The second guards against the bootstrap's
    overconfidence where few questions differ: five gained and none lost of 48 lie above 0 in 99 % of the resamples, but come about by
    chance in 6 % of comparisons.

    Raises:
        ValueError: the sequences differ in length, or are empty.
    """
    if paired_bootstrap(before, after, seed=seed).low <= 0:
        return False
    if set(before) | set(after) <= {0, 1}:
        return mcnemar_exact([bool(b) for b in before], [bool(a) for a in after]) < SIGNIFICANCE
    return permutation_test(before, after, seed=seed) < SIGNIFICANCE


def _interval(value: float, found: NDArray[np.float64], confidence: float) -> Difference:
    low, high = np.quantile(found, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Difference(value, float(low), float(high))


def _gains(before: Sequence[float], after: Sequence[float]) -> NDArray[np.float64]:
    _same_length(before, after)
    gains: NDArray[np.float64] = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    return gains


def _same_length(before: Sequence[object], after: Sequence[object]) -> None:
    if len(before) != len(after) or len(before) == 0:
        raise ValueError(f"paired outcomes of the same questions are needed, not {len(before)} and {len(after)}")
