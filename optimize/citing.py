"""Citations and claims: do the quoted words support what is said (groundedness), and what are the sources worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from crag_dspy.types import Answer, Citation
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
