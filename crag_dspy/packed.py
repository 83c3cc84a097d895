"""A small index inside the logged model: copied in while nobody writes it, opened as a copy, so that the artifact stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from crag_dspy.errors import IndexUnusable
from crag_dspy.store import ANNOUNCEMENT, LOCK


def pack(folder: Path | None, target: Path) -> Path:
    """Copy an index's folder to `target`, which must not exist, and return it.

    Raises:
        IndexUnusable: the index is on a server, or a write to it was cut short.
    """
    if folder is None:
        raise IndexUnusable("CRAG_PACK_INDEX needs an index in a folder; this one is on a server. Unset it: the model finds the server.")
    with FileLock(folder / LOCK, timeout=30):
        if (folder / ANNOUNCEMENT).exists():
            raise IndexUnusable(f"A write to the index in {str(folder)!r} was cut short. Mend it with: crag ingest PATH…")
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(LOCK))
    return target


def unpack(artifact: Path) -> TemporaryDirectory[str]:
    """Copy a packed index to a temporary folder, which goes when the returned object does: Chroma writes even to what it only reads."""
    folder = TemporaryDirectory(prefix="crag-index-")
    shutil.copytree(artifact, folder.name, dirs_exist_ok=True)
    return folder
