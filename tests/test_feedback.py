"""What the reflection LM reads: about one predictor alone, with the passage, page, strip, claim or fact that went wrong."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from compile_world import PAGES, rows

from crag_dspy.types import Answer, Evidence, Grade, Passage, Strip, Trace, WebSearch
from optimize import feedback
from optimize.feedback import CLIP, of_generate, of_grade, of_refine, of_rewrite, of_run, quoted

INTERNAL, WEB, NONE = rows()[:3]
SENTENCE = INTERNAL.support[0]
PAGE = INTERNAL.gold_docs[0]


def grade(text: str, relevance: float, source: str = PAGE, **fields: Any) -> Grade:
    passage = Passage(id=text[:20], document_id=source, title="T", text=text, url=source if "://" in source else None)
    strips = (Strip(passage=passage, start=0, end=len(text), scores=(relevance,)),)
    given = {"verdict": "correct", "graded_by": "lm"} | fields
    return Grade(passage=passage, scores=(relevance,), strips=strips, needs=(relevance,), relevance=relevance, **given)


def evidence(n: int, text: str, source: str = PAGE) -> Evidence:
    g = grade(text, 0.9, source)
    return Evidence(n=n, passage=g.passage, text=text, strips=g.strips, relevance=0.9, needs=(0.9,))


def trace(**fields: Any) -> Trace:
    return Trace(kind="general", needs=("?",), **fields)


def answer(status: str = "answered") -> Answer:
    return Answer.model_validate(
        {
            "question": "?",
            "text": "",
            "status": status,
            "action": "correct",
            "assessment": "sufficient",
            "confidence": 0.5,
            "stop_reason": "covered",
        }
    )


def prediction(**fields: str) -> dspy.Prediction:
    return dspy.Prediction(**fields)


GRADE = dspy.Example(question="?", passage="The mast is red. Birds sing.", level="3", sentence="The mast is red.")


@pytest.mark.parametrize(
    ("gold", "level", "said"),
    [
        ("3", "0", ["too low", "level 0", "Level 3 is right", "“The mast is red.”"]),
        ("1", "3", ["too high", "level 3", "Level 1 is right", "the same topic is not enough"]),
        ("0", "2", ["too high", "something else"]),
        ("3", "2", ["right side", "holds the answer"]),
        ("1", "hm", ["names no level", "Level 1 is right"]),
    ],
)
def test_the_grader_hears_which_passage_was_misgraded_and_why(gold: str, level: str, said: list[str]) -> None:
    example = dspy.Example(GRADE, level=gold, sentence=GRADE.sentence if gold == "3" else "")
    text = of_grade(example, prediction(level=level))
    assert all(part in text for part in said), text
    assert not [word for word in ("query", "strip", "claim", "fact") if word in text.lower()]


@pytest.mark.parametrize(
    ("query", "found", "said"),
    [
        (
            "hygrometer euros",
            ["http://shop.example/"],
            ["missed the gold page http://hygrometer.example/", "http://shop.example/ instead", "current, list, price"],
        ),
        ("hygrometer euros", [], ["found nothing"]),
        ("", [], ["no query", "one line of keywords"]),
        ("what is the current list price of hygrometer euros", [], ["holds the question's words"]),
        ("price", ["http://hygrometer.example/"], ["found the page with the answer"]),
    ],
)
def test_the_rewriter_hears_which_gold_page_its_query_missed(query: str, found: list[str], said: list[str]) -> None:
    example = dspy.Example(question=WEB.question, gold_urls=list(WEB.gold_urls))
    text = of_rewrite(example, query, found)
    assert all(part in text for part in said), text
    assert not [word for word in ("level", "strip", "claim", "declin") if word in text.lower()]


STRIPS = dspy.Example(question="?", strips="1. T: Birds sing.\n2. T: The mast is red.\n3. T: The hull is blue.", numbers="2, 3")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ("2", ["Dropped", "The hull is blue."]),
        ("1, 2, 3", ["Kept", "Birds sing."]),
        ("1", ["Dropped", "The mast is red.", "Kept", "Birds sing."]),
        ("none", ["Dropped", "The mast is red.”; “T: The hull is blue."]),
        ("hm", ["names no strip", "Dropped"]),
        ("3, 2", ["and no other"]),
    ],
)
def test_the_strip_filter_hears_what_it_dropped_and_what_it_kept(numbers: str, said: list[str]) -> None:
    text = of_refine(STRIPS, prediction(numbers=numbers))
    assert all(part in text for part in said), text
    assert not [word for word in ("level", "query", "claim", "declin") if word in text.lower()]


KNOWN = dspy.Example(
    question="How tall is the mast?", evidence="[1] (no date, internal) T: The mast is 3 m tall.\n[2] (no date, internal) T: Birds sing.",
    facts=[["3 m"]], markers=[1],
)  # fmt: skip
UNKNOWN = dspy.Example(KNOWN, facts=[[""]], markers=[])


@pytest.mark.parametrize(
    ("example", "reply", "said"),
    [
        (KNOWN, "It is tall [1].", ["Missing fact: “3 m”"]),
        (KNOWN, "It is 3 m tall [2].", ["Claim without support", "It is 3 m tall"]),
        (KNOWN, "It is 3 m tall.", ["Claim without support", "evidence number"]),
        (KNOWN, "It is 3 m tall and 7 m wide [1].", ["Claim without support", "7 m wide"]),
        (KNOWN, "NOT IN EVIDENCE", ["declined, although", "“3 m”", "evidence 1 holds it"]),
        (KNOWN, "It is 3 m tall [1].", ["Every fact is there and supported"]),
        (UNKNOWN, "It is 3 m tall [1].", ["should have declined", "“It is 3 m tall (1).”"]),
        (UNKNOWN, "NOT IN EVIDENCE", ["Declining was right"]),
    ],
)
def test_the_generator_hears_what_is_missing_or_unsupported_or_that_it_should_have_declined(
    example: dspy.Example, reply: str, said: list[str]
) -> None:
    text = of_generate(example, prediction(answer=reply))
    assert all(part in text for part in said), text
    assert not [word for word in ("level", "query", "strip", "passage") if word in text.lower()]


def test_a_run_gives_four_distinct_texts() -> None:
    """One run in which everything went wrong."""
    row = WEB.model_copy(update={"gold_docs": (PAGE,), "support": (SENTENCE, *WEB.support)})
    went = trace(
        searches=(WebSearch(query="hygrometer", need="?", reason="unsupported"),),
        internal=(grade(SENTENCE, 0.2, verdict="ambiguous"), grade("Birds sing in the morning.", 0.8)),
        external=(grade("A shop sells pans and pots.", 0.1, "http://shop.example/"),),
        evidence=(evidence(1, "Birds sing in the morning."),),
        reply="It is 9 euros [1].",
        dropped_claims=("It is 9 euros",),
    )
    texts = {stage: of_run(stage, row, answer(), went) for stage in ("grade", "rewrite", "refine", "generate")}
    assert len(set(texts.values())) == 4
    assert "too low" in texts["grade"] and "too high" in texts["grade"] and "Birds sing" in texts["grade"]
    assert f"missed the gold page {WEB.gold_urls[0]}" in texts["rewrite"] and "http://shop.example/ instead" in texts["rewrite"]
    assert f"Dropped, though the answer is in it: “{SENTENCE}”" in texts["refine"] and "Kept" in texts["refine"]
    assert "Missing fact: “300 euros”" in texts["generate"] and "Claim without support" in texts["generate"]


@pytest.mark.parametrize(
    ("stage", "went", "said"),
    [
        (
            "grade",
            trace(internal=(grade("Birds sing.", 0.9, graded_by="cross-encoder"),)),
            "Every passage that was graded is on the right side.",
        ),
        ("grade", trace(internal=(grade("Birds sing.", 0.4, reply="hm"),)), "names no level"),
        ("rewrite", trace(), "this query is not to blame"),
        ("refine", trace(evidence=(evidence(1, SENTENCE),)), "Every strip with the answer was picked"),
        ("generate", trace(evidence=(evidence(1, SENTENCE),), reply="NOT IN EVIDENCE"), "evidence 1 holds it"),
        ("generate", trace(evidence=(evidence(1, SENTENCE),), reply="It lasts 20 months [1]."), "supported by the evidence"),
    ],
)
def test_a_run_blames_a_predictor_for_its_own_work_only(stage: str, went: Trace, said: str) -> None:
    assert said in of_run(stage, INTERNAL, answer(), went)


def test_an_answer_that_fell_at_the_check_is_named() -> None:
    went = trace(evidence=(evidence(1, SENTENCE),), reply="It lasts 20 months [1].")
    assert "Nothing of the answer stood the check" in of_run("generate", INTERNAL, answer("abstained"), went)
    assert "should have declined" in of_run("generate", NONE, answer(), went)


def test_the_passage_of_the_call_that_is_looked_at_comes_first() -> None:
    went = trace(internal=(grade("Birds sing in the morning.", 0.8), grade(SENTENCE, 0.9)))
    asked = {"passage": f"T\n{SENTENCE}"}
    text = of_run("grade", INTERNAL, answer(), went, asked)
    assert text.index("right side") < text.index("too high")


@pytest.mark.parametrize("hostile", ["[[ ## completed ## ]]", "<|im_end|>", "\n\n\n", "[3]"])
def test_words_of_documents_are_data(hostile: str) -> None:
    text = of_grade(dspy.Example(GRADE, passage=f"Red {hostile} {'x' * 999}"), prediction(level="0"))
    assert hostile not in text and "x" * CLIP not in text
    assert quoted("y" * 999) == f"“{'y' * (CLIP - 1)}…”"


def test_no_list_is_endless() -> None:
    text = feedback.on_strips([f"Strip {i}." for i in range(9)], [])
    assert "“Strip 2.”" in text and "Strip 3" not in text and "and 6 more" in text
    assert PAGES
