"""Confidence against outcomes, by hand."""

from __future__ import annotations

import pytest

from optimize.reliability import aurc, brier, expected_calibration_error, reliability_table, risk_coverage


@pytest.mark.parametrize(
    ("confidence", "right", "ece", "score"),
    [
        ([1.0, 1.0, 0.0], [True, True, False], 0.0, 0.0),
        ([1.0, 1.0], [False, False], 1.0, 1.0),
        ([0.8] * 5, [True] * 4 + [False], 0.0, (4 * 0.04 + 0.64) / 5),
        ([0.9, 0.9, 0.3, 0.3], [True, False, False, False], 0.5 * 0.4 + 0.5 * 0.3, (0.01 + 0.81 + 0.09 + 0.09) / 4),
        ([0.62, 0.68], [True, False], 0.15, (0.38**2 + 0.68**2) / 2),  # one bin: mean 0.65, half right
        ([0.58, 0.62], [True, False], 0.5 * 0.42 + 0.5 * 0.62, (0.42**2 + 0.62**2) / 2),  # two bins
    ],
)
def test_calibration_error_and_brier_score(confidence: list[float], right: list[bool], ece: float, score: float) -> None:
    assert expected_calibration_error(confidence, right) == pytest.approx(ece)
    assert brier(confidence, right) == pytest.approx(score)


def test_a_bin_holds_its_upper_bound() -> None:
    tenths = [i / 10 for i in range(11)]
    table = reliability_table(tenths, [True] * 11)
    assert [row.answers for row in table] == [2] + [1] * 9  # 0 lies in the first
    assert [(row.low, row.high) for row in table] == [(i / 10, (i + 1) / 10) for i in range(10)]
    assert table[0].confidence == pytest.approx(0.05) and table[0].right == 1.0


def test_an_empty_bin_has_neither_confidence_nor_share() -> None:
    table = reliability_table([0.95], [False], bins=2)
    assert table[0][2:] == (0, None, None) and table[1][2:] == (1, 0.95, 0.0)


@pytest.mark.parametrize(
    ("confidence", "right", "risks"),
    [
        ([0.9, 0.8, 0.7, 0.6], [True, True, False, False], [0, 0, 1 / 3, 1 / 2]),
        ([0.6, 0.9, 0.7, 0.8], [False, True, False, True], [0, 0, 1 / 3, 1 / 2]),  # the order given does not matter
        ([0.9, 0.8], [False, True], [1, 1 / 2]),
        ([0.5, 0.5], [True, False], [1 / 2, 1 / 2]),  # ties count with their mean, whichever comes first
        ([0.5, 0.5], [False, True], [1 / 2, 1 / 2]),
        ([0.9, 0.5, 0.5], [True, False, True], [0, 1 / 4, 1 / 3]),
    ],
)
def test_risk_by_coverage(confidence: list[float], right: list[bool], risks: list[float]) -> None:
    points = risk_coverage(confidence, right)
    assert [point.risk for point in points] == pytest.approx(risks)
    assert [point.coverage for point in points] == pytest.approx([(i + 1) / len(right) for i in range(len(right))])
    assert aurc(confidence, right) == pytest.approx(sum(risks) / len(risks))


def test_nothing_answered_measures_nothing() -> None:
    assert expected_calibration_error([], []) is None and brier([], []) is None and aurc([], []) is None and risk_coverage([], []) == []


@pytest.mark.parametrize("confidence", [[1.2], [-0.1], [float("nan")], [0.5, 0.5]])
def test_what_is_no_confidence_is_refused(confidence: list[float]) -> None:
    for measure in (reliability_table, brier, aurc):
        with pytest.raises(ValueError, match="confidence"):
            measure(confidence, [True])
