"""robots.txt: respected, asked for once per site and day through the same guarded fetcher, and no reason to fail."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from site_server import HTML, Site, reply

from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Fetcher
from crag_dspy.robots import MAX_ORIGINS, Robots
from crag_dspy.weather import WebFailure, until

pytest_plugins = ["site_server"]

RULES = "User-agent: *\nDisallow: /private\nAllow: /private/open$\nDisallow: /*.pdf$\n\nUser-agent: crag_dspy\nDisallow: /not-for-crag\n"


def permit(rules: str | Exception, path: str = "/page", agent: str = "other") -> bool:
    def read(url: str) -> str:
        assert url == "https://a.example/robots.txt"
        if isinstance(rules, Exception):
            raise rules
        return rules

    return Robots(agent).permit(f"https://a.example{path}", "https://a.example:443", read)


@pytest.mark.parametrize(
    ("path", "agent", "permitted"),
    [
        ("/", "other", True),
        ("/private", "other", False),
        ("/private/x?y=1", "other", False),
        ("/private/open", "other", True),
        ("/a/report.pdf", "other", False),
        ("/a/report.pdf?x", "other", True),
        ("/not-for-crag/x", "crag_dspy", False),
        ("/private", "crag_dspy", True),  # its own group is the only one that holds for it
    ],
)
def test_the_rules_of_the_matching_group_hold(path: str, agent: str, permitted: bool) -> None:
    assert permit(RULES, path, agent) is permitted


@pytest.mark.parametrize(
    ("answer", "permitted"),
    [
        ("", True),
        ("<html>no rules here</html>", True),
        ("\x00\xff" * 1000, True),
        ("User-agent: *\nDisallow: /", False),
        (WebFailure("page_unavailable", "", status=404), True),
        (WebFailure("page_unavailable", "", status=401), True),
        (WebFailure("page_unavailable", "", status=403), True),
        (WebFailure("page_unavailable", "", status=429), True),
        (WebFailure("page_unavailable", "", status=500), False),
        (WebFailure("page_unavailable", "", status=503), False),
        (WebFailure("page_timeout", ""), True),
        (SourceFailure("page_unavailable", "a.example could not be read."), True),
        (SourceFailure("blocked_address", "redirected to a private address"), True),
    ],
)
def test_what_the_site_answers_decides(answer: str | Exception, permitted: bool) -> None:
    assert permit(answer) is permitted


def test_a_site_is_asked_once_a_day() -> None:
    now, asked = [0.0], []
    robots = Robots(clock=lambda: now[0])

    def read(url: str) -> str:
        asked.append(url)
        return "User-agent: *\nDisallow: /a"

    def permits(path: str, origin: str = "https://a.example:443") -> bool:
        return robots.permit(f"{origin}{path}", origin, read)

    assert [permits("/a"), permits("/b"), permits("/a")] == [False, True, False]
    assert len(asked) == 1
    permits("/a", "http://a.example:80")
    assert len(asked) == 2, "another scheme is another origin"
    now[0] += 86_399
    permits("/a")
    assert len(asked) == 2
    now[0] += 2
    permits("/a")
    assert len(asked) == 3


def test_a_site_that_did_not_answer_is_asked_again() -> None:
    robots, answers = Robots(), [WebFailure("page_timeout", ""), "User-agent: *\nDisallow: /"]

    def read(url: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert [robots.permit("https://a.example/", "https://a.example:443", read) for _ in range(3)] == [True, False, False]


def test_pages_that_arrive_together_ask_once() -> None:
    asked, go = [], threading.Event()

    def read(url: str) -> str:
        asked.append(url)
        go.wait(0.2)
        return ""

    robots = Robots()
    assert until(lambda _: robots.permit("https://a.example/", "https://a.example:443", read), range(8), 8, None) == [True] * 8
    assert len(asked) == 1


def test_no_more_sites_are_remembered_than_fit() -> None:
    robots = Robots()
    for i in range(MAX_ORIGINS + 20):
        robots.permit(f"https://{i}.example/", f"https://{i}.example:443", lambda _: "")
    assert len(robots._rules) <= MAX_ORIGINS


def test_a_forbidden_page_is_not_asked_for(site: Site) -> None:
    site.answers["/robots.txt"] = reply(RULES.encode(), content_type="text/plain")
    site.answers["/page"] = site.answers["/private"] = site.answers["/not-for-crag"] = reply()
    fetch = site.fetcher(robots=Robots())
    with pytest.raises(SourceFailure) as caught:
        fetch("http://pages.example/not-for-crag")
    assert caught.value.code == "page_robots"
    assert "pages.example" in str(caught.value)
    assert fetch("http://pages.example/page").body == HTML
    assert [head.split()[1] for head in site.heads] == ["/robots.txt", "/page"]
    assert site.fetcher(robots=None)("http://pages.example/not-for-crag").body == HTML, "by setting"


def test_a_redirect_into_a_forbidden_page_is_not_followed(site: Site) -> None:
    site.answers["/robots.txt"] = reply(b"User-agent: *\nDisallow: /private", content_type="text/plain")
    site.answers["/page"] = reply(b"", "302 Found", Location="/private")
    with pytest.raises(SourceFailure) as caught:
        site.fetcher(robots=Robots())("http://pages.example/page")
    assert caught.value.code == "page_robots"


@pytest.mark.parametrize(
    ("answer", "permitted"),
    [
        (reply(b"", "500 Oops"), False),
        (reply(b"", "404 Not Found"), True),
        (b"", True),
        (reply(b"User-agent: *\nDisallow: /", content_type="application/octet-stream"), False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\nUser-agent: *\nDisallow: /\n"[:-1] + b"\n", False),
        (reply(b"", "302 Found", Location="http://127.0.0.1/robots.txt"), True),
        (reply(b"", "302 Found", Location="http://169.254.169.254/"), True),
        (reply(b"", "302 Found", Location="/rules"), False),
        (reply(b"", "302 Found", Location="/robots.txt"), True),
        (reply(b"#" * 600_000, content_type="text/plain"), True),
    ],
    ids=["500", "404", "closed", "any type", "no type", "loopback", "metadata", "redirect", "loop", "too large"],
)
def test_it_comes_through_the_guarded_fetcher(
    answer: Any, permitted: bool, site: Site, connections: list[Any], resolve: Callable[..., None]
) -> None:
    site.answers |= {"/robots.txt": answer, "/rules": reply(b"User-agent: *\nDisallow: /", content_type="text/plain"), "/page": reply()}
    fetch: Fetcher = site.fetcher(robots=Robots())
    if permitted:
        assert fetch("http://pages.example/page").body == HTML
    else:
        with pytest.raises(SourceFailure, match=r"robots\.txt"):
            fetch("http://pages.example/page")
    assert set(connections) == {site.server_address}
