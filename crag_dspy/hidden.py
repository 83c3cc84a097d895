"""What a page shows to nobody: a favourite place for orders to language models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import tinycss2
import tinycss2.color4
from cssselect import SelectorError
from lxml.cssselect import CSSSelector

# How much of a page's own style sheets is read: rules that hide text stand in small ones, and a parser in Python is slow.
MAX_SHEET = 60_000
MAX_RULES = 400
MAX_MATCHES = 500_000
"""Rules times elements."""
MAX_STYLE = 1_000
MIN_SEEN = 100
"""Characters. A page that shows less is one whose scripts have yet to show it."""

Style = dict[str, str]
Colour = tuple[float, float, float]
_WHITE: Colour = (1.0, 1.0, 1.0)
_TELLING = re.compile(r"display|visib|opacity|font|clip|indent|left|right|top|bottom|height|width|colou?r|background|transform|\\", re.I)
_LENGTH = re.compile(r"(-?\d*\.?\d+)\s*(px|em|rem|ex|ch|pt|vw|vh|%)?", re.I)
_PIXELS = {"px": 1.0, "pt": 1.3, "em": 16.0, "rem": 16.0, "ex": 8.0, "ch": 8.0, "vw": 10.0, "vh": 10.0, "%": 10.0, "": 1.0}


class _Paint(NamedTuple):
    """The text's colour, and the ground it stands on; None where it is unknown, e.g. a picture."""

    colour: Colour
    ground: Colour | None


def drop_hidden(tree: Any) -> None:
    """Remove from a page what no reader sees.

    Read are attributes, inline styles, and the rules of the page's own style sheets (without a cascade: a rule that hides
    hides). A page that hides everything until its scripts have run keeps its text, but not what was made invisible by
    colour, size or position.
    """
    rules = _rules(tree)
    _drop(list(tree.iter("script", "style", "noscript", "template", "noframes")))
    painted: dict[Any, _Paint] = {}
    waiting, unseen, pale = [], [], []
    for element in tree.iter("*"):
        parent = painted.get(element.getparent(), _Paint((0.0, 0.0, 0.0), _WHITE))
        style = {**rules.get(element, {}), **_declarations(element.get("style", ""))}
        painted[element] = paint = _paint(element, style, parent)
        if element.tag in ("html", "body") or element.getparent() is None:
            continue
        how = "waiting" if element.get("hidden") is not None or element.get("aria-hidden") == "true" else _hides(style)
        if how == "waiting":
            waiting.append(element)
        elif how == "unseen":
            unseen.append(element)
        elif paint != parent and paint.ground is not None and _near(paint.colour, paint.ground):
            pale.append(element)
    _drop(unseen)
    # Most of a page in the colour of an assumed white ground is a dark page whose style sheet is elsewhere.
    if sum(map(_length, pale)) < _length(tree) / 2:
        _drop(pale)
    if _length(tree) - sum(map(_length, _outermost(waiting))) >= MIN_SEEN:
        _drop(waiting)


def _hides(style: Style) -> Literal["waiting", "unseen"] | None:
    """Return how a style hides: until a script shows it, or for good."""
    if not style:
        return None
    get = style.get
    if get("display") == "none" or get("visibility") in ("hidden", "collapse") or _number(get("opacity"), 1) <= 0.05:
        return "waiting"
    placed = get("position") in ("absolute", "fixed")
    cut = "hidden" in get("overflow", "") or "clip" in get("overflow", "") or placed
    if (
        _pixels(get("font-size"), 16) <= 2
        or (placed and min(_pixels(get(side), 0) for side in ("left", "top", "right", "bottom")) <= -500)
        or min(_pixels(get(name), 0) for name in ("text-indent", "margin-left", "margin-top")) <= -500
        or (cut and min(_pixels(get(name), 99) for name in ("height", "width", "max-height", "max-width")) <= 1)
        or re.search(r"rect\(\s*([01](px)?[\s,]+){3}[01](px)?\s*\)", get("clip", ""))
        or re.search(r"inset\(\s*(50|100)%|circle\(\s*0|polygon\(\s*0(px)?\s+0(px)?\s*\)", get("clip-path", ""))
        or re.search(r"scale[xy]?\(\s*0(\.0+)?\s*[,)]|translate[xy]?\([^)]*-\d{3,}", get("transform", ""))
        or re.search(r"opacity\(\s*0", get("filter", ""))
    ):
        return "unseen"
    return None


