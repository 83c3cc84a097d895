"""Web search behind one small call: a query in, results out, provider errors told apart."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from pydantic import ValidationError
from tavily import TavilyClient
from tavily import errors as tavily_errors

from crag_dspy.domains import Domains, canonical_url, host_of
from crag_dspy.errors import SettingsError
from crag_dspy.extract import clean_title
from crag_dspy.session import LimitedSession, TooMuch, requests
from crag_dspy.settings import SearchDepth, SearchTopic, TimeRange
from crag_dspy.types import Frozen
from crag_dspy.weather import Breaker, Patience, WebFailure

__all__ = ["DuckDuckGoSearch", "Result", "Search", "TavilySearch", "canonical_url", "shorten"]

MAX_QUERY = 400  # Tavily refuses longer ones
MAX_ALLOWED, MAX_DENIED = 300, 150  # domains that Tavily takes; `Domains` holds for its results whatever it takes
MAX_SITES = 5  # `site:` operators that a DuckDuckGo query carries


class Result(Frozen):
    """One search result."""

    url: str
    """As the engine gave it; `canonical_url` tells whether two are the same page."""
    title: str
    snippet: str = ""
    text: str = ""
    """The page's text where the engine read it; empty otherwise."""
    score: float = 0.0
    published_at: date | None = None


class Search(Protocol):
    """A web search: `limit` results at most, best first; raises `SourceFailure` where the provider fails.

    `domains` overrides the search's own lists for this query; past `deadline` (monotonic clock) it is no longer waited for.
    """

    def __call__(self, query: str, limit: int, *, domains: Domains | None = None, deadline: float | None = None) -> list[Result]: ...  # noqa: D102


class TavilySearch:
    """Tavily through its own client."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_base_url: str | None = None,
        timeout: float = 10.0,
        attempts: int = 3,
        depth: SearchDepth = "basic",
        topic: SearchTopic = "general",
        time_range: TimeRange | None = None,
        raw_content: bool = False,
        domains: Domains | None = None,
        breaker: Breaker | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open the client.

        Args:
            api_key: The key; None reads TAVILY_API_KEY.
            api_base_url: Another address, e.g. the sandbox web's.
            timeout: Seconds for one attempt; twice that for one search, if it is given no deadline.
            attempts: Most attempts, where trying again can help.
            depth: `advanced` costs two credits instead of one.
            topic: What is searched.
            time_range: How old results may be; None: any age.
            raw_content: Ask for the pages' text as well; it is then not fetched again.
            domains: Sites that may be used.
            breaker: Leaves the provider alone after failures. Default: 5 failures in a row, 60 seconds.
            sleep: For tests.

        Raises:
            SettingsError: there is no key. (The client itself would go on without one and send the query all the same.)
        """
        key = (api_key if api_key is not None else os.environ.get("TAVILY_API_KEY", "")).strip()
        if not key:
            raise SettingsError("Tavily has no key. Set TAVILY_API_KEY, or choose CRAG_WEB=duckduckgo, sandbox or none.")
        self._session = LimitedSession(direct=host_of(api_base_url or "") in ("127.0.0.1", "localhost"))
        self._client = TavilyClient(api_key=key, api_base_url=api_base_url, session=self._session)
        self._session.headers.update(self._client.headers)  # a session's own Accept, User-Agent… would keep the client's out
        self._options = {
            "search_depth": depth,
            "topic": topic,
            "time_range": time_range,
            "include_raw_content": "markdown" if raw_content else None,
        }
        self._domains = domains or Domains()
        self._call = Patience("Tavily", timeout, attempts, breaker, sleep)

    def __call__(self, query: str, limit: int, *, domains: Domains | None = None, deadline: float | None = None) -> list[Result]:
        """Search."""
        domains = domains or self._domains
        return _results(self._call(lambda timeout: self._ask(shorten(query), limit, domains, timeout), deadline), limit, domains)

    def _ask(self, query: str, limit: int, domains: Domains, timeout: float) -> list[dict[str, Any]]:
        sites = {
            "include_domains": list(domains.allow[:MAX_ALLOWED]) or None,
            "exclude_domains": list(domains.deny[:MAX_DENIED]) or None,
        }
        try:
            reply = self._client.search(query, max_results=limit, timeout=timeout, **self._options, **sites)
            rows = reply.get("results") or []
        except tavily_errors.InvalidAPIKeyError as exc:
            raise WebFailure("web_key", "Tavily refused the key: check TAVILY_API_KEY.", status=401) from exc
        except tavily_errors.ForbiddenError as exc:
            raise WebFailure("web_quota", "Tavily refused the search: the plan's quota is used up or forbids it.") from exc
        except tavily_errors.UsageLimitExceededError as exc:
            wait = self._session.retry_after()
            raise WebFailure("web_rate_limited", "Tavily's rate limit is reached.", status=429, retry_after=wait) from exc
        except tavily_errors.BadRequestError as exc:
            raise WebFailure("web_query", "Tavily refused the query.", status=400) from exc
        except (tavily_errors.TimeoutError, requests.exceptions.Timeout) as exc:
            raise WebFailure("web_timeout", f"Tavily did not answer within {timeout:.3g} s.", passing=True) from exc
        except requests.exceptions.HTTPError as exc:
            status = exc.response.status_code if exc.response is not None else None
            wait = self._session.retry_after()
            raise WebFailure("web_unavailable", f"Tavily answered {status}.", status=status, retry_after=wait) from exc
        except requests.exceptions.ConnectionError as exc:
            raise WebFailure("web_unavailable", "Tavily could not be reached (ConnectionError).", passing=True) from exc
        except Exception as exc:  # the client lets through whatever a reply out of shape makes json, requests or itself raise
            what = "it is too long" if isinstance(exc, TooMuch) else type(exc).__name__
            raise WebFailure("web_unavailable", f"Tavily's answer could not be used ({what}).") from exc
        if not isinstance(rows, list):
            raise WebFailure("web_unavailable", "Tavily's answer could not be used (its results are no list).")
        names = {"snippet": "content", "text": "raw_content", "date": "published_date"}
        return [{name: row.get(names.get(name, name)) for name in _FIELDS} for row in rows if isinstance(row, dict)]


