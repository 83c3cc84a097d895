"""What is asked: the kind of question, the separate information needs in it, and where to look. By rules, or by the LM."""

from __future__ import annotations

import re
from typing import Literal, get_args

import dspy

from crag_dspy.lm import Meter
from crag_dspy.types import Frozen, Kind

Start = Literal["index", "both"]
MOST_NEEDS = 4


class Plan(Frozen):
    """What a question asks for."""

    kind: Kind
    needs: tuple[str, ...]
    """One information need, or one per part of a compound question."""
    time_sensitive: bool = True
    """Whether an old source may be out of date. What happened in a named past does not change."""
    start: Start = "index"
    """`both`: the question asks for the web itself."""


class PlanQuestion(dspy.Signature):  # type: ignore[misc]
    """Say what kind of question this is, and which separate questions it asks.

    kind: pricing (what something costs), technical (how something works or is set up), factual (who, when, where, how many), general.
    """

    question: str = dspy.InputField()
    kind: str = dspy.OutputField(desc="pricing, technical, factual or general")
    time_sensitive: str = dspy.OutputField(desc="yes if the answer may change over time, else no")
    questions: str = dspy.OutputField(desc="each separate question on its own line, complete in itself")


def _any(*words: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.I)


_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "pricing",
        _any(
            r"pric\w*|costs?|fees?|charged|charges? for|charge per|pay (?:for|per)",
            r"(?<!by )how much(?! (?:time|power|notice|space|storage|memory|data|rain|water))",
            r"tariffs?|fares?|discount\w*|surcharges?|per (?:month|year|seat|site|user|gb|gigabyte|terabyte|tb)|paid|payable|rebates?",
            r"quotes?|cheap\w*|spend on|bill(?:ed)? for|invoice[ds]?|refund\w*|reimburs\w*|trade-in|eur|euros?|€",
        ),
    ),
    (
        "technical",
        _any(
            r"firmware|software|version|api|endpoint|install\w*|configur\w*|calibrat\w*|error|ports?|protocol|batter(?:y|ies)|volt\w*",
            r"k?watts?|kilowatts?|power|probe|accuracy|resolution|interval|timeouts?|limits?|maximum|encrypt\w*|vpn|backups?|restor\w*",
            r"commands?|tokens?|formats?|files?|codes?|browsers?|app|temperatures?|depth|cables?|mount\w*|reset|upgrad\w*|sampl\w*|bandwidth",
            r"latency|laptops?|disks?|antennas?|radios?|memory|pixels|rating|flag|measur\w*|log in|sign in|retention|checksum\w*",
        ),
    ),
    (
        "factual",
        _any(
            r"who|whom|whose|when|where|which|what (?:day|date|year|month|time|name|number|city|town|share)",
            r"how (?:many|long|old|far|often|large|big|tall)",
        ),
    ),
)

_WHAT = r"(?:what|how|when|which|who|whom|whose|where|why)"
_DOES = r"(?:is|are|was|were|does|do|did|can|could|will|would|should|has|have|may)"
_BEFORE = r"(?:at|for|in|by|under|from|on|to|with|until)"
_SUBJECT = r"(?:(?:it|they|there|i|we|you|he|she|the|an?|this|that|these|those|my|our|your|its|their|any|all|each)\b|(?-i:[A-Z]))"
# A second question inside the sentence: "…, and how …", "… and by when does …", "…; which …"; not "… and is never seen again".
_JOIN = re.compile(rf"(?:,?\s+and(?:\s+also)?|;|,\s+(?:plus|also))\s+(?=(?:{_BEFORE}\s+)?{_WHAT}\b|{_DOES}\s+{_SUBJECT})", re.I)
_SENTENCE = re.compile(r"(?<=\?)\s+(?=\S)")
_PRONOUN = re.compile(r"\b(it|its|they|them|their|this|that|these|those|there|he|she|one)\b", re.I)
# A part is a question by a question word, or by a verb where it begins: "We have a contract; …" opens with none.
_QUESTION = re.compile(rf"\b{_WHAT}\b|(?:^|[.,:!?]\s+)(?:and\s+)?{_DOES}\b", re.I)
_FILLER = re.compile(
    rf"\b({_WHAT}|{_DOES}|a|an|the|of|to|in|on|at|for|by|with|and|or|i|we|you|my|our|your|be|been|it|its|they|them|their|this|that|there|one)\b",
    re.I,
)
_NAME = re.compile(r"(?<!^)(?<![.?!] )\b(?!I\b)[A-Z][\w-]*(?: [A-Z0-9][\w-]*)*")


