"""Confidence against outcomes, by hand."""

from __future__ import annotations

import pytest

from optimize.reliability import expected_calibration_error, reliability_table


@pytest.mark.parametrize(
    ("confidence", "right", "ece"),
    [
        ([1.0, 1.0, 0.0], [True, True, False], 0.0),
        ([1.0, 1.0], [False, False], 1.0),
        ([0.8] * 5, [True] * 4 + [False], 0.0),
        ([0.9, 0.9, 0.3, 0.3], [True, False, False, False], 0.5 * 0.4 + 0.5 * 0.3),
        ([0.62, 0.68], [True, False], 0.15),  # one bin: mean 0.65, half right
        ([0.58, 0.62], [True, False], 0.5 * 0.42 + 0.5 * 0.62),  # two bins
    ],
)
def test_calibration_error(confidence: list[float], right: list[bool], ece: float) -> None:
    assert expected_calibration_error(confidence, right) == pytest.approx(ece)


def test_a_bin_holds_its_upper_bound() -> None:
    tenths = [i / 10 for i in range(11)]
    table = reliability_table(tenths, [True] * 11)
    assert [row.answers for row in table] == [2] + [1] * 9  # 0 lies in the first
    assert [(row.low, row.high) for row in table] == [(i / 10, (i + 1) / 10) for i in range(10)]
    assert table[0].confidence == pytest.approx(0.05) and table[0].right == 1.0


def test_an_empty_bin_has_neither_confidence_nor_share() -> None:
    table = reliability_table([0.95], [False], bins=2)
    assert table[0][2:] == (0, None, None) and table[1][2:] == (1, 0.95, 0.0)


def test_nothing_answered_measures_nothing() -> None:
    assert expected_calibration_error([], []) is None


@pytest.mark.parametrize("confidence", [[1.2], [-0.1], [float("nan")], [0.5, 0.5]])
def test_what_is_no_confidence_is_refused(confidence: list[float]) -> None:
    with pytest.raises(ValueError, match="confidence"):
        reliability_table(confidence, [True])
