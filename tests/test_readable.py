"""Tables, lists, code and definitions stay readable, in short pages and long ones."""

from __future__ import annotations

import pytest
from worst_pages import PROSE

from crag_dspy.extract import extract

MORE = "".join(f"<p>Berth {n} has a bollard, a ladder and a lamp, and its key hangs in box {n * 7} of the office.</p>" for n in range(20))


def read(body: str, around: str = PROSE) -> str:
    document = extract(f"<html><head><title>x</title></head><body><article>{around}{body}</article></body></html>", id="x", url=None)
    assert document is not None
    return document.text


@pytest.mark.parametrize("around", [PROSE, PROSE + MORE, f"<div>{PROSE}</div>"], ids=["short", "long", "divs"])
@pytest.mark.parametrize(
    ("html", "lines"),
    [
        (
            "<table><tr><th>Day</th><th>Opens</th></tr><tr><td>Sunday</td><td>9:30</td></tr></table>",
            "| Day | Opens |\n| --- | --- |\n| Sunday | 9:30 |",
        ),
        (
            "<table><thead><tr><th rowspan=2>Ship<th colspan=2>Fee</tr><tr><th>day<th>night</tr></thead><tr><td>Yawl<td>3<td>4</table>",
            "| Ship | Fee day | Fee night |\n| --- | --- | --- |\n| Yawl | 3 | 4 |",
        ),
        (
            "<table><tr><td rowspan=2>Yawl</td><td>May</td><td>3</td></tr><tr><td>June</td><td>4</td></tr></table>",
            "| Yawl | May | 3 |\n| Yawl | June | 4 |",
        ),
        ("<table><tr><td colspan=2>closed<td>9</table>", "| closed | closed | 9 |"),
        ("<table><caption>Fees</caption><tr><th>Yawl<td>3</tr><tr><th>Ketch<td>4</table>", "Fees\n| Yawl | 3 |\n| Ketch | 4 |"),
        ("<table><tr><td>a|b</td><td>line<br>break</td></tr></table>", "| a/b | line break |"),
        ("<table><tr><td><p>One.</p><p>Two.</p></td><td><a href=/x>max_size</a> *</td></tr></table>", "| One. Two. | max_size * |"),
        ("<ul><li>Dogs on a lead<li>No drones_2 [yet]</ul>", "- Dogs on a lead\n- No drones_2 [yet]"),
        ("<ol><li>Ring<li>Wait<ul><li>outside<li>in line<ol><li>left</ol></ul><li>Go</ol>", None),
        ("<pre><code>gatectl open\n  --berth=4417  # now\n\ngatectl close</code></pre>", None),
        ("<dl><dt>Deposit</dt><dd>Twelve crowns</dd><dt>Key</dt><dt>Card</dt><dd>One</dd><dd>or two</dd></dl>", None),
    ],
)
def test_a_block_becomes_lines(html: str, lines: str | None, around: str) -> None:
    expected = {
        "<ol>": "1. Ring\n2. Wait\n  - outside\n  - in line\n    1. left\n3. Go",
        "<pre": "```\ngatectl open\n  --berth=4417  # now\n\ngatectl close\n```",
        "<dl>": "- Deposit: Twelve crowns\n- Key, Card: One; or two",
    }
    text = read(html + "<p>After it comes more.</p>", around)
    assert (lines or expected[html[:4]]) in text
    assert "After it comes more." in text and "forty stands" in text


@pytest.mark.parametrize(
    ("html", "said", "unsaid"),
    [
        ("<pre class='language-py'>if x:\n    y()</pre>", "```py\nif x:\n    y()\n```", ""),
        (
            "<div class='highlight'><pre><span>def</span> f(a, *b):\n    return r'\\(a\\)[0]'</pre></div>",
            "def f(a, *b):\n    return r'\\(a\\)[0]'",
            "",
        ),
        ("<table><tr><td><pre>1\n2</pre></td><td><pre class=code>a = 1\nb = 2</pre></td></tr></table>", "a = 1\nb = 2", "1\n2\n"),
        ("<pre>Berth fees\n\n  small    12\n  large    30</pre>", "  small    12\n  large    30", "```"),
        ("<details><summary>May I moor?</summary>Only for an hour.</details>", "Only for an hour.", ""),
        ("<h3><button aria-expanded=false>May I moor?</button></h3><div>Only for an hour.</div>", "May I moor?", ""),
        ("<p>Set <code>max_size</code> to 5, not snake_case or 2*3*4 [sic].</p>", "not snake_case or 2*3*4 [sic].", "\\"),
        ("<p>See <a href='https://other.example/p'>the plan</a> first.</p>", "See the plan first.", "other.example"),
        ("<figure><img src=a.png alt='A gull'><figcaption>The lamp of 1911.</figcaption></figure>", "The lamp of 1911.", "gull"),
        ("<h2>Winter<a href='#w'>¶</a></h2><p>From November the gate opens later.</p>", "## Winter\n", "¶"),
        ("<x-story><x-para>A custom element holds this sentence.</x-para></x-story>", "A custom element holds this sentence.", ""),
        (
            "<table><tr><td><h3>Left</h3><p>A column of text.</p></td><td><p>Another column.</p></td></tr></table>",
            "A column of text.",
            "| A",
        ),
        ("<p>" + "<b>many</b> bold words " * 400, "many bold words many bold words", ""),
    ],
)
def test_what_else_stays_readable(html: str, said: str, unsaid: str) -> None:
    text = read(html)
    assert said in text
    assert not unsaid or unsaid not in text


def test_letters_that_stand_for_marks_inside_do_not_become_marks_when_a_page_holds_them() -> None:
    assert "``" not in read("<p>\U00010602\U00010602\U00010602 \U00010600 is a letter that nobody reads any more, alas.</p>")


def test_a_menu_of_links_stays_out() -> None:
    menu = "".join(f"<li><a href='/{n}'>Harbour {n} and its boats</a></li>" for n in range(12))
    assert "Harbour 7" not in read(f"</article><div class=menu><ul>{menu}</ul></div><article>", PROSE + MORE)
