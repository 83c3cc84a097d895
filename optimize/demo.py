"""The demonstration: data/, the day on which it is set, and an index of it."""

from __future__ import annotations

import os
from datetime import date, datetime
from pathlib import Path

from crag_dspy import app
from crag_dspy.errors import CragError
from crag_dspy.ingest import ingest
from crag_dspy.settings import Settings
from optimize.report import Steps

DATA = Path(__file__).resolve().parent.parent / "data"
WORLD_TODAY = datetime(2026, 3, 2)  # the day on which data/ is set


def day_of(questions: Path, as_of: datetime | None) -> date:
    """Return the day on which questions are asked: as said, else the demonstration's for its own, else today."""
    return (as_of or (WORLD_TODAY if questions.resolve().parent == DATA else datetime.now())).date()


def index_corpus(settings: Settings, corpus: Path, steps: Steps) -> None:
    """Bring the index up to date with a folder; refuse an index that holds anything else.

    Raises:
        CragError: the index holds other documents, which the training questions know nothing of.
    """
    steps.start("Indexing data/corpus")
    index = app.open_index(settings, create=True)
    base = Path.cwd()
    mine = {Path(os.path.relpath(path, base)).as_posix() for path in corpus.iterdir()}
    others = [name for name in index.document_ids() if name not in mine and "://" not in name]  # a page from the web is none of them
    if others:
        raise CragError(
            f"The index holds other documents ({others[0]!r} and {len(others) - 1} more). Set CRAG_HOME to another folder for the "
            "demonstration, or give your own questions with --train and --dev."
        )
    ingest([corpus], index, base=base, progress=lambda done, total, name: steps.note(f"{done} of {total} {name}"))
