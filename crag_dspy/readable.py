"""Tables, lists, code, definitions and questions of a page as Markdown in plain paragraphs, which every way of extraction keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from crag_dspy.markup import BLOCK, HEADINGS, INLINE, LINE, SPACE, blocks_in, drop, flat, kept_names, linked, paragraph, replace
from crag_dspy.tables import rewrite_table

MAX_INLINE = 300
"""Inline elements in one parent; beyond, they become plain text (trafilatura's time grows with their square)."""

_DROPPED = ("textarea", "select", "option", "datalist", "object", "embed", "iframe", "canvas", "audio", "video", "map")
_PERMALINK = re.compile(r"[¶#§🔗\s]{0,3}")
_CODE = re.compile(r"code|highlight|lang|brush|sourc|program|console|prettyprint")


def make_readable(tree: Any) -> None:
    """Rewrite a page in place; `markup.read_back` must see the text that is extracted from it."""
    _rename(tree)
    for element in list(tree.iter("*")):
        if len(element) > MAX_INLINE and sum(child.tag in INLINE for child in element) > MAX_INLINE:
            _join_inline(element)
    for table in reversed(list(tree.iter("table"))):  # inner ones first
        rewrite_table(table)
    for pre in list(tree.iter("pre")):
        _pre(pre)
    for definitions in reversed(list(tree.iter("dl"))):
        _definitions(definitions)
    for items in list(tree.iter("ul", "ol")):
        if next(items.iterancestors("ul", "ol"), None) is None:
            _list(items)


def _rename(tree: Any) -> None:
    """Remove what is no text, and give elements that nothing downstream knows the names of those it does."""
    for element in list(tree.iter(*_DROPPED)):
        drop(element)
    for link in list(tree.iter("a")):
        if link.get("href", "").startswith("#") and _PERMALINK.fullmatch("".join(link.itertext())):
            drop(link)
    for button in list(tree.iter("button")):
        if button.get("aria-expanded") or button.getparent().tag in HEADINGS:  # a question that opens its answer
            button.drop_tag()
        else:
            drop(button)
    for element in list(tree.iter("details", "summary")):
        element.tag = "h4" if element.tag == "summary" else "div"
    for element in list(tree.iterdescendants("*")):
        if "-" in element.tag:
            inside = [inner.tag for inner in element.iterdescendants("*")]
            element.tag = "div" if any(tag in BLOCK or "-" in tag for tag in inside) else "p"


def _join_inline(element: Any) -> None:
    """Join an element's text and inline children to paragraphs; other children stay between them."""
    parts, children = [element.text or ""], []
    for child in element:
        if child.tag in INLINE:
            parts += [LINE if child.tag == "br" else "".join(child.itertext()), child.tail or ""]
        else:
            children += [paragraph("".join(parts)), child]
            parts, child.tail = [child.tail or ""], None
    children.append(paragraph("".join(parts)))
    attributes, tail = kept_names(element), element.tail
    element.clear()
    element.attrib.update(attributes)
    element.tail = tail
    if len(children) == 1:
        element.text = children[0].text
    else:
        element.tag = "div" if element.tag == "p" else element.tag
        element.extend(child for child in children if len(child) or (child.text or "").strip())


def _pre(pre: Any) -> None:
    """Keep the lines of a block of code, fenced, and those of preformatted text, not fenced; line numbers alone go."""
    for br in pre.iter("br"):
        br.tail = "\n" + (br.tail or "")
    text = "".join(pre.itertext()).replace("\r\n", "\n").strip("\n").rstrip()
    if re.fullmatch(r"[\d\s]*", text):
        drop(pre)
        return
    inner = [element.get("class", "") for element in pre.iter("code")]
    names = " ".join([*inner, *(element.get("class", "") for element in [pre, *list(pre.iterancestors())[:2]])])
    if inner or _CODE.search(names):
        language = re.search(r"\blang(?:uage)?-([\w+#]{1,20})", names)
        replace(pre, f"```{language[1] if language else ''}\n{_aligned(text)}\n```")
    else:
        replace(pre, *map(_aligned, re.split(r"\n[ \t]*\n(?=[ \t]*\S)", text)))


def _aligned(text: str) -> str:
    """Spell out the spaces that indent a line or align it with others."""
    lines = (line.expandtabs(4).rstrip() for line in text.split("\n"))
    return "\n".join(re.sub(r" {2,}|^ ", lambda match: SPACE * len(match[0]), line) for line in lines)


def _definitions(definitions: Any) -> None:
    """Make terms and what they mean one line each; where the meaning is more than lines, a block after the term."""
    if set(blocks_in(definitions)) - {"dt", "dd", "div", "p"}:
        for element in [definitions, *definitions.iter("dt", "dd")]:
            element.tag = "p" if element.tag == "dt" else "div"
        return
    pairs: list[tuple[list[str], list[str]]] = []
    for element in definitions.iter("dt", "dd"):
        if not pairs or (element.tag == "dt" and pairs[-1][1]):
            pairs.append(([], []))
        pairs[-1][element.tag == "dd"].append(flat(element))
    lines = (": ".join(filter(None, [", ".join(filter(None, terms)).rstrip(":"), "; ".join(means)])) for terms, means in pairs)
    replace(definitions, "\n".join(f"- {line}" for line in lines if line))


def _list(items: Any) -> None:
    """Make a list of text one paragraph of lines; a list of links stays one, which is how menus are known."""
    if (
        set(blocks_in(items)) - {"ul", "ol", "li", "p", "div"}
        or linked(items) > 0.5
        or next(items.iterancestors("nav", "footer", "header"), None) is not None
    ):
        return
    attributes = kept_names(items)
    for lines in replace(items, "\n".join(_items(items, 0))):
        lines.attrib.update(attributes)


def _items(items: Any, depth: int) -> Iterator[str]:
    """Yield a line for each item, two spaces further in for each list that it lies in (at most eight)."""
    number = 0
    for item in items:
        if item.tag in ("ul", "ol"):
            yield from _items(item, depth + 1)
        elif item.tag == "li":
            inner = [element for element in item.iter("ul", "ol") if next(element.iterancestors("li")) is item]
            for element in inner:
                drop(element)
            number += 1
            if text := flat(item):
                yield SPACE * 2 * min(depth, 8) + (f"{number}. " if items.tag == "ol" else "- ") + text
            for element in inner:
                yield from _items(element, depth + 1)
