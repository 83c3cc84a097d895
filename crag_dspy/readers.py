"""One file into a document, by its type."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path

import frontmatter

from crag_dspy.errors import IngestError
from crag_dspy.extract import clean_title, extract
from crag_dspy.split import headings, storable
from crag_dspy.types import Document


class NoText(IngestError):
    """A file that was read, and says nothing."""


def read(path: Path, *, id: str) -> Document:
    """Read one file.

    Raises:
        IngestError: unsupported type, or unreadable.
        NoText: there is no text in it.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise IngestError(f"unsupported type {path.suffix or '(none)'!r}")
    try:
        document = reader(path, id)
    except IngestError:
        raise
    except Exception as exc:  # the readers' libraries raise anything on a broken file; one file must not end the rest
        raise IngestError(f"cannot be read as {path.suffix.lower()} ({type(exc).__name__})") from exc
    if not document.text.strip():
        raise NoText("has no text")
    return storable(document)


def _markdown(path: Path, id: str) -> Document:
    whole = _decode(path)
    meta, content = frontmatter.parse(whole)
    if not meta:  # text between two rules at the top is no front matter
        content = whole
    title = meta.get("title") or next((heading.title for heading in headings(content) if heading.level == 1), None)
    return Document(
        id=id,
        title=clean_title(_text(title), path.stem),
        text=content,
        published_at=_day(meta.get("published") or meta.get("date")),
    )


_HEADER = re.compile(r"(Title|Published|Date):[ \t]*(.*)", re.I)


def _plain(path: Path, id: str) -> Document:
    """Read plain text; `Title:` and `Published:` lines at the top are taken as such."""
    lines = _decode(path).splitlines(keepends=True)
    header: dict[str, str] = {}
    while lines and (match := _HEADER.fullmatch(lines[0].strip())):
        header[match.group(1).lower()] = match.group(2)
        lines.pop(0)
    text = "".join(lines).lstrip("\n")
    return Document(
        id=id,
        title=clean_title(header.get("title"), path.stem),
        text=text,
        published_at=_day(header.get("published") or header.get("date")),
    )


def _html(path: Path, id: str) -> Document:
    document = extract(path.read_bytes(), id=id, url=None)
    if document is None:
        raise NoText("has no main text")
    return document


def _pdf(path: Path, id: str) -> Document:
    from pypdf import PdfReader

    pdf = PdfReader(path)
    meta = pdf.metadata
    text = "\n\n".join(page.extract_text() for page in pdf.pages)
    try:
        made = (meta.modification_date or meta.creation_date) if meta else None
    except ValueError:  # not in the form of the standard
        made = None
    return Document(
        id=id,
        title=clean_title(meta.title if meta else None, path.stem),
        text=text,
        published_at=made.date() if made else None,
    )


def _docx(path: Path, id: str) -> Document:
    import docx
    from docx.table import Table

    word = docx.Document(str(path))
    blocks = []
    for block in word.iter_inner_content():
        if isinstance(block, Table):
            blocks.append("\n".join("| " + " | ".join(" ".join(cell.text.split()) for cell in row.cells) + " |" for row in block.rows))
        elif block.text.strip():
            style = (block.style.name or "") if block.style else ""
            level = re.fullmatch(r"Heading ([1-6])", style)
            marker = "#" * int(level.group(1)) + " " if level else "- " if style.startswith("List") else ""
            blocks.append(marker + block.text.strip())
    made = word.core_properties.modified or word.core_properties.created
    return Document(
        id=id,
        title=clean_title(word.core_properties.title, path.stem),
        text="\n\n".join(blocks),
        published_at=made.date() if made else None,
    )


READERS: dict[str, Callable[[Path, str], Document]] = {
    ".md": _markdown,
    ".markdown": _markdown,
    ".txt": _plain,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
}


def _decode(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as exc:
        raise IngestError("is not UTF-8 text") from exc
    except OSError as exc:
        raise IngestError(f"cannot be opened ({exc.strerror})") from exc


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _day(value: object) -> date | None:
    if isinstance(value, datetime):
        return value.date()
    if isinstance(value, date):
        return value
    try:
        return date.fromisoformat(str(value)[:10]) if value else None
    except ValueError:
        return None
