"""Run a program over questions and measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import NamedTuple

import dspy

from crag_dspy.errors import CragError, LMFailure
from crag_dspy.program import CRAG
from crag_dspy.types import Answer, Trace
from optimize.dataset import Need, Row
from optimize.metrics import action_right, answer_right, citation_precision, cites_gold, precision_recall

GIVE_UP = 3  # LM failures in a row
NEEDS: tuple[Need, ...] = ("internal", "web", "both", "none")


class Outcome(NamedTuple):
    """One question's answer, or the error that came instead."""

    row: Row
    answer: Answer | None
    trace: Trace | None
    error: str | None

    @property
    def right(self) -> bool:
        """Whether the answer is right; an error is not."""
        return self.answer is not None and answer_right(self.row, self.answer)


def run(program: CRAG, rows: Sequence[Row], as_of: date, done: Callable[[Outcome], None] = lambda outcome: None) -> list[Outcome]:
    """Ask every question, one after the other, so that a run can be repeated word for word.

    Raises:
        LMFailure: the LM failed three questions in a row: asking on would only cost.
    """
    outcomes: list[Outcome] = []
    failures = 0
    for row in rows:
        try:
            prediction = program(question=row.question, as_of=as_of)
            outcome = Outcome(row, prediction.answer, prediction.trace, None)
            failures = 0
        except dspy.LMError as exc:
            failures += 1
            if failures >= GIVE_UP:
                raise LMFailure(exc) from None
            outcome = Outcome(row, None, None, str(LMFailure(exc)))
        except CragError as exc:
            outcome = Outcome(row, None, None, str(exc))
        outcomes.append(outcome)
        done(outcome)
    return outcomes


def summarise(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the metrics of a run by name: shares in 0-1, means per question, and counts.

    Fallback compares "the web was searched" with "the need is web or both", over questions that have an answer. Abstention
    compares "abstained" with "nobody knows". What needs gold labels that the rows lack is left out.
    """
    done = [o for o in outcomes if o.answer is not None]
    answers = [(o.row, o.answer) for o in outcomes if o.answer is not None]
    found: dict[str, float] = {
        "questions": len(outcomes),
        "errors": len(outcomes) - len(done),
        "answers_right": _mean([o.right for o in outcomes]),
    }
    for need in NEEDS:
        of_need = [o.right for o in outcomes if o.row.need == need]
        if of_need:
            found[f"answers_right_{need}"] = _mean(of_need)
    if not answers:
        return found
    labelled = [(row, answer) for row, answer in answers if row.need]
    if labelled:
        found["action_accuracy"] = _mean([bool(action_right(row, answer)) for row, answer in labelled])
        known = [(row, answer) for row, answer in labelled if row.answerable]
        fallback = precision_recall([a.usage.searches > 0 for _, a in known], [row.need != "internal" for row, _ in known])
        found |= {"fallback_precision": fallback.precision, "fallback_recall": fallback.recall}
    abstention = precision_recall([a.status == "abstained" for _, a in answers], [not row.answerable for row, _ in answers])
    found |= {
        "abstention_precision": abstention.precision,
        "abstention_recall": abstention.recall,
        "abstention_f1": abstention.f1,
    }
    with_gold = [(row, answer) for row, answer in answers if row.gold_docs or row.gold_urls]
    if with_gold:
        found["cites_gold"] = _mean([cites_gold(row, answer) for row, answer in with_gold])
        cited = [verdict for row, answer in answers for verdict in citation_precision(row, answer)]
        found["citation_precision"] = _mean(cited) if cited else 1.0
    for name in ("lm_calls", "searches", "pages", "prompt_tokens", "completion_tokens", "seconds"):
        found[name] = _mean([float(getattr(answer.usage, name)) for _, answer in answers])
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
