"""Extraction measured on the saved pages, beside trafilatura's defaults: `python tests/bench_extract.py [--quick | --pages]`.

Pages fall into a development half, on which rules were chosen, and a held-out half, by a hash of their names.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import trafilatura
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))
from worst_pages import WORST

from crag_dspy.errors import SourceFailure
from crag_dspy.extract import extract_page

PAGES = Path(__file__).parent / "pages"
TODAY = date(2026, 3, 2)


class Read(NamedTuple):
    """What an extractor made of a page; `text` is None where it took it for no article."""

    text: str | None
    title: str | None = None
    published: date | None = None
    refusal: str | None = None
    modified: date | None = None
    author: str | None = None
    language: str | None = None


def ours(html: bytes, url: str) -> Read:
    try:
        document, _ = extract_page(html, id=url, url=url, today=TODAY)
    except SourceFailure as exc:
        return Read(None, refusal=exc.code)
    modified, author, language = document.modified_at, document.author, document.language
    return Read(document.text, document.title, document.published_at, None, modified, author, language)


def defaults(html: bytes, url: str) -> Read:
    """Return what `trafilatura.extract(html)` and its metadata give."""
    text, meta = trafilatura.extract(html), trafilatura.extract_metadata(html)
    published = date.fromisoformat(meta.date) if meta and meta.date else None
    return Read(text, meta.title if meta else None, published, None, None, meta.author if meta else None, meta.language if meta else None)


READERS: dict[str, Callable[[bytes, str], Read]] = {"ours": ours, "trafilatura": defaults}


def half(name: str) -> str:
    return "development" if hashlib.md5(name.encode()).digest()[0] % 2 == 0 else "held out"


def bare(text: str | None) -> str:
    """Letters and digits only: marks of Markdown and spaces between cells do not count."""
    return "".join(re.findall(r"[^\W_]+", text or "")).casefold()


def kept(sentences: Iterable[str], text: str | None) -> list[bool]:
    whole = bare(text)
    return [bare(sentence) in whole for sentence in sentences]


def load() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(PAGES.glob("*.json"))}


def judge(gold: dict[str, Any], read: Read) -> dict[str, list[bool]]:
    """Return the outcomes of one page by measure; a measure that does not apply to it is empty."""
    if gold["kind"] == "refused":
        return {"refusals right": [read.text is None], "reasons right": [read.refusal == "page_" + gold["reason"]]}
    day = {key: date.fromisoformat(gold[key]) if gold.get(key) else None for key in ("published", "modified")}
    return {
        "articles read": [read.text is not None],
        "gold kept": kept(gold["gold"], read.text),
        "boilerplate kept": kept(gold["boilerplate"], read.text),
        "published right": [read.published == day["published"]],
        "modified right": [read.modified == day["modified"]] if day["modified"] else [],
        "titles right": [bare(read.title) == bare(gold["title"])],
        "authors right": [bare(read.author) == bare(gold["author"])] if gold.get("author") else [],
        "language right": [(read.language or "")[:2] == gold["language"]] if gold.get("language") else [],
    }


def measure(names: Iterable[str], reader: str) -> dict[str, list[bool]]:
    total: dict[str, list[bool]] = {}
    for name in names:
        gold = load()[name]
        for key, outcomes in judge(gold, READERS[reader]((PAGES / f"{name}.html").read_bytes(), gold["url"])).items():
            total.setdefault(key, []).extend(outcomes)
    return total


def show_quality(console: Console) -> None:
    for part in ("development", "held out"):
        names = [name for name in load() if half(name) == part]
        table = Table(title=f"{part}: {len(names)} pages")
        table.add_column("share of")
        results = {reader: measure(names, reader) for reader in READERS}
        for reader in READERS:
            table.add_column(reader, justify="right")
        for key, mine in results["ours"].items():
            if mine:
                table.add_row(f"{key} ({len(mine)})", *(f"{sum(result[key]) / len(mine):.0%}" for result in results.values()))
        console.print(table)


def show_pages(console: Console, part: str) -> None:
    """Print what is wrong, page by page."""
    for name, gold in load().items():
        if half(name) != part:
            continue
        read = ours((PAGES / f"{name}.html").read_bytes(), gold["url"])
        for key, outcomes in judge(gold, read).items():
            if key in ("gold kept", "boilerplate kept"):
                sentences = gold["gold" if key == "gold kept" else "boilerplate"]
                wrong = [s for s, right in zip(sentences, outcomes, strict=True) if right == (key == "boilerplate kept")]
            else:
                wrong = [str(read._replace(text=None))] if not all(outcomes) else []
            for line in wrong:
                console.print(f"{name}: {key}: {line}", markup=False)


def one_worst(name: str, reader: str) -> None:
    """Read one worst page in this process, and print CPU seconds, MB above what was in use before, and what came out."""
    html = WORST[name]().encode()
    READERS[reader](b"<html><body><p>A first page, so that everything is loaded before the clock starts.</p></body></html>", "x://y")
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    try:
        read = READERS[reader](html, "https://pages.example/worst")
        out = read.refusal or ("none" if read.text is None else f"{len(read.text):,} characters")
    except Exception as exc:  # the parsers raise anything; the table says what
        out = type(exc).__name__
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{len(html) / 1e6:.1f}\t{time.process_time() - start:.2f} s\t{grown / 1024:.0f} MB\t{out}")


def show_cost(console: Console, limit: float = 60) -> None:
    """Print CPU seconds and memory of the worst pages, each in a process of its own that is ended after `limit` seconds."""
    for reader, read in READERS.items():
        pages = [((PAGES / f"{name}.html").read_bytes(), gold["url"]) for name, gold in load().items()]
        times = []
        for html, url in pages:
            start = time.process_time()
            read(html, url)
            times.append(time.process_time() - start)
        console.print(f"{reader}: saved pages {1000 * sum(times) / len(times):.0f} ms each, at most {1000 * max(times):.0f} ms")
    table = Table("worst pages", "MB", *(f"{reader}, {what}" for reader in READERS for what in ("s", "MB", "result")))
    for name in WORST:
        cells: list[str] = []
        size = ""
        for reader in READERS:
            try:
                command = [sys.executable, __file__, "--one", name, reader]
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
                size, *rest = done.stdout.strip().split("\t") if done.returncode == 0 else [size, "", "", f"died ({done.returncode})"]
            except subprocess.TimeoutExpired:
                rest = [f"> {limit:g} s", "", "ended"]
            cells += rest
        table.add_row(name, size, *cells)
    console.print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one_worst(*sys.argv[2:4])
    elif sys.argv[1:2] == ["--pages"]:
        show_pages(Console(width=200, highlight=False), " ".join(sys.argv[2:]) or "development")
    else:
        show_quality(Console())
        if "--quick" not in sys.argv:
            show_cost(Console(width=160))
