"""Sources that disagree: both values are stated, with their dates, the newer first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from itertools import combinations

import sentencex

from crag_dspy.types import Claim, Conflict, Evidence

NO_BRACKETS = str.maketrans("[]【】［］", "()()()")  # that could be taken for markers
OVERLAP = 0.6  # share of the shorter sentence's words that both must hold to speak of one thing
_SPACES = "\u0020\u00a0\u2009\u202f"
_GROUPED = rf"\d{{1,3}}(?:[{_SPACES}'’.,]\d{{3}})+(?!\d)(?:[.,]\d{{1,2}}\b)?|\d+(?:[.,]\d+)*"
_AMOUNT = rf"({_GROUPED})(?:[{_SPACES}]?(thousand|million|billion|mn|bn)\b)?"
_CURRENCY = r"(?:EUR|USD|GBP|CHF)"
_MONEY = re.compile(rf"(€|\$|£|\b{_CURRENCY})\s?{_AMOUNT}|(?<![\w.,]){_AMOUNT}\s?(€|\$|£|(?:{_CURRENCY}|euros?|dollars?)\b)", re.I)
_MEASURE = re.compile(rf"(?<![\w.,'’])(?<!\w[-–])([-−]?){_AMOUNT}\s?-?\s?(%|°\s?[CF]\b|per\s?cent\b|[a-zµ]{{1,12}}\b)", re.I)
_CLOCK = re.compile(r"\b(\d{1,2})(?:[:.](\d{2}))?\s?([ap])\.?m\b\.?|\b(\d{1,2}):(\d{2})\b|\b(\d{1,2}) o['’]clock\b", re.I)
_WORD = re.compile(r"[^\W\d_][\w-]*")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"\b\d{{1,2}}\.? {_MONTH}(?: \d{{4}})?\b|\b{_MONTH} \d{{1,2}}(?:, \d{{4}})?\b|\b{_MONTH} \d{{4}}\b|\b\d{{4}}-\d\d-\d\d\b", re.I
)
_MONTHS = {name: f"{n:02}" for n, name in enumerate("jan feb mar apr may jun jul aug sep oct nov dec".split(), 1)}
_DAY = re.compile(rf"\b(?:(\d{{1,2}})\.? ({_MONTH})|({_MONTH}) (\d{{1,2}})),? (\d{{4}})\b|\b(\d{{4}}-\d\d-\d\d)\b", re.I)
# "Kestrel 3", "iPhone 15", "version 2.1", "2025 plan": a number that names a thing.
_LABEL = r"version|model|type|release|level|tier|size|series|generation|phase|zone|class|edition|section"
_NUMBERED = re.compile(rf"\b((?=\w*[A-Z])[^\W\d_][\w-]*|(?:{_LABEL}))\.? (\d[\w.]*\b)(?!\s?[%°:])")
_OF_YEAR = re.compile(r"\b((?:19|20)\d\d) ([a-z]{3,})\b")
_NAME = re.compile(r"\b(?=[\w-]*[A-Z])[^\W_][\w-]*")
_CONDITION = re.compile(r"\b(?:for|in|on|at|with|without|per|by|of|after|before)(?: (?:the|an?|each|every))? ([a-z]{3,})")
_STOP = frozenset(
    """the and but for with from this that these those its our your their his her all any each every per not has have had
    was were are will would can could may must does did than then there here who which what when where why how into onto over under
    within until till since during about approx around some more most other one two about after before without you they she him""".split()
)
_WHEN = re.compile(
    rf"\w+ly|{_MONTH}|\w+day|now|today|tomorrow|new|old|current|previous|former|latest|starting|as|if|it|on|in|at|by|of|to|a|an|we|i", re.I
)
_SYMBOLS = {"€": "eur", "euro": "eur", "$": "usd", "dollar": "usd", "£": "gbp", "percent": "%"}
_SCALES = """month 1, year 12, yr 12; s 1, ms 0.001, sec 1, second 1, min 60, minute 60, h 3600, hr 3600, hour 3600, day 86400, week 604800;
    mg 0.001, g 1, gram 1, kg 1000, kilogram 1000, kilo 1000, t 1000000, tonne 1000000; mm 0.001, millimetre 0.001, millimeter 0.001,
    cm 0.01, centimetre 0.01, centimeter 0.01, m 1, metre 1, meter 1, km 1000, kilometre 1000, kilometer 1000; w 1, watt 1, kw 1000,
    kilowatt 1000; mb 1, megabyte 1, gb 1000, gigabyte 1000, tb 1000000, terabyte 1000000"""
# Unit: its family's first unit, and how many of those it is.
_SCALE = {
    name: (family.split()[0], Decimal(factor))
    for family in _SCALES.split(";")
    for name, factor in (entry.split() for entry in family.split(","))
}
_TIMES = {"thousand": 1000, "million": 10**6, "mn": 10**6, "billion": 10**9, "bn": 10**9}
_NO_UNIT = frozenset("and or of the in at to a for on is are was by with from st nd rd th am pm".split())


def with_conflicts(
    claims: Sequence[Claim], evidence: Sequence[Evidence], needs: Sequence[str], sure: float
) -> tuple[list[Claim], list[Conflict]]:
    """Return an answer's claims and one more for each conflict about what they state, unless they state both sides."""
    cited = {n for claim in claims for n in claim.citations}
    said = " ".join(claim.text for claim in claims)
    found = [c for c in conflicts(evidence, needs, sure) if cited & {c.newer, c.older} and _concerns(said, c)]
    owed = [c for c in found if not (_states(said, c.newer_says) and _states(said, c.older_says))]
    return [*claims, *(_statement(conflict, evidence, said) for conflict in owed)], found


