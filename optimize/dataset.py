"""Questions with answers: rows of a JSONL file, checked field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from crag_dspy.errors import DatasetError
from crag_dspy.types import Action, Frozen, Kind

Need = Literal["internal", "web", "both", "none"]

ACTION_OF: dict[str, Action] = {"internal": "correct", "both": "ambiguous", "web": "incorrect", "none": "incorrect"}


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
        return source in self.gold_urls or any(source == name or source.endswith(f"/{name}") for name in self.gold_docs)

    @property
    def answerable(self) -> bool:
        """Whether there is an answer at all."""
        return bool(self.answer.strip())


def load_rows(path: Path) -> list[Row]:
    """Read a JSONL file.

    Raises:
        DatasetError: the file cannot be read, a row is malformed (file, line and field are named), an id or question occurs twice.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines() also breaks at U+2028, which JSON may hold as it is
    except (OSError, UnicodeDecodeError) as exc:
        raise DatasetError(f"{path} cannot be read ({type(exc).__name__}). Give a UTF-8 JSONL file with one question per line.") from exc
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = Row.model_validate(json.loads(line))
        except json.JSONDecodeError as exc:
            raise DatasetError(f"{path}, line {number}: not JSON ({exc.msg} at column {exc.colno}).") from exc
        except ValidationError as exc:
            first = exc.errors()[0]
            field = ".".join(map(str, first["loc"])) or "row"
            raise DatasetError(f"{path}, line {number}, field {field!r}: {first['msg']}.") from exc
        row = row if row.id else row.model_copy(update={"id": f"{path.stem}-{number:03d}"})
        for key in (f"id {row.id!r}", f"question {' '.join(row.question.lower().split())!r}"):
            if key in seen:
                raise DatasetError(f"{path}, line {number}: the {key} stands already in line {seen[key]}.")
            seen[key] = number
        rows.append(row)
    if not rows:
        raise DatasetError(f"{path} holds no questions.")
    return rows


def disjoint(**splits: list[Row]) -> None:
    """Refuse splits that share a question.

    Raises:
        DatasetError: naming both splits and the question.
    """
    owner: dict[str, str] = {}
    for name, rows in splits.items():
        for row in rows:
            key = " ".join(row.question.lower().split())
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
