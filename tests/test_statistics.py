"""Differences and chance: hand-computed probabilities, and intervals that hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest

from optimize.statistics import better_by_more_than_noise, mcnemar_exact, paired_bootstrap, permutation_test


def outcomes(gained: int, lost: int, same: int) -> tuple[list[bool], list[bool]]:
    return [False] * gained + [True] * lost + [True] * same, [True] * gained + [False] * lost + [True] * same


@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [
        (0, 0, 1.0),
        (1, 0, 1.0),
        (3, 3, 1.0),
        (5, 0, 2 / 32),
        (6, 0, 2 / 64),
        (0, 6, 2 / 64),
        (7, 1, 2 * (1 + 8) / 256),
        (10, 2, 2 * (1 + 12 + 66) / 4096),
        (2000, 0, 0.0),  # no overflow
    ],
)
def test_mcnemar_counts_only_the_questions_that_differ(gained: int, lost: int, p: float) -> None:
    for same in (1, 30):
        assert mcnemar_exact(*outcomes(gained, lost, same)) == pytest.approx(p)


def test_the_permutation_test_agrees_with_mcnemar_on_right_and_wrong() -> None:
    before, after = outcomes(7, 1, 20)
    assert permutation_test(before, after) == pytest.approx(mcnemar_exact(before, after), abs=0.01)
    assert permutation_test([0.3] * 9, [0.3] * 9) == 1.0
    assert permutation_test([0.0] * 40, [1.0] * 40) == pytest.approx(1 / 10_001)


def test_the_interval_holds_the_difference_and_can_be_repeated() -> None:
    before, after = outcomes(10, 4, 34)
    found = paired_bootstrap(before, after)
    assert found.value == pytest.approx(6 / 48) and found.low < found.value < found.high
    # The mean of 48 draws has a standard error of sqrt((14/48 - (6/48)^2) / 48) = 0.0759.
    assert found.low == pytest.approx(6 / 48 - 1.96 * 0.0759, abs=0.015) and found.high == pytest.approx(6 / 48 + 1.96 * 0.0759, abs=0.015)
    assert paired_bootstrap(before, after) == found
    graded = [i**2 / 100 for i in range(30)]
    assert paired_bootstrap([0.0] * 30, graded) != paired_bootstrap([0.0] * 30, graded, seed=1)
    narrower = paired_bootstrap(before, after, confidence=0.5)
    assert found.low < narrower.low < narrower.high < found.high
    assert paired_bootstrap(after, before).value == -found.value


def test_pairing_matters() -> None:
    """Question by question the second is better by 0.1 throughout; the spread between questions must not hide it."""
    before = [i / 100 for i in range(90)]
    found = paired_bootstrap(before, [value + 0.1 for value in before])
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))


def test_nine_in_ten_intervals_of_ninety_percent_hold_the_truth() -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(300):
        gains = rng.normal(0.2, 1.0, 50)
        found = paired_bootstrap([0.0] * 50, gains.tolist(), resamples=500, confidence=0.9)
        held += found.low <= 0.2 <= found.high
    assert held / 300 == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize(
    ("gained", "lost", "better"),
    [
        (0, 0, False),
        (2, 0, False),  # what compiling gained on 48 questions at first
        (5, 0, False),  # the bootstrap alone would say yes
        (6, 0, True),
        (0, 6, False),
        (10, 4, False),
        (14, 3, True),
    ],
)
def test_better_takes_more_than_luck(gained: int, lost: int, better: bool) -> None:
    assert better_by_more_than_noise(*outcomes(gained, lost, 48 - gained - lost)) is better


def test_graded_scores_are_compared_too() -> None:
    before = [0.5] * 20
    assert better_by_more_than_noise(before, [0.6] * 18 + [0.45] * 2)
    assert not better_by_more_than_noise(before, [0.6] * 11 + [0.41] * 9)
    assert not better_by_more_than_noise([0.5] * 4, [0.6] * 4)  # 1 in 8 by chance, although every resample is better


def test_five_gained_of_48_is_what_the_bootstrap_is_too_sure_of() -> None:
    before, after = outcomes(5, 0, 43)
    assert paired_bootstrap(before, after).low > 0 and mcnemar_exact(before, after) > 0.05


@pytest.mark.parametrize("sides", [([], []), ([True], [True, False])])
def test_outcomes_of_other_questions_are_refused(sides: tuple[list[bool], list[bool]]) -> None:
    for test in (paired_bootstrap, mcnemar_exact, permutation_test, better_by_more_than_noise):
        with pytest.raises(ValueError, match="same questions"):
            test(*sides)