_PAST = re.compile(
    r"\b(?:in|during|before|after|by|since|of) (?:[A-Z][a-z]+ )?(?:1[89]|20)\d\d\b"
    r"|\b(?:was|were|did)\b(?=.*\b(?:found\w*|invent\w*|born|built|first|originally))",
    re.I,
)
_NOW = _any(r"now|current\w*|latest|newest|today|still|at present|these days|this (?:week|month|year)|as of", r"(?:up|effective) to date")
_ASKS_FOR_WEB = _any(r"(?:in|latest) news|on the (?:web|internet)|online|reviews? (?:say|write|think)|press (?:say|report|write)\w*")


def plan(question: str) -> Plan:
    """Return the plan that the rules make; no LM call."""
    return Plan(
        kind=kind_of(question),
        needs=needs_of(question),
        time_sensitive=bool(_NOW.search(question)) or not _PAST.search(question),
        start="both" if _ASKS_FOR_WEB.search(question) else "index",
    )


def plan_by_lm(predictor: dspy.Module, meter: Meter, question: str) -> Plan:
    """Return the LM's plan; what of its reply cannot be read, or strays from the question's words, is planned by the rules."""
    by_rules = plan(question)
    reply = meter.ask(predictor, question=question)
    if reply.skipped:
        return by_rules
    kind = next((name for name in get_args(Kind) if re.search(rf"\b{name}\b", reply.field("kind"), re.I)), by_rules.kind)
    changes = re.match(r"\W*(yes|no)\b", reply.field("time_sensitive"), re.I)
    lines = [re.sub(r"^(?:[-*•]|\d+[.)])\s*", "", line.strip()) for line in reply.field("questions").splitlines()]
    lines = [line for line in lines if line.endswith("?")]
    asked = _content(question)
    faithful = 2 <= len(lines) <= MOST_NEEDS and all(_content(line) <= asked for line in lines)
    return by_rules.model_copy(
        update={
            "kind": kind,
            "time_sensitive": changes.group(1).lower() == "yes" if changes else by_rules.time_sensitive,
            "needs": tuple(lines) if faithful else by_rules.needs,
        }
    )


def _content(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"\w+", _FILLER.sub(" ", text))}


def kind_of(question: str) -> Kind:
    """Return the kind whose words the question uses; pricing before technical before factual, else general."""
    return next((kind for kind, words in _KINDS if words.search(question)), "general")


def needs_of(question: str) -> tuple[str, ...]:
    """Split a compound question into its parts; a part that refers back ("its price") is given the names of the first."""
    parts = [part for sentence in _SENTENCE.split(question.strip()) for part in _JOIN.split(sentence)]
    parts = [part.strip(" ,;") for part in parts if len(part.split()) >= 3]
    stand_alone = all(_QUESTION.search(part) and len(_FILLER.sub(" ", part).split()) >= 2 for part in parts)
    if len(parts) < 2 or not stand_alone:
        return (question.strip(),)
    first_names = _NAME.findall(parts[0])
    needs = [parts[0]]
    for part in (re.sub(r"^(?:and|also|plus)\b,?\s+", "", part, flags=re.I) for part in parts[1:]):
        if first_names and (_PRONOUN.search(part) or not _NAME.search(part)):
            part = f"{part.rstrip('?')} ({', '.join(dict.fromkeys(first_names))})?"
        needs.append(part)
    return tuple(need if need.endswith("?") else need + "?" for need in needs)
