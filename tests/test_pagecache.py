"""The page cache: fresh pages cost no request, stale ones a conditional one, and a broken cache costs nothing but one warning."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from site_server import HTML, Site, reply

from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Fetcher
from crag_dspy.pagecache import Kept, PageCache
from crag_dspy.search import Result
from crag_dspy.web import read_pages

pytest_plugins = ["site_server"]

URL = "http://pages.example/gate"
DAY = timedelta(days=1)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fetch(site: Site, tmp_path: Path, clock: Clock) -> Fetcher:
    return site.fetcher(cache=PageCache(tmp_path / "pages", now=clock), now=clock)


def header(site: Site, name: str) -> str | None:
    lines = [line.split(": ", 1) for line in site.heads[-1].split("\r\n") if ": " in line]
    return dict((key.lower(), value) for key, value in lines).get(name.lower())


def test_a_fresh_page_is_not_asked_for_again(fetch: Fetcher, site: Site, clock: Clock) -> None:
    site.answers["/gate"] = reply(content_type="text/html; charset=utf-8")
    first = fetch(URL)
    clock.now += DAY - timedelta(seconds=1)
    assert fetch(f"{URL}/?utm_source=x#top") == first, "one page under another spelling, retrieved when it was"
    assert first.retrieved_at == clock.now - DAY + timedelta(seconds=1)
    assert len(site.heads) == 1
    clock.now += timedelta(seconds=2)
    assert fetch(URL).retrieved_at == clock.now
    assert len(site.heads) == 2


@pytest.mark.parametrize(
    ("validators", "asked"),
    [
        ({"ETag": '"v1"'}, {"If-None-Match": '"v1"', "If-Modified-Since": None}),
        ({"Last-Modified": "Mon, 02 Feb 2026 08:00:00 GMT"}, {"If-None-Match": None, "If-Modified-Since": "Mon, 02 Feb 2026 08:00:00 GMT"}),
        ({"ETag": 'W/"v1"', "Last-Modified": "yesterday"}, {"If-None-Match": 'W/"v1"', "If-Modified-Since": "yesterday"}),
        ({}, {"If-None-Match": None, "If-Modified-Since": None}),
    ],
)
def test_a_stale_page_is_asked_for_on_condition(
    validators: dict[str, str], asked: dict[str, str | None], fetch: Fetcher, site: Site, clock: Clock
) -> None:
    site.answers["/gate"] = reply(**validators)
    fetch(URL)
    assert header(site, "If-None-Match") is None
    clock.now += 2 * DAY
    if validators:
        site.answers["/gate"] = b"HTTP/1.1 304 Not Modified\r\n\r\n"
    renewed = fetch(URL)
    assert {name: header(site, name) for name in asked} == asked
    assert (renewed.body, renewed.retrieved_at) == (HTML, clock.now)
    clock.now += DAY / 2
    assert fetch(URL) == renewed, "a 304 renews the time"
    assert len(site.heads) == 2


def test_a_changed_page_replaces_the_kept_one(fetch: Fetcher, site: Site, clock: Clock) -> None:
    site.answers["/gate"] = reply(ETag='"v1"')
    fetch(URL)
    clock.now += 2 * DAY
    site.answers["/gate"] = reply(b"<p>At eight.</p>", ETag='"v2"')
    assert [fetch(URL).body, fetch(URL).body] == [b"<p>At eight.</p>"] * 2
    clock.now += 2 * DAY
    fetch(URL)
    assert header(site, "If-None-Match") == '"v2"'


def test_conditions_go_to_the_page_they_belong_to(fetch: Fetcher, site: Site, clock: Clock) -> None:
    site.answers |= {"/gate": reply(b"", "302 Found", Location="/new"), "/new": reply(ETag='"v1"')}
    assert fetch(URL).url == "http://pages.example/new"
    assert fetch(URL).url == "http://pages.example/new"
    assert len(site.heads) == 2
    clock.now += 2 * DAY
    site.answers["/new"] = b"HTTP/1.1 304 Not Modified\r\n\r\n"
    assert fetch(URL).body == HTML
    assert ["If-None-Match" in head for head in site.heads] == [False, False, False, True]
    clock.now += 2 * DAY
    site.answers |= {"/gate": reply(b"", "302 Found", Location="/other"), "/other": reply(b"<p>Other.</p>")}
    assert fetch(URL).body == b"<p>Other.</p>"


@pytest.mark.parametrize("answer", [reply(status="404 Not Found"), reply(b"", "500 Oops"), reply(content_type="image/png"), reply()[:-5]])
def test_failures_are_not_kept_and_do_not_pass_for_the_page(answer: bytes, fetch: Fetcher, site: Site, clock: Clock) -> None:
    site.answers["/gate"] = reply()
    fetch(URL)
    clock.now += 2 * DAY
    site.answers["/gate"] = answer
    with pytest.raises(SourceFailure):
        fetch(URL)
    site.answers["/gate"] = reply(b"<p>Back.</p>")
    assert fetch(URL).body == b"<p>Back.</p>"


def test_what_a_server_does_not_want_kept_is_not_kept(fetch: Fetcher, site: Site, tmp_path: Path) -> None:
    site.answers["/gate"] = reply(Cache_Control="private, No-Store")
    fetch(URL)
    fetch(URL)
    assert len(site.heads) == 2
    assert not list(tmp_path.glob("pages/*"))


def test_the_lists_hold_for_kept_pages_too(fetch: Fetcher, site: Site) -> None:
    site.answers |= {"/gate": reply(b"", "302 Found", Location="http://other.example/gate2"), "/gate2": reply()}
    assert fetch(URL).url == "http://other.example/gate2"
    for lists in (Domains(deny=("pages.example",)), Domains(deny=("other.example",)), Domains(allow=("pages.example",))):
        with pytest.raises(SourceFailure, match="lists of domains"):
            fetch.limited_to(lists)(URL)


def test_no_cookie_is_kept_and_the_files_are_named_by_hashes(fetch: Fetcher, site: Site, tmp_path: Path) -> None:
    site.answers["/gate?token=SENTINEL"] = reply(Set_Cookie="session=COOKIE")
    fetch(f"{URL}?token=SENTINEL")
    [file] = tmp_path.glob("pages/*")
    assert "SENTINEL" not in file.name
    assert b"COOKIE" not in file.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: content.replace(b"seven", b"eight"),
        lambda content: b"\x80\x04K\x07." + content,
        lambda content: b"[]\n",
        lambda content: b"null\n",
        lambda content: b"{}\n",
        lambda content: b"[" * 100_000,
        lambda content: content.replace(b"2026-03-02T", b"2026-03-99T"),
        lambda content: content.replace(b"+00:00", b""),
    ],
)
def test_a_damaged_file_is_a_page_to_fetch_and_one_warning(
    damage: Callable[[bytes], bytes], fetch: Fetcher, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site.answers |= {"/gate": reply(), "/b": reply()}
    fetch(URL)
    fetch("http://pages.example/b")
    for file in tmp_path.glob("pages/*"):
        file.write_bytes(damage(file.read_bytes()))
    page = fetch(URL)
    assert page.body == HTML
    assert page.note is not None and page.note.code == "page_cache"
    assert fetch("http://pages.example/b").note is None, "one warning is enough"
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert fetch(URL) == page._replace(note=None), "mended"
    assert len(site.heads) == 4


@pytest.mark.parametrize("where", ["a file", "below a file", "nul"])
def test_a_folder_that_cannot_be_written_costs_one_warning(where: str, site: Site, tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "pages", "nul": tmp_path / "a\0b"}[where]
    fetch = site.fetcher(cache=PageCache(folder, now=clock), now=clock)
    site.answers["/gate"] = reply()
    notes = [fetch(URL).note for _ in range(3)]
    assert [note.code if note else None for note in notes] == ["page_cache", None, None]
    assert str(tmp_path) not in str(notes[0]), "no path of this machine in an answer"


def test_the_warning_reaches_the_answer_beside_the_page(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    fetch = site.fetcher(cache=PageCache(tmp_path / "file"))
    site.answers["/gate"] = reply(b"<html><body><article><h1>Gate</h1><p>The gate opens at seven on every day.</p></article></body></html>")
    passages, failures, pages = read_pages([Result(url=URL, title="t")], fetch, date(2026, 3, 2), 1)
    assert [failure.code for failure in failures] == ["page_cache"]
    assert (len(passages), pages) == (1, 1)


def test_a_page_from_the_future_is_asked_for(fetch: Fetcher, site: Site, clock: Clock) -> None:
    site.answers["/gate"] = reply()
    fetch(URL)
    clock.now -= timedelta(hours=1)
    fetch(URL)
    assert len(site.heads) == 2


def test_retrieval_time_reaches_the_passage(fetch: Fetcher, site: Site, clock: Clock) -> None:
    site.answers["/gate"] = reply(b"<html><body><article><h1>Gate</h1><p>The gate opens at seven on every day.</p></article></body></html>")
    first = clock.now
    fetch(URL)
    clock.now += DAY / 2
    [passage], _, _ = read_pages([Result(url=URL, title="t")], fetch, date(2026, 3, 2), 1)
    assert passage.retrieved_at == first


def test_the_oldest_pages_go_where_the_folder_grows_too_large(tmp_path: Path, clock: Clock) -> None:
    cache = PageCache(tmp_path, now=clock, max_bytes=20_000)
    for i in range(101):
        cache.put(f"http://a.example/{i}", Kept(f"http://a.example/{i}", b"x" * 1000, "text/html", "", "", clock.now))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 80_000
    assert cache.get("http://a.example/100")[0] is not None
    assert cache.get("http://a.example/0") == (None, None)


def test_two_processes_may_write_one_page(tmp_path: Path, clock: Clock) -> None:
    caches: list[Any] = [PageCache(tmp_path, now=clock) for _ in range(2)]
    for body, cache in zip((b"one", b"two"), caches, strict=True):
        assert cache.put(URL, Kept(URL, body, "text/html", "", "", clock.now)) is None
    kept, trouble = caches[0].get(URL)
    assert kept is not None and (kept.body, trouble) == (b"two", None)
    assert [file.suffix for file in tmp_path.iterdir()] == [".page"], "no half-written file is left"
