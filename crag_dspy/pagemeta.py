"""What a page says of itself: title, author, dates, language, address; believed only as far as it can be true."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import htmldate
import tldextract
import trafilatura

MAX_JSON = 500_000
MAX_THINGS = 500
MAX_META = 500

# From the Public Suffix List that the library carries; nothing is downloaded.
_suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)
Thing = dict[str, Any]
_WRITTEN = re.compile(
    r"Article|Posting|Report|Recipe|Review|Question|Product|Dataset|WebPage|Video|Course|HowTo|CreativeWork|SoftwareApplication"
)
_PUBLISHED = frozenset(
    "article:published_time article:published og:published_time datepublished publishdate publish-date publication_date pubdate date "
    "dc.date dc.date.issued dc.date.created dcterms.issued dcterms.created citation_publication_date parsely-pub-date sailthru.date "
    "govuk:first-published-at".split()
)
_MODIFIED = frozenset(
    "article:modified_time og:updated_time datemodified last-modified lastmod dcterms.modified dc.date.modified "
    "govuk:public-updated-at".split()
)
_LANGUAGE = frozenset("content-language og:locale language dc.language".split())
_NUMERIC = re.compile(r"(\d{1,2})/(\d{1,2})/(\d{4})")


class PageMeta(NamedTuple):
    """What is known of a page."""

    title: str | None
    author: str | None
    published: date | None
    modified: date | None
    """Only where it is later than `published`."""
    language: str | None
    """ISO 639-1."""
    canonical_url: str | None
    text: str
    """The article, where the page carries it for machines (JSON-LD `articleBody`)."""
    paid: bool
    """Whether the page says that it may be read by subscribers only."""


def page_meta(tree: Any, things: list[Thing], url: str | None, today: date | None) -> PageMeta:
    """Read a page's metadata; dates after `today` are not believed, nor an address on another registrable domain.

    Args:
        tree: The page without its scripts.
        things: What `json_ld` read from them.
        url: Where the page was found.
        today: None stands for the clock's day.
    """
    meta = trafilatura.extract_metadata(tree, default_url=url, date_config={"original_date": True, "extensive_search": False})
    named = [
        ({element.get(key, "").strip().lower() for key in ("name", "property", "itemprop", "http-equiv")}, element.get("content", ""))
        for element in islice(tree.iter("meta"), MAX_META)
    ]
    languages = [tree.get("lang"), tree.get("xml:lang"), *(content for keys, content in named if keys & _LANGUAGE)]
    languages += [thing.get("inLanguage") for thing in things]
    american = bool(re.match("en[-_]us", str(next(filter(None, languages), "")), re.I))
    published, modified = _dates(tree, things, named, today or date.today(), american)
    return PageMeta(
        title=re.sub(r"\s*[¶#🔗]\s*$", "", meta.title or "") if meta else None,
        author=_author(things) or ((meta.author or None) if meta else None),
        published=published,
        modified=modified,
        language=next((match[1].lower() for name in languages if (match := re.match(r"([A-Za-z]{2})(?![A-Za-z])", str(name)))), None),
        canonical_url=_canonical(tree, [content for keys, content in named if "og:url" in keys], url),
        text=max((text for thing in things if isinstance(text := thing.get("articleBody"), str)), key=len, default=""),
        paid=any(str(thing.get("isAccessibleForFree")).lower() == "false" for thing in things),
    )


def json_ld(tree: Any) -> list[Thing]:
    """Return the objects of a page's JSON-LD, outer ones first; broken JSON is skipped."""
    return list(islice(_objects(tree), MAX_THINGS))


def _objects(tree: Any) -> Iterator[Thing]:
    for script in tree.iter("script"):
        todo: list[Any] = []
        if "ld+json" in script.get("type", "").lower():
            with suppress(ValueError, RecursionError):
                todo.append(json.loads((script.text or "")[:MAX_JSON], strict=False))
        while todo:
            value = todo.pop(0)
            if isinstance(value, list):
                todo = value[:MAX_THINGS] + todo
            elif isinstance(value, dict):
                yield value
                todo += [value[key] for key in ("@graph", "mainEntity", "mainEntityOfPage") if isinstance(value.get(key), (dict, list))]


def _written(things: list[Thing]) -> list[Thing]:
    return [thing for thing in things if _WRITTEN.search(str(thing.get("@type", "")))]


def _author(things: list[Thing]) -> str | None:
    """Return the names of who wrote it, as JSON-LD gives them."""
    for author in (thing.get("author") for thing in _written(things)):
        people = author if isinstance(author, list) else [author]
        names = [person.get("name") if isinstance(person, dict) else person for person in people[:5]]
        if found := [" ".join(name.split()) for name in names if isinstance(name, str) and name.strip() and "://" not in name]:
            return "; ".join(found)[:200]
    return None


