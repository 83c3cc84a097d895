"""HTML into text, title and date, with trafilatura."""

from __future__ import annotations

from datetime import date, datetime

import trafilatura

from crag_dspy.types import Document

MAX_TITLE = 200


def extract(html: str | bytes, *, id: str, url: str | None, retrieved_at: datetime | None = None, today: date | None = None) -> Document | None:
    """Return a page's main text as Markdown with its title and publication date, or None where there is no main text.

    Args:
        html: The page.
        id: The document's id.
        url: Where the page was found; None makes it an internal document.
        retrieved_at: When it was fetched.
        today: A publication date after this day is not believed.
    """
    # deduplicate stays off: with it, the same page yields None from the fourth extraction on.
    found = trafilatura.bare_extraction(html, url=url, output_format="markdown", include_tables=True, include_comments=False, with_metadata=True)
    if found is None:
        return None
    page = found if isinstance(found, dict) else found.as_dict()
    text = (page.get("text") or "").strip()
    if not text:
        return None
    published = date.fromisoformat(page["date"][:10]) if page.get("date") else None
    if published and today and published > today:
        published = None
    return Document(
        id=id,
        title=clean_title(page.get("title"), url or id),
        text=text,
        source_type="web" if url else "internal",
        url=url,
        published_at=published,
        retrieved_at=retrieved_at,
    )


def clean_title(title: str | None, fallback: str) -> str:
    """Return a title of one line and at most 200 characters; where there is none, the address without its scheme."""
    text = " ".join((title or "").split())
    return (text or fallback.split("://", 1)[-1])[:MAX_TITLE]
