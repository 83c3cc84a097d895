"""Questions with answers: rows of a JSONL file, checked field by field."""

from __future__ import annotations

import difflib
import json
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from crag_dspy.domains import shown_url
from crag_dspy.errors import DatasetError
from crag_dspy.types import Action, Frozen, Kind

Need = Literal["internal", "web", "both", "none"]

ACTION_OF: dict[str, Action] = {"internal": "correct", "both": "ambiguous", "web": "incorrect", "none": "incorrect"}
MOST_PROBLEMS = 20  # named at once
MISSPELT = 0.75  # difflib ratio, 0-1, from which an unknown field is taken for a misspelt one


def _facts(value: object) -> object:
    """A flat list of spellings is one fact."""
    return [value] if isinstance(value, list) and value and all(isinstance(item, str) for item in value) else value


class Row(Frozen):
    """One question. Only `question` and `answer` are required; an empty answer means that nobody knows.

    `aliases` lists the facts that an answer must hold, each as its accepted spellings; without it the answer itself is the one fact.
    """

    id: str = ""
    question: str = Field(pattern=r"\S")
    answer: str
    need: Need | None = None
    subtype: str | None = None
    kind: Kind | None = None
    aliases: Annotated[tuple[tuple[str, ...], ...], BeforeValidator(_facts)] = ()
    gold_docs: tuple[str, ...] = ()
    gold_urls: tuple[str, ...] = ()
    support: tuple[str, ...] = ()
    absent: tuple[tuple[str, ...], ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Row:
        if self.need == "none" and self.answerable:
            raise ValueError("need 'none' has an answer")
        if self.need not in (None, "none") and not self.answerable:
            raise ValueError(f"need {self.need!r} has no answer")
        return self

    @property
    def facts(self) -> tuple[tuple[str, ...], ...]:
        """What an answer must hold: for each fact its accepted spellings."""
        return self.aliases or ((self.answer,),)

    def is_gold(self, source: str) -> bool:
        """Return whether a document id or URL is a gold source; documents may be named by the end of their path."""
        return is_gold_url(source, self.gold_urls) or any(source == name or source.endswith(f"/{name}") for name in self.gold_docs)

    @property
    def answerable(self) -> bool:
        """Whether there is an answer at all."""
        return bool(self.answer.strip())


def is_gold_url(url: str, gold: Sequence[str]) -> bool:
    """Return whether a page is a gold page; those that come from traces are named without the query of their URL (`shown_url`)."""
    return url in gold or ("://" in url and shown_url(url) in gold)


def load_rows(path: Path, warn: Callable[[str], None] = warnings.warn) -> list[Row]:
    """Read a JSONL file; fields that no row has are told to `warn`.

    Raises:
        DatasetError: the file cannot be read, or rows are malformed, fields misspelt, ids or questions there twice. File, line and field
            are named, for up to 20 problems at once.
    """
    rows: list[Row] = []
    problems: list[str] = []
    seen: dict[tuple[str, str], int] = {}
    unused: dict[str, int] = {}
    for number, line in _lines(path):
        row, wrong, unknown = _read(line)
        if row is not None:
            row = row if row.id else row.model_copy(update={"id": f"{path.stem}-{number:03d}"})
            rows.append(row)
            for field, value, key in (("id", row.id, row.id), ("question", row.question, same_question(row.question))):
                if seen.setdefault((field, key), number) != number:
                    wrong.append(f", field {field!r}: {value!r} stands already in line {seen[field, key]}")
        for name in unknown:
            unused.setdefault(name, number)
        problems += [f"{path}, line {number}{text}." for text in wrong]
    if problems:
        more = [f"… and {len(problems) - MOST_PROBLEMS} more problems."] if len(problems) > MOST_PROBLEMS else []
        raise DatasetError("\n".join([*problems[:MOST_PROBLEMS], *more]))
    if not rows:
        raise DatasetError(f"{path} holds no questions.")
    for name, number in unused.items():
        warn(f"{path}, line {number}, field {name!r}: not a field of a question, so it is not used")
    return rows


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not blank, numbered from 1."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise DatasetError(f"{path} cannot be read ({type(exc).__name__}). Give a UTF-8 JSONL file with one question per line.") from exc
    # splitlines() would also break at U+2028, which JSON may hold as it is.
    return [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _read(line: str) -> tuple[Row | None, list[str], list[str]]:
    """Return a line's row if it is one, what is wrong with it, and the fields that mean nothing here."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as exc:
        return None, [f": not JSON ({exc.msg} at column {exc.colno})"], []
    except RecursionError:
        return None, [": not JSON that can be read (nested too deeply)"], []
    row, wrong, unknown = None, [], []
    try:
        row = Row.model_validate(value)
    except ValidationError as exc:
        for error in exc.errors():
            wrong.append(f", field {'.'.join(map(str, error['loc'])) or 'row'!r}: {error['msg']}")
    for name in value if isinstance(value, dict) else ():
        if name in Row.model_fields:
            continue
        close = difflib.get_close_matches(name.lower(), Row.model_fields, n=1, cutoff=MISSPELT)
        if close and close[0] not in value:  # "question_id" beside a question is no slip
            wrong.append(f", field {name!r}: there is no such field, did you mean {close[0]!r}?")
        else:
            unknown.append(name)
    return row, wrong, unknown


def same_question(text: str) -> str:
    """Return what two spellings of one question have in common: case, white space and the marks at its end do not count."""
    plain = "".join(letter for letter in unicodedata.normalize("NFKC", text).casefold() if unicodedata.category(letter) != "Cf")
    return " ".join(plain.split()).rstrip(" ?!.") or plain


def disjoint(**splits: list[Row]) -> None:
    """Refuse splits that share a question.

    Raises:
        DatasetError: naming both splits and the question.
    """
    owner: dict[str, str] = {}
    for name, rows in splits.items():
        for row in rows:
            key = same_question(row.question)
            if owner.setdefault(key, name) != name:
                raise DatasetError(
                    f"The question {row.question!r} stands in {owner[key]} and in {name}: "
                    "a program would be measured on what it learned from."
                )


def sample(rows: list[Row], size: int) -> list[Row]:
    """Return `size` rows, the needs in turn, in file order: always the same ones."""
    pools: dict[str, list[Row]] = {}
    for row in rows:
        pools.setdefault(row.need or "", []).append(row)
    chosen: list[Row] = []
    while len(chosen) < size and any(pools.values()):
        for pool in pools.values():
            if pool and len(chosen) < size:
                chosen.append(pool.pop(0))
    return chosen


if __name__ == "__main__":
    from rich.console import Console

    from crag_dspy.cli import run_in_one_line
    from optimize.traces import cli

    run_in_one_line(cli, Console(stderr=True, highlight=False, soft_wrap=True))
