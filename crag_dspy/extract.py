"""HTML into text, title, dates and language, with trafilatura; a stranger's page only within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from itertools import islice
from typing import Any

import trafilatura
from lxml import html as lxml_html
from trafilatura.utils import decode_file

from crag_dspy.errors import SourceFailure
from crag_dspy.hidden import MIN_SEEN, drop_hidden
from crag_dspy.markup import NOT_TEXT, drop, read_back
from crag_dspy.notpages import drop_consent, refusal
from crag_dspy.pagemeta import PageMeta, json_ld, page_meta
from crag_dspy.readable import make_readable
from crag_dspy.types import Document

MAX_TITLE = 200
# The bounds of one page. Within them the worst page known takes 2 s of one core and 125 MB (tests/bench_extract.py), so
# pages are parsed in this process: a worker to be killed would cost every start a second and every page a copy.
MAX_CHARS = 3_000_000
MAX_ELEMENTS = 20_000
MAX_TEXT = 100_000
MAX_HEAD = 1_000
MAX_NAME = 5_000
"""Elements in the head, characters of one of them."""
MAX_NAMES = 150
"""Names and bare values in one tag: the parser's time grows with the square of their number."""

_TAG = re.compile(r"""<[a-zA-Z](?:[^<>"']++|"[^"]*+"|'[^']*+'|["'])*+""")
_NAME = re.compile(r""""[^"]*+"|'[^']*+'|([^\s/"'=<>]++)""")
_ASIDES = [
    "//*[contains(concat(' ', normalize-space(@class), ' '), ' mw-editsection ')]",
    "//*[self::div or self::section or self::aside or self::p or self::ul or self::nav]"
    "[contains(@class, 'newsletter') or contains(@class, 'related') or contains(@class, 'most-read') or contains(@class, 'author-box')"
    " or contains(@class, 'share') or contains(@class, 'affiliate') or contains(@class, 'subscribe')]",
]


def extract(
    html: str | bytes, *, id: str, url: str | None, retrieved_at: datetime | None = None, today: date | None = None
) -> Document | None:
    """Return a page's main text as Markdown with its metadata, or None where there is no main text.

    Args:
        html: The page.
        id: The document's id.
        url: Where the page was found; None makes it an internal document.
        retrieved_at: When it was fetched.
        today: A date after this day is not believed.

    Raises:
        SourceFailure: the page is beyond the bounds of one page (`page_too_large`).
    """
    tree, cut = _tree(html)
    if cut:
        raise SourceFailure("page_too_large", f"{url or id} has more than {MAX_ELEMENTS:,} elements or {MAX_CHARS:,} characters.")
    things = json_ld(tree)
    _show(tree)
    return _document(tree, page_meta(tree, things, url, today), id, url, retrieved_at)


def extract_page(
    html: str | bytes, *, id: str, url: str, retrieved_at: datetime | None = None, today: date | None = None
) -> tuple[Document, bool]:
    """Return the document that a page from the web holds, and whether only its beginning was read.

    Args as for `extract`.

    Raises:
        SourceFailure: the page is a challenge, a consent wall, a login or paywall, or an error page (`page_challenge`,
            `page_consent`, `page_login`, `page_error`), has no main text (`page_empty`) or cannot be parsed (`page_broken`).
    """
    try:
        tree, cut = _tree(html)
        things = json_ld(tree)
        _show(tree)
        cut = _cut_text(tree) or cut
        meta = page_meta(tree, things, url, today)
        reason = refusal(tree, meta.text, meta.paid)
        document = None if reason else _document(tree, meta, id, url, retrieved_at)
    except Exception as exc:  # the parsers raise anything on a malformed page
        raise SourceFailure("page_broken", f"{url} could not be parsed ({type(exc).__name__}).") from exc
    if reason:
        raise SourceFailure(reason, f"{url} {_REASONS[reason]}")
    if document is None:
        raise SourceFailure("page_empty", f"{url} {_REASONS['page_empty']}")
    if len(document.text) > MAX_TEXT:
        return document.model_copy(update={"text": document.text[:MAX_TEXT]}), True
    return document, cut


_REASONS = {
    "page_empty": "has no main text.",
    "page_challenge": "asks for a check that only a browser with a person before it passes.",
    "page_consent": "shows only a request for consent.",
    "page_login": "is shown in full to subscribers or members only.",
    "page_error": "is an error page.",
}


