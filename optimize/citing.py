"""Citations and claims: do the quoted words support what is said (groundedness), and what are the sources worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import NamedTuple
from urllib.parse import urlsplit

from crag_dspy.generate import declines
from crag_dspy.policy import Policy
from crag_dspy.types import Answer, Citation, Trace
from optimize.dataset import Row
from optimize.metrics import holds, normalise

Entails = Callable[[str, str], bool | None]
"""(premise, claim) → whether the premise supports the claim; None where that cannot be told."""


class Alce(NamedTuple):
    """One verdict per statement (recall) and one per citation (precision); the shares over all questions are the scores."""

    recall: list[bool]
    precision: list[bool]


def alce(answer: Answer, entails: Entails) -> Alce:
    """Judge an answer's citations as ALCE does (Gao et al. 2023, section 3), with any entailment in place of its NLI model.

    Recall: a statement counts if all its citations together entail it; one without citations does not. Precision: a citation counts
    if its statement does and it is not idle, that is, it entails the statement alone or the others do not without it. A statement of
    which the entailment cannot tell is left out of both.
    """
    texts = {c.n: premise(c) for c in answer.citations}
    found = Alce([], [])
    for claim in answer.claims:
        supported = entails(" ".join(texts[n] for n in claim.citations), claim.text)
        if supported is None:
            continue
        found.recall.append(supported and bool(claim.citations))
        for n in claim.citations:
            others = " ".join(texts[m] for m in claim.citations if m != n)
            needed = bool(entails(texts[n], claim.text)) or not entails(others, claim.text)
            found.precision.append(supported and needed)
    return found


def premise(citation: Citation) -> str:
    """Return what a citation says: title, date and the words it quotes."""
    day = citation.published_at.isoformat() if citation.published_at else ""
    return f"{citation.title} {day} {citation.quote}"


def by_facts(row: Row) -> Entails:
    """Return an entailment from a row's labels: independent of the program's own check, and of any model.

    A premise supports a claim if it holds, in any spelling, every gold fact that the claim states, and every other word with a digit
    ("26", "v4.2", "R3") that does not come from the question. A claim that states neither cannot be judged.
    """
    facts = row.facts if row.answerable else ()
    asked = _figures(row.question)

    def entails(premise: str, claim: str) -> bool | None:
        stated = [fact for fact in facts if holds(claim, fact)]
        figures = _figures(claim) - asked
        if not stated and not figures:
            return None
        spelt = {figure for fact in stated for spelling in fact for figure in _figures(spelling)}
        return all(holds(premise, fact) for fact in stated) and figures - spelt <= _figures(premise)

    return entails


def _figures(text: str) -> set[str]:
    return {word.lstrip("0") or "0" for word in normalise(text).split() if any(letter.isdigit() for letter in word)}


def grounded_by_facts(row: Row, answer: Answer) -> list[bool]:
    """Return for every claim that can be judged by facts whether its citations support it; groundedness is the share over all claims."""
    return alce(answer, by_facts(row)).recall


def grounded_by_support(answer: Answer, bound: float = Policy().support) -> list[bool]:
    """Return for every claim whether the program's own support, `Claim.support` in 0-1, reaches a bound.

    Programs that do not check their claims leave the support at 0: measure them by facts, or by `alce` with an entailment.
    """
    return [claim.support >= bound for claim in answer.claims]


def generator_grounded(answer: Answer, trace: Trace) -> list[bool]:
    """Return for every statement that the generator wrote whether it stood the citation check; refusals are no statements."""
    return [True] * len(answer.claims) + [False for text in trace.dropped_claims if not declines(text)]


class SourceQuality(NamedTuple):
    """What an answer's sources are worth, each 0-1; None where it cannot be told."""

    authority: float | None
    """Mean authority of the cited sources."""
    freshness: float | None
    """Share of the dated sources that are within the maximum age."""
    independence: float | None
    """Origins per source: 1 if no two cited sources come from one origin."""


def source_quality(citations: Sequence[Citation], as_of: date, max_age_days: int, authority: Callable[[Citation], float]) -> SourceQuality:
    """Return authority, freshness and independence (after Wang & Strong 1996's believability, timeliness, objectivity) of the sources.

    Sources have one origin if they share a host (documents: the id), or if one is named among the other's copies.

    Args:
        citations: the cited sources; none give None throughout.
        as_of: the day of the question.
        max_age_days: the age up to which a source counts as fresh.
        authority: how far a source may be trusted, 0-1, as the caller knows it.
    """
    if not citations:
        return SourceQuality(None, None, None)
    ages = [(as_of - c.published_at).days for c in citations if c.published_at]
    return SourceQuality(
        sum(map(authority, citations)) / len(citations),
        sum(age <= max_age_days for age in ages) / len(ages) if ages else None,
        _origins(citations) / len(citations),
    )


def _origins(citations: Sequence[Citation]) -> int:
    """Return the number of groups of sources that are connected by a common host or copy."""
    groups: list[set[str]] = []
    for citation in citations:
        names = {urlsplit(name).hostname or name for name in (citation.url or citation.id, *citation.copies)}
        joined = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names] + [names.union(*joined)]
    return len(groups)
