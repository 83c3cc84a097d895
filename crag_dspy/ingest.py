"""Files into the index: read, split, embed, store; what is gone from the files goes from the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from crag_dspy.errors import IngestError
from crag_dspy.index import Change, Index
from crag_dspy.readers import READERS, NoText
from crag_dspy.readers import read as read
from crag_dspy.split import split

LOCK = "crag.ingest.lock"  # beside the index: a file that two read at different times would be stored half and half
WAIT_SECONDS = 5.0  # for a file that the webhook is indexing


class Skipped(NamedTuple):
    """A file that was not ingested, and why."""

    path: Path
    reason: str


class IngestReport(NamedTuple):
    """What an ingestion did; passages unless said otherwise."""

    documents: int
    added: int
    unchanged: int
    removed: int
    skipped: list[Skipped]


def ingest(
    paths: Sequence[Path],
    index: Index,
    *,
    base: Path | None = None,
    progress: Callable[[int, int, str], None] = lambda done, all, name: None,
) -> IngestReport:
    """Bring the index up to date with files and folders; what cannot be read is skipped by name, the rest goes in.

    A document whose file has gone from below a folder, or has no text any more, is removed. One whose file cannot be read stays.
    Killed at any point and run again, it ends with the same index.

    Args:
        paths: Files, or folders to walk (hidden ones are left out).
        index: Where the passages go.
        base: Document ids are paths relative to this folder. Default: the current folder.
        progress: Called with (files done, files in all, name of the next).

    Raises:
        IngestError: a path does not exist, nothing could be read, or another ingestion into this folder is running.
    """
    base = (base or Path.cwd()).resolve()
    files = list(_files(paths))
    skipped: list[Skipped] = []
    changes: list[Change] = []
    documents = 0
    with _only_one(index.folder):
        gone = _gone(index.files(), [path.resolve() for path in paths if path.is_dir()])
        for done, path in enumerate(files):
            progress(done, len(files), path.name)
            id = _relative(path, base)
            try:
                document = read(path, id=id)
            except IngestError as exc:
                skipped.append(Skipped(path, str(exc)))
                if isinstance(exc, NoText):
                    gone.append(id)
                continue
            changes.append(index.upsert(document, split(document), file=_storable(path.resolve())))
            documents += 1
        removed = sum(index.delete(id) for id in gone)
    progress(len(files), len(files), "")
    if not documents and not removed:
        reasons = "; ".join(f"{path.name}: {reason}" for path, reason in skipped[:5]) or "the folders hold no files"
        raise IngestError(f"Nothing was ingested ({reasons}). Give files of type {', '.join(sorted(READERS))}.")
    added, unchanged = sum(change.added for change in changes), sum(change.unchanged for change in changes)
    return IngestReport(documents, added, unchanged, removed + sum(change.removed for change in changes), skipped)


@contextmanager
def _only_one(folder: Path | None) -> Iterator[None]:
    """Hold off other ingestions into an index folder; a server takes several."""
    if folder is None:
        yield
        return
    lock = FileLock(folder / LOCK, timeout=WAIT_SECONDS)
    try:
        lock.acquire()
    except Timeout as exc:
        raise IngestError("Another crag ingest, or the webhook, is writing to this index. Run this one again when that has ended.") from exc
    try:
        yield
    finally:
        lock.release()


def _gone(stored: dict[str, str], folders: Sequence[Path]) -> list[str]:
    """Return the ids of documents whose file was below one of the folders and is there no more."""
    return [id for id, file in stored.items() if any(Path(file).is_relative_to(folder) for folder in folders) and missing(Path(file))]


def missing(path: Path) -> bool:
    """Return whether there is no such file, as far as can be told."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # there, but not for us
        return False
    return False


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    seen = set()
    for path in paths:
        if not path.exists():
            raise IngestError(f"There is no file or folder {str(path)!r}.")
        found = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in found:
            hidden = path.is_dir() and any(part.startswith(".") for part in file.relative_to(path).parts)
            if not hidden and file.resolve() not in seen:
                seen.add(file.resolve())
                yield file


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path.resolve(), base)).as_posix()


def _storable(path: Path) -> str:
    return str(path).encode("utf-8", "replace").decode()
