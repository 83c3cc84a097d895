"""What went wrong in other programs of this kind: each case of grading, citing, parsing and threading that no other test has."""

from __future__ import annotations

import ast
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import TODAY
from fake_lm import FakeLM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from whole_program import BUOY, FRESH, LASTS, LONGER, NEWS, POLICY, QUESTION, STALE, Web, build, codes, run

import crag_dspy
from crag_dspy.budget import Limits
from crag_dspy.search import Result
from crag_dspy.types import Answer, Document, Trace

DOUBTFUL = Document(id="folder.md", title="Folder", text="The Corvane warranty folder has a colour.", published_at=FRESH.published_at)
ASKS_LM = "Which colour has the Corvane warranty folder in the cellar room?"
HALF = POLICY.model_copy(update={"platt_lm": (-4.5, 0.0, 0.0, 6.0)})  # level 2 of 3 is worth 0.38


@pytest.mark.parametrize(
    ("replies", "action", "verdict"),
    [
        (
            ["0", "incorrect", "Incorrect.", "INCORRECT", "**incorrect**", "incorrect - off topic", "`0`"],
            "incorrect",
            "incorrect",
        ),
        (["2", "ambiguous", "Ambiguous.", "**ambiguous**", "partially relevant", "ambiguous - half of it"], "ambiguous", "ambiguous"),
        (["3", "correct", "Correct.", "CORRECT", "**correct**", "`correct`", "correct - it says so", "Relevant."], "correct", "correct"),
        (["None", "", "I'd rather not say", "[]", "4", "yes"], "ambiguous", "ambiguous"),
    ],
)
def test_a_verdict_in_any_dress_takes_one_route_at_the_price_of_one_call(
    fake_lm: FakeLM, replies: list[str], action: str, verdict: str
) -> None:
    for reply in replies:
        fake_lm.rules["level"] = lambda inputs, reply=reply: reply  # type: ignore[misc]
        fake_lm.calls.clear()
        web = Web(find=lambda query: [])
        answer, trace = run(fake_lm.lm(), ASKS_LM, DOUBTFUL, web=web, policy=HALF)
        assert (answer.action, [g.verdict for g in trace.internal]) == (action, [verdict]), reply
        assert len(fake_lm.asked("level")) == 1 and bool(web.queries) == (action != "correct"), reply


@pytest.mark.parametrize(
    "raw",
    [
        "[[ ## level ## ]] {} [[ ## completed ## ]]",
        "[[ ## level ## ]]\n{}[[ ## completed ## ]]",
        '{{"level": "{}"}}',
        '{{"output": {{"level": {}}}}}',
        '```json\n{{"level": {}}}\n```',
        "**{}**",
        "[[ ## reasoning ## ]]\nBecause.\n\n[[ ## level ## ]]\n{}",
    ],
)
@pytest.mark.parametrize(("level", "action"), [("0", "incorrect"), ("3", "correct")])
def test_a_grade_out_of_format_is_read_at_the_price_of_one_call(fake_lm: FakeLM, raw: str, level: str, action: str) -> None:
    fake_lm.raw = lambda field, reply: raw.format(level) if field == "level" else f"[[ ## {field} ## ]]\n{reply}"
    answer, trace = run(fake_lm.lm(), ASKS_LM, DOUBTFUL, web=Web(find=lambda query: []))
    assert answer.action == action and len(fake_lm.asked("level")) == 1 and trace.internal[0].reply is None


def test_when_no_grade_can_be_read_the_web_is_tried_and_the_trace_counts_them(fake_lm: FakeLM) -> None:
    documents = [DOUBTFUL.model_copy(update={"id": f"{i}.md", "text": f"The Corvane warranty folder {i} has a colour."}) for i in range(2)]
    fake_lm.raw = lambda field, reply: "Hm." if field == "level" else f"[[ ## {field} ## ]]\n{reply}"
    web = Web(find=lambda query: [])
    answer, trace = run(fake_lm.lm(), ASKS_LM, *documents, web=web)
    asked = len(fake_lm.asked("level"))
    assert asked == trace.parse_failures == 2 and sorted(g.reply or "" for g in trace.internal) == ["Hm.", "Hm."]
    assert answer.action == "ambiguous" and len(web.queries) == 1 and 0 <= answer.confidence <= 1


@pytest.mark.xfail(strict=True, reason="a passage in the band of doubt that was not graded counts by its score alone")
def test_what_was_not_graded_does_not_outdo_better_ones_that_the_lm_rejected(fake_lm: FakeLM) -> None:
    fake_lm.rules["level"] = lambda inputs: "0"
    documents = [DOUBTFUL.model_copy(update={"id": f"{i}.md", "text": f"The Corvane warranty folder {i} has a colour."}) for i in range(3)]
    answer, _ = run(fake_lm.lm(), ASKS_LM, *documents, web=Web(find=lambda query: []))
    assert answer.action != "correct" and answer.usage.searches > 0


