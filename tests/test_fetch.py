"""The fetcher against a real server on loopback: what it must never connect to, and what it must not wait or read for."""

from __future__ import annotations

import gzip
import itertools
import socket
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from site_server import HTML, Site, reply

from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Fetcher, Page

pytest_plugins = ["site_server"]


def failure(fetch: Callable[[str], object], url: str) -> SourceFailure:
    with pytest.raises(SourceFailure) as caught:
        fetch(url)
    return caught.value


def test_a_page_arrives_with_its_address_and_type(site: Site, connections: list[Any]) -> None:
    site.answers["/gate?day=1"] = reply(content_type="text/html; charset=utf-8")
    now = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
    page = site.fetcher(now=lambda: now)("http://Harbour.example./gate?day=1#times")
    assert page == Page("http://Harbour.example./gate?day=1#times", HTML, "text/html; charset=utf-8", now)
    assert connections == [site.server_address], "the spy of these tests sees a connection"
    assert "\r\nHost: harbour.example\r\n" in site.heads[0]


def test_an_international_name_is_asked_for_in_ascii(site: Site) -> None:
    site.answers["/preise"] = reply()
    assert site.fetcher()("http://münchen.example/preise").body == HTML
    assert "\r\nHost: xn--mnchen-3ya.example\r\n" in site.heads[0]


def test_redirects_are_followed_to_the_page_that_is_cited(site: Site) -> None:
    site.answers["/old/gate"] = reply(b"", "301 Moved Permanently", Location="../new")
    site.answers["/new"] = reply(b"", "308 Permanent Redirect", Location="http://harbour.example/gate")
    site.answers["/gate"] = reply()
    assert site.fetcher()("http://pages.example/old/gate").url == "http://harbour.example/gate"


def test_a_redirect_loop_ends(site: Site) -> None:
    site.answers["/a"] = reply(b"", "302 Found", Location="/b")
    site.answers["/b"] = reply(b"", "302 Found", Location="/a")
    assert failure(site.fetcher(max_redirects=3), "http://pages.example/a").code == "page_unavailable"
    assert len(site.heads) == 4


@pytest.mark.parametrize("status", ["304 Not Modified", "403 Forbidden", "404 Not Found", "429 Too Many Requests", "500 Oops"])
def test_anything_but_200_is_no_page(status: str, site: Site) -> None:
    site.answers["/"] = reply(status=status)
    failed = failure(site.fetcher(), "http://pages.example/")
    assert failed.code == "page_unavailable"
    assert status[:3] in str(failed)
    assert "pages.example" in str(failed)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        reply(b"", "302 Found", Location="http://[nowhere/"),
        reply()[:-10],
        reply(Content_Encoding="gzip"),  # it is not
    ],
    ids=["closed", "no http", "redirect to no address", "half a page", "no gzip"],
)
def test_a_broken_answer_is_one_failure(answer: bytes, site: Site) -> None:
    site.answers["/"] = answer
    assert failure(site.fetcher(), "http://pages.example/").code == "page_unavailable"


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        fetch = Fetcher(routes={"example": free.getsockname()})
        assert failure(fetch, "http://pages.example/").code == "page_unavailable"


def endless(start: bytes, content_type: str) -> Callable[[], Iterable[bytes]]:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n\r\n".encode()
    return lambda: itertools.chain([head + start], itertools.repeat(b"x" * 65536))


@pytest.mark.parametrize(
    ("start", "content_type", "code"),
    [
        (b"%PDF-1.7", "application/pdf", "page_too_large"),
        (HTML, "application/pdf", "page_type"),
        (b"{}", "application/json", "page_type"),
        (b"\x89PNG", "image/png", "page_type"),
        (HTML, "", "page_type"),
        (b"%PDF-1.7\n", "text/html", "page_too_large"),
        (b"PK\x03\x04\x14\x00\x00\x00", "text/html; charset=utf-8", "page_type"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "text/plain", "page_type"),
        (HTML, "text/html", "page_too_large"),
    ],
)
def test_files_that_are_no_pages_are_not_read_to_the_end(start: bytes, content_type: str, code: str, site: Site) -> None:
    site.answers["/"] = endless(start, content_type)
    assert failure(site.fetcher(max_bytes=1_000_000), "http://pages.example/").code == code


@pytest.mark.parametrize("content_type", ["text/html", "TEXT/HTML; charset=utf-8", "application/xhtml+xml", "text/plain"])
def test_types_that_are_pages(content_type: str, site: Site) -> None:
    site.answers["/"] = reply(content_type=content_type)
    assert site.fetcher()("http://pages.example/").body == HTML


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_no_encoding_of_text_is_taken_for_a_binary_file(encoding: str, site: Site) -> None:
    body = "<p>Die Tür öffnet um sieben.</p>".encode(encoding)
    site.answers["/"] = reply(body)
    assert site.fetcher()("http://pages.example/").body == body


