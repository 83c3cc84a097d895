"""A ready program in its user's hand: asked, awaited, streamed, by several at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from fake_lm import FakeLM
from whole_program import FRESH, NEWS, QUESTION, STALE, Web, build

from crag_dspy.crag import Crag, context
from crag_dspy.errors import QuestionError
from crag_dspy.types import Answer, Document
from crag_dspy.watch import Event


def same(one: Answer, other: Answer) -> bool:
    """Return whether two answers are equal in all but their times."""
    times: Any = {"usage": {"seconds"}, "citations": {"__all__": {"retrieved_at"}}, "consulted": {"__all__": {"retrieved_at"}}}
    return one.model_dump(exclude=times) == other.model_dump(exclude=times)


@pytest.mark.parametrize("broken", ["a file", "garbage"])
def test_a_broken_cache_of_dspy_is_survived(tmp_path: Path, broken: str) -> None:
    folder = tmp_path / "cache"
    if broken == "a file":
        folder.touch()
    for shard in range(16) if broken == "garbage" else ():
        (folder / f"{shard:03d}").mkdir(parents=True)
        (folder / f"{shard:03d}" / "cache.db").write_text("garbage")
    command = [sys.executable, "-c", "import crag_dspy; print(crag_dspy.Limits())"]
    done = subprocess.run(command, env=os.environ | {"DSPY_CACHEDIR": str(folder)}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "max_searches" in done.stdout


@pytest.fixture
def crag(fake_lm: FakeLM) -> Crag:
    return build(fake_lm.lm(), FRESH)


def test_awaited_is_the_same_answer(crag: Crag) -> None:
    assert same(asyncio.run(crag.acall(QUESTION)), crag(QUESTION))


def test_awaited_with_options(fake_lm: FakeLM) -> None:
    as_of = STALE.published_at
    answer = asyncio.run(build(fake_lm.lm(), STALE).acall(QUESTION, as_of=as_of))
    assert answer.assessment == "sufficient"


def test_two_awaited_calls_overlap(fake_lm: FakeLM, crag: Crag) -> None:
    both = threading.Barrier(2, timeout=10)  # passes only if two calls are under way at once
    rule = fake_lm.rules["answer"]
    fake_lm.rules["answer"] = lambda inputs: rule(inputs) if both.wait() >= 0 else ""

    async def two() -> tuple[Answer, Answer, int]:
        ticks = 0
        tasks = asyncio.gather(crag.acall(QUESTION), crag.acall(QUESTION))
        while not tasks.done():
            ticks += 1
            await asyncio.sleep(0.01)  # the loop is free meanwhile
        return (*await tasks, ticks)

    one, other, ticks = asyncio.run(two())
    assert one.text == other.text == "The Corvane warranty lasts 26 months [1]." and ticks > 1


def test_the_program_itself_can_be_awaited(fake_lm: FakeLM, crag: Crag) -> None:
    with context(fake_lm.lm()):
        awaited = asyncio.run(crag.program.acall(question=QUESTION))
        assert same(awaited.answer, crag.program(question=QUESTION).answer)


def test_a_stream_is_stages_then_words_then_the_answer(fake_lm: FakeLM) -> None:
    crag = build(fake_lm.lm(), STALE, web=Web(NEWS))
    pieces = list(crag.stream(QUESTION))
    kinds = [type(piece).__name__ for piece in pieces]
    assert kinds == sorted(kinds, key=["Event", "str", "Answer"].index) and kinds.count("Answer") == 1
    assert [piece.stage for piece in pieces if isinstance(piece, Event)] == [
        "retrieve", "grade", "assess", "refine", "rewrite", "search", "grade", "refine", "generate", "check",
    ]  # fmt: skip
    words = [piece for piece in pieces if isinstance(piece, str)]
    assert len(words) > 5 and "".join(words) == pieces[-1].text  # type: ignore[union-attr]
    assert same(pieces[-1], crag(QUESTION))  # type: ignore[arg-type]


def test_an_event_comes_while_the_answer_is_being_made(fake_lm: FakeLM, crag: Crag) -> None:
    heard = threading.Event()
    rule = fake_lm.rules["answer"]
    fake_lm.rules["answer"] = lambda inputs: rule(inputs) if heard.wait(10) else "never"
    for piece in crag.stream(QUESTION):
        if isinstance(piece, Event) and piece.stage == "assess":
            assert "sufficient" in piece.note
            heard.set()
    assert isinstance(piece, Answer) and "26 months" in piece.text


def test_a_stream_left_early_ends(crag: Crag) -> None:
    stream, before = crag.stream(QUESTION), threading.active_count()
    assert isinstance(next(stream), Event)
    stream.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_who_leaves_a_stream_does_not_wait_for_the_answer(fake_lm: FakeLM, crag: Crag) -> None:
    end, rule = threading.Event(), fake_lm.rules["answer"]
    fake_lm.rules["answer"] = lambda inputs: rule(inputs) if end.wait(60) else ""
    stream, began = crag.stream(QUESTION), time.monotonic()
    assert isinstance(next(stream), Event)
    stream.close()  # type: ignore[attr-defined]
    waited = time.monotonic() - began
    end.set()
    assert waited < 30


@pytest.mark.parametrize("question", ["", " \n ", "x" * 5000])
def test_an_impossible_question_is_the_same_error_in_every_way(fake_lm: FakeLM, crag: Crag, question: str) -> None:
    with context(fake_lm.lm()):
        for ask in (
            lambda: crag(question),
            lambda: asyncio.run(crag.acall(question)),
            lambda: list(crag.stream(question)),
            lambda: asyncio.run(crag.program.acall(question=question)),
        ):
            with pytest.raises(QuestionError):
                ask()
    assert fake_lm.calls == []


def test_an_lm_that_refuses_is_the_same_error_in_every_way(fake_lm: FakeLM, crag: Crag) -> None:
    fake_lm.status = 500
    heard: list[Any] = []

    def stream() -> None:
        heard.extend(crag.stream(QUESTION))

    for ask in (lambda: crag(QUESTION), lambda: asyncio.run(crag.acall(QUESTION)), lambda: list(crag.stream(QUESTION)), stream):
        with pytest.raises(dspy.LMError):
            ask()
    assert [type(piece) for piece in heard] == [Event]  # the retrieval; no words, no answer


def test_threads_do_not_mix_up_questions(fake_lm: FakeLM) -> None:
    names = "Corvane Tidewarden Vaultmere Kestrel Ravnsund Fennmark Zephyr Lumen".split()
    documents = [
        Document(id=f"{name}.md", title=name, text=f"The {name} warranty lasts {20 + i} months.", published_at=FRESH.published_at)
        for i, name in enumerate(names)
    ]
    crag = build(fake_lm.lm(), *documents)
    questions = [f"How many months does the warranty of the {name} last?" for name in names] * 2
    all_at_once = threading.Barrier(8, timeout=20)

    def ask(question: str) -> Answer:
        all_at_once.wait()
        return crag(question)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, questions))
    for question, answer, i in zip(questions, answers, [*range(8)] * 2, strict=True):
        assert answer.question == question and answer.text == f"The {names[i]} warranty lasts {20 + i} months [{answer.citations[0].n}]."
        assert [c.id for c in answer.citations] == [f"{names[i]}.md"]
    assert sum(answer.usage.lm_calls for answer in answers) == len(fake_lm.calls)  # each counts its own


def test_nothing_of_the_global_settings_is_used_or_changed(fake_lm: FakeLM, crag: Crag) -> None:
    dspy.configure(lm=fake_lm.lm(api_key="global"))
    before = dict(dspy.settings.config)
    crag(QUESTION)
    assert {call.headers["authorization"] for call in fake_lm.calls} == {"Bearer not-a-real-key"}
    assert dict(dspy.settings.config) == before
