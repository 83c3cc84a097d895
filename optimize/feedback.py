"""What GEPA's reflection LM reads about one predictor's work: four kinds of text, each about that predictor's task alone.

Pure functions: of an example and a prediction of its predictor (stage by stage), or of a row and what the program did (end to end).
Words of questions, documents and replies in them are data, defused and clipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy

from crag_dspy.cite import read_markers, statements
from crag_dspy.generate import declines
from crag_dspy.grade import parse_level
from crag_dspy.index import in_context
from crag_dspy.lm import as_data
from crag_dspy.refine import parse_numbers
from crag_dspy.types import Answer, Trace
from optimize.calibrate import contains
from optimize.dataset import Row, is_gold_url
from optimize.metrics import holds, normalise

CLIP = 240  # characters quoted of one text
MOST = 3  # passages, strips or claims named in one text


def quoted(text: str) -> str:
    """Return a text as it may stand in feedback: on one line, defused, at most 240 characters, in quotation marks."""
    plain = " ".join(as_data(text).split())
    return f"“{plain if len(plain) <= CLIP else plain[: CLIP - 1] + '…'}”"


# The four texts


def on_level(passage: str, said: int | None, gold: int, sentence: str = "") -> str:
    """Return the grader's feedback on one passage.

    Args:
        passage: What was graded.
        said: The level given, 0-3; None where the reply named none.
        gold: The right level; 2 and above is relevant.
        sentence: The words in the passage that answer, if any do.
    """
    why = f"it holds the answer: {quoted(sentence)}" if sentence else "the answer is in it" if gold >= 2 else "the answer is not in it"
    if gold < 2 and not sentence:
        why += ", being about the same topic is not enough" if gold == 1 else " and it is about something else"
    if said is None:
        return f"The reply names no level. Reply with one digit only. Level {gold} is right for {quoted(passage)}: {why}."
    if (said >= 2) == (gold >= 2):
        return f"Level {said} is on the right side for this passage: {why}."
    return f"Misgraded {'too low' if gold >= 2 else 'too high'}: level {said} for {quoted(passage)}. Level {gold} is right: {why}."


def on_query(question: str, query: str, found: Sequence[str], gold: Sequence[str]) -> str:
    """Return the rewriter's feedback on one query.

    Args:
        question: What was asked.
        query: What was sent to the web search.
        found: The URLs that came back.
        gold: The URLs of pages that hold the answer.
    """
    if not query:
        return f"The reply holds no query. Write one line of keywords for {quoted(question)}."
    if hit := [url for url in found if is_gold_url(url, gold)]:
        return f"The query {quoted(query)} found the page with the answer, {_urls(hit)}."
    lost = [word for word in dict.fromkeys(_words(question)) if len(word) > 3 and word not in _words(query)]
    hint = f" Of the question's words it lacks: {', '.join(lost[:8])}." if lost else " It holds the question's words: leave out filler."
    came = f"it found {_urls(found)} instead" if found else "it found nothing"
    return f"The query {quoted(query)} missed the gold page {_urls(gold)}; {came}.{hint}"


def on_strips(dropped: Sequence[str], useless: Sequence[str], *, readable: bool = True) -> str:
    """Return the strip filter's feedback.

    Args:
        dropped: Strips with the answer that were not picked.
        useless: Strips without it that were picked.
        readable: Whether the reply named numbers at all.
    """
    said = [] if readable else ["The reply names no strip. Reply with numbers and commas only."]
    if dropped:
        said.append(f"Dropped, though the answer is in it: {_list(dropped)}. Pick every strip that the answer needs.")
    if useless:
        said.append(f"Kept, though the answer does not need it: {_list(useless)}. A strip on the same topic is not enough.")
    return " ".join(said) or "Every strip with the answer was picked, and no other."


def on_answer(question: str, reply: str, evidence: Mapping[int, str], facts: Sequence[Sequence[str]], dropped: Sequence[str] = ()) -> str:
    """Return the generator's feedback.

    Args:
        question: What was asked.
        reply: What it wrote, with its markers.
        evidence: Texts by number.
        facts: What the answer must hold, each in its accepted spellings; none: nobody knows.
        dropped: Claims that a later check found without support.
    """
    if not facts:
        if declines(reply):
            return "Declining was right: the evidence does not hold the answer."
        return f"It should have declined with NOT IN EVIDENCE: nothing in the evidence answers the question. It wrote {quoted(reply)}."
    if declines(reply):
        holding = [n for n, text in evidence.items() if any(holds(text, fact) for fact in facts)]
        where = f"evidence {_numbers(holding)} holds it" if holding else "no evidence that it was given holds it"
        return f"It declined, although the question has an answer ({_facts(facts)}): {where}."
    said = []
    if missing := [fact for fact in facts if not holds(reply, fact)]:
        said.append(f"Missing fact: {_facts(missing)}.")
    unsupported = [*dropped, *(claim for claim in _unsupported(question, reply, evidence) if claim not in dropped)]
    if unsupported:
        said.append(f"Claim without support in the evidence it cites: {_list(unsupported)}. End every sentence with its evidence number.")
    return " ".join(said) or "Every fact is there and supported by the evidence it cites."


def _unsupported(question: str, reply: str, evidence: Mapping[int, str]) -> list[str]:
    """Return the statements without a marker, or with a figure that neither the cited evidence nor the question holds."""
    found = []
    for sentence in statements(reply):
        text, numbers, _ = read_markers(sentence, max(evidence, default=0))
        cited = " ".join(evidence.get(n, "") for n in numbers)
        if not declines(text) and (not numbers or not _figures(text) <= _figures(cited) | _figures(question)):
            found.append(text)
    return found


def _figures(text: str) -> set[str]:
    return {word for word in normalise(text).split() if any(letter.isdigit() for letter in word)}


def _words(text: str) -> list[str]:
    return re.findall(r"\w[\w.-]*\w|\w", text.lower())


def _list(texts: Sequence[str]) -> str:
    return "; ".join(map(quoted, texts[:MOST])) + (f"; and {len(texts) - MOST} more" if len(texts) > MOST else "")


def _urls(urls: Sequence[str]) -> str:
    return ", ".join(as_data(url)[:CLIP] for url in list(urls)[:MOST])


def _facts(facts: Sequence[Sequence[str]]) -> str:
    return "; ".join(quoted(fact[0]) for fact in facts)


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


# Stage by stage: of an example of `optimize.examples` and its predictor's prediction

_ITEM = re.compile(r"^(\d+)\. (.*)$", re.M)
_EVIDENCE = re.compile(r"^\[(\d+)\] (.*)$", re.M)


def of_grade(example: dspy.Example, prediction: Any) -> str:
    """Return the grader's feedback on an example."""
    return on_level(example.passage, parse_level(str(prediction.level)), int(example.level), example.get("sentence", ""))


