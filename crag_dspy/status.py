"""What there is: the index and the registered versions, for `crag status`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from chromadb.api import ClientAPI

from crag_dspy.rows import parts, read_passages, retrievals
from crag_dspy.store import Store

MODEL = "crag"


class IndexStatus(NamedTuple):
    """What an index holds. Days are (oldest, newest), None where no passage has one; size in bytes, None on a server.

    `pages` are the web's, with when they were retrieved: see `retrievals`.
    """

    documents: int
    passages: int
    internal: int
    web: int
    pages: Mapping[str, datetime | None]
    published: tuple[date, date] | None
    retrieved: tuple[date, date] | None
    embedder: str
    size: int | None


class Versions(NamedTuple):
    """The registered versions of the program, oldest first, and the one that answers."""

    numbers: tuple[int, ...]
    champion: int | None


def index_status(client: ClientAPI, collection: str) -> IndexStatus:
    """Describe an index, whichever embedder made it.

    Raises:
        IndexUnusable: there is none, or a write to it was cut short.
    """
    store = Store(client, collection)
    with store.reading() as (rows, _):
        passages = [passage for part in parts(rows.get(include=[])["ids"]) for passage in read_passages(rows, part)]
        metadata: dict[str, Any] = dict(rows.metadata or {})
    web = sum(passage.source_type == "web" for passage in passages)
    return IndexStatus(
        documents=len({passage.document_id for passage in passages}),
        passages=len(passages),
        internal=len(passages) - web,
        web=web,
        pages=retrievals(passages),
        published=_span(passage.published_at for passage in passages),
        retrieved=_span(passage.retrieved_at.date() if passage.retrieved_at else None for passage in passages),
        embedder=str(metadata.get("embedder", "unknown")),
        size=_size(store.folder) if store.folder else None,
    )


def has_registry() -> bool:
    """Whether there is an MLflow store to ask; asking MLflow would make an empty one."""
    mlflow = sys.modules.get("mlflow")  # a program may have set another; imported for this question alone it would take seconds
    address = mlflow.get_tracking_uri() if mlflow else os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if address.startswith("sqlite:///"):
        return Path(address.removeprefix("sqlite:///")).exists()
    return "://" in address or Path(address).exists()


def versions() -> Versions | None:
    """Return the registered versions; None where there is no store, or it cannot be asked."""
    if not has_registry():
        return None
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        client = mlflow.MlflowClient()
        found = client.search_model_versions(f"name = '{MODEL}'")
        aliases = client.get_registered_model(MODEL).aliases if found else {}
    except MlflowException:
        return None
    champion = aliases.get("champion")
    return Versions(tuple(sorted(int(version.version) for version in found)), int(champion) if champion else None)


def _span(days: Iterable[date | None]) -> tuple[date, date] | None:
    known = [day for day in days if day]
    return (min(known), max(known)) if known else None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
