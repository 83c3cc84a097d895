"""What a run amounts to: the answer or an abstention, and the trace of how it came about."""

from __future__ import annotations

from collections.abc import Sequence

from crag_dspy import cite
from crag_dspy.grade import Judgement
from crag_dspy.run import Run
from crag_dspy.types import Answer, AnswerWarning, Claim, Conflict, Evidence, Grade, StopReason, Trace, Usage


def answer(
    run: Run,
    judged: Judgement,
    evidence: Sequence[Evidence],
    claims: Sequence[Claim],
    conflicts: Sequence[Conflict],
    internal: Sequence[Grade],
) -> Answer:
    """Return the answer, or an abstention that says what was searched and what is missing."""
    warnings = list(run.warnings)
    if claims and run.missing:
        warnings.append(AnswerWarning(code="need_unanswered", message=f"Nothing was found for: {' '.join(run.missing)}"))
    if limit := run.budget.stop:
        warnings.append(AnswerWarning(code=limit, message=f"A limit was reached ({limit}): this is from what was had by then."))
    cited = cite.citations(evidence, [n for claim in claims for n in claim.citations])
    return Answer(
        question=run.question,
        text=cite.render(claims) if claims else _abstention(run, internal),
        status="answered" if claims else "abstained",
        claims=tuple(claims),
        citations=tuple(cited),
        consulted=tuple(cite.citations(evidence, {item.n for item in evidence} - {c.n for c in cited})),
        conflicts=tuple(conflicts),
        missing=tuple(run.missing),
        action=judged.action,
        assessment=judged.assessment,
        confidence=cite.confidence(claims, evidence),
        warnings=tuple(warnings),
        stop_reason=_stop_reason(run, judged, claims),
        web_query=run.searches[0].query if run.searches else None,
        web_queries=tuple(search.query for search in run.searches),
        usage=usage(run),
    )


def _stop_reason(run: Run, judged: Judgement, claims: Sequence[Claim]) -> StopReason:
    covered = judged.action == "correct" or run.stop_reason == "covered"
    if run.budget.stop and not (covered and claims):
        return run.budget.stop
    if claims and not run.missing:
        return "covered"
    return "nothing_supported" if run.stop_reason == "covered" else run.stop_reason


def _abstention(run: Run, internal: Sequence[Grade]) -> str:
    documents = len({g.passage.document_id for g in internal})
    queries = " and ".join(repr(search.query) for search in run.searches)
    web = f", and the web for {queries} ({run.budget.pages} pages read)" if queries else ""
    return f"No supported answer was found. Searched: {documents} internal documents{web}. Missing: {' '.join(run.plan.needs)}"


def usage(run: Run) -> Usage:
    """Return what was spent."""
    spent = run.budget
    return Usage(
        lm_calls=spent.lm_calls,
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        searches=spent.searches,
        pages=spent.pages,
        seconds=round(spent.seconds, 3),
        usd=spent.usd,
    )


def trace(run: Run, judged: Judgement, internal: Sequence[Grade], external: Sequence[Grade], evidence: Sequence[Evidence]) -> Trace:
    """Return everything that was decided on the way."""
    return Trace(
        kind=run.plan.kind,
        needs=run.plan.needs,
        time_sensitive=run.plan.time_sensitive,
        searches=tuple(run.searches),
        internal=tuple(internal),
        external=tuple(external),
        evidence=tuple(evidence),
        reason=judged.reason,
        reply="\n".join(run.replies),
        invalid_citations=run.invalid,
        dropped_claims=tuple(run.dropped),
        parse_failures=run.meter.parse_failures,
    )
