"""Which questions are learned from, measured on while building, and kept for the end."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations, cycle
from pathlib import Path

from rapidfuzz import fuzz, process

from crag_dspy.errors import DatasetError
from optimize.dataset import Row, disjoint, load_rows, same_question

SHARES = ("train", "dev", "train", "test", "train")  # dealt in turn: 60, 20 and 20 %
FEWEST = 10  # questions that one file must hold to be split
HELD_OUT = "split"  # names the third part of a split file
NEAR = 92.0  # rapidfuzz token sort ratio, 0-100: the same words but for one or two
NAMED = 5  # near-duplicates named one by one

Splits = dict[str, list[Row]]


def load_splits(train: Path, dev: Path, test: str, warn: Callable[[str], None]) -> Splits:
    """Read three files; `test` may be empty.

    Raises:
        DatasetError: a file is malformed, or two splits share a question.
    """
    paths = {"train": train, "dev": dev} | ({"test": Path(test)} if test else {})
    return _checked({name: load_rows(path, warn) for name, path in paths.items()}, warn)


def split_file(path: Path, test: str, seed: int, warn: Callable[[str], None]) -> Splits:
    """Split one file by a seed. Its third part is given only if `test` asks for it ("split"), or is replaced by another file.

    Raises:
        DatasetError: a file is malformed, holds fewer than ten questions, or shares one with `test`.
    """
    rows = load_rows(path, warn)
    if len(rows) < FEWEST:
        raise DatasetError(f"{path} holds {len(rows)} questions: {FEWEST} at least are needed to split it. Or give --train and --dev.")
    parts = split(rows, seed)
    if test != HELD_OUT:
        parts["test"] = load_rows(Path(test), warn) if test else []
    return _checked({name: mine for name, mine in parts.items() if mine}, warn)


def split(rows: list[Row], seed: int) -> Splits:
    """Return train, dev and test (60, 20, 20 %), each with its share of every need, in file order; the same seed gives the same."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda i: rows[i].need or "")  # stable: shuffled within each need
    owner = dict(zip(order, cycle(SHARES), strict=False))
    return {name: [row for i, row in enumerate(rows) if owner[i] == name] for name in dict.fromkeys(SHARES)}


def near_duplicates(splits: Splits) -> list[tuple[str, Row, str, Row]]:
    """Return pairs of questions of two splits that differ in a word or two, but in no word with a digit."""
    found = []
    for first, second in combinations(splits, 2):
        known = [same_question(row.question) for row in splits[first]]
        for row in splits[second]:
            asked = same_question(row.question)
            close = process.extract(asked, known, scorer=fuzz.token_sort_ratio, score_cutoff=NEAR, limit=3)
            same = [i for text, _, i in close if _figures(text) == _figures(asked)]
            found += [(first, splits[first][i], second, row) for i in same[:1]]
    return found


def _checked(splits: Splits, warn: Callable[[str], None]) -> Splits:
    disjoint(**splits)
    near = near_duplicates(splits)
    for first, known, second, row in near[:NAMED]:
        warn(f"{row.question!r} ({second}) is nearly {known.question!r} ({first})")
    if len(near) > NAMED:
        warn(f"{len(near) - NAMED} more questions are nearly the same in two splits")
    return splits


def _figures(text: str) -> set[str]:
    return {word for word in text.split() if any(letter.isdigit() for letter in word)}