def of_rewrite(example: dspy.Example, query: str, found: Sequence[str]) -> str:
    """Return the rewriter's feedback on an example whose query found these URLs."""
    return on_query(example.question, query, found, example.gold_urls)


def of_refine(example: dspy.Example, prediction: Any) -> str:
    """Return the strip filter's feedback on an example."""
    strips = {int(n): text for n, text in _ITEM.findall(example.strips)}
    gold, picked = parse_numbers(example.numbers, len(strips)) or set(), parse_numbers(str(prediction.numbers), len(strips))
    chosen = picked or set()
    return on_strips([strips[n] for n in sorted(gold - chosen)], [strips[n] for n in sorted(chosen - gold)], readable=picked is not None)


def of_generate(example: dspy.Example, prediction: Any) -> str:
    """Return the generator's feedback on an example."""
    evidence = {int(n): text for n, text in _EVIDENCE.findall(example.evidence)}
    return on_answer(example.question, str(prediction.answer), evidence, example.facts if example.markers else ())


# End to end: of a row and what the program did


def of_run(stage: str, row: Row, answer: Answer, trace: Trace, asked: Mapping[str, Any] | None = None) -> str:
    """Return the feedback for one predictor of the program, named as in the program, on a whole run.

    Args:
        stage: `grade`, `rewrite`, `refine` or `generate`.
        row: The question.
        answer: What came out.
        trace: How.
        asked: The inputs of the call that is looked at, where that is known: the grader's passage comes first then.
    """
    return _RUN[stage](row, answer, trace, asked or {})


def _run_grade(row: Row, answer: Answer, trace: Trace, asked: Mapping[str, Any]) -> str:
    grades = {g.passage.id: g for g in (*trace.internal, *trace.external) if g.graded_by == "lm" or g.reply is not None}
    first = [key for key, g in grades.items() if as_data(in_context(g.passage)) == asked.get("passage")]
    said = []
    for key in dict.fromkeys([*first, *grades]):
        g = grades[key]
        sentence = _gold_sentence(row, g.passage.source, g.passage.text)
        relevant = None if g.reply is not None else 3 if max(g.needs) >= 0.5 else 1
        if key in first or relevant is None or (relevant >= 2) != bool(sentence):
            said.append(on_level(in_context(g.passage), relevant, 3 if sentence else 1, sentence))
    return " ".join(said[:MOST]) or "Every passage that was graded is on the right side."


def _run_rewrite(row: Row, answer: Answer, trace: Trace, asked: Mapping[str, Any]) -> str:
    if not row.gold_urls:
        return f"The answer to {quoted(row.question)} is on no web page, so no query could find it: this query is not to blame."
    found = list(dict.fromkeys(g.passage.source for g in trace.external))
    queries = [search.query for search in trace.searches]
    return on_query(row.question, "; ".join(queries), found, row.gold_urls)


def _run_refine(row: Row, answer: Answer, trace: Trace, asked: Mapping[str, Any]) -> str:
    strips = [
        (strip.text, bool(_gold_sentence(row, item.passage.source, strip.text) or _is_part(row, item.passage.source, strip.text)))
        for item in trace.evidence
        for strip in item.strips
    ]
    carried = {sentence for text, _ in strips for sentence in row.support if contains(text, sentence) or contains(sentence, text)}
    within_reach = [g.passage for g in (*trace.internal, *trace.external) if g.verdict != "incorrect"]
    dropped = [s for s in row.support if s not in carried and any(row.is_gold(p.source) and contains(p.text, s) for p in within_reach)]
    return on_strips(dropped, [text for text, gold in strips if not gold] if row.support else [])


def _run_generate(row: Row, answer: Answer, trace: Trace, asked: Mapping[str, Any]) -> str:
    evidence = {item.n: f"{item.passage.title}: {item.text}" for item in trace.evidence}
    said = on_answer(row.question, trace.reply, evidence, row.facts if row.answerable else (), trace.dropped_claims)
    if row.answerable and answer.status == "abstained" and not declines(trace.reply):
        said += " Nothing of the answer stood the check of its citations, so nothing was answered."
    return said


def _gold_sentence(row: Row, source: str, text: str) -> str:
    return next((s for s in row.support if contains(text, s)), "") if row.is_gold(source) else ""


def _is_part(row: Row, source: str, text: str) -> bool:
    return row.is_gold(source) and any(contains(s, text) for s in row.support)


_RUN: Mapping[str, Callable[[Row, Answer, Trace, Mapping[str, Any]], str]] = {
    "grade": _run_grade,
    "rewrite": _run_rewrite,
    "refine": _run_refine,
    "generate": _run_generate,
}
