"""Shared fixtures: no network but loopback, no cache from yesterday, embedders and scorers that can be wrong."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["DO_NOT_TRACK"] = "true"
for _name in [name for name in os.environ if name.upper().startswith("CRAG_")] + [
    "TAVILY_API_KEY",
    "OPENAI_API_KEY",
    "MLFLOW_TRACKING_URI",
]:
    os.environ.pop(_name, None)

import dspy
import numpy as np
import pytest
from fake_lm import FakeLM, fake_lm_server
from hypothesis import settings

from crag_dspy.index import Index, open_client

# The same examples in every run, and no failure because the machine is busy.
settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")

TODAY = date(2026, 3, 2)
_WORD = re.compile(r"[a-z0-9]+")


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection and every name that is not this machine's."""
    connect, lookup = socket.socket.connect, socket.getaddrinfo

    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and str(address[0]) not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test tried to reach {address[0]}")
        return connect(self, address)

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in (None, "", "localhost", "127.0.0.1", "::1", b"localhost", b"127.0.0.1", "0.0.0.0") or _is_address(str(host)):
            return lookup(host, *args, **kwargs)
        raise socket.gaierror(socket.EAI_NONAME, f"a test asked for the name {host!r}")

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def _is_address(host: str) -> bool:
    return bool(re.fullmatch(r"[\d.]+|[0-9a-fA-F:.%]*:[0-9a-fA-F:.%]*", host))


@pytest.fixture(autouse=True)
def fresh_dspy() -> Iterator[None]:
    """Switch DSPy's caches off and restore its settings, so that no test passes on an answer from another."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    yield
    dspy.settings.configure(**{"lm": None, "adapter": None})


class WordEmbedder:
    """Words hashed into 64 dimensions: texts that share words are near, others are not."""

    name = "words-64"
    dimension = 64

    def passages(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._vector(text) for text in texts]

    def query(self, text: str) -> list[float]:
        return self._vector(text)

    def _vector(self, text: str) -> list[float]:
        vector = np.full(self.dimension, 1e-3)
        for word in _WORD.findall(text.lower()):
            vector[int(hashlib.md5(word.encode()).hexdigest(), 16) % self.dimension] += 1.0
        return [float(x) for x in vector / np.linalg.norm(vector)]


class WordScorer:
    """The share of the query's longer words that a text holds, 0-1."""

    def scores(self, query: str, texts: Sequence[str]) -> np.ndarray:
        wanted = {word for word in _WORD.findall(query.lower()) if len(word) > 3}
        found = [len(wanted & set(_WORD.findall(text.lower()))) / len(wanted) if wanted else 0.0 for text in texts]
        return np.array(found, dtype=np.float32)


@pytest.fixture
def word_index(tmp_path: Path) -> Index:
    """Return an empty index in a temporary folder."""
    return Index(open_client(tmp_path / "chroma"), "crag", WordEmbedder(), create=True)


@pytest.fixture
def fake_lm() -> Iterator[FakeLM]:
    """Return a rule-following LM behind a real HTTP endpoint."""
    with fake_lm_server() as fake:
        yield fake
