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


def _paired(confidence: Sequence[float], right: Sequence[bool]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sure, true = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    if len(sure) != len(true):
        raise ValueError(f"{len(sure)} confidences, but {len(true)} outcomes")
    if not np.all((sure >= 0) & (sure <= 1)):  # NaN fails too
        raise ValueError("a confidence is not in 0-1")
    return sure, true
