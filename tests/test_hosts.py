"""How many pages of one host are asked for at once, and the lists of domains after a redirect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from site_server import HTML, Site, reply

from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.fetch import Hosts
from crag_dspy.weather import until

pytest_plugins = ["site_server"]


def failure(fetch: Callable[[str], object], url: str) -> SourceFailure:
    with pytest.raises(SourceFailure) as caught:
        fetch(url)
    return caught.value


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_one_host_is_asked_for_no_more_pages_at_once_than_the_limit(limit: int, site: Site) -> None:
    under_way, most, lock = 0, 0, threading.Lock()

    def counted() -> Iterator[bytes]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.05)
        with lock:
            under_way -= 1
        yield reply()

    for i in range(9):
        site.answers[f"/{i}"] = counted
    fetch = site.fetcher(hosts=Hosts(limit))
    limited = fetch.limited_to(Domains(allow=("pages.example",)))  # a question's own lists do not lift the limit
    urls = [f"http://pages.example/{i}" for i in range(9)]
    until(lambda i: (limited if i % 2 else fetch)(urls[i]), range(9), 9, None)
    assert most == limit
    assert fetch.hosts._places == {}, "nothing is remembered of hosts that nobody asks"


def test_two_hosts_do_not_wait_for_each_other(site: Site) -> None:
    both = threading.Barrier(2, timeout=5)

    def together() -> Iterator[bytes]:
        both.wait()
        yield reply()

    site.answers["/"] = together
    fetch = site.fetcher(hosts=Hosts(1))
    assert until(lambda host: fetch(f"http://{host}.example/").body, ["a", "b"], 2, None) == [HTML, HTML]


def test_a_host_that_is_busy_until_the_time_is_up_is_a_timeout(site: Site) -> None:
    over = threading.Event()
    site.answers["/slow"] = lambda: [b"" for _ in range(1) if over.wait(10)]
    fetch = site.fetcher(hosts=Hosts(1), timeout=5.0)
    threading.Thread(target=failure, args=(fetch, "http://pages.example/slow"), daemon=True).start()
    while not site.heads:
        time.sleep(0.01)
    begun = time.monotonic()
    assert failure(lambda url: fetch(url, deadline=begun + 0.2), "http://pages.example/").code == "page_timeout"
    assert time.monotonic() - begun < 1
    over.set()


@pytest.mark.parametrize(
    ("location", "code"),
    [("http://evil.example/", "blocked_domain"), ("http://pages.example.evil.example/", "blocked_domain"), ("/b", None)],
)
def test_the_lists_hold_after_a_redirect(location: str, code: str | None, site: Site) -> None:
    site.answers |= {"/": reply(b"", "302 Found", Location=location), "/b": reply()}
    fetch = site.fetcher().limited_to(Domains(allow=("pages.example",)))
    if code:
        assert failure(fetch, "http://pages.example/").code == code
    else:
        assert fetch("http://pages.example/").body == HTML
    assert len(site.heads) == 1 + (code is None)
