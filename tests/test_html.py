"""The report: everything a person needs in one file that loads nothing, runs nothing, and shows retrieved text as text."""

from __future__ import annotations

from datetime import date
from typing import Any, cast

import dspy
import lxml.html
import pytest

from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from crag_dspy.types import Action, Answer, AnswerWarning, Citation, Claim, Evidence, Grade, Passage, Trace, Usage
from optimize import html, plots
from optimize.dataset import Row
from optimize.evaluate import Outcome
from optimize.proof import Point, prove

HOSTILE = '</pre><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7 * 7 }} " onmouseover="alert(3)'
NEEDS: tuple[Any, ...] = ("internal", "web", "both", "none")
ACTIONS: dict[str, Action] = {"internal": "correct", "web": "incorrect", "both": "ambiguous", "none": "incorrect"}


def outcome(i: int, right: bool, text: str = "It costs EUR 9.", url: str | None = None) -> Outcome:
    need = NEEDS[i % 4]
    row = Row(id=f"q{i}", question=f"What does item {i} cost?", answer="" if need == "none" else "EUR 7", need=need, kind="pricing",
              gold_docs=() if need == "none" else ("prices.md",))  # fmt: skip
    passage = Passage(id=f"p{i}", document_id="prices.md", title=text, text=text, url=url, source_type="web" if url else "internal")
    grade = Grade(passage=passage, scores=(0.9,), strips=(), needs=(0.4 + i / 40,), relevance=0.4 + i / 40, verdict="correct",
                  graded_by="cross-encoder", why=text)  # fmt: skip
    status: Any = "abstained" if need == "none" and right else "answered"
    answer = Answer(
        question=row.question, text="It costs EUR 7." if right else text, status=status,
        action=ACTIONS[need] if i % 5 else "correct", assessment="sufficient",
        claims=(Claim(text="It costs EUR 7." if right else text, citations=(1,)),) if status == "answered" else (),
        citations=(Citation(n=1, id="prices.md", source_type="internal", title="Prices", quote="It costs EUR 7."),),
        confidence=0.5 + i / 100, stop_reason="covered", warnings=(AnswerWarning(code="page", message=text),), web_queries=(text,),
        usage=Usage(lm_calls=2, prompt_tokens=900 + 10 * i, completion_tokens=40, seconds=1.5),
    )  # fmt: skip
    evidence = (Evidence(n=1, passage=passage, text=text, relevance=0.8),)
    trace = Trace(kind="pricing", needs=(row.question,), internal=(grade,), evidence=evidence, reason="covered", reply=text,
                  dropped_claims=(text,))  # fmt: skip
    return Outcome(row, answer, trace, None)


def programs() -> tuple[CRAG, CRAG]:
    before = CRAG(cast(Any, object()))
    after = CRAG(cast(Any, object()), Policy().model_copy(update={"lower": 0.15}))
    after.grade.demos = [dspy.Example(question="Is it dear?", passage="A demonstration of 7 euros.", level="3")]
    return before, after


def rendered(before: list[Outcome], after: list[Outcome], **more: Any) -> lxml.html.HtmlElement:
    plain, compiled = programs()
    options = {"verdict": "It is the champion now: better.", "test": None, "lm": "openai/fake", "day": date(2026, 3, 2)} | more
    proof = prove({"uncompiled": before, "compiled": after})
    return lxml.html.fromstring(html.render(proof=proof, before=plain, after=compiled, **options))


def test_it_shows_what_changed_and_why() -> None:
    page = rendered([outcome(i, i % 3 == 0) for i in range(24)], [outcome(i, i % 3 > 0) for i in range(24)], notes=["Mind the gap."],
                    facts={"run": "abc123"})  # fmt: skip
    text = " ".join(page.text_content().split())
    for said in ("24 dev questions", "as of 2026-03-02", "LM openai/fake", "It is the champion now: better.", "Mind the gap.", "abc123"):
        assert said in text
    rows = {cells[0]: cells[1:] for row in page.xpath("//tr") if (cells := [c.text_content() for c in row.xpath("td")])}
    assert rows["answers right"][:2] == ["33%", "67%"] and rows["answers right"][2].startswith("+33 (")
    assert rows["lower"] == ["0.05", "0.15"] and rows["upper, pricing"] == ["0.6", "0.6"]
    assert [row.xpath("td")[0].text_content() for row in page.xpath("//tr[@class='changed']")] == ["lower"]
    assert "A demonstration of 7 euros." in text and "grade" in text and "rewrite (unchanged)" in text
    assert len(page.xpath("//figure")) == 5 and all(img.get("alt") for img in page.xpath("//img"))
    worst = [s.text_content().split("·")[0].strip() for s in page.xpath("//summary[span]")]
    assert worst == ["wrong"] * 8 + ["right"] * 2  # the ten worst, wrong before right


