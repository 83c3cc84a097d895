"""The learned numbers: thresholds per question kind, ages, the cascade's band. Saved with the prompts."""

from __future__ import annotations

import math
from typing import Any

from dspy.predict.parameter import Parameter
from pydantic import Field

from crag_dspy.types import Frozen, Kind

Probability = float


class Policy(Frozen):
    """Numbers that decide. Defaults are the hand-set start; `python -m optimize` learns them.

    `platt` and `platt_lm` turn raw scores into a probability of relevance, sigmoid(a + b*passage + c*strip [+ d*level]): the
    cross-encoder's logits of the passage and of its best strip, and the LM's expected rubric level in 0-1 (Platt 1999).
    """

    upper: dict[Kind, Probability] = Field(default={"pricing": 0.6, "technical": 0.5, "factual": 0.5, "general": 0.4})
    """A passage at or above is `correct` for its kind of question (Yan et al. 2024, section 4.3)."""
    lower: Probability = Field(default=0.05, ge=0, le=1)
    """A passage below is `incorrect`."""
    max_age_days: dict[Kind, int] = Field(default={"pricing": 30, "technical": 180, "factual": 365, "general": 365})
    band: tuple[Probability, Probability] = (0.1, 0.8)
    """Between these bounds of the cross-encoder's probability the LM grades; (1, 1) never asks it, (0, 1) always."""
    platt: tuple[float, float, float] = (-4.0, 0.2, 0.6)
    platt_lm: tuple[float, float, float, float] = (-5.0, 0.2, 0.5, 3.0)
    strip_keep: Probability = Field(default=0.1, ge=0, le=1)
    """A strip scoring below, in the cross-encoder's probability, is dropped."""
    strip_sure: Probability = Field(default=0.9, ge=0, le=1)
    """Where every kept strip reaches this, the LM is not asked to pick."""
    max_strips: int = Field(default=3, gt=0)
    """Strips kept per passage."""
    answerable: Probability = Field(default=0.2, ge=0, le=1)
    """If no evidence reaches this relevance for any need, the program abstains without calling the generator."""
    quote: Probability = Field(default=0.9, ge=0, le=1)
    """Where the generator declines although a strip reaches this, the strip itself is the answer: the evidence has the last word."""
    support: Probability = Field(default=0.5, ge=0, le=1)
    """A claim whose support by what it cites is below is dropped."""

    def relevance(self, passage: Probability, strip: Probability, level: Probability | None = None) -> Probability:
        """Return the probability that a passage is relevant, from its scores in 0-1."""
        if level is None:
            a, b, c = self.platt
            return sigmoid(a + b * logit(passage) + c * logit(strip))
        a, b, c, d = self.platt_lm
        return sigmoid(a + b * logit(passage) + c * logit(strip) + d * level)


def logit(probability: float) -> float:
    """Return log(p / (1 - p)), p kept a millionth away from 0 and 1."""
    p = min(max(probability, 1e-6), 1 - 1e-6)
    return math.log(p / (1 - p))


def sigmoid(x: float) -> float:
    """Return 1 / (1 + e^-x), in 0-1, without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


class PolicyParameter(Parameter):  # type: ignore[misc]
    """The policy as a DSPy parameter, so that it is copied, saved and loaded together with the prompts."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.value = policy or Policy()

    def reset(self) -> None:
        """Keep the policy: DSPy calls this to clear demonstrations from a copy, and thresholds are none."""

    def dump_state(self, json_mode: bool = True) -> dict[str, Any]:
        """Return the policy as JSON values."""
        return self.value.model_dump(mode="json")

    def load_state(self, state: dict[str, Any]) -> None:
        """Take the policy from JSON values; an unknown, missing or impossible number is refused."""
        if odd := sorted(set(state) ^ set(Policy.model_fields)):
            raise ValueError(f"policy fields {', '.join(odd)} are missing or unknown")
        self.value = Policy.model_validate(state)
