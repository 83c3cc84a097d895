"""How far a source is believed: its authority, its age, and whether it says anything that others have not said for it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from datetime import date
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from rapidfuzz import fuzz

from crag_dspy.domains import host_of, registrable
from crag_dspy.types import Passage

AUTHORITY, FRESHNESS, INDEPENDENCE = 0.5, 0.3, 0.2  # weights, summing to 1
HALF_LIFE = 365.0  # days after which a text counts as half as fresh
UNDATED = 0.5
COPY = 90.0  # rapidfuzz ratio from which on two texts are copies of one
SAME_SITE = 0.5  # how much less a second page of one site adds
_WORD = re.compile(r"\w+")


class _Table(NamedTuple):
    default: float
    internal: float
    subject: float
    domains: dict[str, float]
    labels: dict[str, float]


@cache
def _table() -> _Table:
    rows = tomllib.loads(files("crag_dspy").joinpath("authority.toml").read_text(encoding="utf-8"))
    domains = {name: float(row["score"]) for row in rows["class"] for name in row.get("domains", [])}
    labels = {name: float(row["score"]) for row in rows["class"] for name in row.get("labels", [])}
    return _Table(float(rows["default"]), float(rows["internal"]), float(rows["subject"]), domains, labels)


def authority(host: str, question: str = "") -> float:
    """Return how far a site is believed before its words are read, 0-1, from `authority.toml`.

    Args:
        host: The site's host.
        question: Where it names the site (`tidewarden.com` for "Tidewarden R3"), the site is a primary source on itself.
    """
    table, name = _table(), host.rstrip(".").lower()
    labels = name.split(".")
    known = [table.domains[domain] for i in range(len(labels)) if (domain := ".".join(labels[i:])) in table.domains]
    score = known[0] if known else table.labels.get(labels[0], table.default) if len(labels) > 2 else table.default
    return max(score, table.subject) if _is_subject(name, question) else score


def freshness(published_at: date | None, as_of: date) -> float:
    """Return 1 for a text of the day, half of it for every year of age, 0.5 where no date is known or it lies in the future."""
    if published_at is None or published_at > as_of:
        return UNDATED
    return float(0.5 ** ((as_of - published_at).days / HALF_LIFE))


def independence(passage: Passage, others: Sequence[Passage]) -> float:
    """Return what a source adds to the others, 0-1.

    Each of n copies of one text weighs 1/n, so that one release counts once however often it is carried; pages of one site
    (registrable domain) weigh less with each further one.

    Args:
        passage: The passage.
        others: The passages beside it; those of the same page do not count.
    """
    elsewhere = {other.source: other for other in others if other.source != passage.source}
    copies = [other for other in elsewhere.values() if _is_copy(passage.text, other.text)]
    site = registrable(host_of(passage.url)) if passage.url else ""
    same = sum(1 for other in elsewhere.values() if site and other not in copies and other.url and registrable(host_of(other.url)) == site)
    return 1.0 / (1 + len(copies)) / (1.0 + SAME_SITE * same)


class Quality(NamedTuple):
    """What a source is worth, each 0-1."""

    authority: float
    freshness: float
    independence: float

    @property
    def overall(self) -> float:
        """Half the authority, the rest freshness and independence; 0-1."""
        return AUTHORITY * self.authority + FRESHNESS * self.freshness + INDEPENDENCE * self.independence


def quality(passage: Passage, others: Sequence[Passage], as_of: date, question: str = "") -> Quality:
    """Return what a source is worth beside others.

    Args:
        passage: The passage.
        others: The passages beside it.
        as_of: The day of the question.
        question: See `authority`.
    """
    trust = authority(host_of(passage.url), question) if passage.url else _table().internal
    return Quality(trust, freshness(passage.published_at, as_of), independence(passage, others))


def _is_subject(host: str, question: str) -> bool:
    """Whether the name that a site registered is a capitalised word of the question, or the question holds the domain itself."""
    domain = registrable(host)
    name = domain.split(".")[0].replace("-", "")
    names = {word.lower() for word in _WORD.findall(question.replace("-", "")) if word[0].isupper()}
    return len(name) >= 3 and domain not in _table().domains and (name in names or domain in question.lower().split())


def _is_copy(one: str, other: str) -> bool:
    short, long = sorted((" ".join(one.lower().split()), " ".join(other.lower().split())), key=len)
    if len(short) * 2 < len(long):
        return len(short) >= 80 and short in long
    return fuzz.ratio(short, long, score_cutoff=COPY) >= COPY