def _paint(element: Any, style: Style, parent: _Paint) -> _Paint:
    colour, ground = parent
    value = style.get("background-color") or style.get("background") or (element.get("bgcolor") or "")[:50]
    if value:
        ground = None if re.search(r"url\(|gradient|var\(", value) else _colour(value) or ground
    if "background-image" in style and style["background-image"] != "none":
        ground = None
    named = style.get("color") or (element.get("color") or "")[:50]
    if named == "transparent" or re.match(r"(rgba|hsla)\(.*[,/]\s*0(\.0\d*)?%?\s*\)$", named):
        return _Paint(ground or _WHITE, ground or _WHITE)
    return _Paint(_colour(named) or colour, ground)


def _near(one: Colour, other: Colour) -> bool:
    return max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 0.06


@lru_cache(4096)
def _colour(value: str) -> Colour | None:
    """Return the first colour of a value, as red, green and blue from 0 to 1; None where it names none that is opaque."""
    for token in tinycss2.parse_component_value_list(value, skip_comments=True):
        colour = tinycss2.color4.parse_color(token)
        if colour is not None and colour != "currentcolor" and colour.alpha:
            red, green, blue = colour.to("srgb").coordinates
            return (red, green, blue)
    return None


def _rules(tree: Any) -> dict[Any, Style]:
    """Return what the page's style sheets say of its elements, as far as it may hide them."""
    css = "\n".join(element.text or "" for element in tree.iter("style") if (element.get("media") or "all") in ("all", "screen"))
    found: dict[Any, Style] = {}
    most = min(MAX_RULES, MAX_MATCHES // (1 + sum(1 for _ in tree.iter("*"))))
    # Those that hide come first, so that many colours do not crowd them out.
    for selectors, style in sorted(_hiding(css[:MAX_SHEET]), key=lambda rule: _hides(rule[1]) is None)[:most]:
        # Of a whole list one unknown selector must not cost the others. :hover and the like hold at times only.
        for selector in selectors.split(",")[:20]:
            if ":" not in selector:
                try:
                    matched = CSSSelector(selector, translator="html")(tree)
                except (SelectorError, ValueError, RecursionError):
                    continue
                for element in matched:
                    found.setdefault(element, {}).update(style)
    return found


def _hiding(css: str) -> Iterator[tuple[str, Style]]:
    for rule in tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True):
        if rule.type == "qualified-rule":
            style = _declarations(tinycss2.serialize(rule.content))
            if _hides(style) or style.keys() & {"color", "background", "background-color", "background-image"}:
                yield tinycss2.serialize(rule.prelude)[:MAX_STYLE], style


@lru_cache(4096)
def _parsed(style: str) -> tuple[tuple[str, str], ...]:
    parsed = tinycss2.parse_blocks_contents(style, skip_comments=True, skip_whitespace=True)
    return tuple((d.lower_name, tinycss2.serialize(d.value).strip().lower()) for d in parsed if d.type == "declaration")


def _declarations(style: str) -> Style:
    style = style[:MAX_STYLE]
    return dict(_parsed(style)) if _TELLING.search(style) else {}


def _number(value: str | None, default: float) -> float:
    match = _LENGTH.match(value or "")
    return float(match.group(1)) / (100 if match.group(2) == "%" else 1) if match else default


def _pixels(value: str | None, default: float) -> float:
    match = _LENGTH.match((value or "").removeprefix("calc("))
    return float(match.group(1)) * _PIXELS[(match.group(2) or "").lower()] if match else default


def _length(element: Any) -> int:
    return sum(len(text.strip()) for text in element.itertext("*") if text)


def _outermost(elements: list[Any]) -> list[Any]:
    """Return the elements that lie in none of the others; `elements` is in document order."""
    inside: set[Any] = set()
    kept = []
    for element in elements:
        if element not in inside:
            kept.append(element)
            inside.update(element.iter("*"))
    return kept


def _drop(elements: list[Any]) -> None:
    for element in elements:
        if element.getparent() is not None:
            element.drop_tree()
