"""The program: Corrective RAG as one DSPy module. `forward` is the whole flow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

import dspy
from dspy.utils.usage_tracker import track_usage

from crag_dspy import cite
from crag_dspy.errors import QuestionError, SourceFailure
from crag_dspy.fetch import Fetcher
from crag_dspy.generate import AnswerFromEvidence, generate
from crag_dspy.grade import GradePassage, assess, grade, kept
from crag_dspy.lm import Meter, as_data, wave
from crag_dspy.plan import plan
from crag_dspy.policy import Policy, PolicyParameter
from crag_dspy.refine import PickStrips, number, refine
from crag_dspy.retrieve import Scorer, Searchable, retrieve, score
from crag_dspy.rewrite import WriteQuery, rewrite
from crag_dspy.search import Search
from crag_dspy.types import Answer, AnswerWarning, Evidence, Grade, Passage, StopReason, Strip, Trace, Usage
from crag_dspy.web import read_pages

MAX_QUESTION = 4000
KEPT_PER_NEED = 3


@dataclass(frozen=True)
class Parts:
    """What the program works with, rebuilt from settings: shared by its copies, never saved."""

    index: Searchable
    cross_encoder: Scorer
    search: Search | None = None
    """None: no web."""
    fetch: Fetcher = field(default_factory=Fetcher)
    today: Callable[[], date] = lambda: datetime.now(UTC).date()
    top_k: int = 8
    max_pages: int = 4
    max_evidence: int = 6
    workers: int = 4
    max_seconds: float = 120.0

    def __deepcopy__(self, memo: dict[int, Any]) -> Parts:
        return self  # optimizers and load() copy the module; clients cannot be copied

    def __reduce__(self) -> Any:
        raise TypeError("Parts are rebuilt from settings, never pickled")


class CRAG(dspy.Module):  # type: ignore[misc]
    """Corrective RAG (Yan et al. 2024): judge what was retrieved, then use, supplement or replace it.

    The four predictors and the policy are what is compiled and saved. A call returns a `dspy.Prediction` with `answer`
    (an `Answer`) and `trace` (a `Trace`).

    Raises:
        QuestionError: the question is empty or longer than 4,000 characters; before any LM call.
        dspy.LMError: the LM cannot be reached or refuses.
    """

    def __init__(self, parts: Parts, policy: Policy | None = None) -> None:
        super().__init__()
        self.grade = dspy.Predict(GradePassage)
        self.rewrite = dspy.Predict(WriteQuery)
        self.refine = dspy.Predict(PickStrips)
        self.generate = dspy.Predict(AnswerFromEvidence)
        self.policy = PolicyParameter(policy)
        self.parts = parts

    def forward(self, question: str, as_of: date | None = None) -> dspy.Prediction:
        """Answer a question as of a day (default: today)."""
        run = _Run(self, question, as_of or self.parts.today())
        with track_usage() as tokens:
            internal = run.judge(run.retrieve())
            judged = assess(internal, run.plan.needs, run.plan.kind, run.policy)
            knowledge = run.refine(internal) if judged.action != "incorrect" else []  # K_in
            external: list[Grade] = []
            if judged.action != "correct" and run.web_allowed():
                run.web_query = rewrite(self.rewrite, run.meter, run.wanted(judged.open_needs))
                external = run.judge(run.search(run.web_query))
                knowledge += run.refine(external)  # K_ex
            evidence = number(knowledge, self.parts.max_evidence)
            reply = run.generate(evidence)
            checked = cite.check(reply, run.question, evidence, self.parts.cross_encoder, run.policy)
        run.count(tokens.get_total_tokens())
        trace = Trace(
            kind=run.plan.kind,
            needs=run.plan.needs,
            internal=tuple(internal),
            external=tuple(external),
            evidence=tuple(evidence),
            reason=judged.reason,
            reply=reply,
            invalid_citations=checked.invalid,
            dropped_claims=tuple(checked.dropped),
        )
        claims = tuple(checked.claims)
        answer = Answer(
            question=question,
            text=cite.render(claims) if claims else run.abstention(internal),
            status="answered" if claims else "abstained",
            claims=claims,
            citations=tuple(cite.citations(claims, evidence)),
            action=judged.action,
            assessment=judged.assessment,
            confidence=cite.confidence(claims, evidence),
            warnings=tuple(run.warnings),
            stop_reason="covered" if claims else run.stop_reason,
            web_query=run.web_query,
            usage=run.usage(),
        )
        return dspy.Prediction(answer=answer, trace=trace)


class _Run:
    """One question on its way: what was asked, and what has been spent and has gone wrong so far."""

    def __init__(self, program: CRAG, question: str, as_of: date) -> None:
        self.question = question.strip()
        if not self.question:
            raise QuestionError('The question is empty. Ask something, e.g. crag ask "What does the basic plan cost?"')
        if len(self.question) > MAX_QUESTION:
            raise QuestionError(f"The question has {len(self.question):,} characters; at most {MAX_QUESTION:,} can be asked. Shorten it.")
        self.asked = as_data(self.question)
        self.plan = plan(self.asked)
        self.program, self.parts, self.policy, self.as_of = program, program.parts, program.policy.value, as_of
        self.meter = Meter()
        self.warnings: list[AnswerWarning] = []
        self.stop_reason: StopReason = "nothing_supported"
        self.web_query: str | None = None
        self.searches = self.pages = self.prompt_tokens = self.completion_tokens = 0
        self.started = time.monotonic()

    def retrieve(self) -> list[Passage]:
        try:
            return retrieve(self.parts.index, self.question, self.plan.needs, self.parts.top_k)
        except SourceFailure as exc:
            self.warn(exc)
            return []

    def judge(self, passages: Sequence[Passage]) -> list[Grade]:
        scored = score(self.parts.cross_encoder, self.plan.needs, passages)
        return grade(
            self.program.grade,
            self.meter,
            scored,
            self.plan.needs,
            kind=self.plan.kind,
            policy=self.policy,
            as_of=self.as_of,
            workers=self.parts.workers,
        )

    def refine(self, grades: Sequence[Grade]) -> list[tuple[Grade, list[Strip]]]:
        worth = kept(grades, self.policy, KEPT_PER_NEED)
        return refine(self.program.refine, self.meter, self.asked, worth, self.policy)

    def web_allowed(self) -> bool:
        if self.parts.search is None:
            self.stop_reason = "no_web"
            self.warnings.append(AnswerWarning(code="no_web", message="The web was needed, but none is configured (CRAG_WEB)."))
        elif time.monotonic() - self.started > self.parts.max_seconds:
            self.stop_reason = "budget"
            self.warnings.append(
                AnswerWarning(
                    code="budget",
                    message=f"The time for one answer ({self.parts.max_seconds:g} s) was up before the web search.",
                )
            )
        else:
            return True
        return False

    def wanted(self, open_needs: Sequence[int]) -> str:
        """The question, or of a compound one the parts that still lack support."""
        needs = self.plan.needs
        return self.asked if len(open_needs) == len(needs) else " ".join(needs[i] for i in open_needs)

    def search(self, query: str) -> list[Passage]:
        assert self.parts.search is not None  # web_allowed() came first
        self.searches += 1
        try:
            results = self.parts.search(query, self.parts.max_pages)
        except SourceFailure as exc:
            self.warn(exc)
            return []
        passages, failures, self.pages = read_pages(results, self.parts.fetch, self.as_of, self.parts.workers)
        for failure in failures:
            self.warn(failure)
        return passages

    def generate(self, evidence: Sequence[Evidence]) -> str:
        """The generator's text for every need that any evidence reaches, each from its own evidence, all in one wave."""
        needs = self.plan.needs
        own = [[item for item in evidence if item.needs[i] >= self.policy.lower] for i in range(len(needs))]
        answerable = [i for i, items in enumerate(own) if any(item.needs[i] >= self.policy.answerable for item in items)]
        if answerable and len(answerable) < len(needs):
            missing = " ".join(needs[i] for i in range(len(needs)) if i not in answerable)
            self.warnings.append(AnswerWarning(code="need_unanswered", message=f"Nothing was found for: {missing}"))
        asked = {i: self.asked if len(needs) == 1 else needs[i] for i in answerable}
        return "\n".join(wave(lambda i: generate(self.program.generate, self.meter, asked[i], own[i]), answerable, self.parts.workers))

    def abstention(self, internal: Sequence[Grade]) -> str:
        documents = len({g.passage.document_id for g in internal})
        web = f", and the web for {self.web_query!r} ({self.pages} pages read)" if self.web_query else ""
        return f"No supported answer was found. Searched: {documents} internal documents{web}. Missing: {' '.join(self.plan.needs)}"

    def warn(self, failure: SourceFailure) -> None:
        self.warnings.append(AnswerWarning(code=failure.code, message=str(failure)))

    def count(self, totals: dict[str, dict[str, Any]]) -> None:
        self.prompt_tokens = sum(int(use.get("prompt_tokens") or 0) for use in totals.values())
        self.completion_tokens = sum(int(use.get("completion_tokens") or 0) for use in totals.values())

    def usage(self) -> Usage:
        return Usage(
            lm_calls=self.meter.lm_calls,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            searches=self.searches,
            pages=self.pages,
            seconds=round(time.monotonic() - self.started, 3),
        )
