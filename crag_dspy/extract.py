"""HTML into text, title and date, with trafilatura."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any

import trafilatura

from crag_dspy.types import Document

MAX_TITLE = 200
_UNSEEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden|(?:font-size|opacity)\s*:\s*0(?:\.0+)?[a-z%]*\s*(?:[;!]|$)", re.I)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def extract(
    html: str | bytes, *, id: str, url: str | None, retrieved_at: datetime | None = None, today: date | None = None
) -> Document | None:
    """Return a page's main text as Markdown with its title and publication date, or None where there is no main text.

    Args:
        html: The page.
        id: The document's id.
        url: Where the page was found; None makes it an internal document.
        retrieved_at: When it was fetched.
        today: A publication date after this day is not believed.
    """
    tree = trafilatura.load_html(html)
    if tree is None:
        return None
    # Hidden text is a favourite place for orders to LMs. Trafilatura drops some of it, and from short pages none.
    for element in [element for element in tree.iter("*") if _hidden(element)]:
        element.drop_tree()
    # A character such as &#11; anywhere would cost the whole text: trafilatura cannot write it as XML, and gives up.
    for element in tree.iter():
        element.text, element.tail = _printable(element.text), _printable(element.tail)
    # deduplicate stays off: with it, the same page yields None from the fourth extraction on.
    text = (trafilatura.extract(tree, url=url, output_format="markdown", include_tables=True, include_comments=False) or "").strip()
    if not text:
        return None
    meta = trafilatura.extract_metadata(tree, default_url=url)
    published = date.fromisoformat(meta.date[:10]) if meta and meta.date else None
    if published and today and published > today:
        published = None
    return Document(
        id=id,
        title=clean_title(meta.title if meta else None, url or id),
        text=text,
        source_type="web" if url else "internal",
        url=url,
        published_at=published,
        retrieved_at=retrieved_at,
    )


def clean_title(title: str | None, fallback: str) -> str:
    """Return a title of one line and at most 200 characters; where there is none, the address without its scheme."""
    text = " ".join((title or "").split())
    return (text or fallback.split("://", 1)[-1])[:MAX_TITLE].rstrip()


def _hidden(element: Any) -> bool:
    """Whether the element itself says that no reader sees it; a page that hides all until its scripts have run is left alone."""
    if element.getparent() is None or element.tag == "body":
        return False
    return element.get("hidden") is not None or element.get("aria-hidden") == "true" or bool(_UNSEEN.search(element.get("style", "")))


def _printable(text: str | None) -> str | None:
    return _CONTROL.sub(" ", text) if text else text
