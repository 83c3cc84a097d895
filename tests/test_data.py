"""The data are sound, and the check that says so finds what is broken."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data.check import HERE, problems

Rows = list[dict[str, Any]]


def test_the_data_are_sound() -> None:
    assert problems() == []


def _rows(data: Path, split: str) -> Rows:
    return [json.loads(line) for line in (data / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


def _change(data: Path, split: str, change: Callable[[Rows], object]) -> None:
    rows = _rows(data, split)
    change(rows)
    (data / f"{split}.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def _row(data: Path, split: str, need: str, subtype: str) -> dict[str, Any]:
    return next(row for row in _rows(data, split) if (row["need"], row["subtype"]) == (need, subtype))


def _alter_gold_sentence(data: Path) -> str:
    row = _row(data, "train", "internal", "plain")
    path = data / "corpus" / row["gold_docs"][0]
    text = path.read_text(encoding="utf-8")
    assert row["support"][0] in text
    path.write_text(text.replace(row["support"][0], row["support"][0].replace(" ", " hardly ", 1)), encoding="utf-8")
    return f"{row['id']}: stands in no gold source"


def _copy_gold_sentence(data: Path) -> str:
    row = _row(data, "dev", "internal", "plain")
    page = min((data / "web").glob("*/*.html"))
    html = page.read_text(encoding="utf-8")
    page.write_text(html.replace("</p>", f" {row['support'][0]}</p>"), encoding="utf-8")
    return f"{row['id']}: stands also in http://{page.parent.name}/{page.stem}"


def _id_twice(data: Path) -> str:
    _change(data, "train", lambda rows: rows[1].update(id=rows[0]["id"]))
    return f"'{_rows(data, 'train')[0]['id']}' stands already in line 1"


def _id_in_two_splits(data: Path) -> str:
    id = _rows(data, "train")[0]["id"]
    _change(data, "dev", lambda rows: rows[0].update(id=id))
    return f"{id}: the id stands in 2 splits"


def _question_in_two_splits(data: Path) -> str:
    question = _rows(data, "train")[0]["question"]
    _change(data, "test", lambda rows: rows[0].update(question=f" {question.upper()}"))
    return "stands in train and in test"


def _answer_a_none_row(data: Path) -> str:
    row = _row(data, "test", "none", "plain")
    path = min((data / "corpus").glob("*.md"))
    path.write_text(f"{path.read_text(encoding='utf-8')}\n\nOn {' and '.join(row['absent'][0]).upper()} we have this to say.\n", "utf-8")
    return f"{row['id']}: {path.name} holds "


def _answer_a_none_row_over_three_sentences(data: Path) -> str:
    row = next(row for row in _rows(data, "dev") if row["need"] == "none" and len(row["absent"][0]) == 2)
    page = min((data / "web").glob("*/*.html"))
    first, last = row["absent"][0]
    html = page.read_text(encoding="utf-8")
    page.write_text(html.replace("</p>", f" It is about {first} now. That is known. And so is {last} as well.</p>"), encoding="utf-8")
    return f"{row['id']}: http://{page.parent.name}/{page.stem} holds "


def _age_a_fresh_document(data: Path) -> str:
    row = _row(data, "test", "both", "compound")
    path = data / "corpus" / row["gold_docs"][0]
    path.write_text(path.read_text(encoding="utf-8").replace("published: 202", "published: 201", 1), encoding="utf-8")
    return f"{row['id']}: {path.name} is dated 201"


def _renew_a_stale_document(data: Path) -> str:
    row = _row(data, "train", "both", "stale")
    path = data / "corpus" / row["gold_docs"][0]
    lines = path.read_text(encoding="utf-8").splitlines()
    changed = ["published: 2026-03-01" if line.startswith("published:") else line for line in lines]
    path.write_text("\n".join(changed), encoding="utf-8")
    return f"{row['id']}: {path.name} is dated 2026-03-01: not old enough"


def _fact_without_a_spelling(data: Path) -> str:
    _change(data, "dev", lambda rows: rows[0].update(aliases=[["nine moons"]]))
    return f"{_rows(data, 'dev')[0]['id']}: no spelling of 'nine moons' stands in the support"


def _share_a_gold_document(data: Path) -> str:
    name = _row(data, "train", "internal", "plain")["gold_docs"][0]
    _change(data, "test", lambda rows: rows[0].update(gold_docs=[name]))
    return f"{name}: is a gold source in train and in test"


def _drop_a_row(data: Path) -> str:
    _change(data, "dev", lambda rows: rows.pop())
    return "dev: the needs are not balanced"


def _empty_page(data: Path) -> str:
    page = min((data / "web").glob("*/*.html"))
    page.write_text("<html><head><title>Soon</title></head><body></body></html>", encoding="utf-8")
    return f"http://{page.parent.name}/{page.stem}: has no main text"


def _unreadable_document(data: Path) -> str:
    (data / "corpus" / "old.md").write_bytes(b"caf\xe9")
    return "old.md: is not UTF-8 text"


@pytest.mark.parametrize(
    "break_it",
    [
        _alter_gold_sentence,
        _copy_gold_sentence,
        _id_twice,
        _id_in_two_splits,
        _question_in_two_splits,
        _answer_a_none_row,
        _answer_a_none_row_over_three_sentences,
        _age_a_fresh_document,
        _renew_a_stale_document,
        _fact_without_a_spelling,
        _share_a_gold_document,
        _drop_a_row,
        _empty_page,
        _unreadable_document,
    ],
)
def test_what_is_broken_is_found(tmp_path: Path, break_it: Callable[[Path], str]) -> None:
    data = tmp_path / "data"
    shutil.copytree(HERE, data)
    expected = break_it(data)
    found = problems(data)
    assert any(expected in problem for problem in found), found
