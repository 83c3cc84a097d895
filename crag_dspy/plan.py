"""What is asked: the kind of question, and the separate information needs in it. Rules, no LM call."""

from __future__ import annotations

import re

from crag_dspy.types import Frozen, Kind


class Plan(Frozen):
    """The question's kind and its information needs (one, or one per part of a compound question)."""

    kind: Kind
    needs: tuple[str, ...]


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


def plan(question: str) -> Plan:
    """Return the question's kind and needs."""
    return Plan(kind=kind_of(question), needs=needs_of(question))


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
