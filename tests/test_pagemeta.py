"""Dates, author, language and address of a page: the most explicit source counts, and none that cannot be true."""

from __future__ import annotations

import json
from datetime import date

import pytest
from worst_pages import page

from crag_dspy.extract import extract
from crag_dspy.types import Document

TODAY = date(2026, 3, 2)
URL = "https://www.harbour.example/gate?x=1"


def read(head: str = "", body: str = "", today: date = TODAY, url: str = URL) -> Document:
    document = extract(page(body, f"<title>Gate</title>{head}"), id=url, url=url, today=today)
    assert document is not None
    return document


def ld(**fields: object) -> str:
    return f'<script type="application/ld+json">{json.dumps({"@type": "Article", **fields})}</script>'


def meta(name: str, content: str) -> str:
    return f'<meta property="{name}" content="{content}">'


DAY = date(2026, 2, 1)


@pytest.mark.parametrize(
    ("head", "body", "day"),
    [
        (ld(datePublished="2026-02-01T23:30:00-05:00"), "", DAY),
        (ld(datePublished="1 February 2026"), "", DAY),
        (ld(datePublished="February 2026"), "", None),
        (ld(datePublished=["2026-02-01"]), "", DAY),
        (ld(datePublished=None), "", None),
        (ld(datePublished="2026-02-31"), "", None),
        (ld(**{"@type": "WebSite", "datePublished": "2011-05-05"}), "", None),
        (
            ld(**{"@graph": [{"@type": "WebSite", "dateCreated": "2011-05-05"}, {"@type": "BlogPosting", "datePublished": "2026-02-01"}]}),
            "",
            DAY,
        ),
        (ld(**{"@type": "Event", "startDate": "2025-06-06"}), "", None),
        (ld(datePublished="2026-02-01") + meta("article:published_time", "2026-01-15"), "", DAY),
        (meta("article:published_time", "2026-02-01T00:00:00Z"), "<time datetime='2025-01-05'>old</time>", DAY),
        ('<meta name="DC.date.issued" content="2026-02-01">', "", DAY),
        ("", "<time itemprop=datePublished datetime=2026-02-01>1.2.</time>", DAY),
        ("", "<time class='entry-date published' datetime='2026-02-01T10:00'>x</time>", DAY),
        ("", "<p class=date>Published: 1 February 2026</p>", DAY),
        ("", "<p class=date>Posted on 01/02/2026</p>", DAY),
        (meta("article:published_time", "01/02/2026"), "", DAY),
        (meta("article:published_time", "02/13/2026"), "", date(2026, 2, 13)),
        (meta("article:published_time", "02/11/2026"), "", date(2026, 2, 11)),  # the second of November is yet to come
        (meta("og:locale", "en_US") + meta("article:published_time", "02/01/2026"), "", DAY),
        (meta("og:locale", "en_US"), "<p class=date>Posted on 02/01/2026</p>", DAY),
        ("", "<footer>© 2026 Harbour</footer>", None),
        (meta("article:published_time", "2026"), "", None),
        (meta("article:published_time", "2026-03-03"), "", None),
        (meta("article:published_time", "3 March 2026"), "", None),
        (meta("article:published_time", "1793-04-05"), "", None),
        (meta("article:modified_time", "2026-02-01"), "", DAY),
    ],
)
def test_the_day_of_publication(head: str, body: str, day: date | None) -> None:
    assert read(head, body).published_at == day


@pytest.mark.parametrize(
    ("published", "modified", "expected"),
    [
        ("2025-12-01", "2026-02-01", DAY),
        ("2026-02-01", "2026-02-01", None),
        ("2026-02-01", "2025-12-01", None),
        ("2025-12-01", "2026-03-03", None),
        ("2025-12-01", "soon", None),
    ],
)
def test_a_later_change_is_kept_apart(published: str, modified: str, expected: date | None) -> None:
    for head in (
        ld(datePublished=published, dateModified=modified),
        meta("article:published_time", published) + meta("article:modified_time", modified),
        meta("article:published_time", published) + meta("og:updated_time", modified),
    ):
        document = read(head)
        assert (document.published_at, document.modified_at) == (date.fromisoformat(published), expected)


@pytest.mark.parametrize(
    ("link", "address"),
    [
        ("https://www.harbour.example/gate", "https://www.harbour.example/gate"),
        ("https://harbour.example/gate#top", "https://harbour.example/gate"),
        ("/gate", "https://www.harbour.example/gate"),
        ("//m.harbour.example/gate", "https://m.harbour.example/gate"),
        ("https://bank.example/gate", None),
        ("https://harbour.example.evil.example/gate", None),
        ("https://harbour.example@evil.example/", None),
        ("https://user:pw@harbour.example/gate", None),
        ("https://harbour.example:8443/gate", None),
        ("javascript:alert(1)", None),
        ("ftp://harbour.example/gate", None),
        ("https://[broken", None),
        ("", None),
    ],
)
def test_the_address_that_a_page_names(link: str, address: str | None) -> None:
    assert read(f'<link rel="canonical" href="{link}">').canonical_url == address
    assert read(meta("og:url", link)).canonical_url == address


def test_two_users_of_one_host_are_two_sites() -> None:
    assert read('<link rel="canonical" href="https://b.github.io/">', url="https://a.github.io/x").canonical_url is None
    assert read('<link rel="canonical" href="https://b.co.uk/">', url="https://a.co.uk/x").canonical_url is None


@pytest.mark.parametrize(
    ("head", "author"),
    [
        (ld(author={"@type": "Person", "name": " Ida  Holm "}), "Ida Holm"),
        (ld(author=[{"name": "Ida Holm"}, {"name": "Bo Ek"}]), "Ida Holm; Bo Ek"),
        (ld(author="Ida Holm"), "Ida Holm"),
        (ld(author={"name": "https://social.example/ida"}), None),
        (ld(author=[None, 7, {}]), None),
        ('<meta name="author" content="Ida Holm">', "Ida Holm"),
        ("", None),
    ],
)
def test_the_author(head: str, author: str | None) -> None:
    assert read(head).author == author


@pytest.mark.parametrize(
    ("attribute", "head", "language"),
    [
        ('lang="de-AT"', "", "de"),
        ('lang="EN"', "", "en"),
        ("", '<meta http-equiv="Content-Language" content="nb">', "nb"),
        ("", meta("og:locale", "fr_CA"), "fr"),
        ("", ld(inLanguage="pl"), "pl"),
        ('lang="english"', "", None),
        ("", "", None),
    ],
)
def test_the_language(attribute: str, head: str, language: str | None) -> None:
    document = extract(page("", head).replace("<html>", f"<html {attribute}>"), id="x", url=URL)
    assert document is not None
    assert document.language == language