def test_hostile_text_is_shown_and_never_runs() -> None:
    before, after = [outcome(i, True) for i in range(8)], [outcome(i, False, HOSTILE, "javascript:alert(4)") for i in range(8)]
    page = rendered(before, after, verdict=HOSTILE, notes=[HOSTILE], lm=HOSTILE, facts={HOSTILE: HOSTILE})
    assert not page.xpath("//script | //iframe | //object | //link | //form")
    assert not [name for element in page.iter() for name in element.attrib if name.startswith("on")]
    targets = [value for element in page.iter() for name, value in element.attrib.items() if name in ("src", "href", "srcset")]
    assert targets and all(target.startswith("data:image/png;base64,") for target in targets)  # a javascript: address is no link
    assert page.text_content().count("<script>alert(1)</script>") > 20 and "{{ 7 * 7 }}" in page.text_content()
    policy = page.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
    assert policy.startswith("default-src 'none'") and "script-src" not in policy


def test_web_sources_are_links_that_tell_nobody_where_they_come_from() -> None:
    page = rendered([outcome(0, True)], [outcome(0, False, url="http://shop.example/?a=1&b=2")])
    links = page.xpath("//a[@href='http://shop.example/?a=1&b=2']")
    assert links and all("noreferrer" in link.get("rel") for link in links)


def test_errors_and_missing_labels_leave_things_out_and_say_so() -> None:
    rows = [Row(id=f"q{i}", question=f"What is {i}?", answer="x") for i in range(3)]
    down = [Outcome(row, None, None, "The LM could not be asked.") for row in rows]
    page = rendered(down, down)
    text = page.text_content()
    assert "The LM could not be asked." in text and not page.xpath("//figure")
    assert "no question names gold sources" in text and "no question names their need" in text and "no question has an empty answer" in text
    assert "too few" in text and "citation precision" not in text


def test_the_test_questions_have_a_table_of_their_own_only_if_they_were_touched() -> None:
    dev = [outcome(i, True) for i in range(8)]
    final = prove({"uncompiled": dev[:4], "compiled": dev[:4]})
    headings = [h.text_content() for h in rendered(dev, dev, test=final).xpath("//h2")]
    assert "On test, at the end (4 questions)" in headings
    assert not [h for h in rendered(dev, dev).xpath("//h2") if "test" in h.text_content()]


@pytest.mark.parametrize(
    "picture",
    [
        plots.routes([]),
        plots.needs({"compiled": {"answers_right": 1.0}}),
        plots.thresholds([], [0.5], [0.6]),
        plots.reliability([], []),
        plots.cost_quality({"compiled": {"answers_right": 1.0}}),
    ],
)
def test_nothing_to_see_is_no_picture(picture: plots.Picture | None) -> None:
    assert picture is None


def test_pictures_are_png_in_two_themes() -> None:
    runs = [outcome(i, i % 3 > 0) for i in range(24)]
    costs = {name: {"answers_right": 0.5, "prompt_tokens": tokens, "completion_tokens": 10.0, "lm_calls": 2.0}
             for name, tokens in (("uncompiled", 0.0), ("compiled", 500.0), ("NaiveRAG", 0.0), ("TutorialCRAG", 900.0))}  # fmt: skip
    for picture in (
        plots.routes(runs),
        plots.needs({name: {f"answers_right_{need}": 0.5 for need in NEEDS} for name in costs}),
        plots.thresholds([Point(0.2, 0.4), Point(0.6, 0.9)], [0.4, 0.5, 0.6], [0.3]),
        plots.reliability(runs[:1], runs),
        plots.cost_quality(costs),
    ):
        assert picture and picture.light != picture.dark
        assert all(png.startswith(b"\x89PNG") and len(png) < 80_000 for png in picture)
