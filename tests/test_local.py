"""The embedded LM itself: it starts in the process, answers with a citation, and gives probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import TODAY

from crag_dspy import app
from crag_dspy.grade import ask_level, expected_level
from crag_dspy.ingest import ingest
from crag_dspy.lm import Meter
from crag_dspy.settings import Settings
from crag_dspy.types import Passage


@pytest.fixture(scope="module")
def crag(tmp_path_factory: pytest.TempPathFactory) -> app.Crag:
    folder = tmp_path_factory.mktemp("local")
    (folder / "docs").mkdir()
    (folder / "docs" / "warranty.md").write_text(
        f"---\ntitle: Corvane warranty\npublished: {TODAY}\n---\n\nThe warranty of the Corvane S2 station lasts 26 months from delivery.\n"
    )
    # The weights go where the command would put them, so that they are joined once.
    settings = Settings(home=folder / ".crag", web="none", local_model=_weights())
    ingest([folder / "docs"], app.open_index(settings, create=True), base=folder)
    return app.build(settings, today=lambda: TODAY)


def _weights() -> Path:
    from crag_dspy.local_lm import MODEL_NAME, join_parts, part_files

    return join_parts(part_files(), Path(".crag") / "models" / f"{MODEL_NAME}.gguf")


def test_the_embedded_lm_answers_with_a_checked_citation(crag: app.Crag) -> None:
    answer = crag("How long does the warranty of the Corvane S2 station last?")
    assert answer.status == "answered" and "26 months" in answer.text and answer.text.rstrip(".").endswith("[1]")
    assert answer.usage.prompt_tokens > 0 and answer.usage.completion_tokens > 0


def test_its_grades_are_expectations_over_probabilities(crag: app.Crag) -> None:
    passage = Passage(id="1", document_id="1", title="Warranty", text="The warranty of the Corvane S2 station lasts 26 months.")
    with app.context(crag.lm):
        level = expected_level(ask_level(crag.program.grade, Meter(), "How long does the warranty of the Corvane S2 last?", passage))
    assert level is not None and 0 < level < 1 and round(level * 3, 6) not in (0, 1, 2, 3)
