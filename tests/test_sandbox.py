"""The sandbox web, through the real Tavily client and the real fetcher."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from crag_dspy.errors import SettingsError, SourceFailure
from crag_dspy.fetch import Fetcher
from crag_dspy.sandbox import KEY, SNIPPET_CHARS, SUFFIX, Sandbox
from crag_dspy.search import TavilySearch

PAGES = {
    "harbour.example/gate": ("Gate times", "The quay gate opens at seven in summer and at eight in winter, says the port office."),
    "harbour.example/fees": ("Mooring fees", "A berth costs twelve crowns a night, and members of the yacht club pay nine crowns."),
    "news.example/ferry": ("Ferry strike", "No ferry sails on Monday, because the crews want a pay rise. " * 40),
}


def write(folder: Path, address: str, title: str, text: str) -> bytes:
    path = folder / f"{address}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<html><head><title>{title}</title></head><body><article><h1>{title}</h1><p>{text}</p></article></body></html>")
    return path.read_bytes()


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Sandbox]:
    (tmp_path / "secret.html").write_text("<p>secret</p>")
    for address, (title, text) in PAGES.items():
        write(tmp_path / "web", address, title, text)
    with Sandbox(tmp_path / "web") as sandbox:
        yield sandbox


def search(web: Sandbox) -> TavilySearch:
    return TavilySearch(api_key=KEY, api_base_url=web.search_url)


def fetcher(web: Sandbox) -> Fetcher:
    return Fetcher(routes={SUFFIX: web.address})


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("When does the quay gate open?", "http://harbour.example/gate"),
        ("mooring fees for a berth", "http://harbour.example/fees"),
        ("yacht club members", "http://harbour.example/fees"),
        ("FERRY strike monday", "http://news.example/ferry"),
    ],
)
def test_the_page_that_matches_best_comes_first(query: str, first: str, web: Sandbox) -> None:
    results = search(web)(query, 3)
    assert results[0].url == first
    assert results[0].title == PAGES[first.removeprefix("http://")][0]
    assert results == sorted(results, key=lambda result: -result.score)


def test_a_result_carries_a_snippet_not_the_page(web: Sandbox) -> None:
    [result] = search(web)("ferry crews", 3)
    assert 0 < len(result.snippet) <= SNIPPET_CHARS < len(PAGES["news.example/ferry"][1])


@pytest.mark.parametrize("query", ["zeppelin", "the", "?", "12 zeppelins"])
def test_words_that_no_page_has_find_nothing(query: str, web: Sandbox) -> None:
    assert search(web)(query, 3) == []


def test_no_more_results_than_asked_for_and_one_per_page(web: Sandbox) -> None:
    assert len(web.search("gate berth ferry", 2)) == 2
    found = [row["url"] for row in web.search("gate berth ferry", 9)]
    assert sorted(map(str, found)) == sorted(f"http://{address}" for address in PAGES)


@pytest.mark.parametrize("address", list(PAGES))
def test_every_page_is_served_as_it_is(address: str, web: Sandbox, tmp_path: Path) -> None:
    host, name = address.split("/")
    page = fetcher(web)(f"http://{host.upper()}./{name}/?utm_source=x")
    assert page.body == (tmp_path / "web" / f"{address}.html").read_bytes()
    assert page.content_type.startswith("text/html")


@pytest.mark.parametrize("url", ["http://harbour.example/", "http://harbour.example/ferry", "http://other.example/gate"])
def test_other_addresses_are_not_found(url: str, web: Sandbox) -> None:
    with pytest.raises(SourceFailure, match="404"):
        fetcher(web)(url)


def ask(web: Sandbox, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*web.address, timeout=5)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    return reply.status, reply.read()


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/../secret", "harbour.example"),
        ("/..%2f..%2fsecret", "harbour.example"),
        ("/secret", ".."),
        ("/web/../../secret", ""),
        ("//gate", ".."),
    ],
)
def test_no_file_outside_the_folder_is_served(path: str, host: str, web: Sandbox) -> None:
    status, body = ask(web, "GET", path, Host=host)
    assert status == 404
    assert b"secret" not in body


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/search", b"", 400),
        ("/search", b"query=gate", 400),
        ("/search", b"[]", 400),
        ("/search", b"7", 400),
        ("/search", b'{"max_results": 3}', 400),
        ("/search", b'{"query": "gate", "max_results": "many"}', 400),
        ("/search", b'{"query": "gate", "max_results": -1}', 200),
        ("/extract", b'{"urls": []}', 404),
    ],
)
def test_a_bad_request_is_refused_and_the_web_goes_on(path: str, body: bytes, status: int, web: Sandbox) -> None:
    assert ask(web, "POST", path, body)[0] == status
    code, answer = ask(web, "POST", "/search", b'{"query": "gate"}')
    assert code == 200
    assert json.loads(answer)["results"][0]["url"] == "http://harbour.example/gate"


def test_two_sandboxes_do_not_share_pages(web: Sandbox, tmp_path: Path) -> None:
    write(tmp_path / "other", "harbour.example/gate", "Gate", "This gate has been bricked up, says the other port office.")
    with Sandbox(tmp_path / "other") as other:
        assert b"bricked up" in fetcher(other)("http://harbour.example/gate").body
        assert b"opens at seven" in fetcher(web)("http://harbour.example/gate").body


def test_a_closed_sandbox_is_a_failure_like_any_dead_web(tmp_path: Path) -> None:
    write(tmp_path, "harbour.example/gate", *PAGES["harbour.example/gate"])
    with Sandbox(tmp_path) as web:
        assert web.address[0] == "127.0.0.1"
    with pytest.raises(SourceFailure) as caught:
        search(web)("gate", 3)
    assert caught.value.code == "web_unavailable"
    with pytest.raises(SourceFailure) as caught:
        fetcher(web)("http://harbour.example/gate")
    assert caught.value.code == "page_unavailable"


@pytest.mark.parametrize("files", [[], ["gate.html"], ["harbour.example/gate.txt"], ["harbour.example/gate.html"]])
def test_a_folder_without_pages_is_refused(files: list[str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("<html></html>")
    with pytest.raises(SettingsError, match="CRAG_SANDBOX"):
        Sandbox(tmp_path)