def test_numbers_are_given_after_the_cut(fake_lm: FakeLM) -> None:
    documents = [
        Document(id=f"{i}.md", title=f"Note {i}", text=f"The Corvane warranty, clause {i}, lasts {20 + i} months for part {i}.")
        for i in range(12)
    ]
    fake_lm.rules["answer"] = lambda inputs: "It lasts months [1]. " + " ".join(f"It is the warranty [{n}]." for n in (5, 6, 7, 12, 0))
    answer, trace = run(fake_lm.lm(), QUESTION, *documents, max_evidence=5, top_k=12)
    shown = fake_lm.asked("answer")[0].inputs["evidence"].splitlines()
    assert [line.split("]")[0] for line in shown] == [f"[{n}" for n in range(1, len(shown) + 1)] and len(shown) <= 5
    check(answer, trace)
    assert trace.invalid_citations == sum(n > len(shown) or n < 1 for n in (1, 5, 6, 7, 12, 0))


def test_a_rejected_source_and_its_copy_do_not_shift_the_next(fake_lm: FakeLM) -> None:
    a = Document(id="a.md", title="A", text="The Corvane warranty is counted in months, says A.", published_at=TODAY)
    b = Document(id="b.md", title="B", text="The Corvane warranty lasts 26 months, says B.", published_at=TODAY)
    fake_lm.rules["level"] = lambda inputs: "0" if "says A" in inputs["passage"] else "3"
    answer, _ = run(fake_lm.lm(), QUESTION, a, a.model_copy(update={"id": "a2.md"}), b)
    assert [(c.n, c.id, c.title, c.quote) for c in answer.citations] == [(1, "b.md", "B", b.text)]
    assert fake_lm.asked("answer")[0].inputs["evidence"].count("\n") == 0 and "says A" not in answer.text


def test_a_citation_that_does_not_hold_the_claim_is_marked(fake_lm: FakeLM) -> None:
    other = Document(id="other.md", title="Other", text="Months of delay of the Corvane mean a new date.", published_at=TODAY)
    fake_lm.rules["answer"] = lambda inputs: f"{LASTS[:-1]} [{re.search(r'.(.). .[^.]*delay', inputs['evidence'])[1]}]."  # type: ignore[index]
    policy = POLICY.model_copy(update={"support": 0.8})
    answer, trace = run(fake_lm.lm(), QUESTION, FRESH, other, policy=policy)
    numbers = {e.passage.document_id: e.n for e in trace.evidence}
    [claim] = answer.claims
    assert claim.unsupported == (numbers["other.md"],) and claim.citations == (numbers["warranty.md"],) and claim.attributed


def test_an_invented_key_is_stripped_and_counted(fake_lm: FakeLM) -> None:
    fake_lm.rules["answer"] = lambda inputs: f"{LASTS[:-1]} [E9][source][1]."
    answer, trace = run(fake_lm.lm(), QUESTION, FRESH)
    assert answer.text == f"{LASTS[:-1]} [1]." and trace.invalid_citations == 2


def test_one_address_from_index_and_web_is_one_source_with_its_current_text(fake_lm: FakeLM) -> None:
    url = "http://terms.example/warranty"
    web = Web({url: (LONGER, TODAY - timedelta(days=1))})
    web.find = lambda query: [f"{url}?utm_source=mail", f"{url}#top", "HTTP://TERMS.example:80/warranty"]
    seen = web.fetch
    fetched: list[str] = []
    web.fetch = lambda address: fetched.append(address) or seen(url)  # type: ignore[method-assign,func-returns-value]
    stored = STALE.model_copy(update={"id": url, "url": url, "source_type": "web"})
    answer, trace = run(fake_lm.lm(), QUESTION, stored, web=web)
    assert len(fetched) == answer.usage.pages == 1
    assert [c.url for c in answer.citations] == [url] and answer.consulted == () and "31 months" in answer.text
    assert [e.passage.text for e in trace.evidence if "26" in e.text] == []


def test_text_that_the_engine_read_is_the_same_source_as_its_page(fake_lm: FakeLM) -> None:
    url = "http://terms.example/warranty"
    web = Web()
    answers = iter([[Result(url=url, title="Terms", text=LONGER)], [Result(url=f"{url}/", title="Terms")]])
    search = lambda query, limit, **given: web.queries.append(query) or next(answers)  # type: ignore[func-returns-value]  # noqa: E731
    fake_lm.rules["level"] = lambda inputs: "2"
    answer, trace = run(fake_lm.lm(), QUESTION, search=search, policy=HALF)
    assert len(web.queries) == 2 and answer.stop_reason in ("nothing_new", "covered") and answer.usage.pages == 1
    assert [e.passage.source for e in trace.evidence] == [url] and len(answer.citations) == 1


def test_twenty_requests_at_once_right_after_the_start(fake_lm: FakeLM) -> None:
    crag = build(fake_lm.lm(num_retries=5), STALE, web=Web(NEWS))  # the small server refuses some of twenty connections
    together = threading.Barrier(20, timeout=30)

    def ask(i: int) -> Answer:
        together.wait()
        return crag(QUESTION if i % 2 else BUOY, limits=Limits(max_lm_calls=9))

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(ask, range(20)))
    assert [answer.status for answer in answers] == ["abstained", "answered"] * 10 and all(codes(a) == [] for a in answers)


