"""Checks the data with the project's own readers: `python data/check.py` prints one line per problem and exits with 1 if there is any."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple, get_args

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # the project need not be installed

from crag_dspy.errors import DatasetError, IngestError
from crag_dspy.extract import extract
from crag_dspy.index import in_context
from crag_dspy.ingest import read
from crag_dspy.sandbox import SUFFIX
from crag_dspy.split import split
from crag_dspy.types import Document, Kind
from optimize.dataset import Need, Row, disjoint, load_rows
from optimize.metrics import holds

TODAY = date(2026, 3, 2)
SPLITS = ("train", "dev", "test")
SUBTYPES: dict[Need, tuple[str, ...]] = {
    "internal": ("plain",),
    "web": ("plain", "syndicated", "contradicted", "hostile-near"),
    "both": ("stale", "compound"),
    "none": ("plain",),
}
GOLD: dict[Need, tuple[bool, bool]] = {"internal": (True, False), "web": (False, True), "both": (True, True), "none": (False, False)}
"""Whether a need has gold documents, and gold pages."""
AGES: dict[Kind, tuple[date, date]] = {
    "pricing": (date(2026, 1, 10), date(2025, 10, 20)),
    "technical": (date(2025, 10, 15), date(2025, 5, 1)),
    "factual": (date(2025, 6, 1), date(2024, 10, 1)),
    "general": (date(2025, 6, 1), date(2024, 10, 1)),
}
"""A gold source is fresh from the first day on and stale up to the second; no question hangs on one in between."""
WINDOW = 3  # consecutive sentences that may hold an answer together

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_BULLET = re.compile(r"^\s*(?:[-+*•]|\d+[.)])\s+", re.M)
_MARKUP = re.compile(r"[*_`#\\]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n")


class World(NamedTuple):
    """All sources by name: a document's file name or a page's URL."""

    documents: dict[str, Document]
    texts: dict[str, str]
    """Without markup."""
    stretches: list[tuple[str, str]]
    """(name, lower-case text) of every three consecutive sentences, and of every passage under its title and section."""


def problems(folder: Path = HERE) -> list[str]:
    """Return what is wrong with a data folder: one line per problem, each naming its file or row."""
    try:
        splits = {name: load_rows(folder / f"{name}.jsonl") for name in SPLITS}
        disjoint(**splits)
    except DatasetError as exc:
        return [str(exc)]
    sources = list(_read(folder))
    documents = {name: document for name, document in sources if isinstance(document, Document)}
    found = [f"{name}: {reason}" for name, reason in sources if isinstance(reason, str)]
    found += [f"{name}: dated after {TODAY}" for name, d in documents.items() if d.published_at and d.published_at > TODAY]
    found += _check_splits(splits)
    world = World(documents, {name: _plain(d.text) for name, d in documents.items()}, list(_stretches(documents)))
    return found + [f"{row.id}: {problem}" for rows in splits.values() for row in rows for problem in _check_row(row, world)]


def _read(folder: Path) -> Iterator[tuple[str, Document | str]]:
    """Yield every source by name, or why it is none."""
    for path in _files(folder / "corpus"):
        name = path.relative_to(folder / "corpus").as_posix()
        try:
            yield name, read(path, id=name)
        except IngestError as exc:
            yield name, str(exc)
    for path in _files(folder / "web"):
        host, url = path.parent.name, f"http://{path.parent.name}/{path.stem}"
        if path.suffix == ".html" and path.parent.parent == folder / "web" and host.endswith(f".{SUFFIX}"):
            yield url, extract(path.read_bytes(), id=url, url=url) or "has no main text"
        else:
            yield path.relative_to(folder).as_posix(), f"is no web/<host>.{SUFFIX}/<page>.html"


def _check_splits(splits: dict[str, list[Row]]) -> Iterator[str]:
    for name, rows in splits.items():
        needs = Counter(row.need for row in rows)
        if len({needs[need] for need in SUBTYPES}) > 1:
            yield f"{name}: the needs are not balanced ({', '.join(f'{need} {needs[need]}' for need in SUBTYPES)})"
        for kind in get_args(Kind):
            if all(row.kind != kind for row in rows):
                yield f"{name}: has no question of kind {kind!r}"
    for id, times in Counter(row.id for rows in splits.values() for row in rows).items():
        if times > 1:
            yield f"{id}: the id stands in {times} splits"
    trained, tested = ({gold for row in splits[name] for gold in (*row.gold_docs, *row.gold_urls)} for name in ("train", "test"))
    yield from (f"{gold}: is a gold source in train and in test" for gold in sorted(trained & tested))


def _check_row(row: Row, world: World) -> Iterator[str]:
    if row.need is None or row.kind is None or row.subtype not in SUBTYPES[row.need]:
        yield f"need {row.need!r}, subtype {row.subtype!r} and kind {row.kind!r} do not go together"
        return
    missing = [name for name in (*row.gold_docs, *row.gold_urls) if name not in world.documents]
    yield from (f"there is no gold source {name}" for name in missing)
    if (bool(row.gold_docs), bool(row.gold_urls)) != GOLD[row.need]:
        yield f"the gold sources do not fit the need {row.need!r}"
    elif row.need == "none":
        yield from _check_unanswerable(row, world)
    elif not missing:
        yield from _check_facts(row)
        yield from _check_support(row, world)
        yield from _check_age(row, row.kind, world)


def _check_facts(row: Row) -> Iterator[str]:
    if len(row.aliases) < (2 if row.subtype == "compound" else 1):
        yield "names too few facts in `aliases`"
    for fact in row.aliases:
        if not holds(" ".join(row.support), fact):
            yield f"no spelling of {fact[0]!r} stands in the support"
        if not holds(row.answer, fact):
            yield f"no spelling of {fact[0]!r} stands in the answer"


def _check_support(row: Row, world: World) -> Iterator[str]:
    sentences = {sentence: {name for name, text in world.texts.items() if _plain(sentence) in text} for sentence in row.support}
    gold = {*row.gold_docs, *row.gold_urls}
    for sentence, names in sentences.items():
        if not names & gold:
            yield f"stands in no gold source: {sentence!r}"
        yield from (f"stands also in {name}, which is not gold: {sentence!r}" for name in sorted(names - gold))
    yield from (f"the gold source {name} holds no support sentence" for name in sorted(gold - set().union(*sentences.values())))


def _check_age(row: Row, kind: Kind, world: World) -> Iterator[str]:
    fresh, stale = AGES[kind]
    published = {name: world.documents[name].published_at for name in (*row.gold_docs, *row.gold_urls)}
    pages = [day for name in row.gold_urls if (day := published[name])]
    if row.subtype == "stale" and len(pages) < len(row.gold_urls):
        yield "a page that supersedes a document has no date"
    for name, day in published.items():
        if name in row.gold_docs and row.subtype == "stale":
            if not day or day > stale or any(day >= page for page in pages):
                yield f"{name} is dated {day}: not old enough for a stale {kind} question"
        elif day < fresh if day else name in row.gold_docs:  # a page may be undated
            yield f"{name} is dated {day}: not fresh for a {kind} question"


def _check_unanswerable(row: Row, world: World) -> Iterator[str]:
    if row.aliases or row.support or not row.absent:
        yield "need 'none' takes `absent`, no `aliases` and no `support`"
    for group in row.absent:
        # Every stretch of every source, so also whatever any search for the question may bring.
        hits = world.stretches
        for stem in group:
            hits = [(name, text) for name, text in hits if stem.lower() in text]
        for name in sorted({name for name, _ in hits}):
            yield f"{name} holds {' + '.join(map(repr, group))} close together and may answer the question"


def _stretches(documents: dict[str, Document]) -> Iterator[tuple[str, str]]:
    for name, document in documents.items():
        sentences = [_plain(part) for part in _SENTENCE_END.split(document.text)]
        for i in range(max(1, len(sentences) - WINDOW + 1)):
            yield name, " ".join(sentences[i : i + WINDOW]).lower()
        yield from ((name, _plain(in_context(passage)).lower()) for passage in split(document))


def _plain(text: str) -> str:
    """Return the text without Markdown markup, in one line."""
    return " ".join(_MARKUP.sub("", _BULLET.sub("", _LINK.sub(r"\1", text))).replace("|", " ").split())


def _files(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


if __name__ == "__main__":
    found = problems()
    print("\n".join(found) or "The data are sound.")
    sys.exit(1 if found else 0)
