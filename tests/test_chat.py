"""The embedded LM's reply is begun for it; other LMs get DSPy's own format."""

from __future__ import annotations

import dspy
import pytest
from fake_lm import FakeLM

from crag_dspy.crag import context
from crag_dspy.local_lm import EMBEDDED_KEY
from optimize.strict import compiling

END = "starting with the field `[[ ## answer ## ]]`, and then ending with the marker for `[[ ## completed ## ]]`."


@pytest.fixture
def fake(fake_lm: FakeLM) -> FakeLM:
    fake_lm.rules["answer"] = lambda inputs: inputs["question"].upper()
    return fake_lm


@pytest.mark.parametrize(
    "raw",
    ["{}", "[[ ## answer ## ]]\n{}", "{}\n\n[[ ## completed ## ]]", "[[ ## answer ## ]] {}\n\n", "{}\n\n[[ ## answer ## ]]\nmore"],
)
def test_the_embedded_lm_goes_on_after_the_marker(fake: FakeLM, raw: str) -> None:
    fake.raw = lambda field, reply: raw.format(reply)
    with context(fake.lm(api_key=EMBEDDED_KEY)):
        assert dspy.Predict("question -> answer")(question="red").answer == "RED"
    [call] = fake.calls
    assert call.prompt.endswith(f"{END}\n[[ ## answer ## ]]\n")


def test_it_does_while_prompts_are_optimized_too(fake: FakeLM) -> None:
    with context(fake.lm(api_key=EMBEDDED_KEY)), compiling():
        assert dspy.Predict("question -> answer")(question="red").answer == "RED"
    assert fake.calls[0].prompt.endswith(f"{END}\n[[ ## answer ## ]]\n")


def test_another_lm_gets_dspys_own_format(fake: FakeLM) -> None:
    with context(fake.lm(api_key=EMBEDDED_KEY)), dspy.context(lm=fake.lm()):
        assert dspy.Predict("question -> answer")(question="red").answer == "RED"
    [call] = fake.calls
    assert call.prompt.endswith(END)


def test_a_signature_with_more_outputs_is_asked_for_in_dspys_own_format(fake: FakeLM) -> None:
    fake.raw = lambda field, reply: f"[[ ## answer ## ]]\n{reply}\n\n[[ ## why ## ]]\nbecause\n\n[[ ## completed ## ]]"
    with context(fake.lm(api_key=EMBEDDED_KEY)):
        found = dspy.Predict("question -> answer, why")(question="red")
    assert (found.answer, found.why) == ("RED", "because") and fake.calls[0].prompt.endswith("`[[ ## completed ## ]]`.")
