"""Search results into passages: fetch, extract, split; a page that fails leaves its snippet, typed as such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from email.message import Message

from crag_dspy.addresses import check
from crag_dspy.domains import Domains, canonical_url, shown_url
from crag_dspy.errors import SourceFailure
from crag_dspy.extract import MAX_TEXT, clean_title, extract_page
from crag_dspy.fetch import Fetcher, Page
from crag_dspy.hostile import gives_orders
from crag_dspy.pdf import extract_pdf
from crag_dspy.search import Result
from crag_dspy.split import split
from crag_dspy.types import Document, Passage
from crag_dspy.weather import until


def read_pages(
    results: Sequence[Result],
    fetch: Callable[[str], Page],
    as_of: date,
    workers: int,
    *,
    domains: Domains | None = None,
    deadline: float | None = None,
) -> tuple[list[Passage], list[SourceFailure], int]:
    """Return the passages of all results, what failed, and how many pages were read.

    Args:
        results: What the search found.
        fetch: Fetches one page.
        as_of: The day of the question: no page's date lies behind it.
        workers: Pages under way at once.
        domains: Sites that may be used, instead of the fetcher's own lists.
        deadline: On the monotonic clock. What has arrived by then is used; of the rest, the snippets.
    """
    if isinstance(fetch, Fetcher):
        fetch = fetch.limited_to(domains) if domains else fetch
        domains = fetch.domains
    permitted = domains or Domains()
    read = until(lambda result: _read(result, fetch, as_of, permitted), results, workers, deadline)
    documents: dict[str | None, Document] = {}
    failures = []
    for result, outcome in zip(results, read, strict=True):
        document, failure = outcome or _late(result, as_of, permitted)
        failures += [failure] if failure else []
        if document and (document.url not in documents or documents[document.url].snippet):  # a snippet never replaces its page
            documents[document.url] = document
    pages = sum(not document.snippet for document in documents.values())
    return [passage for document in documents.values() for passage in split(document)], failures, pages


def _read(result: Result, fetch: Callable[[str], Page], as_of: date, domains: Domains) -> tuple[Document | None, SourceFailure | None]:
    now, shown = datetime.now(UTC), shown_url(result.url)
    try:
        if result.text:  # read by the search engine: the address is checked as if it were fetched
            check(result.url, domains)
            page = Page(result.url, result.text.encode("utf-8", "replace"), "text/plain; charset=utf-8")
        else:
            page = fetch(result.url)
            if not domains.permits_url(page.url):
                raise SourceFailure("blocked_domain", f"{shown} led to a site that the lists of domains do not permit.")
    except SourceFailure as exc:
        return None if exc.code.startswith("blocked_") else _snippet(result, now, as_of), exc
    try:
        document, cut = _document(page, page.retrieved_at or now, as_of)
    except SourceFailure as exc:  # its message names the page with its query
        return _snippet(result, now, as_of), SourceFailure(exc.code, str(exc).replace(canonical_url(page.url), shown_url(page.url)))
    except Exception as exc:  # the parsers raise anything on a malformed page; the others go on
        return _snippet(result, now, as_of), SourceFailure("page_broken", f"{shown} could not be parsed ({type(exc).__name__}).")
    if gives_orders(f"{document.title}\n\n{document.text}"):
        return None, SourceFailure("page_gives_orders", f"{shown} carries orders to language models and was not used.")
    if result.text:
        document = document.model_copy(update={"title": result.title, "published_at": _past(result.published_at, as_of)})
    if cut:
        return document, SourceFailure("page_cut", f"{shown} is very long: only its beginning was read.")
    return document, page.note


def _late(result: Result, as_of: date, domains: Domains) -> tuple[Document | None, SourceFailure]:
    try:
        check(result.url, domains)
    except SourceFailure as exc:
        return None, exc
    late = SourceFailure("page_timeout", f"{shown_url(result.url)} had not arrived when the time for the web was up.")
    return _snippet(result, datetime.now(UTC), as_of), late


def _document(page: Page, now: datetime, as_of: date) -> tuple[Document, bool]:
    """Return a page's document and whether only its beginning was read; a page without text is a `SourceFailure`."""
    url, kind = canonical_url(page.url), page.content_type.lower()
    if kind.startswith("application/pdf"):
        if found := extract_pdf(page.body, id=url, url=url, retrieved_at=now, today=as_of):
            return found, len(found.text) >= MAX_TEXT
        raise SourceFailure("page_empty", f"{url} has no text.")
    if kind.startswith("text/plain"):
        text = _decoded(page)
        plain = (text.decode("utf-8", "replace") if isinstance(text, bytes) else text).strip()
        if not plain:
            raise SourceFailure("page_empty", f"{url} has no text.")
        title = clean_title(None, url)
        document = Document(id=url, title=title, text=plain[:MAX_TEXT], source_type="web", url=url, retrieved_at=now)
        return document, len(plain) > MAX_TEXT
    return extract_page(_decoded(page), id=url, url=url, retrieved_at=now, today=as_of)


def _decoded(page: Page) -> str | bytes:
    """Return the page as text if it is UTF-8 or the server names its charset, else the bytes: the page itself may name one."""
    with suppress(UnicodeDecodeError):
        return page.body.decode("utf-8-sig")
    header = Message()
    header["Content-Type"] = page.content_type
    charset = header.get_content_charset()
    if charset is None:
        return page.body
    with suppress(LookupError):
        # As browsers read it: Latin-1 is what Windows' superset of it is mislabelled as.
        return page.body.decode("cp1252" if charset in ("iso-8859-1", "us-ascii") else charset, "replace")
    return page.body


def _snippet(result: Result, now: datetime, as_of: date) -> Document | None:
    """Return the search engine's excerpt, typed as such, or None where it gave none that can be used."""
    if not result.snippet or gives_orders(f"{result.title}\n{result.snippet}"):
        return None
    url = canonical_url(result.url)
    return Document(
        id=url,
        title=result.title,
        text=result.snippet,
        source_type="web",
        url=url,
        published_at=_past(result.published_at, as_of),
        retrieved_at=now,
        snippet=True,
    )


def _past(day: date | None, as_of: date) -> date | None:
    return day if day and day <= as_of else None
