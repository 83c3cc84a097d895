"""Examples for each predictor, derived from the gold labels of the training set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from functools import cache
from typing import Any

import dspy

from crag_dspy.errors import SourceFailure
from crag_dspy.generate import NO_ANSWER, declines, show
from crag_dspy.grade import kept, parse_level
from crag_dspy.index import in_context
from crag_dspy.lm import as_data
from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from crag_dspy.refine import listing, number, parse_numbers, rank
from crag_dspy.rewrite import clean_query, with_names
from crag_dspy.run import KEPT_PER_NEED
from crag_dspy.types import Grade, Strip
from optimize.calibrate import Observation, contains, replay
from optimize.dataset import is_gold_url
from optimize.metrics import holds

Metric = Callable[..., bool]


def for_grade(observations: Sequence[Observation]) -> list[dspy.Example]:
    """Return (need, passage) → level: 3 for passages with a gold sentence, 1 or 0 for the best-scored without; in turn."""
    by_level: dict[str, list[dspy.Example]] = {"3": [], "1": [], "0": []}
    for o in observations:
        scored = sorted([*o.internal, *o.external], key=lambda item: (-max(item.scores), item.passage.id))
        for need, text in enumerate(o.needs):
            chosen: dict[str, Any] = {}
            for item in scored:
                gold = (item.passage.id, need) in o.gold
                level = "3" if gold else "1" if item.scores[need] >= 0.1 else "0"
                if level != "0" or item is scored[-1]:
                    chosen.setdefault(level, item)
            for level, item in chosen.items():
                sentence = next((s for s in o.row.support if level == "3" and contains(item.passage.text, s)), "")
                example = dspy.Example(question=text, passage=as_data(in_context(item.passage)), level=level, sentence=sentence)
                by_level[level].append(example.with_inputs("question", "passage"))
    rows = max((len(examples) for examples in by_level.values()), default=0)
    return [examples[i] for i in range(rows) for examples in by_level.values() if i < len(examples)]


def grade_right(example: dspy.Example, prediction: Any, trace: object = None) -> bool:
    """Return whether the predicted level lies on the right side: 2-3 for a gold passage, 0-1 for another."""
    level = parse_level(str(prediction.level))
    return level is not None and (level >= 2) == (int(example.level) >= 2)


def for_rewrite(observations: Sequence[Observation]) -> list[dspy.Example]:
    """Return the questions whose answer is on the web, with the gold pages that a query must find."""
    return [
        dspy.Example(question=as_data(o.row.question), gold_urls=list(o.row.gold_urls)).with_inputs("question")
        for o in observations
        if o.row.gold_urls
    ]


Finds = Callable[[str, str], tuple[str, tuple[str, ...]]]
"""(question, reply) → the query that the program would send, and the URLs it finds; an empty query finds nothing."""


def finder(program: CRAG) -> Finds:
    """Return what a rewriter's reply finds on the web, each query asked once: a search may cost money."""

    @cache
    def search(query: str) -> tuple[str, ...]:
        if program.parts.search is None:
            return ()
        try:
            return tuple(result.url for result in program.parts.search(query, program.parts.pages_per_search))
        except SourceFailure:
            return ()

    def find(question: str, reply: str) -> tuple[str, tuple[str, ...]]:
        query = clean_query(reply)
        return (sent, search(sent)) if query and (sent := with_names(query, question)) else ("", ())

    return find


def finds_gold(find: Finds) -> Metric:
    """Return the metric of a query: the search finds a gold page with it."""

    def metric(example: dspy.Example, prediction: Any, trace: object = None) -> bool:
        return any(is_gold_url(url, example.gold_urls) for url in find(example.question, str(prediction.query))[1])

    return metric


def _survivors(o: Observation, policy: Policy, as_of: date) -> tuple[list[Grade], list[Strip]]:
    """Return the passages and strips that would reach the LM for a question, index and web together."""
    grades = [g for side in (o.internal, o.external) for g in kept(replay(o, side, policy, as_of), policy, KEPT_PER_NEED)]
    return grades, [strip for strip, _ in rank(grades, policy)]


