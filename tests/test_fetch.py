"""The fetcher against a real server on loopback: what it must never connect to, and what it must not wait or read for."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import socket
import socketserver
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Fetcher, Page

HTML = b"<html><body><p>The gate opens at seven.</p></body></html>"
PUBLIC = "93.184.216.34"


class Site(socketserver.ThreadingTCPServer):
    """Answers each path with raw bytes, or with pieces sent one by one, and remembers the requests' heads."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, bytes | Callable[[], Iterable[bytes]]] = {}
        self.heads: list[str] = []

    def fetcher(self, **limits: Any) -> Fetcher:
        return Fetcher(routes={"example": ("127.0.0.1", self.server_address[1])}, **limits)


class _Handler(socketserver.BaseRequestHandler):
    server: Site

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.request.recv(4096)
        self.server.heads.append(head.decode())
        answer = self.server.answers[head.split()[1].decode()]
        try:
            for piece in [answer] if isinstance(answer, bytes) else answer():
                self.request.sendall(piece)
        except OSError:
            pass  # the client has seen enough


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def connections(only_loopback: None, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the addresses that sockets were told to connect to; only loopback's are really tried."""
    seen: list[Any] = []
    connect = socket.socket.connect

    def spy(self: socket.socket, address: Any) -> Any:
        seen.append(address)
        if address[0] != "127.0.0.1":
            raise ConnectionRefusedError("not in a test")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", spy)
    return seen


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make every name resolve to the given addresses; to each list in turn, if several are given, and then to the last."""

    def install(*answers: list[str]) -> None:
        turns = itertools.chain(answers, itertools.repeat(answers[-1]))

        def lookup(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
            numeric = bool(re.fullmatch(r"[\d.]+|[\da-f:.]*:[\da-f:.]*", host))
            return [found(ip, port) for ip in ([host] if numeric else next(turns))]

        def found(ip: str, port: int) -> Any:
            family, address = (socket.AF_INET6, (ip, port, 0, 0)) if ":" in ip else (socket.AF_INET, (ip, port))
            return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address

        monkeypatch.setattr(socket, "getaddrinfo", lookup)

    return install


def reply(body: bytes = HTML, status: str = "200 OK", content_type: str = "text/html", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def failure(fetch: Fetcher, url: str) -> SourceFailure:
    with pytest.raises(SourceFailure) as caught:
        fetch(url)
    return caught.value


def test_a_page_arrives_with_its_address_and_type(site: Site, connections: list[Any]) -> None:
    site.answers["/gate?day=1"] = reply(content_type="text/html; charset=utf-8")
    page = site.fetcher()("http://Harbour.example./gate?day=1#times")
    assert page == Page("http://Harbour.example./gate?day=1#times", HTML, "text/html; charset=utf-8")
    assert connections == [site.server_address], "the spy of these tests sees a connection"
    assert "\r\nHost: harbour.example\r\n" in site.heads[0]


def test_an_international_name_is_asked_for_in_ascii(site: Site) -> None:
    site.answers["/preise"] = reply()
    assert site.fetcher()("http://münchen.example/preise").body == HTML
    assert "\r\nHost: xn--mnchen-3ya.example\r\n" in site.heads[0]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://127.8.8.8/",
        "http://localhost/",
        "http://localhost./",
        "http://LOCALHOST/",
        "http://0.0.0.0/",
        "http://10.0.0.7/",
        "http://172.16.3.4/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://100.100.100.200/",
        "http://192.0.0.192/opc/v2/",
        "http://168.63.129.16/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[64:ff9b:1::1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1]/",
        "http://[fe80::1%1]/",
        "http://[fec0::1]/",
        "http://[fc00::1]/",
        "http://[fd00:ec2::254]/",
        "http://[ff02::1]/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1.:80/",
        "file:///etc/passwd",
        "ftp://pages.example/",
        "gopher://pages.example/",
        "javascript:alert(1)",
        "data:text/html,hello",
        "//pages.example/",
        "pages.example/gate",
        "",
        "http://",
        "http:///gate",
        "http://reader@pages.example/",
        "http://gov.example:secret@pages.example/",
        "http://pages.example\\@127.0.0.1/",
        "http://127.0.0.1\\@pages.example/",
        f"http://{PUBLIC}:22/",
        f"http://{PUBLIC}:8080/",
        f"https://{PUBLIC}:6379/",
        f"http://{PUBLIC}:0/",
        f"http://{PUBLIC}:99999/",
        "http://pages.example:port/",
        "http://[::1",
        "http://pages.example/\x00",
        "http://pages.example/\ud800",
        "http://pages.example/" + "a" * 70_000,
    ],
)
def test_no_connection_to_what_is_no_public_page(url: str, site: Site, connections: list[Any]) -> None:
    assert failure(site.fetcher(), url).code == "blocked_address"
    assert connections == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.7"],
        ["169.254.169.254"],
        ["::1"],
        ["::ffff:10.0.0.7"],
        ["64:ff9b::7f00:1"],
        ["fd00:ec2::254"],
        [PUBLIC, "127.0.0.1"],
        ["2606:4700::1111", "10.0.0.7"],
    ],
)
def test_no_connection_where_a_name_leads_to_a_private_address(
    addresses: list[str], connections: list[Any], resolve: Callable[..., None]
) -> None:
    resolve(addresses)
    assert failure(Fetcher(), "http://pages.test/").code == "blocked_address"
    assert connections == []


@pytest.mark.parametrize(
    ("url", "address", "connected"),
    [
        ("http://pages.test/", PUBLIC, (PUBLIC, 80)),
        ("https://pages.test/", PUBLIC, (PUBLIC, 443)),
        ("http://pages.test/", "2606:4700::1111", ("2606:4700::1111", 80, 0, 0)),
        ("http://pages.test/", "64:ff9b::5db8:d822", ("64:ff9b::5db8:d822", 80, 0, 0)),  # a public one on an IPv6-only network
    ],
)
def test_the_connection_goes_to_the_address_that_was_checked(
    url: str, address: str, connected: tuple[Any, ...], connections: list[Any], resolve: Callable[..., None]
) -> None:
    resolve([address], ["127.0.0.1"])  # a second look-up of the name would lead elsewhere (DNS rebinding)
    assert failure(Fetcher(), url).code == "page_unavailable"
    assert connections == [connected]


def test_a_proxy_in_the_environment_neither_lifts_the_guard_nor_sees_the_request(
    site: Site, connections: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:9")
    site.answers["/"] = reply()
    assert failure(site.fetcher(), "http://169.254.169.254/").code == "blocked_address"
    assert connections == []
    assert site.fetcher()("http://pages.example/").body == HTML


@pytest.mark.parametrize("host", ["badexample", "example.evil.test", "pages.example.evil.test"])
def test_a_route_holds_for_its_own_hosts_only(host: str, site: Site, connections: list[Any]) -> None:
    assert failure(site.fetcher(), f"http://{host}/").code == "page_unavailable"
    assert connections == []


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "//10.0.0.7/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://reader@pages.example/",
        f"http://{PUBLIC}:22/",
        "file:///etc/passwd",
    ],
)
def test_a_redirect_is_checked_like_any_address(location: str, site: Site, connections: list[Any]) -> None:
    site.answers["/"] = reply(b"", "302 Found", Location=location)
    assert failure(site.fetcher(), "http://pages.example/").code == "blocked_address"
    assert connections == [site.server_address]


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
        (b"%PDF-1.7", "application/pdf", "page_type"),
        (b"{}", "application/json", "page_type"),
        (b"\x89PNG", "image/png", "page_type"),
        (HTML, "", "page_type"),
        (b"%PDF-1.7\n", "text/html", "page_type"),
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