def test_a_gzipped_page_is_unpacked(site: Site) -> None:
    site.answers["/"] = reply(gzip.compress(HTML * 1000), Content_Encoding="GZIP")
    assert site.fetcher()("http://pages.example/").body == HTML * 1000
    assert "\r\nAccept-Encoding: gzip\r\n" in site.heads[0]


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip", "nonsense"])
def test_what_was_packed_otherwise_is_no_page(encoding: str, site: Site) -> None:
    site.answers["/"] = reply(zlib.compress(HTML), Content_Encoding=encoding)
    assert failure(site.fetcher(), "http://pages.example/").code == "page_type"


def test_a_decompression_bomb_is_stopped_by_the_size_limit_and_never_held(site: Site) -> None:
    site.answers["/"] = reply(gzip.compress(b" " * 60_000_000), Content_Encoding="gzip")
    fetch = site.fetcher(max_bytes=500_000)
    tracemalloc.start()
    try:
        assert failure(fetch, "http://pages.example/").code == "page_too_large"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000


def test_the_size_limit_is_exact(site: Site) -> None:
    site.answers["/"] = reply()
    assert site.fetcher(max_bytes=len(HTML))("http://pages.example/").body == HTML
    assert failure(site.fetcher(max_bytes=len(HTML) - 1), "http://pages.example/").code == "page_too_large"


def drip(start: bytes, pause: float = 0.05) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield start
        for _ in range(60):
            time.sleep(pause)
            yield b"x"

    return pieces


@pytest.mark.parametrize(
    "start",
    [b"", b"HTTP/1.1 200 OK\r\nX-Padding: ", b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", reply(HTML + b"x" * 70_000)[:-69_000]],
    ids=["status line", "header", "body without length", "body"],
)
def test_a_slow_drip_ends_at_the_time_limit(start: bytes, site: Site) -> None:
    site.answers["/"] = drip(start)
    begun = time.monotonic()
    assert failure(site.fetcher(timeout=0.4), "http://pages.example/").code == "page_timeout"
    assert time.monotonic() - begun < 5


def test_silence_ends_at_the_time_limit(site: Site) -> None:
    over = threading.Event()
    site.answers["/"] = lambda: [b"" for _ in range(1) if over.wait(30)]
    begun = time.monotonic()
    assert failure(site.fetcher(timeout=0.3), "http://pages.example/").code == "page_timeout"
    over.set()
    assert time.monotonic() - begun < 5


def test_redirects_share_one_time_limit(site: Site) -> None:
    def slow() -> Iterator[bytes]:
        time.sleep(0.2)
        yield reply(b"", "302 Found", Location="/")

    site.answers["/"] = slow
    assert failure(site.fetcher(timeout=0.5, max_redirects=50), "http://pages.example/").code == "page_timeout"
    assert len(site.heads) <= 4


@pytest.mark.parametrize("content_type", ["application/pdf", "application/x-pdf", "text/html", "text/plain; charset=utf-8"])
def test_a_pdf_is_known_by_its_first_bytes(content_type: str, site: Site) -> None:
    body = b"%PDF-1.7\n\0\1\2 and so on"
    site.answers["/"] = reply(body, content_type=content_type)
    page = site.fetcher()("http://pages.example/")
    assert (page.body, page.content_type) == (body, "application/pdf")


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_half_of_a_packed_page_is_no_page(cut: int, site: Site) -> None:
    site.answers["/"] = reply(gzip.compress(HTML * 50)[:-cut], Content_Encoding="gzip")
    assert failure(site.fetcher(), "http://pages.example/").code == "page_unavailable"


def test_an_empty_page_that_is_called_packed_is_an_empty_page(site: Site) -> None:
    site.answers["/"] = reply(b"", Content_Encoding="gzip")
    assert site.fetcher()("http://pages.example/").body == b""


def test_nothing_is_sent_that_says_who_asks(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cookie that a page set, no password from ~/.netrc; an honest name."""
    (tmp_path / ".netrc").write_text("default login reader password SENTINEL")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    site.answers["/"] = reply(b"", "302 Found", Location="/b", Set_Cookie="session=SENTINEL; Path=/")
    site.answers["/b"] = reply(Set_Cookie="session=SENTINEL; Path=/")
    fetch = site.fetcher()
    fetch("http://pages.example/")
    fetch("http://pages.example/b")
    assert len(site.heads) == 3
    assert not any("SENTINEL" in head or "cookie" in head.lower() or "referer" in head.lower() for head in site.heads)
    assert all("\r\nUser-Agent: crag_dspy/" in head and "Mozilla" not in head for head in site.heads)


def test_failures_name_the_host_and_no_secret_of_the_address(site: Site) -> None:
    site.answers["/?token=SENTINEL"] = reply(status="403 Forbidden")
    assert "SENTINEL" not in str(failure(site.fetcher(), "http://pages.example/?token=SENTINEL"))
    assert "SENTINEL" not in str(failure(site.fetcher(), "http://reader:SENTINEL@pages.example/"))
