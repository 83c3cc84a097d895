"""Run a program over questions and measure it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import NamedTuple

import dspy

from crag_dspy.errors import CragError, LMFailure
from crag_dspy.retrieve import Scorer
from crag_dspy.sources import Quality, quality
from crag_dspy.types import Answer, Trace
from optimize.citing import alce, by_facts, grounded_by_facts
from optimize.dataset import Need, Row
from optimize.judge import judged_right
from optimize.metrics import (
    abstention,
    action_right,
    answer_right,
    cites_gold,
    exact_match,
    fallback,
    fallback_by_effect,
    objective,
    spread,
    stated,
    token_f1,
)
from optimize.reliability import expected_calibration_error
from optimize.stages import (
    Confusion,
    StripCounts,
    gold_pairs,
    grader_confusion,
    ndcg_at_k,
    ranked_sources,
    recall_at_k,
    relevance_pairs,
    strip_counts,
)

GIVE_UP = 3  # LM failures in a row
Done = tuple[Row, Answer, Trace]
NEEDS: tuple[Need, ...] = ("internal", "web", "both", "none")


class Outcome(NamedTuple):
    """One question's answer, or the error that came instead."""

    row: Row
    answer: Answer | None
    trace: Trace | None
    error: str | None
    judged: bool | None = None
    """Whether a judge finds the answer right, where one was asked and could tell."""
    as_of: date | None = None
    """The day of the question."""

    @property
    def right(self) -> bool:
        """Whether the answer is right; an error is not."""
        return self.answer is not None and answer_right(self.row, self.answer)


def run(
    program: dspy.Module,
    rows: Sequence[Row],
    as_of: date,
    done: Callable[[Outcome], None] = lambda outcome: None,
    judge: dspy.BaseLM | None = None,
) -> list[Outcome]:
    """Ask every question, one after the other, so that a run can be repeated word for word.

    Raises:
        LMFailure: the LM failed three questions in a row: asking on would only cost. Or the judge failed.
    """
    outcomes: list[Outcome] = []
    failures = 0
    for row in rows:
        try:
            prediction = program(question=row.question, as_of=as_of)
            outcome = Outcome(row, prediction.answer, prediction.trace, None, as_of=as_of)
            failures = 0
        except dspy.LMError as exc:
            failures += 1
            if failures >= GIVE_UP:
                raise LMFailure(exc) from None
            outcome = Outcome(row, None, None, str(LMFailure(exc)))
        except CragError as exc:
            outcome = Outcome(row, None, None, str(exc))
        if judge is not None and outcome.answer is not None:
            try:
                outcome = outcome._replace(judged=judged_right(row, outcome.answer, judge))
            except dspy.LMError as exc:
                raise LMFailure(exc) from None
        outcomes.append(outcome)
        done(outcome)
    return outcomes


def summarise(outcomes: Sequence[Outcome], scorer: Scorer | None = None) -> dict[str, float]:
    """Return the metrics of a run by name: shares in 0-1, means per question, and counts.

    What needs gold labels that the rows lack is left out, and so is what needs the scorer (which tells to which part of a compound
    question a gold sentence belongs) where none is given.
    """
    done = [(o.row, o.answer, o.trace) for o in outcomes if o.answer is not None and o.trace is not None]
    found: dict[str, float | None] = {
        "questions": len(outcomes),
        "errors": len(outcomes) - len(done),
        "answers_right": _mean([o.right for o in outcomes]) or 0.0,
    }
    found["judged_right"] = _mean([o.judged for o in outcomes])
    for need in NEEDS:
        found[f"answers_right_{need}"] = _mean([o.right for o in outcomes if o.row.need == need])
    answers = [(row, answer) for row, answer, _ in done]
    texts = [(stated(answer), [row.answer]) for row, answer in answers if row.answerable]
    found |= {"answer_exact": _mean([exact_match(*pair) for pair in texts]), "answer_f1": _mean([token_f1(*pair) for pair in texts])}
    labelled = [(row, answer) for row, answer in answers if row.need]
    if labelled:
        found["action_accuracy"] = _mean([bool(action_right(row, answer)) for row, answer in labelled])
        by_label, by_effect = fallback(answers), fallback_by_effect(done)
        found |= {"fallback_precision": by_label.precision, "fallback_recall": by_label.recall, "fallback_effect": by_effect.precision}
    if answers:
        declined = abstention(answers)
        found |= {"abstention_precision": declined.precision, "abstention_recall": declined.recall, "abstention_f1": declined.f1}
    with_gold = [(row, answer, trace) for row, answer, trace in done if row.gold_docs or row.gold_urls]
    if with_gold:
        found |= _citations(with_gold) | _stages(with_gold)
        if scorer is not None:
            pairs = [grader_confusion(relevance_pairs(trace), gold_pairs(row, trace, scorer)) for row, _, trace in done]
            found["grader_balanced_accuracy"] = sum(pairs, Confusion()).balanced_accuracy
    answered = [o for o in outcomes if o.answer is not None and o.answer.status == "answered"]
    sure = [o.answer.confidence for o in answered if o.answer]
    found["confidence_ece"] = expected_calibration_error(sure, [o.right for o in answered])
    found |= _sources(outcomes)
    for name in ("lm_calls", "searches", "pages", "prompt_tokens", "completion_tokens", "seconds"):
        found[name] = _mean([float(getattr(answer.usage, name)) for _, answer in answers])
    if answers:
        found["seconds_p95"] = spread([answer.usage.seconds for _, answer in answers]).p95
        prices = [answer.usage.usd for _, answer in answers if answer.usage.usd is not None]
        found["usd"] = sum(prices) / len(prices) if len(prices) == len(answers) else None
    measured = {name: value for name, value in found.items() if value is not None}
    return measured | {"objective": objective(measured)} if outcomes else measured


def _citations(done: Sequence[Done]) -> dict[str, float | None]:
    judged = [alce(answer, by_facts(row)) for row, answer, _ in done]
    return {
        "cites_gold": _mean([cites_gold(row, answer) for row, answer, _ in done]),
        "citation_precision": _mean([verdict for j in judged for verdict in j.precision]),
        "citation_recall": _mean([verdict for j in judged for verdict in j.recall]),
        "groundedness": _mean([verdict for row, answer, _ in done for verdict in grounded_by_facts(row, answer)]),
    }


def _sources(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Return what the cited sources are worth, means over all of them."""
    found: list[Quality] = []
    for o in outcomes:
        if o.answer is not None and o.trace is not None and o.as_of is not None:
            numbers = {citation.n for citation in o.answer.citations}
            cited = [item.passage for item in o.trace.evidence if item.n in numbers]
            found += [quality(passage, cited, o.as_of, o.row.question) for passage in cited]
    return {f"source_{name}": _mean([getattr(one, name) for one in found]) for name in Quality._fields}


def _stages(done: Sequence[Done]) -> dict[str, float | None]:
    ranked = [(ranked_sources(row, trace.internal), row.gold_docs) for row, _, trace in done if row.gold_docs]
    strips = sum((strip_counts(row, trace) for row, _, trace in done), StripCounts())
    return {
        "retrieval_recall_at_5": _mean([recall_at_k(names, gold, 5) for names, gold in ranked]),
        "retrieval_ndcg_at_5": _mean([ndcg_at_k(names, dict.fromkeys(gold, 1.0), 5) for names, gold in ranked]),
        "strip_precision": strips.precision,
        "strip_recall": strips.recall_of_retrieved,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


if __name__ == "__main__":
    from optimize.compare import run as compare_versions

    compare_versions()
