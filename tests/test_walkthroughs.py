"""The walkthroughs of the literature, on the real models, a real index and the sandbox web, with a rule-following LM."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from conftest import TODAY
from fake_lm import FakeLM

from crag_dspy import app
from crag_dspy.ingest import ingest
from crag_dspy.settings import Settings

EMBEDDINGS = """---
title: Word embeddings
published: {day}
---
# Word embeddings

## What they are

Word embeddings are dense vectors of real numbers that stand for words, so that words with similar meaning lie close together.
They work by learning from the company that words keep: a model is trained to predict a word from its neighbours, and the weights
that it ends up with are the vectors. Typical lengths are between 50 and 300 numbers per word.

## What they are used for

Classifiers, translation systems and search engines read embeddings in place of the words themselves.
"""
BACKPROPAGATION = """---
title: Backpropagation
published: {day}
---
# Backpropagation

Backpropagation computes how much each weight of a neural network contributed to its error. The error at the output is passed back
layer by layer with the chain rule, and every weight is then changed a little against its gradient.
"""
PAGE = """<!doctype html><html lang="en"><head><title>{title}</title>
<meta property="article:published_time" content="{day}T08:00:00Z"></head>
<body><nav><a href="/">Home</a> <a href="/all">All articles</a></nav><main><article><h1>{title}</h1>{body}</article></main>
<footer>We use cookies. Imprint.</footer></body></html>"""
HEAP = """<p>A binary heap is a complete binary tree in which every parent is ordered before its children. In a min-heap the
smallest key sits at the root, so it can be read in constant time, while inserting and removing take logarithmic time.</p>
<p>The tree is kept in an array: the children of the entry at position i stand at positions 2i + 1 and 2i + 2, and no pointers
are needed.</p>"""
RIVAL = """<p>A balanced search tree keeps all keys in order and finds any of them in logarithmic time, but it costs more memory.</p>
<p>Rotations restore the balance after every insertion.</p>"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    pages = {
        "structures.example/binary-heap": ("Binary heaps explained", TODAY - timedelta(days=20), HEAP),
        "structures.example/search-tree": ("Balanced search trees", TODAY - timedelta(days=20), RIVAL),
        "prices.example/tariff-news": (
            "New tariffs at Lumen Grid",
            TODAY - timedelta(days=3),
            "<p>Since February the Lumen Grid night tariff costs 19 cents per kilowatt hour.</p><p>The day tariff did not change.</p>",
        ),
    }
    for name, (title, day, body) in pages.items():
        path = tmp_path / "web" / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PAGE.format(title=title, day=day, body=body))
    return Settings(home=tmp_path / ".crag", web="sandbox", sandbox=tmp_path / "web")


@pytest.fixture(autouse=True)
def closed_sandbox(settings: Settings) -> Iterator[None]:
    yield
    app.sandbox(settings.sandbox).close()


def _index(settings: Settings, folder: Path, **texts: str) -> None:
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    ingest([folder], app.open_index(settings, create=True), base=folder)


def test_two_articles_one_question_in_the_index_one_on_the_web(settings: Settings, fake_lm: FakeLM, tmp_path: Path) -> None:
    day = TODAY - timedelta(days=30)
    _index(settings, tmp_path / "docs", embeddings=EMBEDDINGS.format(day=day), backpropagation=BACKPROPAGATION.format(day=day))
    crag = app.build(settings, lm=fake_lm.lm(), today=lambda: TODAY)

    inside = crag("What are word embeddings and how do they work?")
    assert (inside.action, inside.status, inside.usage.searches) == ("correct", "answered", 0)
    assert {c.id for c in inside.citations} == {"embeddings.md"}

    fake_lm.rules["query"] = lambda inputs: "binary heap data structure explained"
    outside = crag("Explain binary heap")
    assert (outside.action, outside.status) == ("incorrect", "answered")
    assert outside.web_query == "binary heap data structure explained"
    assert {c.url for c in outside.citations} == {"http://structures.example/binary-heap"}
    assert outside.citations[0].published_at == TODAY - timedelta(days=20)


@pytest.mark.parametrize(
    ("age", "action", "assessment"), [(5, "correct", "sufficient"), (90, "ambiguous", "stale"), (400, "ambiguous", "stale")]
)
def test_a_price_5_90_and_400_days_old(settings: Settings, fake_lm: FakeLM, tmp_path: Path, age: int, action: str, assessment: str) -> None:
    day: date = TODAY - timedelta(days=age)
    header = f"---\ntitle: Lumen Grid tariffs\npublished: {day}\n---\n# Tariffs\n\n"
    price = f"{header}The Lumen Grid night tariff costs 17 cents per kilowatt hour.\n"
    _index(settings, tmp_path / "docs", tariffs=price)
    crag = app.build(settings, lm=fake_lm.lm(), today=lambda: TODAY)
    answer = crag("How much does the Lumen Grid night tariff cost per kilowatt hour?")
    assert (answer.action, answer.assessment) == (action, assessment)
    evidence = fake_lm.asked("answer")[0].inputs["evidence"]
    assert ("19 cents" in evidence) == (age > 30) == (answer.usage.searches == 1)
    assert "17 cents" in evidence