def _is_gold(o: Observation, strip: Strip) -> bool:
    source = strip.passage.source
    return o.row.is_gold(source) and any(contains(strip.text, sentence) or contains(sentence, strip.text) for sentence in o.row.support)


def for_refine(observations: Sequence[Observation], policy: Policy, as_of: date) -> list[dspy.Example]:
    """Return (question, numbered strips) → the numbers of those that hold gold sentences."""
    examples = []
    for o in observations:
        _, survivors = _survivors(o, policy, as_of)
        gold = [n for n, strip in enumerate(survivors, 1) if _is_gold(o, strip)]
        if gold and len(survivors) > len(gold):
            example = dspy.Example(question=as_data(o.row.question), strips=listing(survivors), numbers=", ".join(map(str, gold)))
            examples.append(example.with_inputs("question", "strips"))
    return sorted(examples, key=lambda example: len(example.strips))


def picks_right(example: dspy.Example, prediction: Any, trace: object = None) -> bool:
    """Return whether all gold strips were picked and at least half of the picks are gold."""
    picked, gold = parse_numbers(str(prediction.numbers), 99), parse_numbers(example.numbers, 99)
    return bool(picked and gold and gold <= picked and 2 * len(gold) >= len(picked))


def for_generate(observations: Sequence[Observation], policy: Policy, as_of: date, most: int = 3) -> list[dspy.Example]:
    """Return (question, evidence) → the reference answer with markers, or the refusal where nobody knows.

    Compound questions are left out: the generator is asked about one need at a time.
    """
    examples = []
    for o in (o for o in observations if len(o.needs) == 1):
        grades, survivors = _survivors(o, policy, as_of)
        if o.row.answerable:
            gold = [strip for strip in survivors if _is_gold(o, strip)]
            survivors = gold + [strip for strip in survivors if strip not in gold][:1]
        evidence = number([(g, mine) for g in grades if (mine := [s for s in survivors if s.passage.id == g.passage.id])], most)
        markers = [item.n for item in evidence if any(holds(item.text, fact) for fact in o.row.facts)] if o.row.answerable else []
        all_there = all(any(holds(item.text, fact) for item in evidence) for fact in o.row.facts) if o.row.answerable else True
        if not evidence or not all_there:
            continue
        answer = NO_ANSWER
        if o.row.answerable:
            answer = f"{o.row.answer.rstrip('.')} {''.join(f'[{n}]' for n in markers)}."
        example = dspy.Example(
            question=as_data(o.row.question),
            evidence=show(evidence),
            answer=answer,
            facts=[list(fact) for fact in o.row.facts],
            markers=markers,
            id=o.row.id,
            need=o.row.need or ("none" if not o.row.answerable else "internal"),
        )
        examples.append(example.with_inputs("question", "evidence"))
    return examples


def answers_right(example: dspy.Example, prediction: Any, trace: object = None) -> bool:
    """Return whether a reply holds every fact and cites the evidence that holds them, or declines where nobody knows."""
    reply = str(prediction.answer)
    if not example.markers:
        return declines(reply) and len(reply.split()) <= 6
    cited = all(f"[{n}]" in reply for n in example.markers[:1])
    return cited and not declines(reply) and all(holds(reply, fact) for fact in example.facts) and len(reply.split()) <= 60


def in_turn(known: Sequence[dspy.Example]) -> list[dspy.Example]:
    """Return the examples with the needs in turn, so that the first few cover all of them."""
    needs = list(dict.fromkeys(example.need for example in known))
    pools = {need: [example for example in known if example.need == need] for need in needs}
    rounds = max((len(pool) for pool in pools.values()), default=0)
    return [pools[need][i] for i in range(rounds) for need in needs if i < len(pools[need])]


def halves(examples: Sequence[dspy.Example], most: int) -> tuple[list[dspy.Example], list[dspy.Example]]:
    """Return examples to learn from and to choose on, at most `most` of each, of every level and need as many here as there."""
    label = [str(example.get("level", example.get("need", ""))) for example in examples]
    order = sorted(range(len(examples)), key=label.__getitem__)
    parts = (sorted(order[::2]), sorted(order[1::2]))
    learn, choose = ([examples[i] for i in part][:most] for part in parts)
    return learn, choose
