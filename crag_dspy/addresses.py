"""Which addresses may be connected to: public ones, for plain http(s), on its own ports."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import httpx

from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.weather import Late, WebFailure, bounded

# Names for one machine or one network only, whatever a resolver makes of them (RFC 6761, RFC 6762, RFC 8375, RFC 9476, ICANN's
# list of names never to be delegated).
_PRIVATE_NAMES = (
    "localhost",
    "local",
    "internal",
    "localdomain",
    "lan",
    "intranet",
    "home",
    "corp",
    "private",
    "home.arpa",
    "onion",
    "alt",
)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:{_LABEL}\.)+{_LABEL}")
_NUMBER = re.compile(r"(?:\d+|0x[\da-f]*)")  # a last label like this makes the whole host an IPv4 address (WHATWG URL, ends in a number)

_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # IPv4 addresses as IPv6-only networks see them
_NOT_PUBLIC = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments; a cloud's metadata among them
    ipaddress.IPv4Network("168.63.129.16/32"),  # Azure's platform address, the same inside every virtual network
)


@dataclass(frozen=True)
class Target:
    """What an address says, checked without asking anyone: the parsed URL, its host in ASCII and its port."""

    url: httpx.URL
    host: str
    port: int
    route: tuple[str, int] | None = None
    """The loopback host and port that stand in for this host, if any."""

    @property
    def origin(self) -> str:
        """Scheme, host and port: `https://pages.example:443`."""
        return f"{self.url.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def check(url: str, domains: Domains, routes: Mapping[str, tuple[str, int]] = MappingProxyType({})) -> Target:
    """Check what can be checked without the network: scheme, user-info, host, port, allow and deny lists.

    Raises:
        SourceFailure: `blocked_address`, or `blocked_domain` where the lists forbid the site.
    """
    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, ValueError, TypeError) as exc:
        raise SourceFailure("blocked_address", "A result whose address cannot be read was not fetched.") from exc
    host = target.raw_host.decode("ascii").rstrip(".").lower()
    if target.scheme not in ("http", "https") or not host or target.userinfo:
        raise SourceFailure(
            "blocked_address",
            f"A result that is no plain http(s) address was not fetched ({target.scheme or 'no scheme'}).",
        )
    if not domains.permits(host):
        raise SourceFailure("blocked_domain", f"{host} was not fetched: the lists of domains do not permit it.")
    for suffix, route in routes.items():
        if host == suffix or host.endswith("." + suffix):
            return Target(target, host, target.port or 80, route)
    if target.port not in (None, 80, 443):
        raise SourceFailure("blocked_address", f"{host} was not fetched: port {target.port} is not allowed.")
    if not _possible(host):
        raise SourceFailure("blocked_address", f"{host[:100]} was not fetched: it is no public host.")
    return Target(target, host, target.port or (443 if target.scheme == "https" else 80))


def resolve(target: Target, deadline: float) -> list[tuple[str, int]]:
    """Return the checked addresses and ports to connect to, in the resolver's order; all of them have to be public.

    Args:
        target: A checked address.
        deadline: When the resolver is no longer waited for, on the monotonic clock.

    Raises:
        SourceFailure: `blocked_address`, `page_unavailable` where the host has no address, `page_timeout`.
    """
    if target.route:
        return [target.route]
    try:  # in a thread of its own: the system's resolver knows no time limit
        found = bounded(lambda: socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM), deadline)
    except Late as exc:
        raise WebFailure("page_timeout", f"The address of {target.host} was not found in time.") from exc
    except (OSError, UnicodeError) as exc:
        again = isinstance(exc, socket.gaierror) and exc.errno == socket.EAI_AGAIN and time.monotonic() < deadline
        raise WebFailure("page_unavailable", f"{target.host} has no address.", passing=again) from exc
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not addresses or not all(is_public(address) for address in addresses):
        raise SourceFailure("blocked_address", f"{target.host} was not fetched: it leads to an address that is not public.")
    return [(address, target.port) for address in addresses]


def is_public(address: str) -> bool:
    """Return whether a numeric address is one of the public internet's, also inside an IPv6 form of an IPv4 address."""
    try:
        ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.ipv4_mapped or ip.sixtofour
        ip = inner or (ip.teredo[1] if ip.teredo else ip)
    if isinstance(ip, ipaddress.IPv6Address):
        return ip in _UNICAST and ip.is_global
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


def _possible(host: str) -> bool:
    """Whether a host is a public address in its plain form, or a name that may stand in public DNS."""
    if ":" in host or _NUMBER.fullmatch(host.rsplit(".", 1)[-1]):
        return "%" not in host and is_public(host)  # 2130706433, 0177.0.0.1, 127.1 and 0x7f.1 are no plain form
    return bool(_NAME.fullmatch(host)) and not any(host == name or host.endswith("." + name) for name in _PRIVATE_NAMES)
