"""Pages made to cost time or memory, each by name; all in one file, for the tests and for the benchmark."""

from __future__ import annotations

import json
from collections.abc import Callable

PROSE = """<p>The harbour of Ravnsund has one gate, on the quay side, and it is watched around the clock by the port office.</p>
<p>Visitors who arrive by bicycle leave it in the shed behind the weighbridge, where forty stands are free of charge.</p>"""


def page(body: str, head: str = "<title>Gate times</title>") -> str:
    return f"<!DOCTYPE html><html><head>{head}</head><body><article>{PROSE}{body}</article></body></html>"


def _laughs() -> str:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return f'<?xml version="1.0"?><!DOCTYPE html [<!ENTITY l0 "lol">{entities}]><html><body>{PROSE}<p>&l9;</p></body></html>'


SPAN = 2**53 - 1
WORST: dict[str, Callable[[], str]] = {
    "nested 10,000 div": lambda: page("<div>" * 10_000 + PROSE + "</div>" * 10_000),
    "nested 10,000 b": lambda: page("<b>" * 10_000 + "x"),
    "nested tables": lambda: page("<table><tr><td>" * 5_000 + PROSE),
    "nested lists": lambda: page("<ul><li>" * 5_000 + PROSE),
    "nested 240 x 60": lambda: page(("<span>" * 240 + "x" + "</span>" * 240) * 60),
    "span 2^53-1": lambda: page(f"<table><tr><td colspan={SPAN} rowspan={SPAN}>Opens</td><td>at seven</td></tr></table>"),
    "spans of 1,000": lambda: page(f"<table>{'<tr><td colspan=1000>Opens</td><td rowspan=999>x</td></tr>' * 5_000}</table>"),
    "wide table": lambda: page(f"<table><tr>{'<td>7</td>' * 20_000}</tr><tr><td colspan=20000>x</td></tr></table>"),
    "long table": lambda: page(f"<table>{'<tr><td>Berth</td><td>has a bollard</td></tr>' * 9_000}</table>"),
    "paragraphs": lambda: page("<p>Berth 7 has a bollard, a ladder and a lamp.</p>" * 60_000),
    "inline siblings": lambda: page("<p>" + "<span>Berth</span> " * 100_000),
    "bold siblings": lambda: page("<p>" + "<b>Berth</b> 7 " * 100_000),
    "line breaks": lambda: page("<p>" + "line<br>" * 100_000),
    "list items": lambda: page(f"<ul>{'<li>Berth 7 has a bollard</li>' * 60_000}</ul>"),
    "definitions": lambda: page(f"<dl>{'<dt>Berth</dt><dd>has a bollard</dd>' * 30_000}</dl>"),
    "images": lambda: page("<img src=x.jpg alt='A harbour'>" * 60_000),
    "comments": lambda: page("<!-- x -->" * 250_000),
    "1 million links": lambda: page("<a href='/x'>more</a> " * 1_000_000),
    "30 MB": lambda: page(PROSE * 130_000),
    "100,000 attributes": lambda: page(f"<p {' '.join(f'a{n}=1' for n in range(100_000))}>x</p>"),
    "attribute of 3 MB": lambda: page(f"<p class='{'x ' * 1_500_000}'>x</p>"),
    "style of 3 MB": lambda: page(f"<p style='{'color:red;' * 300_000}'>x</p>"),
    "style sheet": lambda: page("", f"<style>{'.a{color:#fff;background:#fff}' * 90_000}</style>"),
    "selectors": lambda: page("<p class=a>x</p>" * 9_000, f"<style>{''.join(f'.a p.b{n}{{opacity:0}}' for n in range(50_000))}</style>"),
    "unclosed css": lambda: page("", f"<style>{'a{{([' * 500_000}</style>"),
    "word of 3 MB": lambda: page(f"<p>{'a' * 3_000_000}</p>"),
    "blanks": lambda: page(f"<pre>{' ' * 1_500_000}{chr(10) * 1_500_000}x</pre>"),
    "dates": lambda: page(f"<p>{'2024-01-02 3 March 2024, 12.04.2023 ' * 80_000}</p>"),
    "digits": lambda: page(f"<p>{'1' * 3_000_000}</p>"),
    "punctuation": lambda: page(f"<p>{'|-_*#`' * 500_000}</p>"),
    "unclosed": lambda: page("<" * 1_000_000),
    "script of 3 MB": lambda: page(f"<script>{'var x = 1; ' * 270_000}</script>"),
    "JSON-LD, deep": lambda: page("", f'<script type="application/ld+json">{"[" * 500_000}</script>'),
    "JSON-LD, long": lambda: page("", f'<script type="application/ld+json">{json.dumps({"articleBody": "word " * 500_000})}</script>'),
    "meta elements": lambda: page("", "<meta name='date' content='2024-01-32'>" * 60_000),
    "title of 3 MB": lambda: page("", f"<title>{'word ' * 600_000}</title>"),
    "entities": lambda: page(f"<p>{'&amp;' * 500_000}</p>"),
    "billion laughs": _laughs,
    "svg around it": lambda: f"<svg>{page(PROSE)}</svg>",
    "forms": lambda: "<form>" * 5_000 + page(PROSE),
}
