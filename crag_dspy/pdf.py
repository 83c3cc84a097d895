"""PDF into text, title and dates, with pypdf."""

from __future__ import annotations

import io
import re
import time
from contextlib import suppress
from datetime import date, datetime
from typing import Any

from pypdf import PdfReader

from crag_dspy.errors import SourceFailure
from crag_dspy.extract import MAX_TEXT, clean_title
from crag_dspy.types import Document

MAX_PAGES = 200
MAX_SECONDS = 5.0
MAX_CONTENT = 2_000_000
"""Bytes of one page's instructions after decompression; a page with more is a drawing, and has no text."""

_NO_TITLE = re.compile(r"microsoft (?:word|powerpoint|excel)\b.*|untitled.*|(?:document|presentation|slide)\s*\d*|[^ ]*\.\w{2,5}", re.I)


def extract_pdf(
    body: bytes, *, id: str, url: str | None, retrieved_at: datetime | None = None, today: date | None = None
) -> Document | None:
    """Return the text of a PDF with its metadata, or None where it has no text, e.g. a scan.

    Of a PDF from the web only the beginning is read, at most 200 pages, 100,000 characters and what 5 seconds allow; a
    file of one's own is read whole.

    Args:
        body: The file.
        id: The document's id.
        url: Where it was found; None makes it an internal document.
        retrieved_at: When it was fetched.
        today: A date after this day is not believed.

    Raises:
        SourceFailure: it is locked with a password or broken (`page_broken`).
    """
    try:
        pdf = PdfReader(io.BytesIO(body))
        if pdf.is_encrypted and not pdf.decrypt(""):
            raise SourceFailure("page_broken", f"{url or id} is locked with a password.")
        text = _text(pdf, bounded=url is not None)
        info: Any = pdf.metadata or {}
        language = str(pdf.root_object.get("/Lang") or "")
    except SourceFailure:
        raise
    except Exception as exc:  # pypdf raises anything on a broken file
        raise SourceFailure("page_broken", f"{url or id} cannot be read as PDF ({type(exc).__name__}).") from exc
    if not text:
        return None
    title = str(info.get("/Title") or "").strip()
    published, modified = _dates(info, today)
    return Document(
        id=id,
        title=clean_title(title if title and not _NO_TITLE.fullmatch(title) else _first_line(text), url or id),
        text=text,
        source_type="web" if url else "internal",
        url=url,
        published_at=published,
        modified_at=modified,
        retrieved_at=retrieved_at,
        author=" ".join(str(info.get("/Author") or "").split())[:200] or None,
        language=match[0].lower() if (match := re.match(r"[A-Za-z]{2}(?![A-Za-z])", language)) else None,
    )


class _TimeUp(Exception):
    pass


def _text(pdf: PdfReader, *, bounded: bool) -> str:
    """Return the pages' text; a line that goes on in the next one is joined with it."""
    end = time.monotonic() + MAX_SECONDS

    def check(*_: object) -> None:  # called at every instruction of a page
        if bounded and time.monotonic() > end:
            raise _TimeUp

    pages: list[str] = []
    with suppress(_TimeUp):
        for number, page in enumerate(pdf.pages):
            check()
            if bounded and (number >= MAX_PAGES or sum(map(len, pages)) > MAX_TEXT):
                break
            content = page.get_contents()
            if content is not None and not (bounded and len(content.get_data()) > MAX_CONTENT):
                pages.append(page.extract_text(visitor_operand_before=check))
    text = "\n\n".join(page.strip() for page in pages if page.strip()).encode("utf-8", "replace").decode()
    text = re.sub(r"(?<=[^\W\d_A-Z]|,)[ \t]*\n(?=[^\W\d_A-Z])", " ", re.sub("[\x00-\x08\x0b\x0e-\x1f\ufffe\uffff]", "", text))
    return text[:MAX_TEXT].strip() if bounded else text.strip()


def _dates(info: Any, today: date | None) -> tuple[date | None, date | None]:
    """Return the day it was made and, only if later, the day it was last changed."""
    days: list[date | None] = []
    for name in ("creation_date", "modification_date"):
        try:
            day = made.date() if (made := getattr(info, name, None)) else None
        except (ValueError, TypeError, OverflowError):  # not in the form of the standard
            day = None
        days.append(day if day and date(1990, 1, 1) <= day <= (today or date.today()) else None)
    first, last = days[0] or days[1], days[1]
    return first, last if first and last and last > first else None


def _first_line(text: str) -> str | None:
    line = text.split("\n", 1)[0].strip()
    return line if len(line) <= 120 else None
