"""The program: Corrective RAG as one DSPy module. `forward` is the whole flow."""

from __future__ import annotations

import asyncio
from datetime import date
from typing import Any

import dspy

from crag_dspy.answer import answer, trace
from crag_dspy.budget import Limits
from crag_dspy.domains import Domains
from crag_dspy.generate import AnswerFromEvidence
from crag_dspy.grade import GradePassage
from crag_dspy.index import Where
from crag_dspy.parts import Parts
from crag_dspy.policy import Policy, PolicyParameter
from crag_dspy.refine import PickStrips
from crag_dspy.rewrite import WriteQuery
from crag_dspy.run import Run
from crag_dspy.types import Grade


class CRAG(dspy.Module):  # type: ignore[misc]
    """Corrective RAG (Yan et al. 2024): judge what was retrieved, then use, supplement or replace it.

    The four predictors and the policy are what is compiled and saved. A call returns a `dspy.Prediction` with `answer`
    (an `Answer`) and `trace` (a `Trace`).

    Raises:
        QuestionError: the question is empty or longer than 4,000 characters; before any LM call.
        dspy.LMError: the LM cannot be reached or refuses.
    """

    steps: type[Run] = Run

    def __init__(self, parts: Parts, policy: Policy | None = None) -> None:
        super().__init__()
        self.grade = dspy.Predict(GradePassage)
        self.rewrite = dspy.Predict(WriteQuery)
        self.refine = dspy.Predict(PickStrips)
        self.generate = dspy.Predict(AnswerFromEvidence)
        self.policy = PolicyParameter(policy)
        self.parts = parts

    def forward(
        self,
        question: str,
        as_of: date | None = None,
        where: Where | None = None,
        limits: Limits | None = None,
        domains: Domains | None = None,
    ) -> dspy.Prediction:
        """Answer a question as of a day (default: today) from the index's passages that fit `where` and the pages of `domains`."""
        run = self.steps(self, question, as_of or self.parts.today(), where, limits, domains)
        internal = run.judge(run.retrieve())
        judged = run.assess(internal)
        knowledge = run.refine(internal) if judged.action != "incorrect" else []  # K_in
        external: list[Grade] = []
        while wanted := run.gaps([*internal, *external], judged):
            found = run.judge(run.search(run.rewrite(wanted)))
            knowledge += run.refine(found)  # K_ex
            external += found
            run.remember(found)
        evidence = run.number(knowledge)
        claims, conflicts = run.check(run.generate(evidence), evidence)
        return dspy.Prediction(
            answer=answer(run, judged, evidence, claims, conflicts, internal),
            trace=trace(run, judged, internal, external, evidence),
        )

    async def aforward(self, question: str, **options: Any) -> dspy.Prediction:
        """Do the same without holding up the event loop."""
        return await asyncio.to_thread(self.forward, question, **options)
