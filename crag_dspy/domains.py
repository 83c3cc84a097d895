"""Which sites may be used: an allow list and a deny list, matched by domain and subdomain on the host that would be connected to."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import cache
from urllib.parse import urlsplit, urlunsplit

import httpx
import tldextract
from pydantic import field_validator

from crag_dspy.errors import SettingsError
from crag_dspy.types import Frozen

# The Public Suffix List that the library carries: nothing is downloaded, nothing is cached.
_suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


class Domains(Frozen):
    """An allow list and a deny list of domains; an entry stands for itself and all its subdomains.

    Entries are read tolerantly (`GOV.UK.`, `*.gov.uk`, `https://gov.uk/`, `münchen.de`). An empty allow list allows every site; a
    denied site stays denied whatever is allowed.

    Raises:
        ValueError: an entry is no domain.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    @field_validator("allow", "deny", mode="before")
    @classmethod
    def _canonical(cls, entries: Iterable[str]) -> tuple[str, ...]:
        if isinstance(entries, str):
            raise ValueError("a list of domains is wanted, not one text")
        return tuple(dict.fromkeys(_domain(entry) for entry in entries))

    @classmethod
    def parse(cls, allow: str = "", deny: str = "") -> Domains:
        """Read comma-separated lists.

        Raises:
            SettingsError: an entry is no domain.
        """
        try:
            return cls(allow=_entries(allow), deny=_entries(deny))
        except ValueError as exc:
            raise SettingsError(
                f"The lists of domains {allow!r} and {deny!r} cannot be read. Write domains separated by commas, e.g. gov.uk,example.org."
            ) from exc

    def permits(self, host: str) -> bool:
        """Return whether a host (not an address) may be used."""
        try:
            name = _domain(host)
        except ValueError:
            return not (self.allow or self.deny)
        return not _within(name, self.deny) and (not self.allow or _within(name, self.allow))

    def permits_url(self, url: str) -> bool:
        """Return whether the site that an address really leads to may be used: `https://gov.uk@evil.com/` is evil.com."""
        return self.permits(host_of(url))


def host_of(url: str) -> str:
    """Return the host that an address leads to, in ASCII and lower case without a final dot; empty where it has none."""
    try:
        return httpx.URL(url).raw_host.decode("ascii").rstrip(".").lower()
    except (httpx.InvalidURL, ValueError, TypeError):
        return ""


def shown_url(url: str) -> str:
    """Return an address as messages may carry it: its query, fragment and user-info may hold secrets, and stay out."""
    return f"{httpx.URL(url).scheme}://{host_of(url)}{httpx.URL(url).path}"[:200] if host_of(url) else "an address without a host"


def canonical_url(url: str) -> str:
    """Return the address by which a page is told from another: no fragment, no tracking parameters, lower-case host.

    Raises:
        ValueError: no address can be read.
    """
    parts = urlsplit(url)
    query = "&".join(piece for piece in parts.query.split("&") if piece and not piece.lower().startswith(("utm_", "fbclid=", "gclid=")))
    host = (parts.hostname or "").rstrip(".").lower()
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port and parts.port != {"http": 80, "https": 443}.get(parts.scheme) else ""
    user = parts.netloc[: parts.netloc.rfind("@") + 1]  # never fetched, so never to pass for the page without it
    return urlunsplit((parts.scheme.lower(), user + host + port, parts.path.rstrip("/") or "/", query, ""))


@cache
def registrable(host: str) -> str:
    """Return the domain that its owner registered (Public Suffix List): `www.service.gov.uk` is `service.gov.uk`; else the host."""
    name = host.rstrip(".").lower()
    return _suffixes(name).top_domain_under_public_suffix or ".".join(name.split(".")[-2:] if not _is_address(name) else [name])


def _entries(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def _domain(entry: str) -> str:
    text = entry.strip()
    host = host_of(text if "://" in text else "http://" + (f"[{text}]" if text.count(":") > 1 else text.removeprefix("*").lstrip(".")))
    if not host or any(char in host for char in " *%/\\,@"):
        raise ValueError(f"{entry!r} is no domain")
    return host


def _within(host: str, domains: tuple[str, ...]) -> bool:
    return any(host == domain or (host.endswith("." + domain) and not _is_address(host)) for domain in domains)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
