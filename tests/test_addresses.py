"""The addresses that are never connected to, in every spelling, shown by watching the sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bad_web import FACT, PAGE, BadWeb
from hypothesis import given
from hypothesis import strategies as st

from crag_dspy.addresses import is_public
from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Fetcher

PUBLIC = "93.184.216.34"


class Sockets:
    """Sees every connection and every datagram's destination; only loopback's are really tried."""

    def __init__(self) -> None:
        self.connected: list[Any] = []

    def connect(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def spy(sock: socket.socket, address: Any) -> Any:
            self.connected.append(address)
            if not isinstance(address, tuple) or address[0] != "127.0.0.1":
                raise ConnectionRefusedError("not in a test")
            return real(sock, address)

        return spy


@pytest.fixture
def sockets(only_loopback: None, monkeypatch: pytest.MonkeyPatch) -> Sockets:
    seen = Sockets()
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, seen.connect(getattr(socket.socket, name)))
    return seen


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """What names resolve to: to each list in turn, and then to the last. Numbers resolve as the system has them."""
    answers: dict[str, list[list[str]]] = {}
    real = socket.getaddrinfo

    def lookup(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in answers:
            return real(host, port, *args, **kwargs)
        found = answers[host].pop(0) if len(answers[host]) > 1 else answers[host][0]
        families = [(socket.AF_INET6, (ip, port, 0, 0)) if ":" in ip else (socket.AF_INET, (ip, port)) for ip in found]
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for family, address in families]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return answers


@pytest.fixture(scope="module")
def web() -> Iterator[BadWeb]:
    with BadWeb() as server:
        yield server


def refused(fetch: Fetcher, url: str, code: str = "blocked_address") -> None:
    with pytest.raises(SourceFailure) as caught:
        fetch(url)
    assert caught.value.code == code, str(caught.value)


# Hosts by kind, separated by spaces.
SPELLINGS = {
    "loopback": "127.0.0.1 127.8.8.8 127.255.255.254 0.0.0.0 0.1.2.3",
    "private": "10.0.0.7 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 198.18.0.1 192.0.2.1 240.0.0.1",
    "link-local and metadata": "169.254.169.254 169.254.0.1 100.100.100.200 192.0.0.192 168.63.129.16",
    "multicast and broadcast": "224.0.0.1 239.255.255.255 255.255.255.255",
    "decimal": "2130706433 2852039166 0 1572395042",
    "octal": "0177.0.0.1 0177.0000.0000.0001 017700000001 0251.0376.0251.0376",
    "hex": "0x7f.0.0.1 0x7f000001 0xA9FEA9FE 0x7f.1 127.0.0.0x1",
    "short": "127.1 127.0.1 10.1 169.254.43518",
    "dots": "127.0.0.1. 127.0.0.1.. localhost. 127。0。0。1 127．0．0．1 127｡0｡0｡1 10。0．0｡7 .127.0.0.1 127..0.1",
    "digits of other scripts": "１２７.0.0.1 ①②⑦.⓪.⓪.① 127.0.0.¹ ２１３０７０６４３３",
    "percent-encoded": "%31%32%37.0.0.1 127%2e0%2e0%2e1 %6cocalhost localhost%2e 127.0.0.1%00.pages.test %5b::1%5d",
    "ipv6": "[::1] [::] [0:0:0:0:0:0:0:1] [fe80::1] [fec0::1] [fc00::1] [fd00:ec2::254] [ff02::1] [2001:db8::1] [100::1]",
    "ipv4-mapped": "[::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:a9fe:a9fe] [0:0:0:0:0:ffff:10.0.0.7] [::FFFF:192.168.0.1]",
    "ipv4-compatible": "[::127.0.0.1] [::7f00:1] [::a9fe:a9fe] [::93.184.216.34]",
    "nat64": "[64:ff9b::7f00:1] [64:ff9b::169.254.169.254] [64:ff9b::10.0.0.7] [64:ff9b:1::1]",
    "6to4": "[2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:a00:7::1]",
    "teredo": "[2001:0:5db8:d822:0:0:80ff:fffe] [2001::f5ff:fff8] [2001:0:0:0:0:0:5601:5601]",
    "zone ids": "[fe80::1%1] [fe80::1%25eth0] [::1%lo] [::1%25lo] [2606:4700::1111%25eth0]",
    "names for this machine or network": (
        "localhost LOCALHOST LocalHost. a.localhost printer.local metadata.google.internal vault.internal. router.lan "
        "nas.home.arpa wiki.corp db.localdomain hidden.onion intranet metadata kubernetes"
    ),
    "no names": (
        ". .. a..test -a.test a*.test a,b.test a_b ⓛⓞⓒⓐⓛⓗⓞⓢⓣ ﬁle [::1 ::1 [v1.x] "
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.test"
    ),
}
HOSTS = [(kind, host) for kind, hosts in SPELLINGS.items() for host in hosts.split()] + [("no name", ""), ("no name", "a b.test")]


@pytest.mark.parametrize("host", [pytest.param(host, id=f"{kind}: {host[:40]}") for kind, host in HOSTS])
@pytest.mark.parametrize("form", ["http://{}/", "https://{}/latest/meta-data/", "http://{}:80/"])
def test_no_connection_to_what_is_not_public(host: str, form: str, sockets: Sockets) -> None:
    refused(Fetcher(), form.format(host))
    assert sockets.connected == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "file://localhost/etc/passwd",
        "ftp://pages.test/",
        "gopher://pages.test:70/_x",
        "data:text/html,hello",
        "javascript:alert(1)",
        "dict://pages.test:11211/stat",
        "ldap://pages.test/",
        "ws://pages.test/",
        "unix:///var/run/docker.sock",
        "http+unix://%2Fvar%2Frun%2Fdocker.sock/info",
        "http://unix:/var/run/docker.sock:/info",
        "http:///etc/passwd",
        "http:/127.0.0.1/",
        "http:127.0.0.1",
        "http:\\\\127.0.0.1\\",
        "//pages.test/",
        "/etc/passwd",
        "pages.test/",
        "",
        " ",
        "http://",
        "http://reader@pages.test/",
        "http://reader:secret@pages.test/",
        "http://:@pages.test/",
        "http://pages.test@127.0.0.1/",
        "http://127.0.0.1@pages.test/",
        "http://pages.test\\@127.0.0.1/",
        "http://127.0.0.1\\@pages.test/",
        "http://pages.test%40127.0.0.1/",
        "http://127.0.0.1#@pages.test/",
        "http://127.0.0.1?@pages.test/",
        "http://pages.test\t/",
        "http://127.0.0.1\n/",
        "http://pages.test/\r\nHost: 127.0.0.1",
        "http://pages.test/\x00",
        "http://pages.test/\ud800",
        *(f"http://pages.test:{port}/" for port in ("22", "25", "0", "8080", "6379", "11211", "99999", "-1", "port", "080x")),
        f"http://{PUBLIC}:22/",
        f"https://{PUBLIC}:8443/",
    ],
)
def test_no_connection_for_what_is_no_plain_http_address(url: str, sockets: Sockets, names: dict[str, list[list[str]]]) -> None:
    names["pages.test"] = [[PUBLIC]]
    refused(Fetcher(), url)
    assert sockets.connected == []


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"],
        ["10.0.0.7"],
        ["169.254.169.254"],
        ["0.0.0.0"],
        ["::1"],
        ["fe80::1%2"],
        ["::ffff:10.0.0.7"],
        ["::127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["fd00:ec2::254"],
        [PUBLIC, "127.0.0.1"],
        ["2606:4700::1111", "10.0.0.7"],
        [],
        ["nonsense"],
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_no_connection_where_a_name_leads_to_a_private_address(
    found: list[str], scheme: str, sockets: Sockets, names: dict[str, list[list[str]]]
) -> None:
    names["pages.test"] = [found]
    refused(Fetcher(), f"{scheme}://pages.test/")
    assert sockets.connected == []


@pytest.mark.parametrize("robots", [True, False])
@pytest.mark.parametrize("private", ["127.0.0.1", "169.254.169.254", "::1"])
def test_a_resolver_that_changes_its_answer_gains_nothing(
    robots: bool, private: str, sockets: Sockets, names: dict[str, list[list[str]]]
) -> None:
    """DNS rebinding: public when checked, private when connected to, in every position of the sequence."""
    for first in range(1, 4):
        names["pages.test"] = [[PUBLIC]] * first + [[private]]
        with pytest.raises(SourceFailure):
            (Fetcher(sleep=lambda _: None) if robots else Fetcher(robots=None, sleep=lambda _: None))("http://pages.test/")
    assert {address[0] for address in sockets.connected} == {PUBLIC}


def test_a_name_that_resolves_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, sockets: Sockets) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: release.wait(20))
    refused(Fetcher(timeout=0.3), "http://pages.test/", "page_timeout")
    release.set()
    assert sockets.connected == []


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://metadata.google.internal/computeMetadata/v1/",
        "//10.0.0.7/",
        "\\\\10.0.0.7\\",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127。0。0。1/",
        "http://reader@good.example/good",
        f"http://{PUBLIC}:22/",
        "http://rebound.test/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "data:text/html,hello",
    ],
)
@pytest.mark.parametrize("hops", [1, 2])
def test_a_redirect_is_checked_like_any_address(
    location: str, hops: int, web: BadWeb, sockets: Sockets, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bad_web import _Handler, _reply

    names["rebound.test"] = [["10.0.0.7"]]
    target = location.encode().decode("latin-1")

    def answer(self: Any, fault: str, search: bool) -> list[bytes]:
        onward = target if fault == f"hop{hops}" else f"/hop{hops}"
        return [_reply(b"", status="302 Found", Location="§").replace("§".encode(), onward.encode("latin-1"))]

    monkeypatch.setattr(_Handler, "answer", answer)
    with pytest.raises(SourceFailure) as caught:
        Fetcher(routes=web.routes)("http://pages.example/hop1")
    assert caught.value.code in ("blocked_address", "page_unavailable")
    assert {address for address in sockets.connected} == {web.server_address}


def test_a_proxy_in_the_environment_neither_lifts_the_guard_nor_sees_the_request(
    web: BadWeb, sockets: Sockets, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    names["pages.test"] = [[PUBLIC]]
    refused(Fetcher(), "http://169.254.169.254/")
    assert sockets.connected == []
    assert Fetcher(routes=web.routes)("http://good.example/good").body == PAGE
    assert set(sockets.connected) == {web.server_address}
    refused(Fetcher(sleep=lambda _: None), "https://pages.test/", "page_unavailable")
    assert {address[0] for address in sockets.connected} == {"127.0.0.1", PUBLIC}
    assert ("127.0.0.1", 9) not in sockets.connected


@pytest.mark.parametrize("host", ["bad-example", "example.evil.test", "xexample", "good.example.evil.test", "127.0.0.1"])
def test_a_route_holds_for_its_own_hosts_only(host: str, web: BadWeb, sockets: Sockets) -> None:
    with pytest.raises(SourceFailure):
        Fetcher(routes=web.routes)(f"http://{host}/good")
    assert sockets.connected == []


@pytest.mark.parametrize(
    ("address", "connected"),
    [
        (PUBLIC, (PUBLIC, 443)),
        ("2606:4700::1111", ("2606:4700::1111", 443, 0, 0)),
        ("64:ff9b::5db8:d822", ("64:ff9b::5db8:d822", 443, 0, 0)),
    ],
)
def test_the_connection_goes_to_the_address_that_was_checked(
    address: str, connected: Any, sockets: Sockets, names: dict[str, list[list[str]]]
) -> None:
    names["pages.test"] = [[address], ["127.0.0.1"]]
    refused(Fetcher(robots=None, attempts=1), "https://pages.test/", "page_unavailable")
    assert sockets.connected == [connected]


def test_a_second_attempt_tries_the_next_address(sockets: Sockets, names: dict[str, list[list[str]]]) -> None:
    names["pages.test"] = [["2606:4700::1111", PUBLIC]]
    refused(Fetcher(robots=None, attempts=2, sleep=lambda _: None), "http://pages.test/", "page_unavailable")
    assert [address[0] for address in sockets.connected] == ["2606:4700::1111", PUBLIC]


@pytest.mark.parametrize(
    "url",
    ["http://evil.example/good", "http://good.example.evil.test/", "http://good.example@evil.example/", "http://badgood.example/good"],
)
def test_no_connection_outside_the_lists(url: str, web: BadWeb, sockets: Sockets) -> None:
    fetch = Fetcher(routes=web.routes).limited_to(Domains(allow=("good.example",)))
    with pytest.raises(SourceFailure, match=r"lists|http\(s\)"):
        fetch(url)
    assert sockets.connected == []
    assert FACT.encode() in fetch("http://www.good.example./good").body


@given(st.integers(0, 2**32 - 1))
def test_every_form_of_an_ipv4_address_has_the_same_verdict(number: int) -> None:
    plain = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
    high, low = number >> 16, number & 0xFFFF
    forms = [f"::ffff:{plain}", f"64:ff9b::{high:x}:{low:x}", f"2002:{high:x}:{low:x}::1"]
    assert [is_public(form) for form in forms] == [is_public(plain)] * len(forms)
    assert not is_public(f"::{high:x}:{low:x}")