class DuckDuckGoSearch:
    """DuckDuckGo through `ddgs`; needs no key."""

    def __init__(
        self,
        *,
        timeout: float = 10.0,
        attempts: int = 2,
        time_range: TimeRange | None = None,
        domains: Domains | None = None,
        breaker: Breaker | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take limits as `TavilySearch` does."""
        self._options = {"timelimit": time_range[0]} if time_range else {}
        self._domains = domains or Domains()
        self._call = Patience("DuckDuckGo", timeout, attempts, breaker, sleep)

    def __call__(self, query: str, limit: int, *, domains: Domains | None = None, deadline: float | None = None) -> list[Result]:
        """Search."""
        domains = domains or self._domains
        sites = " OR ".join(f"site:{domain}" for domain in domains.allow) if len(domains.allow) <= MAX_SITES else ""
        asked = f"{shorten(query, MAX_QUERY - len(sites) - 1)} {sites}" if sites else shorten(query)
        return _results(self._call(lambda timeout: self._ask(asked, limit, timeout), deadline), limit, domains)

    def _ask(self, query: str, limit: int, timeout: float) -> list[dict[str, Any]]:
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        try:
            # The backend is named, for by default the library sends the query to several engines at once.
            rows = DDGS(timeout=max(1, round(timeout))).text(query, max_results=limit, backend="duckduckgo", **self._options)
            return [
                {"url": row.get("href"), "title": row.get("title"), "snippet": row.get("body")} for row in rows if isinstance(row, dict)
            ]
        except RatelimitException as exc:
            raise WebFailure("web_rate_limited", "DuckDuckGo's rate limit is reached.", status=429) from exc
        except TimeoutException as exc:
            raise WebFailure("web_timeout", f"DuckDuckGo did not answer within {timeout:.3g} s.", passing=True) from exc
        except Exception as exc:  # ddgs lets the errors of its HTTP client and its parser through, of any class
            if isinstance(exc, DDGSException) and "No results" in str(exc):
                return []
            raise WebFailure("web_unavailable", f"DuckDuckGo could not be searched ({type(exc).__name__}).", passing=True) from exc


_FIELDS = ("url", "title", "snippet", "text", "score", "date")


def shorten(query: str, limit: int = MAX_QUERY) -> str:
    """Return a query of one line and at most `limit` characters, cut between words, without halves of surrogate pairs."""
    text = " ".join(_text(query).split())
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    return (head.rsplit(" ", 1)[0] if " " in head else head[:limit]).strip()


def _results(rows: Iterable[dict[str, Any]], limit: int, domains: Domains) -> list[Result]:
    """Keep the usable rows from permitted sites, one per page; an odd one is dropped alone.

    Addresses that are not to be fetched stay: the fetcher refuses them, and says so.
    """
    found: dict[str, Result] = {}
    for row in rows:
        try:
            url = row["url"].strip()
            page = canonical_url(url)
            result = Result(
                url=url,
                title=clean_title(_text(row.get("title")), page),
                snippet=" ".join(_text(row.get("snippet")).split()),
                text=_text(row.get("text")).strip(),
                score=_finite(row.get("score")),
                published_at=_day(row.get("date")),
            )
        except (AttributeError, KeyError, ValueError, TypeError, OverflowError, ValidationError):
            continue
        if "://" in url and domains.permits_url(url):
            found.setdefault(page, result)
    return list(found.values())[:limit]


def _text(value: object) -> str:
    # JSON may carry half of a surrogate pair, which neither a tokenizer nor a file takes.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _finite(value: Any) -> float:
    number = float(value or 0.0)
    return number if math.isfinite(number) else 0.0  # JSON's Infinity and NaN could not be written as JSON again


def _day(value: object) -> date | None:
    if not value:
        return None
    with suppress(ValueError):
        return date.fromisoformat(str(value)[:10])
    with suppress(ValueError, TypeError, OverflowError):
        return parsedate_to_datetime(str(value)).date()  # Tavily writes RFC 2822 dates
    return None
