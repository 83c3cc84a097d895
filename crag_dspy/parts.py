"""What the program works with: index, scorer, web, clock, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Literal, Protocol

import dspy

from crag_dspy.budget import Limits
from crag_dspy.fetch import Fetcher
from crag_dspy.index import Where
from crag_dspy.policy import PolicyParameter
from crag_dspy.retrieve import Scorer, Searchable
from crag_dspy.search import Search


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
    pages_per_search: int = 4
    max_rounds: int = 2
    """Rounds of web searches: the first, and follow-ups."""
    max_evidence: int = 8
    workers: int = 4
    limits: Limits = field(default_factory=Limits)
    where: Where | None = None
    """Which passages of the index are searched where a question does not say."""
    remember: bool = False
    """Whether useful web pages are written to the index, so that the next question finds them there."""
    planner: dspy.Predict | None = None
    """Plans by the LM, beside the first retrieval; None: by rules."""
    claim_check: dspy.Predict | None = None
    """Lets the LM confirm each claim too; None: words, numbers and the cross-encoder decide."""
    unsupported: Literal["drop", "abstain"] = "drop"

    def __deepcopy__(self, memo: dict[int, Any]) -> Parts:
        return self  # optimizers and load() copy the module; clients cannot be copied

    def __reduce__(self) -> Any:
        raise TypeError("Parts are rebuilt from settings, never pickled")


class Stages(Protocol):
    """A program: its four predictors, its policy, its parts."""

    grade: dspy.Predict
    rewrite: dspy.Predict
    refine: dspy.Predict
    generate: dspy.Predict
    policy: PolicyParameter
    parts: Parts
