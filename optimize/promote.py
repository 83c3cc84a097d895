"""When a new version becomes the champion: a pure rule over two sets of measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from optimize.evaluate import Outcome, summarise
from optimize.proof import question_objective
from optimize.statistics import better_by_more_than_noise, paired_bootstrap

GUARDED = ("groundedness", "abstention_f1")
"""What a champion may not lose for a better objective: that its words rest on what it cites, and that it says when it does not know."""
TOLERANCE = 0.05
"""By how much a guarded metric, a share in 0-1, may be worse: about one question in twenty."""

Mode = Literal["never", "auto", "force"]


VERDICTS = {
    "candidate": "It is the champion now",
    "uncompiled": "The champion is the uncompiled program",
    "unchanged": "It did not become the champion",
}
"""What a decision means for the candidate, for people."""


class Measured(NamedTuple):
    """One version on the dev questions."""

    objective: Sequence[float]
    """Per question, 0-1, in the questions' order."""
    guarded: Mapping[str, float]
    """The guarded metrics that could be measured, 0-1."""


class Decision(NamedTuple):
    """Who is the champion from now on, and why."""

    champion: Literal["candidate", "uncompiled", "unchanged"]
    reason: str


def measure(outcomes: Sequence[Outcome]) -> Measured:
    """Return what the rule needs to know of a run."""
    scores = summarise(outcomes)
    return Measured([question_objective(o) for o in outcomes], {name: scores[name] for name in GUARDED if name in scores})


def decide(mode: Mode, candidate: Measured, uncompiled: Measured, champion: Measured | None, name: str = "the champion") -> Decision:
    """Decide whether a candidate becomes the champion; all are measured on the same questions, day, LM and parts.

    Without a champion the better of candidate and uncompiled program becomes it, the candidate where they are equal: a first small
    sample proves nothing, but there must be something to use. A champion is replaced only where the mean objective is better by more
    than chance explains (`statistics.better_by_more_than_noise`) and no guarded metric is worse by more than `TOLERANCE`.

    Args:
        mode: `never` leaves the champion, `force` takes the candidate whatever it is worth, `auto` asks the rule.
        candidate: The new version.
        uncompiled: The program that it was compiled from.
        champion: The version that holds the alias; None where there is none.
        name: What to call the champion in the reason.
    """
    verdict = _first(candidate, uncompiled) if champion is None else _against(candidate, champion, name)
    if mode == "never":
        return Decision("unchanged", f"not promoted, as asked; without that: {verdict.reason}")
    if mode == "force":
        return Decision("candidate", f"promoted, as asked; without that: {verdict.reason}")
    return verdict


def _first(candidate: Measured, uncompiled: Measured) -> Decision:
    new, old = _mean(candidate), _mean(uncompiled)
    compared = f"objective {new:.3f}, uncompiled {old:.3f}"
    if new >= old:
        return Decision("candidate", f"it is the first champion: no worse than the uncompiled program ({compared})")
    return Decision("uncompiled", f"there is no champion yet, and the uncompiled program is better ({compared}): that is registered too")


def _against(candidate: Measured, champion: Measured, name: str) -> Decision:
    gain = paired_bootstrap(champion.objective, candidate.objective)
    compared = (
        f"objective {_mean(champion):.3f} → {_mean(candidate):.3f} "
        f"({gain.value:+.3f}, 95 % interval {gain.low:+.3f} to {gain.high:+.3f}, {len(candidate.objective)} questions)"
    )
    if blind := [name.replace("_", " ") for name in GUARDED if name not in champion.guarded]:
        compared += f"; not guarded, for it could not be measured: {', '.join(blind)}"
    against = list(_lost(candidate, champion))
    if not better_by_more_than_noise(champion.objective, candidate.objective):
        against.insert(0, f"it is not better than {name} by more than chance explains")
    if against:
        return Decision("unchanged", f"{'; '.join(against)}: {compared}")
    return Decision("candidate", f"it is better than {name} by more than chance explains: {compared}")


def _lost(candidate: Measured, champion: Measured) -> list[str]:
    """Return the guarded metrics that are worse than the champion's by more than the tolerance, or cannot be measured any more."""
    lost = []
    for name, was in champion.guarded.items():
        now = candidate.guarded.get(name)
        if now is None:
            lost.append(f"{name.replace('_', ' ')} was {was:.0%} and cannot be measured any more")
        elif was - now > TOLERANCE + 1e-9:
            lost.append(f"{name.replace('_', ' ')} fell from {was:.0%} to {now:.0%}, by more than {TOLERANCE:.0%}")
    return lost


def _mean(measured: Measured) -> float:
    return sum(measured.objective) / len(measured.objective)
