"""One question through the whole program on fakes: budgets, rounds, missing parts, options, and citations that never drift."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import dspy
import pytest
from conftest import TODAY
from fake_lm import FakeLM
from whole_program import BUOY, COMPOUND, FOUR, FRESH, LASTS, NEWS, NO_JUNK, QUESTION, STALE, Shelf, Web, build, codes, run

from crag_dspy.budget import Limits
from crag_dspy.cite import CheckClaim
from crag_dspy.domains import Domains
from crag_dspy.errors import SourceFailure
from crag_dspy.index import Hit, Where
from crag_dspy.plan import PlanQuestion
from crag_dspy.types import Document


@pytest.mark.parametrize("most", range(7))
def test_lm_calls_end_at_their_limit_and_the_answer_stays(fake_lm: FakeLM, most: int) -> None:
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=Web(NEWS), limits=Limits(max_lm_calls=most))
    assert answer.usage.lm_calls == len(fake_lm.calls) == min(most, FOUR)
    assert len(fake_lm.asked("answer")) == (most > 0)  # the generator goes first
    assert answer.status == "answered" and answer.citations and "months" in answer.text
    assert codes(answer) == (["max_lm_calls"] if most < FOUR else [])


@pytest.mark.parametrize(
    ("limits", "searches", "pages", "stop"),
    [
        ({"max_searches": 0}, 0, 0, "max_searches"),
        ({"max_searches": 1}, 1, 2, "max_searches"),
        ({"max_searches": 2}, 2, 4, None),
        ({"max_pages": 0}, 1, 0, "max_pages"),
        ({"max_pages": 1}, 2, 1, "max_pages"),
        ({"max_pages": 3}, 2, 3, "max_pages"),
        ({"max_pages": 4}, 2, 4, None),
    ],
)
def test_searches_and_pages_end_at_their_limit(
    fake_lm: FakeLM, limits: dict[str, int], searches: int, pages: int, stop: str | None
) -> None:
    fake_lm.rules |= NO_JUNK
    web = Web(find=lambda query: [f"http://junk{len(web.queries)}{i}.example/" for i in range(2)])  # others each time
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=web, limits=Limits(**limits))
    assert (answer.usage.searches, answer.usage.pages, len(web.queries)) == (searches, pages, searches)
    assert answer.text == "The Corvane warranty lasts 26 months [1]." and (answer.stop_reason == stop or stop is None)
    assert codes(answer) == ([stop] if stop else [])


@pytest.mark.parametrize("most", [0, 10, 400, 800, 1200, 2000, 9999])
def test_tokens_end_at_their_limit(fake_lm: FakeLM, most: int) -> None:
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=Web(NEWS), limits=Limits(max_tokens=most))
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens <= most
    assert answer.status == "answered" and answer.citations
    assert codes(answer) == (["max_tokens"] if answer.usage.lm_calls < FOUR else [])
    assert (answer.usage.lm_calls > 0) == (most >= 800) and (answer.usage.lm_calls == FOUR) == (most >= 2000)


def test_the_price_ends_at_its_limit(fake_lm: FakeLM) -> None:
    priced = {"api_base": fake_lm.address, "api_key": "x", "max_tokens": 300, "num_retries": 0, "cache": False}
    lm = dspy.LM("openai/gpt-4o-mini", **priced)
    whole, _ = run(lm, QUESTION, STALE, web=Web(NEWS))
    assert whole.usage.usd and whole.usage.usd > 0 and codes(whole) == [] and whole.usage.lm_calls == FOUR
    for share in (0.9, 0.6):
        most = whole.usage.usd * share
        answer, _ = run(lm, QUESTION, STALE, web=Web(NEWS), limits=Limits(max_usd=most))
        assert (answer.usage.usd or 0) <= most and answer.usage.lm_calls < FOUR
        assert answer.status == "answered" and codes(answer) == ["max_usd"]
    unpriced, _ = run(fake_lm.lm(), QUESTION, STALE, web=Web(NEWS), limits=Limits(max_usd=0.0))
    assert unpriced.usage.usd is None and unpriced.usage.lm_calls == FOUR


def test_tokens_end_at_their_limit_whatever_the_lm_may_write(fake_lm: FakeLM) -> None:
    answer, _ = run(fake_lm.lm(max_tokens=20), QUESTION, STALE, web=Web(NEWS), limits=Limits(max_tokens=200))
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens <= 200


def test_the_first_call_counts_as_well(fake_lm: FakeLM) -> None:
    lm = dspy.LM("openai/gpt-4o-mini", api_base=fake_lm.address, api_key="x", max_tokens=300, num_retries=0, cache=False)
    answer, _ = run(lm, QUESTION, STALE, web=Web(NEWS), limits=Limits(max_usd=0.0))
    assert answer.usage.lm_calls == 0 and answer.status == "answered" and codes(answer) == ["max_usd"]


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Yield what hangs waits for; set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("hangs", ["level", "query", "answer"])
def test_an_lm_that_hangs_costs_its_time_and_not_the_answer(fake_lm: FakeLM, released: threading.Event, hangs: str) -> None:
    run(fake_lm.lm(), QUESTION, FRESH)  # the first call imports its client
    fake_lm.rules[hangs] = lambda inputs: "late" if released.wait(20) else ""
    begun = time.monotonic()
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=Web(NEWS), limits=Limits(max_seconds=1.0))
    assert time.monotonic() - begun < 5
    assert answer.status == "answered" and "months" in answer.text and answer.citations
    assert "max_seconds" in codes(answer)


def test_a_slow_lm_is_asked_as_long_as_there_is_time(fake_lm: FakeLM) -> None:
    run(fake_lm.lm(), QUESTION, FRESH)
    slow = {name: rule for name, rule in fake_lm.rules.items()}
    fake_lm.rules |= {name: lambda inputs, rule=rule: time.sleep(0.3) or rule(inputs) for name, rule in slow.items()}
    begun, before = time.monotonic(), len(fake_lm.calls)
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=Web(NEWS), limits=Limits(max_seconds=0.8))
    assert time.monotonic() - begun < 5
    assert answer.usage.lm_calls == len(fake_lm.calls) - before < FOUR
    assert answer.status == "answered" and "max_seconds" in codes(answer)


def test_pages_that_hang_leave_the_index_and_what_arrived(fake_lm: FakeLM, released: threading.Event) -> None:
    run(fake_lm.lm(), QUESTION, FRESH)
    web = Web(NEWS | {"http://slow.example/": "Nothing."})
    fetch = web.fetch
    web.fetch = lambda url: fetch(url if "slow" not in url or released.wait(20) else "")  # type: ignore[method-assign]
    begun = time.monotonic()
    answer, _ = run(fake_lm.lm(), QUESTION, STALE, web=web, limits=Limits(max_seconds=1.2))
    assert time.monotonic() - begun < 5
    assert answer.status == "answered" and "26 months" in answer.text and "31 months" in answer.text and answer.usage.pages == 1
    assert "page_timeout" in codes(answer)


@pytest.mark.parametrize("missing", ["no_web", "web_unavailable", "page_unavailable"])
@pytest.mark.parametrize(
    ("question", "document", "action", "status"),
    [(QUESTION, FRESH, "correct", "answered"), (QUESTION, STALE, "ambiguous", "answered"), (BUOY, FRESH, "incorrect", "abstained")],
)
def test_each_action_with_each_part_missing(
    fake_lm: FakeLM, missing: str, question: str, document: Document, action: str, status: str
) -> None:
    web = Web({"http://down.example/": "DOWN"}) if missing != "no_web" else None
    if web and missing == "web_unavailable":
        web.failure = SourceFailure("web_unavailable", "The search answered 503.")
    answer, _ = run(fake_lm.lm(), question, document, web=web)
    assert (answer.action, answer.status) == (action, status)
    assert set(codes(answer)) == (set() if action == "correct" else {missing})
    assert bool(answer.citations) == (status == "answered") and (answer.stop_reason == "covered") == (status == "answered")
    if action == "correct" and web:
        assert web.queries == []


def test_without_index_and_web_nothing_is_made_up(fake_lm: FakeLM) -> None:
    class Broken:
        def search(self, question: str, k: int, where: Where | None = None) -> list[Hit]:
            raise SourceFailure("index_unavailable", "The index cannot be read.")

    answer, _ = run(fake_lm.lm(), QUESTION, index=Broken())
    assert (answer.assessment, answer.status, codes(answer)) == ("empty", "abstained", ["index_unavailable", "no_web"])
    assert fake_lm.calls == []


def test_half_an_answer_names_the_other_half(fake_lm: FakeLM) -> None:
    answer, _ = run(fake_lm.lm(), COMPOUND, FRESH, web=Web(find=lambda query: []))
    assert (answer.status, answer.assessment, answer.action) == ("answered", "partial", "ambiguous")
    assert answer.text == "The Corvane warranty lasts 26 months [1]." and len(answer.missing) == 1 and "buoy" in answer.missing[0]
    assert codes(answer) == ["need_unanswered"] and answer.stop_reason == "nothing_new"


def test_options_reach_index_search_and_pages(fake_lm: FakeLM) -> None:
    web = Web(NEWS | {"http://other.example/": "The Corvane warranty lasts 99 months."})
    crag = build(fake_lm.lm(), STALE, web=web)
    where, domains = Where(document_ids=("warranty.md",)), Domains(allow=("news.example",))
    answer = crag(QUESTION, where=where, domains=domains)
    assert {asked for _, asked in crag.program.parts.index.asked} == {where}  # type: ignore[attr-defined]
    assert web.domains == [domains] and "99" not in answer.text and "31 months" in answer.text
    assert "blocked_domain" in codes(answer)
    assert crag(QUESTION, where=Where(document_ids=("other.md",))).assessment == "empty"


PLANNED = "technical\n\n[[ ## time_sensitive ## ]]\nno\n\n[[ ## questions ## ]]\n{}"


@pytest.mark.parametrize(
    ("reply", "kind", "time_sensitive", "needs"),
    [
        (PLANNED.format("1. How long does the Corvane warranty last?\n2. What does the Tidewarden buoy weigh?"), "technical", False, 2),
        (PLANNED.format("- How long does the zebra sleep?\n- What does it weigh?"), "technical", False, 1),  # strays: the rules' needs
        ("I cannot say.", "factual", True, 1),
    ],
)
def test_the_lm_plans_beside_the_first_retrieval(fake_lm: FakeLM, reply: str, kind: str, time_sensitive: bool, needs: int) -> None:
    question = "How long does the Corvane warranty last as well as what does the Tidewarden buoy weigh?"
    both = threading.Barrier(2, timeout=5)  # passes only if planner and index are asked at the same time

    class Waiting(Shelf):
        def search(self, question: str, k: int, where: Where | None = None) -> list[Hit]:
            if not self.asked:
                both.wait()
            return super().search(question, k, where)

    fake_lm.rules["kind"] = lambda inputs: f"{reply}{both.wait() * ''}"
    answer, trace = run(fake_lm.lm(), question, index=Waiting(FRESH), planner=dspy.Predict(PlanQuestion))
    assert (trace.kind, trace.time_sensitive, len(trace.needs)) == (kind, time_sensitive, needs)
    assert len(fake_lm.asked("kind")) == 1 and answer.usage.lm_calls == len(fake_lm.calls)
    run(fake_lm.lm(), question, FRESH)
    assert len(fake_lm.asked("kind")) == 1  # rules plan without a call


def test_what_the_generator_leaves_the_check_of_claims_may_use(fake_lm: FakeLM) -> None:
    fake_lm.rules["stated"] = lambda inputs: "yes"
    answer, _ = run(fake_lm.lm(), COMPOUND, FRESH, claim_check=dspy.Predict(CheckClaim), limits=Limits(max_lm_calls=3))
    assert len(fake_lm.asked("answer")) == len(fake_lm.asked("stated")) == 1 and answer.usage.lm_calls <= 3


SHARKS = f"{LASTS[:-1]} [1]. The Corvane warranty covers sharks [1]."


@pytest.mark.parametrize(
    ("said", "unsupported", "text", "status"),
    [
        ("yes", "drop", f"{LASTS[:-1]} [1]. The Corvane warranty covers sharks [1].", "answered"),
        ("no", "drop", f"{LASTS[:-1]} [1].", "answered"),
        ("**No.**", "drop", f"{LASTS[:-1]} [1].", "answered"),
        ("no", "abstain", None, "abstained"),
        ("yes", "abstain", f"{LASTS[:-1]} [1]. The Corvane warranty covers sharks [1].", "answered"),
    ],
)
def test_the_lm_may_check_claims_too(fake_lm: FakeLM, said: str, unsupported: str, text: str | None, status: str) -> None:
    fake_lm.rules |= {"answer": lambda inputs: SHARKS, "stated": lambda inputs: said if "sharks" in inputs["claim"] else "yes"}
    options: dict[str, Any] = {"claim_check": dspy.Predict(CheckClaim), "unsupported": unsupported}
    answer, trace = run(fake_lm.lm(), QUESTION, FRESH, **options)
    assert answer.status == status and (text is None or answer.text == text)
    assert bool(trace.dropped_claims) == ("yes" != said)
    if status == "abstained":
        assert answer.claims == () and answer.missing == (QUESTION,) and [c.id for c in answer.consulted] == ["warranty.md"]


def test_what_was_read_and_not_cited_is_listed_as_consulted(fake_lm: FakeLM) -> None:
    fake_lm.rules["answer"] = lambda inputs: f"{LASTS[:-1]} [{re.search(r'.(.). .[^.]*26', inputs['evidence'])[1]}]."  # type: ignore[index]
    other = Document(id="other.md", title="Other", text="The Corvane warranty begins with the months after delivery.", published_at=TODAY)
    answer, _ = run(fake_lm.lm(), QUESTION, FRESH, other)
    assert [c.id for c in answer.citations] == ["warranty.md"] and [c.id for c in answer.consulted] == ["other.md"]