def conflicts(evidence: Sequence[Evidence], needs: Sequence[str], sure: float) -> list[Conflict]:
    """Return the pairs of sources that give different values of one unit in sentences about the same thing.

    Only evidence that meets a need with at least `sure` (0-1) is compared; of each need the newest source with each older one.
    """
    found: list[Conflict] = []
    for i, need in enumerate(needs):
        able = [item for item in evidence if i < len(item.needs) and item.needs[i] >= sure]
        newest_first = sorted(able, key=lambda item: (-_day(item).toordinal(), item.n))
        for newer, older in combinations(newest_first, 2):
            if newer.passage.source == older.passage.source or {newer.n, older.n} & {c.older for c in found}:
                continue
            if pair := disagreement(newer.text, older.text):
                found.append(Conflict(need=need, newer=newer.n, older=older.n, newer_says=pair[0], older_says=pair[1]))
    return found


def disagreement(one: str, other: str) -> tuple[str, str] | None:
    """Return a sentence of each text where both speak of one thing and each gives a value of one unit that the other lacks; else None.

    Days count only where they are all that both name: else they tell when something else held.
    """
    for mine in _sentences(one):
        for theirs in _sentences(other):
            ours, others = values(mine), values(theirs)
            shared = ours.keys() & others.keys()
            judged = {unit for unit in shared if unit != "date" and not re.fullmatch(_MONTH, unit)} or shared
            if any(ours[unit] - others[unit] and others[unit] - ours[unit] for unit in judged) and _same_thing(mine, theirs):
                return mine, theirs
    return None


def values(text: str) -> dict[str, set[str]]:
    """Return the values that a text names by unit: money, measures (in the first unit of their family), percent, days, times of day."""
    found: dict[str, set[str]] = {}

    def note(unit: str, amount: Decimal) -> None:
        plain = unit.lower().replace(" ", "")
        plain = plain if plain in _SCALE else plain.rstrip("s")
        base, factor = _SCALE.get(plain, (_SYMBOLS.get(plain, plain), Decimal(1)))
        found.setdefault(base, set()).add(f"{(amount * factor).normalize():f}")

    for match in _MONEY.finditer(text):
        before, one, scale, other, scale2, after = match.groups()
        note(before or after, _number(one or other, money=True) * _TIMES.get((scale or scale2 or "").lower(), 1))
    for match in _DAY.finditer(text):
        day, month, month2, day2, year, iso = match.groups()
        found.setdefault("date", set()).add(iso or f"{year}-{_MONTHS[(month or month2)[:3].lower()]}-{int(day or day2):02}")
    for match in _MEASURE.finditer(_plain_text(_DAY.sub(" ", text))):
        sign, amount, scale, unit = match.groups()
        if unit.lower() not in _NO_UNIT:
            note(unit, _number(amount) * _TIMES.get((scale or "").lower(), 1) * (-1 if sign else 1))
    for match in _CLOCK.finditer(text):
        hour, minute, half, hour24, minute24, sharp = match.groups()
        hours = int(hour or hour24 or sharp) % (12 if half else 24) + (12 if (half or "").lower() == "p" else 0)
        found.setdefault("clock", set()).add(f"{hours}:{minute or minute24 or '00'}")
    return found


def _number(written: str, *, money: bool = False) -> Decimal:
    """Return the value of a number: "5,340.50", "5.340,50", "5 340"; "1.250" is a thousand and more in money only."""
    plain = re.sub(rf"[{_SPACES}'’]", "", written)
    marks = re.findall(r"[.,]", plain)
    if not marks:
        return Decimal(plain)
    last = plain.rindex(marks[-1])
    grouped = len(plain) - last == 4 and not plain.startswith("0") and (marks[-1] == "," or money)
    whole = (grouped and len(set(marks)) == 1) or marks.count(marks[-1]) > 1
    head, tail = (plain, "0") if whole else (plain[:last], plain[last + 1 :])
    return Decimal(f"{re.sub('[.,]', '', head)}.{tail}")


