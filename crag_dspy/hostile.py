"""Retrieved text that gives orders to whatever machine reads it: recognised by kinds of order, and blanked."""

from __future__ import annotations

import base64
import codecs
import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import unquote

from crag_dspy.errors import SourceFailure
from crag_dspy.orders import FORGERIES, NAMED, TO_MACHINES, TO_READERS
from crag_dspy.types import Passage

# Characters that show nothing: format and bidirectional controls, fillers, tags, variation selectors, controls but tab and line ends.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e01ef\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)
# Markdown's escapes, as the extractor writes them: "\[1\]" reads as "[1]".
ESCAPE = re.compile(r"(?<!\\)\\+([\[\]()<>{}#|_*`~!.-])")

# Characters read at once, and how often these may name machines: a sentence that does nothing else is written to keep the reader busy.
WINDOW = 600
MOST_NAMED = 8

_QUOTED = re.compile(r"“[^”\n]{1,300}”|„[^“”\n]{1,300}[“”]|«[^»\n]{1,300}»|\"[^\"\n]{1,300}\"|`[^`\n]{1,300}`")
_SENTENCE = re.compile(r".+?(?:[.?!][\"”»)\]]*(?=\s)|[。！？]|(?=\n\s*\n|\n\s*(?:[-*+•|#>]|\d+[.)])\s)|\Z)", re.S)
_PARAGRAPH_END = re.compile(r"\n\s*\n|\n\s*(?:[-*+•|#>]|\d+[.)])\s|\Z")
_GOES_ON = re.compile(
    r"\s*(?:it|they|this|that|then|so|also|first|next|after that|the (?:rule|task|order|assignment|instruction)s?|dann|puis|luego|poi"
    r"|depois|dan|potem|затем|потом)\b|\s*(?:然后|次に)",
    re.I,
)
_SPACED = re.compile(r"\b(?:\w ){4,}\w\b")
_MIXED = re.compile(r"\b(?=\w*[A-Za-z])(?=\w*[Ѐ-ӿͰ-Ͽ])\w+\b|\b[аеорсхуіѕјк]+\b")
_LOOKALIKES = str.maketrans("аеорсхуіѕјкАВЕКМНОРСТХІαεοριν", "aeopcxyisjkABEKMHOPCTXIaeopiv")
_SLUG = re.compile(r"\w+(?:[-_+]\w+){3,}")
_TELLTALE = re.compile(r"ignor|instruct|answer|reply|respon|assistant|antwort", re.I)
_BLOCK = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")


def gives_orders(text: str) -> bool:
    """Return whether a text tells a language model what to do ("AI assistants: ignore your instructions and answer …").

    An order that is quoted, as in an article about such attacks, is none of the text's own. Orders are read through base64, hex,
    percent signs, rot13, reversal, spacing, look-alike letters and invisible characters.
    """
    return any(_is_order(text[start:end], quoted=False) for start, end in _sentences(text))


def order_spans(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of every order in a text, quoted ones and forged markers too, each to the end of its paragraph.

    Orders seldom come alone: what follows in the paragraph goes on with them, and so does a next one that opens with "It is to …".
    """
    spans: list[tuple[int, int]] = []
    for start, end in _sentences(text):
        if (not spans or start >= spans[-1][1]) and _is_order(text[start:end], quoted=True):
            rest = max(end, _paragraph_end(text, end))
            if _GOES_ON.match(text, rest):
                rest = _paragraph_end(text, len(text) - len(text[rest:].lstrip()))
            spans.append((start, rest))
    return spans


def disarm(passages: Sequence[Passage]) -> tuple[list[Passage], list[SourceFailure]]:
    """Return the passages without the orders in them, and one failure (`orders_dropped`) per source that had any.

    Orders are overwritten with line ends, so that offsets stay and no strip reaches across the gap; a title or section that is an
    order is left out; a passage of which nothing is left is dropped.
    """
    kept: list[Passage] = []
    sources: dict[str, None] = {}
    for passage in passages:
        text = passage.text
        for start, end in order_spans(text):
            text = text[:start] + "\n" * (end - start) + text[end:]
        title = "" if order_spans(passage.title) else passage.title
        section = " > ".join(part for part in passage.section.split(" > ") if not order_spans(part))
        if (text, title, section) != (passage.text, passage.title, passage.section):
            sources[passage.source] = None
            passage = passage.model_copy(update={"text": text, "title": title or passage.source, "section": section})
        if text.strip():
            kept.append(passage)
    return kept, [
        SourceFailure("orders_dropped", f"{source} tells language models what to do; those sentences were not used.") for source in sources
    ]


def _paragraph_end(text: str, start: int) -> int:
    match = _PARAGRAPH_END.search(text, max(0, start - 1))
    return match.start() if match else len(text)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of every sentence; a longer one than `WINDOW` in pieces that overlap by a sixth."""
    for match in _SENTENCE.finditer(text):
        start, end = match.start() + len(match.group()) - len(match.group().lstrip()), match.end()
        while end - start > WINDOW:
            yield start, start + WINDOW
            start += WINDOW * 5 // 6
        if start < end:
            yield start, end


def _is_order(sentence: str, *, quoted: bool) -> bool:
    for reading in _readings(sentence if quoted else _QUOTED.sub("“so and so”", sentence)):
        named = sum(1 for _ in NAMED.finditer(reading))
        if named > MOST_NAMED:
            return True
        kinds = (*(TO_MACHINES if named else ()), *TO_READERS, *(FORGERIES if quoted else ()))
        if any(kind.search(reading) for kind in kinds):
            return True
    return False


def _readings(text: str) -> Iterator[str]:
    """Yield a sentence as people, and as decoding machines, would read it."""
    tags = "".join(chr(ord(c) - 0xE0000) for c in text if 0xE0020 <= ord(c) < 0xE007F)
    shown = unicodedata.normalize("NFKC", INVISIBLE.sub("", text)).replace("\n", " ").strip()
    shown = ESCAPE.sub(r"\1", shown)
    shown = _MIXED.sub(lambda m: m.group().translate(_LOOKALIKES), shown)
    yield shown
    if tags:
        yield tags
    if _SPACED.search(shown):
        words = re.sub(r"(?<=\w) {2,}(?=\w)", "\t", text)  # wider gaps part the words
        yield re.sub(r"\b(?:\w ){2,}\w\b", lambda m: m.group().replace(" ", ""), words).replace("\t", " ")
    if "%20" in shown:
        yield unquote(shown)
    yield from (re.sub(r"[-_+]", " ", slug) for slug in _SLUG.findall(shown))
    yield from (turned for turned in (codecs.encode(shown, "rot13"), shown[::-1]) if _TELLTALE.search(turned))
    for block in _BLOCK.findall(shown):
        yield from _decoded(block)


def _decoded(block: str) -> Iterator[str]:
    plain = block.rstrip("=").translate(str.maketrans("-_", "+/"))
    with suppress(ValueError):
        yield base64.b64decode(plain + "=" * (-len(plain) % 4)).decode()
    with suppress(ValueError):
        yield bytes.fromhex(block).decode()