def test_no_module_configures_dspy() -> None:
    for path in Path(crag_dspy.__file__).parent.glob("*.py"):
        called = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        assert not {name for name in called if re.search(r"(dspy|settings)\.configure$", name)}, path.name


PLACES = "Oslo Bergen Ravnsund Fennmark Zephyr Lumen Vaultmere Kestrel".split()


def note(i: int, url: bool, twin: bool) -> Document:
    """Return a document that names its place in title, address and text; a twin has another's text under its own name."""
    place = PLACES[i]
    text = f"The Corvane warranty of {PLACES[i - 1] if twin else place} lasts {20 + (i - 1 if twin else i)} months."
    if i % 3 == 0:
        text += f" It is the longest warranty that the Corvane ever had, say people in {place}, and it begins months later."
    address = f"http://{place.lower()}.example/" if url else None
    return Document(id=address or f"{place}.md", title=f"Note of {place}", text=text, url=address, source_type="web" if url else "internal",
                    published_at=TODAY - timedelta(days=90 * i) if i % 4 else None)  # fmt: skip


def check(answer: Answer, trace: Trace) -> None:
    """Assert what holds of every answer's citations."""
    cited, consulted = [c.n for c in answer.citations], [c.n for c in answer.consulted]
    claims = [n for claim in answer.claims for n in claim.citations]
    assert set(re.findall(r"\[(\d+)\]", answer.text)) == {str(n) for n in cited} and not re.search(r"[【】［］]|\[(?!\d+\])", answer.text)
    assert len(cited) == len(set(cited)) and set(claims) == set(cited)
    assert not set(cited) & set(consulted) and sorted(cited + consulted) == [e.n for e in trace.evidence]
    assert [e.n for e in trace.evidence] == list(range(1, len(trace.evidence) + 1))


drawn = st.fixed_dictionaries(
    {
        "internal": st.sets(st.integers(0, 7), max_size=6),
        "external": st.sets(st.integers(0, 7), max_size=6),
        "twins": st.sets(st.integers(1, 7), max_size=3),
        "rejected": st.sets(st.sampled_from(PLACES), max_size=4),
        "max_evidence": st.integers(1, 6),
        "top_k": st.integers(1, 8),
        "numbers": st.sampled_from(["none", "1", "2, 3", "1-9", "?"]),
        "markers": st.lists(
            st.sampled_from(["", "[1]", "[2]", "[1][3]", "[1, 2]", "[9]", "[E2]", "【1】", "[1-4]", "(2)", "[0]", "[source]"]),
            min_size=1, max_size=4,
        ),
        "order": st.integers(0, 99),
    }
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=drawn)
def test_text_title_address_and_number_of_a_source_stay_together(fake_lm: FakeLM, drawn: dict[str, Any]) -> None:
    fake_lm.calls.clear()

    def reply(inputs: dict[str, str]) -> str:
        lines = [line.split(": ", 1)[-1] for line in inputs["evidence"].splitlines()]
        random.Random(drawn["order"]).shuffle(lines)
        return " ".join(f"{line.rstrip('.')} {mark}." for line, mark in zip(lines, drawn["markers"], strict=False))

    fake_lm.rules |= {
        "answer": reply,
        "numbers": lambda inputs: drawn["numbers"],
        "level": lambda inputs: "0" if any(place in inputs["passage"] for place in drawn["rejected"]) else "3",
    }
    internal = [note(i, False, i in drawn["twins"]) for i in sorted(drawn["internal"])]
    pages = {d.url: d for d in (note(i, True, i in drawn["twins"]) for i in sorted(drawn["external"]))}
    web = Web({url: (d.text, d.published_at) if d.published_at else d.text for url, d in pages.items() if url})
    options = {name: drawn[name] for name in ("max_evidence", "top_k")}
    answer, trace = run(fake_lm.lm(), QUESTION, *internal, web=web, pages_per_search=6, **options)
    given_to_it = "\n".join(call.inputs["evidence"] for call in fake_lm.asked("answer"))
    check(answer, trace)
    texts = {d.id: d.text for d in internal} | {url: d.text for url, d in pages.items()}
    days = {d.id: d.published_at for d in internal} | {url: d.published_at for url, d in pages.items()}
    for source in (*answer.citations, *answer.consulted):
        place = next(place for place in PLACES if place.lower() in source.id.lower())
        assert place.lower() in source.title.lower() and source.url in (None, source.id) and source.published_at == days[source.id]
        assert all(part in texts[source.id] for part in source.quote.split(" … "))
        assert f"[{source.n}] (" in given_to_it or not given_to_it
        assert source.id not in source.copies
        assert all(any(part in texts[copy] for part in source.quote.split(" … ")) for copy in source.copies)
