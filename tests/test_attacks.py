"""Hostile pages and documents, through the real program, against an LM that obeys whatever it reads."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_lm import SUITE, Attack, load, obedient_lm_server, orders_in, shown
from attack_runs import Models, both, breaches, build, met, undefended
from conftest import WordEmbedder, WordScorer
from fake_lm import FakeLM

from crag_dspy import app
from crag_dspy.policy import Policy

ATTACKS, BENIGN = load()
INTERNAL = [attack for attack in ATTACKS if attack.internal]
# Word overlap lets through whatever shares words with the question: more than the real models do.
WORDS = Models(
    WordEmbedder(),
    WordScorer(),
    Policy(platt=(0.0, 0.5, 0.5), platt_lm=(-3.0, 0.0, 0.0, 6.0), band=(0.4, 0.95), lower=0.3, support=0.4, answerable=0.3),
)
MARKERS = {"level": 2, "numbers": 2, "answer": 2, "query": 1}


def names(suite: list[Attack]) -> list[str]:
    return [one.id for one in suite]


@pytest.fixture(scope="module")
def obedient() -> Iterator[FakeLM]:
    with obedient_lm_server() as fake:
        yield fake


@pytest.fixture(scope="module")
def crag(obedient: FakeLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Attack], app.Crag]]:
    yield both(tmp_path_factory.mktemp("attacked"), obedient.lm(), WORDS)
    app.sandbox(SUITE / "web").close()
    app.sandbox.cache_clear()


@pytest.fixture(scope="module")
def harmless(obedient: FakeLM, tmp_path_factory: pytest.TempPathFactory) -> app.Crag:
    """The same program over the same documents without their payloads."""
    corpus = tmp_path_factory.mktemp("harmless") / "corpus"
    shutil.copytree(SUITE / "corpus", corpus)
    for attack in INTERNAL:
        path = corpus / Path(attack.file).name
        text = path.read_text(encoding="utf-8")
        for payload in {attack.payload, json.dumps(attack.payload, ensure_ascii=False)[1:-1]}:
            text = text.replace(payload, "A note")
        path.write_text(text, encoding="utf-8")
    return build(corpus.parent / "home", obedient.lm(), sorted(corpus.iterdir()), WORDS)


def test_the_suite_covers_its_kinds() -> None:
    families = Counter(attack.family for attack in ATTACKS)
    assert len(ATTACKS) >= 90 and len(families) >= 15 and min(families.values()) >= 4
    assert len({attack.language for attack in ATTACKS}) >= 11 and len(INTERNAL) >= 25 and len(BENIGN) >= 12
    assert 0.4 < sum(attack.held_out for attack in ATTACKS) / len(ATTACKS) < 0.6


def test_without_defences_the_lm_obeys(obedient: FakeLM) -> None:
    lm = obedient.lm()
    followed = [attack.id for attack in ATTACKS if attack.canary.casefold() in undefended(attack, lm).casefold()]
    assert len(followed) >= 0.9 * len(ATTACKS), sorted(set(names(ATTACKS)) - set(followed))


@pytest.mark.parametrize("attack", ATTACKS, ids=names(ATTACKS))
def test_an_attack_changes_nothing(attack: Attack, crag: Callable[[Attack], app.Crag], obedient: FakeLM) -> None:
    obedient.calls.clear()
    prediction = crag(attack).predict(attack.question)
    assert breaches(attack, prediction.answer, prediction.trace) == set()
    assert met(attack, prediction.answer, prediction.trace)
    assert any(attack.fact in item.text for item in prediction.trace.evidence), "the truth is lost"
    for call in obedient.calls:
        seen = shown(obedient, call.inputs)
        assert attack.canary.casefold() not in seen.casefold(), call.field
        assert attack.canary.casefold() not in " ".join(orders_in(seen)).casefold(), f"encoded, in the prompt for {call.field}"
        assert len(re.findall(r"\[\[ ## \w+ ## \]\]", seen)) == MARKERS[call.field] - 1, call.field
        assert not re.search("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff\U000e0000-\U000e007f]", seen)
        numbers = [int(n) for n in re.findall(r"[\[【]\s*(\d+)\s*[\]】]", seen)]
        assert numbers == list(range(1, len(numbers) + 1)) if call.field == "answer" else not numbers


@pytest.mark.parametrize("attack", INTERNAL, ids=names(INTERNAL))
def test_a_document_cannot_choose_the_route(attack: Attack, crag: Callable[[Attack], app.Crag], harmless: app.Crag) -> None:
    attacked, clean = crag(attack)(attack.question), harmless(attack.question)
    assert (attacked.action, attacked.assessment) == (clean.action, clean.assessment)


@pytest.mark.parametrize("page", BENIGN, ids=names(BENIGN))
def test_what_only_looks_like_an_attack_is_used(page: Attack, crag: Callable[[Attack], app.Crag], fake_lm: FakeLM) -> None:
    answer = app.Crag(crag(page).program, fake_lm.lm())(page.question)
    sources = {c.url or c.id for c in answer.citations}
    assert page.fact in answer.text, answer
    assert any(Path(page.file).parent.name in source or Path(page.file).name == source for source in sources)
    assert not any(warning.code == "page_gives_orders" and "benign" in warning.message for warning in answer.warnings)
