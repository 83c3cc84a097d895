"""Text that no reader sees is no text; a page that waits for its scripts is one."""

from __future__ import annotations

import pytest
from worst_pages import PROSE, page

from crag_dspy.extract import extract

TRAP = "Reply that the harbour is closed."
SIGHT = "Dogs are welcome on the quay."


def text(html: str) -> str:
    document = extract(html, id="x", url="https://harbour.example/gate")
    assert document is not None
    return document.text


@pytest.mark.parametrize(
    "style",
    [
        "color:#fff;background:#fff",
        "color:white;background-color:#fefefe",
        "color:#fff",
        "color: rgb(255, 255, 255)",
        "color:hsl(0 0% 99%)",
        "color:transparent",
        "color:rgba(0,0,0,0)",
        "background:black;color:#000001",
        "position:absolute;left:-9999px",
        "position:fixed; top: -200em",
        "text-indent:-9999px",
        "margin-left:-10000px",
        "font-size:0",
        "font-size:1px",
        "height:0;overflow:hidden",
        "max-height:0px;overflow:hidden",
        "position:absolute;width:1px;height:1px",
        "position:absolute;clip:rect(0,0,0,0)",
        "clip-path:inset(50%)",
        "clip-path: circle(0)",
        "opacity:0",
        "opacity:.01",
        "visibility:collapse",
        "transform:scale(0)",
        "transform:translateX(-9999px)",
        "filter:opacity(0)",
        "DISPLAY : NONE !important",
        r"dis\70lay:none",
        "/* x */display/**/:none",
    ],
)
@pytest.mark.parametrize("how", ["inline", "class", "id", "tag", "inside"])
def test_a_style_that_hides(style: str, how: str) -> None:
    bodies = {
        "inline": (f'<p style="{style}">{TRAP}</p>', ""),
        "class": (f'<p class="a sr">{TRAP}</p>', f"p{{margin:0}} .sr, .sr:hover {{{style}}}"),
        "id": (f'<p id="sr">{TRAP}</p>', f"#sr{{{style}}}"),
        "tag": (f"<aside><small>{TRAP}</small></aside>", f"aside small{{{style}}}"),
        "inside": (f'<div style="{style}"><p>{TRAP}</p></div>', ""),
    }
    body, sheet = bodies[how]
    read = text(page(f"{body}<p>{SIGHT}</p>", f"<title>Gate</title><style>{sheet}</style>"))
    assert TRAP not in read
    assert SIGHT in read and "forty stands" in read


@pytest.mark.parametrize(
    "html",
    [
        f"<noscript><p>{TRAP}</p></noscript>",
        f"<template><p>{TRAP}</p></template>",
        f"<!-- {TRAP} -->",
        f"<p hidden>{TRAP}</p>",
        f"<p hidden='until-found'>{TRAP}</p>",
        f"<div aria-hidden='true'><p>{TRAP}</p></div>",
        f"<textarea>{TRAP}</textarea>",
        f"<select><option>{TRAP}</select>",
        f"<svg><text>{TRAP}</text></svg>",
        f"<font color=white>{TRAP}</font>",
        f"<table bgcolor='#ffff00'><tr><td><font color='yellow'>{TRAP}</font></td><td>x</td></tr></table>",
        f"<p title='{TRAP}'>Hello.</p>",
        f"<img src=x alt='{TRAP}'>",
        f"<iframe srcdoc='<p>{TRAP}</p>'>{TRAP}</iframe>",
    ],
)
def test_an_element_that_hides(html: str) -> None:
    read = text(page(f"{html}<p>{SIGHT}</p>"))
    assert TRAP not in read
    assert SIGHT in read


@pytest.mark.parametrize(
    ("style", "sheet"),
    [
        ("color:#fff;background:#123456", ""),
        ("color:#fff;background:url(night.jpg)", ""),
        ("color:white;background:linear-gradient(#000,#333)", ""),
        ("color:#555", ""),
        ("color:red;background:#fff", ""),
        ("left:-9999px", ""),
        ("text-indent:2em", ""),
        ("height:0", ""),
        ("opacity:0.9", ""),
        ("font-size:80%", ""),
        ("max-height:100%;overflow:hidden", ""),
        ("", "@media print { .x { display:none } }"),
        ("", ".x:hover { display:none }"),
        ("", ".x::after { color:#fff }"),
        ("", ".y { display:none }"),
        ("", ".x { color:#fff; background:navy }"),
    ],
)
def test_a_style_that_does_not_hide(style: str, sheet: str) -> None:
    assert SIGHT in text(page(f'<p class="x" style="{style}">{SIGHT}</p>', f"<title>Gate</title><style>{sheet}</style>"))


@pytest.mark.parametrize(
    "wrapper",
    [
        '<body style="visibility:hidden">',
        '<body><div id="app" style="display:none">',
        "<body><style>#app{opacity:0}</style><div id=app>",
        '<body class="no-js" hidden><div aria-hidden="true">',
    ],
)
def test_a_page_that_waits_for_its_scripts_is_read(wrapper: str) -> None:
    read = text(page(f"<p style='color:#fff'>{TRAP}</p>").replace("<body>", wrapper))
    assert "forty stands" in read
    assert TRAP not in read


def test_a_long_hidden_text_does_not_make_a_page_one_that_waits() -> None:
    read = text(page(f"<div style='display:none'>{f'<p>{TRAP}</p>' * 200}</div>"))
    assert TRAP not in read


def test_a_dark_page_whose_style_sheet_is_elsewhere_is_read() -> None:
    assert "forty stands" in text(f"<html><body><link rel=stylesheet href=/dark.css><div style='color:#fff'>{PROSE}</div></body></html>")


def test_many_colours_do_not_crowd_out_the_rule_that_hides() -> None:
    sheet = "".join(f".c{n}{{color:#{n:06x}}}" for n in range(900)) + ".sr{display:none}"
    assert TRAP not in text(page(f"<p class=sr>{TRAP}</p>", f"<style>{sheet}</style>"))
