"""Web search behind one small call: a query in, results out, provider errors told apart."""

from __future__ import annotations

import os
from datetime import date
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import requests
from pydantic import ValidationError
from tavily import TavilyClient
from tavily import errors as tavily_errors

from crag_dspy.errors import SettingsError, SourceFailure
from crag_dspy.extract import clean_title
from crag_dspy.types import Frozen

MAX_QUERY = 400  # Tavily refuses longer ones


class Result(Frozen):
    """One search result."""

    url: str
    """As the engine gave it; `canonical_url` tells whether two are the same page."""
    title: str
    snippet: str = ""
    score: float = 0.0
    published_at: date | None = None


class Search(Protocol):
    """A web search: `limit` results at most, best first; raises `SourceFailure` where the provider fails."""

    def __call__(self, query: str, limit: int) -> list[Result]: ...  # noqa: D102


class TavilySearch:
    """Tavily through its own client."""

    def __init__(self, *, api_key: str | None = None, api_base_url: str | None = None, timeout: float = 10.0) -> None:
        """Open the client.

        Args:
            api_key: The key; None reads TAVILY_API_KEY.
            api_base_url: Another address, e.g. the sandbox web's.
            timeout: Seconds for one search.

        Raises:
            SettingsError: there is no key. (The client itself would go on without one and send the query all the same.)
        """
        key = (api_key if api_key is not None else os.environ.get("TAVILY_API_KEY", "")).strip()
        if not key:
            raise SettingsError("Tavily has no key. Set TAVILY_API_KEY, or choose CRAG_WEB=duckduckgo, sandbox or none.")
        self._client = TavilyClient(api_key=key, api_base_url=api_base_url)
        self._timeout = timeout

    def __call__(self, query: str, limit: int) -> list[Result]:
        """Search."""
        try:
            reply = self._client.search(shorten(query), max_results=limit, timeout=self._timeout)
            rows = reply.get("results") or []
        except tavily_errors.InvalidAPIKeyError as exc:
            raise SourceFailure("web_key", "Tavily refused the key: check TAVILY_API_KEY.") from exc
        except tavily_errors.ForbiddenError as exc:
            raise SourceFailure("web_quota", "Tavily refused the search: the plan's quota is used up or forbids it.") from exc
        except tavily_errors.UsageLimitExceededError as exc:
            raise SourceFailure("web_rate_limited", "Tavily's rate limit is reached.") from exc
        except tavily_errors.BadRequestError as exc:
            raise SourceFailure("web_query", "Tavily refused the query.") from exc
        except (tavily_errors.TimeoutError, requests.exceptions.Timeout) as exc:
            raise SourceFailure("web_timeout", f"Tavily did not answer within {self._timeout:g} s.") from exc
        except (requests.exceptions.RequestException, ValueError, AttributeError, TypeError) as exc:
            # AttributeError: a list where the client expects an object. TypeError: the client raises None where the status
            # is neither 200 nor an error.
            raise SourceFailure("web_unavailable", f"Tavily's answer could not be used ({type(exc).__name__}).") from exc
        if not isinstance(rows, list):
            raise SourceFailure("web_unavailable", "Tavily's answer could not be used (its results are no list).")
        results = _results(
            (
                {
                    "url": row.get("url"),
                    "title": row.get("title"),
                    "snippet": row.get("content"),
                    "score": row.get("score"),
                    "date": row.get("published_date"),
                }
            )
            if isinstance(row, dict)
            else {}
            for row in rows
        )
        return results[:limit]


class DuckDuckGoSearch:
    """DuckDuckGo through `ddgs`; needs no key."""

    def __init__(self, *, timeout: float = 10.0) -> None:
        self._timeout = timeout

    def __call__(self, query: str, limit: int) -> list[Result]:
        """Search."""
        from ddgs import DDGS
        from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

        try:
            rows = DDGS(timeout=max(1, round(self._timeout))).text(shorten(query), max_results=limit)
        except RatelimitException as exc:
            raise SourceFailure("web_rate_limited", "DuckDuckGo's rate limit is reached.") from exc
        except TimeoutException as exc:
            raise SourceFailure("web_timeout", f"DuckDuckGo did not answer within {self._timeout:g} s.") from exc
        except DDGSException as exc:
            if "No results" in str(exc):
                return []
            raise SourceFailure("web_unavailable", f"DuckDuckGo could not be searched ({type(exc).__name__}).") from exc
        results = _results({"url": row.get("href"), "title": row.get("title"), "snippet": row.get("body")} for row in rows)
        return results[:limit]


def shorten(query: str, limit: int = MAX_QUERY) -> str:
    """Return a query of one line and at most `limit` characters, cut between words."""
    text = " ".join(query.split())
    if len(text) <= limit:
        return text
    head = text[: limit + 1]
    return (head.rsplit(" ", 1)[0] if " " in head else head[:limit]).strip()


def canonical_url(url: str) -> str:
    """Return the address by which a page is told from another: no fragment, no tracking parameters, lower-case host."""
    parts = urlsplit(url)
    query = "&".join(piece for piece in parts.query.split("&") if piece and not piece.lower().startswith(("utm_", "fbclid=", "gclid=")))
    host = (parts.hostname or "").rstrip(".").lower()
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port and parts.port != {"http": 80, "https": 443}.get(parts.scheme) else ""
    user = parts.netloc[: parts.netloc.rfind("@") + 1]  # never fetched, so never to pass for the page without it
    return urlunsplit((parts.scheme.lower(), user + host + port, parts.path.rstrip("/") or "/", query, ""))


def _results(rows: Any) -> list[Result]:
    """Keep the usable rows, one per page; an odd one is dropped alone.

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
                score=float(row.get("score") or 0.0),
                published_at=_day(row.get("date")),
            )
        except (AttributeError, KeyError, ValueError, TypeError, ValidationError):
            continue
        if "://" in url:
            found.setdefault(page, result)
    return list(found.values())


def _text(value: object) -> str:
    # JSON may carry half of a surrogate pair, which neither a tokenizer nor a file takes.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _day(value: object) -> date | None:
    from email.utils import parsedate_to_datetime

    if not value:
        return None
    try:
        return date.fromisoformat(str(value)[:10])
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(str(value)).date()  # Tavily writes RFC 2822 dates
    except ValueError:
        return None
