"""One question on its way through the stages: what was asked, what has been spent, what has gone wrong so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import date, datetime

from crag_dspy import cite
from crag_dspy.budget import Budget, Limits
from crag_dspy.conflict import with_conflicts
from crag_dspy.domains import Domains
from crag_dspy.errors import QuestionError, SourceFailure
from crag_dspy.followup import Gap, gaps, other_query, words
from crag_dspy.generate import declines, generate
from crag_dspy.grade import Judgement, assess, grade, kept
from crag_dspy.hostile import disarm
from crag_dspy.index import Where
from crag_dspy.lm import Meter, as_data, wave
from crag_dspy.parts import Stages
from crag_dspy.plan import plan, plan_by_lm
from crag_dspy.refine import number, quotation, refine
from crag_dspy.retrieve import narrow, retrieve, score
from crag_dspy.rewrite import rewrite
from crag_dspy.search import Result, canonical_url
from crag_dspy.sources import quality
from crag_dspy.types import AnswerWarning, Claim, Conflict, Document, Evidence, Grade, Passage, StopReason, Strip, WebSearch
from crag_dspy.watch import documents, grades, stage
from crag_dspy.web import read_pages

MAX_QUESTION = 4000
KEPT_PER_NEED = 3
QUERIES_PER_ROUND = 3


class Run:
    """One question on its way. A method per stage; `program.py` calls them in order."""

    def __init__(
        self,
        program: Stages,
        question: str,
        as_of: date,
        where: Where | None = None,
        limits: Limits | None = None,
        domains: Domains | None = None,
    ) -> None:
        self.question = question.strip()
        if not self.question:
            raise QuestionError('The question is empty. Ask something, e.g. crag ask "What does the basic plan cost?"')
        if len(self.question) > MAX_QUESTION:
            raise QuestionError(f"The question has {len(self.question):,} characters; at most {MAX_QUESTION:,} can be asked. Shorten it.")
        self.asked = as_data(self.question)
        self.program, self.parts, self.policy, self.as_of = program, program.parts, program.policy.value, as_of
        self.where, self.domains = where or self.parts.where, domains
        self.budget = Budget(limits or self.parts.limits)
        self.meter = Meter(self.budget)
        self.plan = plan(self.asked)
        self.budget.kept_back = len(self.plan.needs)
        self.warnings: list[AnswerWarning] = []
        self.searches: list[WebSearch] = []
        self.read: set[str] = set()
        self.pages: list[Passage] = []
        self.rounds = 0
        self.stop_reason: StopReason = "nothing_supported"
        self.invalid = 0
        self.dropped: list[str] = []
        self.replies: list[str] = []
        self.missing: list[str] = list(self.plan.needs)

    @stage("retrieve", lambda run, found: (f"{len(found)} passages; {run.plan.kind} question", documents(found)))
    def retrieve(self) -> list[Passage]:
        """Return the index's passages for the question, and plan meanwhile; for other needs than the question they are fetched after."""
        planner = self.parts.planner
        if planner is not None:
            with ThreadPoolExecutor(1) as pool:
                planned = pool.submit(copy_context().run, plan_by_lm, planner, self.meter, self.asked)
                first = self._retrieve([])
                self.plan = planned.result()
            self.budget.kept_back = len(self.plan.needs)
            self.missing = list(self.plan.needs)
            if self.plan.needs == (self.question,):
                return first
        return self._retrieve(self.plan.needs)

    def _retrieve(self, needs: Sequence[str]) -> list[Passage]:
        try:
            return retrieve(self.parts.index, self.question, needs, self.parts.top_k, self.where)
        except SourceFailure as exc:
            self.warn(exc)
            return []

    @stage("grade", lambda run, found: (f"{sum(g.verdict != 'incorrect' for g in found)} of {len(found)} relevant", grades(found)))
    def judge(self, passages: Sequence[Passage]) -> list[Grade]:
        """Return a grade for each passage."""
        harmless, orders = disarm(passages)
        self.warnings += [AnswerWarning(code=order.code, message=str(order)) for order in orders]
        scored = score(self.parts.cross_encoder, self.plan.needs, harmless)
        return grade(
            self.program.grade,
            self.meter,
            scored,
            self.plan.needs,
            kind=self.plan.kind,
            policy=self.policy,
            as_of=self.as_of,
            workers=self.parts.workers,
            time_sensitive=self.plan.time_sensitive,
        )

    @stage("assess", lambda run, judged: (f"{judged.assessment}, {judged.action}: {judged.reason}", judged._asdict()))
    def assess(self, internal: Sequence[Grade]) -> Judgement:
        """Return what the index's passages amount to, and the action."""
        return assess(internal, self.plan.needs, self.plan.kind, self.policy, start=self.plan.start)

    def gaps(self, grades: Sequence[Grade], judged: Judgement) -> list[Gap]:
        """Return what the web is asked for next; nothing where nothing is open, or where it must not be asked (again)."""
        if judged.action == "correct":
            return []
        still_open = gaps(grades, self.plan, self.policy)
        if self.rounds == 0 and judged.assessment == "sufficient":  # the question asks for the web itself
            still_open = [Gap(i, "asked") for i in range(len(self.plan.needs))]
        if not still_open:
            self.stop_reason = "covered"
            return []
        if self.parts.search is None:
            self.stop_reason = "no_web"
            self.warnings.append(AnswerWarning(code="no_web", message="The web was needed, but none is configured (CRAG_WEB)."))
            return []
        if (self.rounds and self.stop_reason == "nothing_new") or self.rounds >= self.parts.max_rounds:
            return []
        granted = self.budget.spend_searches(min(len(still_open), QUERIES_PER_ROUND))
        return still_open[:granted]

    @stage("rewrite", lambda run, found: (", ".join(query for _, query in found), [{"query": q, **gap._asdict()} for gap, q in found]))
    def rewrite(self, wanted: Sequence[Gap]) -> list[tuple[Gap, str]]:
        """Return a query for each gap that differs from all tried: the rewriter's the first time, the need's own words after it."""
        if not self.rounds:
            needs = [self._need(gap) for gap in wanted]
            written = wave(lambda need: rewrite(self.program.rewrite, self.meter, need), needs, self.parts.workers)
        else:
            tried = [search.query for search in self.searches]
            written = [other_query(self._need(gap), gap, tried, self.as_of.year) or "" for gap in wanted]
        queries: dict[frozenset[str], tuple[Gap, str]] = {}
        for gap, query in zip(wanted, written, strict=True):
            if query:
                queries.setdefault(frozenset(words(query)), (gap, query))
        self.budget.searches -= len(wanted) - len(queries)  # gaps() booked one each
        return list(queries.values())

    def _need(self, gap: Gap) -> str:
        return self.asked if len(self.plan.needs) == 1 else self.plan.needs[gap.need]

    @stage("search", lambda run, found: (f"{run.budget.pages} pages read so far, {len(found)} new passages", documents(found)))
    def search(self, queries: Sequence[tuple[Gap, str]]) -> list[Passage]:
        """Return the passages of pages that were not read before, found by queries sent together."""
        self.rounds += 1
        found = wave(lambda query: self._results(query[1]), queries, self.parts.workers)
        for (gap, query), results in zip(queries, found, strict=True):
            need = self.plan.needs[gap.need]
            self.searches.append(WebSearch(query=query, need=need, reason=gap.reason, results=len(results)))
        fresh = {canonical_url(result.url): result for results in found for result in results}
        wanted = [result for url, result in fresh.items() if url not in self.read]
        wanted = wanted[: self.budget.spend_pages(len(wanted))]
        self.read.update(canonical_url(result.url) for result in wanted)
        if not wanted:
            self.stop_reason = "nothing_new"
            return []
        passages, failures, read = read_pages(
            wanted,
            self.parts.fetch,
            self.as_of,
            self.parts.workers,
            domains=self.domains,
            deadline=self._deadline(),
        )
        self.budget.pages -= len(wanted) - read  # a page that could not be had is none
        for failure in failures:
            self.warn(failure)
        self.pages += passages
        return narrow(passages, self.plan.needs)

    def _deadline(self) -> float:
        """When the web must be done with, on the monotonic clock: time for the generator is kept back."""
        return time.monotonic() + max(0.0, self.budget.left - self.budget.slowest)

    def _results(self, query: str) -> list[Result]:
        assert self.parts.search is not None  # gaps() came first
        try:
            return self.parts.search(query, self.parts.pages_per_search, domains=self.domains, deadline=self._deadline())
        except SourceFailure as exc:
            self.warn(exc)
            return []

    @stage(
        "refine",
        lambda run, found: (f"{sum(len(s) for _, s in found)} strips", [{"id": s.id, "text": s.text} for _, ss in found for s in ss]),
    )
    def refine(self, grades: Sequence[Grade]) -> list[tuple[Grade, list[Strip]]]:
        """Return the strips that matter of the passages worth keeping."""
        worth = kept(grades, self.policy, KEPT_PER_NEED)
        return refine(self.program.refine, self.meter, self.asked, worth, self.policy)

    def remember(self, found: Sequence[Grade]) -> None:
        """Write pages that hold anything relevant to the index, so that the next question finds them before it asks the web."""
        if not self.parts.remember:
            return
        useful = {g.passage.document_id for g in found if g.verdict != "incorrect" and not g.passage.snippet}
        for url in sorted(useful):
            page = [passage for passage in self.pages if passage.document_id == url]
            try:
                self.parts.index.remember(Document(id=url, title=page[0].title, text="", source_type="web", url=url), page)
            except SourceFailure as exc:
                self.warn(exc)

    def number(self, knowledge: Sequence[tuple[Grade, list[Strip]]]) -> list[Evidence]:
        """Return the evidence, numbered once; of a page that the index held and that was read again, what it says now."""
        latest: dict[str, datetime] = {}
        for g, _ in knowledge:
            if g.passage.url and g.passage.retrieved_at:
                latest[g.passage.url] = max(latest.get(g.passage.url, g.passage.retrieved_at), g.passage.retrieved_at)
        current = [
            (g, strips) for g, strips in knowledge if latest.get(g.passage.url or "", g.passage.retrieved_at) == g.passage.retrieved_at
        ]
        passages = [g.passage for g, _ in current]
        return number(current, self.parts.max_evidence, lambda passage: quality(passage, passages, self.as_of, self.question).overall)

    @stage(
        "generate", lambda run, replies: (f"{len(replies)} of {len(run.plan.needs)} needs", [{"answer": text} for text in replies.values()])
    )
    def generate(self, evidence: Sequence[Evidence]) -> dict[int, str]:
        """Return the generator's text for every need that any evidence reaches, each from its own evidence, all in one wave.

        Where it declines although a strip is beyond doubt, or where no call could be made, that strip is quoted.
        """
        needs = self.plan.needs
        own = [[item for item in evidence if item.needs[i] >= self.policy.lower] for i in range(len(needs))]
        answerable = [i for i, items in enumerate(own) if any(item.needs[i] >= self.policy.answerable for item in items)]
        asked = {i: self.asked if len(needs) == 1 else needs[i] for i in answerable}

        def answer(i: int) -> str:
            reply = generate(self.program.generate, self.meter, asked[i], own[i])
            text = reply.field("answer")
            enough = self.policy.answerable if reply.skipped else self.policy.quote
            if (reply.skipped or declines(text)) and (quote := quotation(own[i], i, enough)):
                return quote
            return text

        replies = wave(answer, answerable, self.parts.workers)
        self.budget.kept_back = 0  # what is left may be used for the check
        return dict(zip(answerable, replies, strict=True))

    @stage(
        "check", lambda run, found: (f"{len(found[0])} claims kept", {"claims": [c.model_dump() for c in found[0]], "dropped": run.dropped})
    )
    def check(self, replies: dict[int, str], evidence: Sequence[Evidence]) -> tuple[list[Claim], list[Conflict]]:
        """Return the claims that their evidence supports, those about sources that disagree among them."""
        claims: list[Claim] = []
        for i, reply in replies.items():
            self.replies.append(reply)
            checked = cite.check(reply, self.question, evidence, self.parts.cross_encoder, self.policy, self._confirm())
            self.invalid += checked.invalid
            self.dropped += checked.dropped
            if checked.unsupported and self.parts.unsupported == "abstain":
                continue
            claims += checked.claims
            if checked.claims:
                self.missing.remove(self.plan.needs[i])
        return with_conflicts(claims, evidence, self.plan.needs, min(self.policy.upper.values()))

    def _confirm(self) -> Callable[[str, str], bool] | None:
        predictor = self.parts.claim_check
        return None if predictor is None else lambda claim, shown: cite.confirm(predictor, self.meter, claim, shown)

    def warn(self, failure: SourceFailure) -> None:
        """Note what went wrong in a source; the answer goes on from the rest."""
        self.warnings.append(AnswerWarning(code=failure.code, message=str(failure)))
