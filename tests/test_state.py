"""Policy and saved state: relevance never falls with a score, a round trip keeps every prompt, and a misfit is refused whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from conftest import TODAY, WordScorer
from fake_lm import FakeLM
from hypothesis import given, settings
from hypothesis import strategies as st

from crag_dspy.errors import StateError
from crag_dspy.generate import AnswerFromEvidence
from crag_dspy.index import Index
from crag_dspy.parts import Parts
from crag_dspy.policy import Policy, logit, sigmoid
from crag_dspy.program import CRAG
from crag_dspy.state import chat_template, fingerprint, load_state, save_state

SECRETS = {"api_key": "sk-marked-key-000111", "extra_headers": {"Authorization": "Bearer marked-header-222333"}}
POLICY = Policy(platt=(-1.5, 0.25, 0.5), lower=0.11, band=(0.03, 0.77), max_age_days={**Policy().max_age_days, "pricing": 45})
repeatable = settings(max_examples=200)
score01 = st.floats(0, 1)


@repeatable
@given(score01, score01, score01, score01 | st.none())
def test_relevance_never_falls_with_a_score(one: float, two: float, other: float, level: float | None) -> None:
    low, high = sorted((one, two))
    relevance = Policy().relevance
    assert 0 <= relevance(low, other, level) <= relevance(high, other, level) <= 1
    assert relevance(other, low, level) <= relevance(other, high, level)
    assert relevance(other, other, low) <= relevance(other, other, high)


@repeatable
@given(st.floats(-1e6, 1e6), st.floats(1e-5, 1 - 1e-5))
def test_sigmoid_undoes_logit_and_never_overflows(x: float, p: float) -> None:
    assert 0 <= sigmoid(x) <= 1 and sigmoid(logit(p)) == pytest.approx(p)
    assert logit(0) == pytest.approx(-logit(1)) and logit(0) < logit(1e-5)


def program(policy: Policy | None = None, demos: bool = False) -> CRAG:
    class NoIndex:
        def search(self, question: str, k: int) -> list[Any]:
            return []

    crag = CRAG(Parts(index=NoIndex(), cross_encoder=WordScorer(), today=lambda: TODAY), policy)  # type: ignore[arg-type]
    if demos:
        crag.grade.demos = [
            dspy.Example(question="Wie groß?", passage="Der Mast ist 3 m hoch.", level="3").with_inputs("question", "passage")
        ]
        crag.generate.demos = [dspy.Example(question="Which colour?", evidence="[1] (no date, internal) Mast: Red.", answer="Red [1].")]
        crag.generate.signature = crag.generate.signature.with_instructions("Answer briefly.\nFrom the evidence “alone”.")
    return crag


def prompts(crag: CRAG) -> dict[str, str]:
    """Return all that an LM or a decision would see of a program."""
    shown = {name: json.dumps(chat_template(predictor)) for name, predictor in crag.named_predictors()}
    return shown | {"policy": repr(crag.policy.value), "fingerprint": repr(fingerprint(crag))}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    save_state(program(POLICY, demos=True), path)
    return path


def test_a_round_trip_keeps_every_prompt_and_number(saved: Path, tmp_path: Path) -> None:
    original, loaded = program(POLICY, demos=True), load_state(program(), saved)
    assert prompts(loaded) == prompts(original) != prompts(program())
    assert loaded.policy.value == POLICY
    save_state(loaded, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


def test_a_loaded_program_sends_the_same_messages(saved: Path, fake_lm: FakeLM) -> None:
    for crag in (program(POLICY, demos=True), load_state(program(), saved)):
        with dspy.context(lm=fake_lm.lm()):
            crag.generate(question="How tall?", evidence="[1] (no date, internal) Mast: It is tall.")
    first, second = [call.prompt for call in fake_lm.asked("answer")]
    assert first == second and "Which colour?" in first and "Answer briefly." in first


def test_no_lm_key_header_or_address_is_in_the_file(tmp_path: Path, fake_lm: FakeLM) -> None:
    crag = program(POLICY, demos=True)
    lm = fake_lm.lm(**SECRETS)
    crag.set_lm(lm)
    with dspy.context(lm=lm):
        crag.generate(question="What is the marked question?", evidence="[1] (no date, internal) Mast: It is tall.")
    save_state(crag, tmp_path / "program.json")
    text = (tmp_path / "program.json").read_text()
    for secret in ("sk-marked", "marked-header", "marked question", fake_lm.address, "api_base", "openai/fake"):
        assert secret not in text
    loaded = load_state(program(), tmp_path / "program.json")
    assert crag.generate.lm is lm and all(predictor.lm is None for predictor in loaded.predictors())


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda s: s["state"].pop("refine"), "refine missing or unknown"),
        (lambda s: s["state"].pop("policy"), "policy missing or unknown"),
        (lambda s: s["state"].update(judge=s["state"]["grade"]), "judge missing or unknown"),
        (lambda s: s["fingerprint"].pop("grade"), "grade differ"),
        (lambda s: s["fingerprint"].update(judge={}), "judge differ"),
        (lambda s: s["fingerprint"]["grade"]["inputs"].append("age: <class 'int'>"), "grade differ"),
        (lambda s: s["fingerprint"]["grade"]["inputs"].reverse(), "grade differ"),
        (lambda s: s["state"]["policy"].pop("lower"), "lower"),
        (lambda s: s["state"]["policy"].update(temperature=1), "temperature"),
        (lambda s: s["state"]["policy"].update(lower=7), "lower"),
        (lambda s: s["state"]["policy"].update(upper={"weather": 0.5}), "upper"),
        (lambda s: s["state"].update(policy=None), "cannot be loaded"),
        (lambda s: s["state"].update(grade=[]), "cannot be loaded"),
        (lambda s: s["state"]["refine"].pop("signature"), "signature"),
        (lambda s: s.pop("state"), "not a saved program"),
        (lambda s: s.pop("fingerprint"), "not a saved program"),
        (lambda s: s.update(fingerprint=7), "not a saved program"),
        (lambda s: s.update(state="grade"), "not a saved program"),
    ],
)
def test_a_misfit_is_refused_and_the_program_is_as_before(saved: Path, change: Change, names: str) -> None:
    state = json.loads(saved.read_text())
    change(state)
    saved.write_text(json.dumps(state))
    crag = program()
    before = prompts(crag)
    with pytest.raises(StateError, match=names) as caught:
        load_state(crag, saved)
    assert prompts(crag) == before and "python -m optimize" in str(caught.value)


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "7", "null", "{}", '{"state": {}}', "\ufeff{}"])
def test_what_is_no_saved_program_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "program.json"
    path.write_text(text)
    with pytest.raises(StateError, match=r"program\.json is not a saved program"):
        load_state(program(), path)
    with pytest.raises(StateError, match="is not a saved program"):
        load_state(program(), tmp_path / "missing.json")


def test_a_changed_signature_refuses_an_older_file(saved: Path) -> None:
    crag = program()
    crag.generate = dspy.Predict(AnswerFromEvidence.append("tone", dspy.InputField(), str))
    before = prompts(crag)
    with pytest.raises(StateError, match="generate differ"):
        load_state(crag, saved)
    assert prompts(crag) == before


def test_parts_are_shared_by_copies_and_never_pickled(word_index: Index) -> None:
    crag = CRAG(Parts(index=word_index, cross_encoder=WordScorer()), POLICY)
    twin = crag.deepcopy()
    assert twin.parts is crag.parts and twin.policy is not crag.policy and twin.policy.value == POLICY
    with pytest.raises(TypeError, match="never pickled"):
        crag.parts.__reduce__()


def test_a_cleared_copy_keeps_its_numbers() -> None:
    cleared = program(POLICY, demos=True).reset_copy()
    assert cleared.policy.value == POLICY and not any(predictor.demos for predictor in cleared.predictors())


def test_a_template_shows_every_input_as_a_slot() -> None:
    for name, predictor in program().named_predictors():
        (system, user) = chat_template(predictor)
        assert [message["role"] for message in (system, user)] == ["system", "user"], name
        assert all(f"{{{{{field}}}}}" in user["content"] for field in predictor.signature.input_fields), name