def clean_title(title: str | None, fallback: str) -> str:
    """Return a title of one line and at most 200 characters; where there is none, the address without its scheme."""
    text = " ".join((title or "").split())
    return (text or fallback.split("://", 1)[-1])[:MAX_TITLE].rstrip()


def _tree(html: str | bytes) -> tuple[Any, bool]:
    """Parse a page; return its tree, and whether what lies beyond the bounds was cut off."""
    text = decode_file(html).encode("utf-8", "replace").decode()  # a lone surrogate would end the page
    tree = trafilatura.load_html(_TAG.sub(_shorter, text[:MAX_CHARS]))
    if tree is None or tree.tag != "html":  # e.g. an <svg> around everything
        page = lxml_html.document_fromstring("<html><head></head><body></body></html>")
        page.body.extend([] if tree is None else [tree])
        tree = page
    # A character such as &#11; anywhere would cost the whole text: trafilatura cannot write it as XML, and gives up.
    for element in tree.iter():
        element.text, element.tail = _printable(element.text), _printable(element.tail)
    for element in list(tree.iter("svg", "math")):
        if any(True for _ in element.iter("p", "article", "body")):
            element.tag = "div"
        else:
            drop(element)
    for head in tree.iter("head"):
        for element in list(head)[MAX_HEAD:]:
            head.remove(element)
        for element in head.iter("title", "meta"):
            element.text = (element.text or "")[:MAX_NAME]
    cut = _cut_elements(tree)
    return tree, cut or len(text) > MAX_CHARS


def _cut_elements(tree: Any) -> bool:
    """Remove what comes after the last element that is read; return whether there was any."""
    body = next(tree.iter("body"), tree)
    return _cut_at(next(islice(body.iter("*"), MAX_ELEMENTS, None), None))


def _cut_text(tree: Any) -> bool:
    """Cut a page's text to three times what is kept of it; return whether there was more."""
    left = 3 * MAX_TEXT
    for element in next(tree.iter("body"), tree).iter("*"):
        element.text, element.tail = (element.text or "")[:left], (element.tail or "")[:left]
        left -= len(element.text) + len(element.tail)
        if left <= 0:
            following = next((after for part in [element, *element.iterancestors()] for after in part.itersiblings()), None)
            _cut_at(next(element.iterchildren("*"), following))
            return True
    return False


def _cut_at(element: Any | None) -> bool:
    """Remove an element and all that comes after it; return whether there was one."""
    if element is None:
        return False
    for ancestor in [element, *element.iterancestors()]:
        for after in list(ancestor.itersiblings()):
            after.getparent().remove(after)
    element.getparent().remove(element)
    return True


def _shorter(match: re.Match[str]) -> str:
    tag = match[0]
    if len(tag) <= MAX_NAMES:
        return tag
    ends: Iterator[int] = (name.end() for name in _NAME.finditer(tag) if name.group(1))
    return tag[: next(islice(ends, MAX_NAMES, None), len(tag))]


def _show(tree: Any) -> None:
    """Reduce a page, in place, to what a reader sees of it."""
    drop_consent(tree)
    drop_hidden(tree)


def _document(tree: Any, meta: PageMeta, id: str, url: str | None, retrieved_at: datetime | None) -> Document | None:
    make_readable(tree)
    # deduplicate stays off: with it, the same page yields None from the fourth extraction on.
    text = trafilatura.extract(tree, url=url, output_format="markdown", include_tables=True, include_comments=False, prune_xpath=_ASIDES)
    text = read_back(text or "")
    # A page that shows nothing before its scripts have run may carry its article for search engines. One that shows text is
    # taken at what it shows: what it carries beside that is seen by no reader.
    if len(text) < MIN_SEEN and len(meta.text) > 2 * len(text):
        text = re.sub(r"</?[a-zA-Z][^<>]{0,500}>", " ", meta.text).strip()
    if not text:
        return None
    return Document(
        id=id,
        title=clean_title(meta.title, url or id),
        text=text,
        source_type="web" if url else "internal",
        url=url,
        published_at=meta.published,
        modified_at=meta.modified,
        retrieved_at=retrieved_at,
        author=meta.author,
        language=meta.language,
        canonical_url=meta.canonical_url,
    )


def _printable(text: str | None) -> str | None:
    return NOT_TEXT.sub(" ", text) if text else text