def _plain_text(text: str) -> str:
    """Return a text without its money, times of day, and numbers that name things."""
    text = _CLOCK.sub(" ", _MONEY.sub(" ", text))
    return _NUMBERED.sub(lambda match: match.group() if _is_plain(match.group(1)) else " ", text)


def _is_plain(word: str) -> bool:
    return word.lower() in _STOP or bool(_WHEN.fullmatch(word))


def _statement(conflict: Conflict, evidence: Sequence[Evidence], said: str) -> Claim:
    """Return what an answer owes its reader: what the older source says, and what the newer says where `said` lacks it.

    Where the dates do not tell which one that is, both are quoted and neither is favoured.
    """
    by_number = {item.n: item for item in evidence}
    newer, older = by_number[conflict.newer], by_number[conflict.older]
    one = f"{newer.passage.title} ({_when(newer)}) says “{conflict.newer_says}”"
    other = f"{older.passage.title} ({_when(older)}) says “{conflict.older_says}”"
    if not older.passage.published_at or newer.passage.published_at == older.passage.published_at:
        text = f"Sources disagree: {one}; {other}"
    else:
        text = f"{f'The newer source is of {_when(newer)}' if _states(said, conflict.newer_says) else one}; the older {other}"
    return Claim(text=text.translate(NO_BRACKETS), citations=(newer.n, older.n), support=1.0)


def _concerns(said: str, conflict: Conflict) -> bool:
    """Return whether a text states the value of one side: else the sources disagree about something that was not asked."""
    return _states(said, conflict.newer_says) or _states(said, conflict.older_says)


def _states(said: str, sentence: str) -> bool:
    have = values(said)
    return any(have.get(unit, set()) & mine for unit, mine in values(sentence).items())


def _same_thing(one: str, other: str) -> bool:
    mine, theirs = _words(one), _words(other)
    if not mine or not theirs or len(mine & theirs) / min(len(mine), len(theirs)) < OVERLAP:
        return False
    # "Kestrel 3" and "Kestrel 5", "in Oslo" and "in Bergen", "the day tariff" and "the night tariff" are two things.
    return not (_marks(one, other) and _marks(other, one))


def _marks(text: str, other: str) -> set[str]:
    """Return what tells a text's subject from another's: names, numbered names, conditions and adjectives that the other lacks."""
    bare, lower = _DATE.sub(" ", _MONEY.sub(" ", text)), other.lower()
    numbered = [match.groups() for pattern in (_NUMBERED, _OF_YEAR) for match in pattern.finditer(bare)]
    names = {f"{one} {two}".lower() for one, two in numbered if not _is_plain(one) and not _is_plain(two)}
    marks = {name for name in names if not re.search(rf"\b{re.escape(name)}\b", lower)}
    for word in {*_NAME.findall(bare), *_CONDITION.findall(bare), *_adjectives(bare, other)}:
        if not _is_plain(word) and not re.search(rf"\b{re.escape(word.lower()[:6])}", lower):
            marks.add(word.lower())
    return marks


def _adjectives(text: str, other: str) -> set[str]:
    """Return the words of a text before a word, and after one, that stand together but for another word between them in the other."""
    mine, theirs = (re.findall(r"[^\W\d_][\w-]*|\d+", part.lower()) for part in (text, other))
    frames = {(a, c): b for a, b, c in zip(theirs, theirs[1:], theirs[2:], strict=False)}
    found = ((b, c) for a, b, c in zip(mine, mine[1:], mine[2:], strict=False) if frames.get((a, c), b) != b)
    return {b for b, c in found if not b.isdigit() and len(c) > 2 and not _is_plain(c)}


def _words(text: str) -> set[str]:
    bare = _MEASURE.sub(" ", _plain_text(text))
    return {word.lower()[:6] for word in _WORD.findall(bare) if len(word) > 2 and not _is_plain(word)}


def _sentences(text: str) -> list[str]:
    lines = [line for part in text.split(" … ") for line in part.splitlines()]
    return [piece.strip(" |*-") for line in lines for piece in sentencex.segment("en", line) if piece.strip(" |*-")]


def _day(item: Evidence) -> date:
    return item.passage.published_at or date.min


def _when(item: Evidence) -> str:
    return item.passage.published_at.isoformat() if item.passage.published_at else "no date"
