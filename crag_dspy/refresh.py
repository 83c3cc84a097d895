"""Pages of the index fetched again: what changed is indexed anew, what is gone goes, and what cannot be had stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import NamedTuple

from crag_dspy.domains import shown_url
from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Page
from crag_dspy.index import Index
from crag_dspy.search import Result
from crag_dspy.types import Document, Passage
from crag_dspy.weather import WebFailure, until
from crag_dspy.web import read_pages

GONE = frozenset({404, 410})
AT_ONCE = 16  # pages read before they are stored: what is held in memory, and what a kill loses


class Failed(NamedTuple):
    """A page that could not be had, and why. Its passages are still in the index."""

    url: str
    """Without its query, which may hold secrets."""
    code: str
    reason: str


class RefreshReport(NamedTuple):
    """What became of the pages."""

    unchanged: int
    changed: int
    gone: int
    failed: list[Failed]


def refresh(
    pages: Sequence[str],
    index: Index,
    fetch: Callable[[str], Page],
    as_of: date,
    *,
    workers: int = 4,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> RefreshReport:
    """Bring pages of the index up to date with the web.

    Unchanged is a page whose passages are the same, whatever its server says: it costs no embedding, and has been retrieved now. A page
    that leads to another address is stored under that. A page is replaced in one step: see `Index.upsert`.

    Args:
        pages: Their addresses, by which the index knows them.
        index: Where their passages are.
        fetch: Fetches one page, without using a kept one unasked: a `Fetcher` whose cache has nothing fresh.
        as_of: Today: no page's date lies behind it.
        workers: Pages under way at once.
        progress: Called with (pages done, pages in all).

    Raises:
        ChromaError, httpx.HTTPError, OSError, IndexUnusable: the index cannot be written.
    """
    wanted = list(dict.fromkeys(pages))
    outcomes: list[str] = []
    failed: list[Failed] = []
    for begin in range(0, len(wanted), AT_ONCE):
        some = wanted[begin : begin + AT_ONCE]
        progress(begin, len(wanted))
        for url, found in zip(some, until(partial(_read, fetch=fetch, as_of=as_of), some, workers, None), strict=True):
            if isinstance(found, WebFailure) and found.status in GONE:
                index.delete(url)
                outcomes.append("gone")
            elif isinstance(found, SourceFailure):
                failed.append(Failed(shown_url(url), found.code, str(found)))
            elif found:
                outcomes.append("changed" if _replace(index, url, found) else "unchanged")
    progress(len(wanted), len(wanted))
    return RefreshReport(outcomes.count("unchanged"), outcomes.count("changed"), outcomes.count("gone"), failed)


def _read(url: str, fetch: Callable[[str], Page], as_of: date) -> list[Passage] | SourceFailure:
    """Return a page's passages, at least one, or why there are none."""
    passages, failures, _ = read_pages([Result(url=url, title=url)], fetch, as_of, workers=1)
    if passages:
        return passages  # a failure beside them, e.g. `page_cut`, did not cost the page
    return failures[0] if failures else SourceFailure("page_empty", f"{shown_url(url)} has no text.")


def _replace(index: Index, url: str, passages: Sequence[Passage]) -> bool:
    """Store a page's passages instead of those it had; return whether they differ."""
    page = passages[0].document_id
    change = index.upsert(Document(id=page, title=passages[0].title, text="", source_type="web", url=page), passages)
    if page != url:  # stored first, so that a reader finds one of them at any time
        index.delete(url)
    return bool(change.added or change.removed or page != url)
