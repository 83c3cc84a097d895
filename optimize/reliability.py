"""Is the confidence worth anything: calibration, and what abstaining by it would bring.

All functions take confidences in 0-1 and, in the same order, whether the answer was right. Give them answered questions: an abstention
has confidence 0 by definition, in the program, whether it was right or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS = 10


class Bin(NamedTuple):
    """One row of a reliability table: the answers with a confidence in (low, high]."""

    low: float
    high: float
    answers: int
    confidence: float | None
    """Mean; None in an empty bin."""
    right: float | None
    """Share of answers right; None in an empty bin."""


def reliability_table(confidence: Sequence[float], right: Sequence[bool], bins: int = BINS) -> list[Bin]:
    """Return equal-width bins of confidence with their share of answers right (Guo et al. 2017, section 2); 0 lies in the first bin.

    Raises:
        ValueError: the two differ in length, or a confidence is not in 0-1.
    """
    sure, true = _paired(confidence, right)
    edges = np.linspace(0, 1, bins + 1)
    place = np.searchsorted(edges[1:-1], sure, side="left")
    table = []
    for i in range(bins):
        mine = place == i
        known = bool(mine.any())
        table.append(
            Bin(
                round(float(edges[i]), 10),
                round(float(edges[i + 1]), 10),
                int(mine.sum()),
                float(sure[mine].mean()) if known else None,
                float(true[mine].mean()) if known else None,
            )
        )
    return table


def expected_calibration_error(confidence: Sequence[float], right: Sequence[bool], bins: int = BINS) -> float | None:
    """Return the ECE, 0-1: the bins' mean distance of confidence and share right, weighted by their answers (Guo et al. 2017, section 2).

    None without answers.
    """
    table = reliability_table(confidence, right, bins)
    total = sum(row.answers for row in table)
    gaps = [row.answers * abs(row.confidence - row.right) for row in table if row.confidence is not None and row.right is not None]
    return sum(gaps) / total if total else None


def brier(confidence: Sequence[float], right: Sequence[bool]) -> float | None:
    """Return the mean squared distance of confidence and outcome, 0-1 (Brier 1950); None without answers."""
    sure, true = _paired(confidence, right)
    return float(np.mean((sure - true) ** 2)) if len(sure) else None


class Point(NamedTuple):
    """What answering only the most confident questions would give."""

    coverage: float
    """Share of questions answered."""
    risk: float
    """Share of these answered wrongly."""


def risk_coverage(confidence: Sequence[float], right: Sequence[bool]) -> list[Point]:
    """Return the risk at every coverage, most confident answers first (El-Yaniv & Wiener 2010; Geifman & El-Yaniv 2017).

    Among equally confident answers the order is chance, so each counts with their mean error.
    """
    sure, true = _paired(confidence, right)
    wrong = 1.0 - true
    for value in np.unique(sure):
        tied = sure == value
        wrong[tied] = wrong[tied].mean()
    wrong = wrong[np.argsort(-sure, kind="stable")]
    counts = np.arange(1, len(wrong) + 1)
    return [Point(float(n / len(wrong)), float(risk)) for n, risk in zip(counts, np.cumsum(wrong) / counts, strict=True)]


def aurc(confidence: Sequence[float], right: Sequence[bool]) -> float | None:
    """Return the area under the risk-coverage curve, 0-1, lower is better (Geifman et al. 2019); None without answers."""
    points = risk_coverage(confidence, right)
    return sum(point.risk for point in points) / len(points) if points else None


def _paired(confidence: Sequence[float], right: Sequence[bool]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sure, true = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    if len(sure) != len(true):
        raise ValueError(f"{len(sure)} confidences, but {len(true)} outcomes")
    if not np.all((sure >= 0) & (sure <= 1)):  # NaN fails too
        raise ValueError("a confidence is not in 0-1")
    return sure, true
