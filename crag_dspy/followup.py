"""Whether the web is asked, for what, and with which words: never twice the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from crag_dspy.conflict import disagreement
from crag_dspy.plan import Plan
from crag_dspy.policy import Policy
from crag_dspy.search import MAX_QUERY, shorten
from crag_dspy.types import Grade, SearchReason

_NAME = re.compile(r"(?<![.!?:] )(?<!^)\b[A-Z][\w-]+(?: (?:[A-Z][\w-]+|\d+))*")
_WORD = re.compile(r"\w+")


class Gap(NamedTuple):
    """A need that the web is to be asked for, and why."""

    need: int
    reason: SearchReason
    term: str = ""
    """The name that turned up and is to be looked for, where that is the reason."""


def gaps(grades: Sequence[Grade], plan: Plan, policy: Policy) -> list[Gap]:
    """Return what graded passages leave open: a pure function.

    A need is open if nothing covers it (`unsupported`, or `new_term` where an uncertain passage names something that the
    question does not), if only old passages do (`stale`), or if equally old sources disagree, so that dates don't decide (`conflict`).
    """
    found = []
    upper = policy.upper[plan.kind]
    for i in range(len(plan.needs)):
        covering = [g for g in grades if g.needs[i] >= upper and g.reply is None]
        fresh = [g for g in covering if not g.stale]
        if fresh:
            if any(one.age_days == two.age_days and _disagree(one, two, i) for one, two in combinations(fresh[:4], 2)):
                found.append(Gap(i, "conflict"))
        elif covering:
            found.append(Gap(i, "stale"))
        else:
            hinted = sorted((g for g in grades if g.needs[i] >= policy.lower), key=lambda g: (-g.needs[i], g.passage.id))
            term = new_term(plan.needs[i], hinted[:1], i)
            found.append(Gap(i, "new_term", term) if term else Gap(i, "unsupported"))
    return found


def new_term(need: str, hinted: Sequence[Grade], i: int) -> str:
    """Return the name that the best strips of uncertain passages mention most and the question does not, or nothing."""
    asked = words(need)
    names = Counter(
        name
        for g in hinted
        for strip in sorted(g.strips, key=lambda strip: -strip.scores[i] if strip.scores else 0.0)[:1]
        for name in _NAME.findall(strip.text)
        if not words(name) & asked
    )
    return min(names, key=lambda name: (-names[name], name)) if names else ""


def other_query(need: str, gap: Gap, tried: Iterable[str], year: int) -> str | None:
    """Return a query for a need whose words differ from all those tried, or None where there is none left."""
    added = [gap.term, "", str(year)] if gap.term else ["", str(year)]
    # What is added goes in front where it would be cut off at the end.
    candidates = [f"{need} {more}" if len(need) + len(more) < MAX_QUERY else f"{more} {need}" for more in added]
    queries = [shorten(candidate.replace("?", " ")) for candidate in candidates]
    known = {frozenset(), *(frozenset(words(query)) for query in tried)}
    return next((query for query in queries if frozenset(words(query)) not in known), None)


def words(text: str) -> set[str]:
    """Return the words of a text, lower case."""
    return {word.lower() for word in _WORD.findall(text)}


def _disagree(one: Grade, two: Grade, need: int) -> bool:
    best = [max(g.strips, key=lambda strip: strip.scores[need] if strip.scores else 0.0) for g in (one, two)]
    return one.passage.source != two.passage.source and disagreement(best[0].text, best[1].text) is not None
