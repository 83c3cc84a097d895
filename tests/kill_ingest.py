"""Kill `crag ingest` at random moments, run it to the end, and compare the index with one that was made in peace.

python tests/kill_ingest.py FOLDER --times 20 --seed 0
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from crag_dspy.index import EmbedderLike, Index, open_client

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = 60


class Contents(NamedTuple):
    """Everything that an index holds, by row id, and what it finds."""

    texts: dict[str, Any]
    metadata: dict[str, Any]
    vectors: dict[str, tuple[float, ...]]
    found: list[list[tuple[str, float]]]


def contents(chroma: Path, embedder: EmbedderLike) -> Contents:
    """Read an index whole. Questions are the beginnings of some of its passages."""
    index = Index(open_client(chroma), "crag", embedder)
    rows = index._store._rows.get(include=["documents", "metadatas", "embeddings"])
    ids, texts, metadata, vectors = rows["ids"], rows["documents"], rows["metadatas"], rows["embeddings"]
    assert texts is not None and metadata is not None and vectors is not None
    by_id = dict(sorted(zip(ids, texts, strict=True)))
    asked = [text[:80] for text in list(by_id.values())[:: max(1, len(by_id) // QUESTIONS)]]
    return Contents(
        by_id,
        dict(zip(ids, metadata, strict=True)),
        {key: tuple(float(x) for x in np.asarray(vector)) for key, vector in zip(ids, vectors, strict=True)},
        [[(hit.passage.id, hit.score) for hit in index.search(question, 8)] for question in asked],
    )


def differences(a: Contents, b: Contents) -> dict[str, int]:
    """Return how many rows (or questions) differ, by what they differ in."""
    both = a.texts.keys() & b.texts.keys()
    return {
        "ids": len(a.texts.keys() ^ b.texts.keys()),
        "texts": sum(a.texts[key] != b.texts[key] for key in both),
        "metadata": sum(a.metadata[key] != b.metadata[key] for key in both),
        "vectors": sum(not np.allclose(a.vectors[key], b.vectors[key], atol=1e-6) for key in both),
        "searches": sum(one != other for one, other in zip(a.found, b.found, strict=False)),
    }


def ingest(folder: Path, home: Path, kill_after: float | None = None) -> tuple[bool, float, str]:
    """Run `crag ingest`; return whether it was killed, the seconds it ran, and what it said."""
    command = [sys.executable, "-m", "crag_dspy.cli", "ingest", str(folder)]
    env = {**os.environ, "CRAG_HOME": str(home), "PYTHONPATH": str(ROOT)}
    begun = time.monotonic()
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = child.communicate(timeout=kill_after)
        killed = False
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        said, _ = child.communicate()
        killed = True
    if not killed and child.returncode:
        raise SystemExit(f"crag ingest failed ({child.returncode}): {said}")
    return killed, time.monotonic() - begun, said.strip()


def main(folder: Path, times: Annotated[int, typer.Option()] = 20, seed: Annotated[int, typer.Option()] = 0) -> None:
    """Print a table of the kills and of what differs in the end."""
    from crag_dspy.models import Embedder

    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as work:
        clean, killed = Path(work, "clean"), Path(work, "killed")
        _, seconds, said = ingest(folder, clean)
        typer.echo(f"clean build: {seconds:.1f} s, {said}")
        typer.echo(f"{'run':>4}  {'ended':<28}  passages then")
        # The first moments of a run are imports; from then on kills are spread so that the runs together come to about one build.
        start = ingest(folder, clean)[1]
        for run in range(1, times + 1):
            was_killed, ran, _ = ingest(folder, killed, moments.uniform(0, start + 2 * (seconds - start) / times))
            writing = ", in a write" if (killed / "chroma" / "crag.writing").exists() else ""
            ended = f"killed after {ran:.2f} s{writing}" if was_killed else "ran to its end"
            typer.echo(f"{run:>4}  {ended:<28}  {_rows(killed)}")
        _, ran, said = ingest(folder, killed)
        typer.echo(f"last  {f'by itself, {ran:.1f} s':<28}  {_rows(killed)}")
        embedder = Embedder()
        differ = differences(contents(clean / "chroma", embedder), contents(killed / "chroma", embedder))
    typer.echo(f"differences from the clean build: {differ}")
    raise SystemExit(any(differ.values()))


def _rows(home: Path) -> str:
    """Count rows without Chroma, which would mend what the next run is to mend."""
    import sqlite3

    try:
        database = sqlite3.connect(home / "chroma" / "chroma.sqlite3")
        return str(database.execute("SELECT count(*) FROM embeddings").fetchone()[0])
    except sqlite3.OperationalError:
        return "no index"


if __name__ == "__main__":
    typer.run(main)