def _dates(
    tree: Any, things: list[Thing], named: list[tuple[set[str], str]], today: date, american: bool
) -> tuple[date | None, date | None]:
    """Return the day of publication and, only if later, of the last change; of two sources the more explicit one counts.

    Where a page names only when it was changed, that is its day of publication: the day from which it ages.
    """
    written = _written(things)
    published: list[object] = [thing.get(key) for key in ("datePublished", "datePosted", "dateCreated", "uploadDate") for thing in written]
    modified: list[object] = [thing.get("dateModified") for thing in written]
    published += [content for keys, content in named if keys & _PUBLISHED]
    modified += [content for keys, content in named if keys & _MODIFIED]
    for element in islice(tree.iter("time"), 200):
        what = f"{element.get('itemprop', '')} {element.get('class', '')} {' '.join(element.attrib)}".lower()
        if re.search(r"publish|pubdate|datecreated", what):
            published.append(element.get("datetime") or element.text)
        elif re.search(r"modif|updat", what):
            modified.append(element.get("datetime") or element.text)
    last = _first(modified, today, american)
    first = _first(published, today, american) or _found(tree, today, american) or last
    return first, last if first and last and last > first else None


def _first(values: Iterable[object], today: date, american: bool) -> date | None:
    return next((day for value in values if (day := _day(value, today, american)) and day <= today), None)


def _found(tree: Any, today: date, american: bool) -> date | None:
    """Return the day of publication as htmldate finds it in the page's elements and text."""
    for extensive in (False, True):
        with suppress(ValueError, TypeError, AttributeError, OverflowError):
            # With the true limit htmldate would go on to guess from a year and month; what lies beyond it is refused below.
            found = htmldate.find_date(tree, original_date=True, extensive_search=extensive, max_date="2100-01-01")
            if found and not (extensive and found.endswith("-01-01")):  # a year alone ("© 2026") comes back as its first day
                day = date.fromisoformat(found)
                text = "".join(islice(tree.itertext(), 5_000))[:50_000]
                for match in _NUMERIC.finditer(text):
                    if date(int(match[3]), int(match[2]), int(match[1])) == day:
                        return _first([match[0]], today, american)
                return day if day <= today else None
    return None


def _day(value: object, today: date, american: bool) -> date | None:
    """Read a day: ISO 8601, digits with slashes, or anything else ("27 October 2025") as htmldate reads it.

    With slashes the day comes first, but not on American pages, nor where that cannot be, or is yet to come.
    """
    text = str(value or "").strip()[:60]
    with suppress(ValueError):
        return _aged(date.fromisoformat(text[:10]))
    if match := _NUMERIC.match(text):
        one, two, year = map(int, match.groups())
        days = []
        for month, day in [(one, two), (two, one)] if american else [(two, one), (one, two)]:
            with suppress(ValueError):
                days.append(date(year, month, day))
        return _aged(next((day for day in days if day <= today), None))
    if not re.search(r"[12]\d{3}", text) or re.match(r"\d{4}-\d\d-\d\d", text):  # the latter: a day that there is not
        return None
    plain = re.sub(r"[^\w :.,+-]", " ", text)
    with suppress(ValueError, TypeError, AttributeError, OverflowError):
        found = htmldate.find_date(f"<html><head><meta name='date' content='{plain}'></head><body></body></html>", max_date="2100-01-01")
        if found and (not found.endswith("-01-01") or re.search(r"\b0?1(?:st)?\b", text)):  # a year alone comes back as its first day
            return _aged(date.fromisoformat(found))
    return None


def _aged(day: date | None) -> date | None:
    """Return a day on which there were web pages; an earlier one is what the page tells of."""
    return day if day and day.year >= 1990 else None


def _canonical(tree: Any, named: list[str], url: str | None) -> str | None:
    """Return the address that a page names as its own; a page must not pass itself off as another site's."""
    own = urlsplit(url or "")
    links = [element.get("href", "") for element in tree.iter("link") if "canonical" in element.get("rel", "").lower().split()]
    for link in [*links[:5], *named[:5]] if own.hostname else []:
        with suppress(ValueError):
            address = urljoin(url or "", link.strip()[:2_000]).split("#")[0]
            parts = urlsplit(address)
            plain = parts.scheme in ("http", "https") and parts.username is None and parts.port in (None, 80, 443, own.port)
            if link.strip() and plain and parts.hostname and own.hostname and _domain(parts.hostname) == _domain(own.hostname):
                return str(address)
    return None


def _domain(host: str) -> str:
    """Return what its owner registered, e.g. `example.co.uk`; `user.github.io` is one of its own."""
    found = _suffixes(host)
    return found.top_domain_under_public_suffix or (host if found.suffix or re.search(r"[\d:]$", host) else ".".join(host.split(".")[-2:]))
