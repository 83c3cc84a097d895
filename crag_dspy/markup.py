"""What HTML's elements are, and the few steps on a tree that lxml does not have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lxml import etree, html

HEADINGS = frozenset("h1 h2 h3 h4 h5 h6".split())
INLINE = frozenset(
    "a abbr acronym b bdi bdo big br cite code data del dfn em font i img ins kbd label mark nobr q s samp small span strike strong "
    "sub sup time tt u var wbr".split()
)
BLOCK = HEADINGS | frozenset(
    "address article aside blockquote center dd details div dl dt fieldset figcaption figure footer form header hr li main nav ol p pre "
    "section summary table tbody td tfoot th thead tr ul".split()
)
# Within the blocks that are rewritten before extraction, what extraction would escape, convert or trim is spelt in Linear A,
# in which no page is written.
_MARKS = "\n `*_[]<>~#+-.!()|$\\{}"
_SPELT = {ord(mark): chr(0x10600 + n) for n, mark in enumerate(_MARKS)}
_READ = {ord(letter): chr(mark) for mark, letter in _SPELT.items()}
LINE, SPACE = _SPELT[ord("\n")], _SPELT.pop(ord(" "))
NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff" + "".join(map(chr, _READ)) + "]")
"""Characters that no text may hold: XML forbids them, or they are used here."""

_ESCAPED = re.compile(r"(?<!\\)(`[^`\n]+`)|\\([`*_{}\[\]()<>#+.!|~$\\-])")


def spell_out(text: str) -> str:
    """Return a text that extraction leaves as it is; `read_back` makes the text of it."""
    return text.translate(_SPELT)


def read_back(text: str) -> str:
    """Return extracted Markdown as a reader would see it: without escapes, its blocks in lines."""
    text = _ESCAPED.sub(lambda match: match[1] or match[2], text)
    text = re.sub(f" ?{LINE} ?", "\n", text).translate(_READ)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def flat(element: Any) -> str:
    """Return an element's text in one line; images' alternatives are no text."""
    parts = []
    for event, node in etree.iterwalk(element, events=("start", "end")):
        if node is not element and (node.tag in BLOCK or node.tag == "br"):
            parts.append(" ")
        if event == "start":
            parts.append(node.text or "")
        elif node is not element:
            parts.append(node.tail or "")
    return " ".join("".join(parts).split())


def linked(element: Any) -> float:
    """Return the share of an element's text that lies in links, 0-1."""
    whole = len("".join(element.itertext()).strip())
    return sum(len("".join(link.itertext()).strip()) for link in element.iter("a")) / whole if whole else 0.0


def blocks_in(element: Any) -> Iterator[str]:
    """Yield the tags of the blocks inside an element."""
    return (inner.tag for inner in element.iterdescendants("*") if inner.tag in BLOCK)


def paragraph(text: str) -> Any:
    """Return a paragraph element."""
    element = html.Element("p")
    element.text = text
    return element


def replace(element: Any, *texts: str) -> list[Any]:
    """Put paragraphs of spelt-out text in an element's place, and return them."""
    parent, tail = element.getparent(), element.tail
    paragraphs = [paragraph(spell_out(text)) for text in texts if text.strip()]
    if parent is None or not paragraphs:
        drop(element)
        return []
    paragraphs[-1].tail, element.tail = tail, None
    at = parent.index(element)
    parent[at : at + 1] = paragraphs
    return paragraphs


def kept_names(element: Any) -> dict[str, str]:
    """Return the attributes by which boilerplate is known."""
    return {name: NOT_TEXT.sub(" ", element.get(name)) for name in ("id", "class", "role") if element.get(name)}


def drop(element: Any) -> None:
    """Remove an element with all that is in it; the text after it stays."""
    if element.getparent() is not None:
        element.drop_tree()
