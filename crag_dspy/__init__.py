"""Corrective RAG as a DSPy-compiled program: judged evidence, checked citations, versioned in MLflow."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dspy

from crag_dspy.app import Crag, build
from crag_dspy.budget import Limits
from crag_dspy.domains import Domains
from crag_dspy.errors import CragError, StateError
from crag_dspy.feedback import feedback
from crag_dspy.index import Where
from crag_dspy.settings import Settings, load_settings
from crag_dspy.types import Answer

__all__ = ["Answer", "Crag", "CragError", "Domains", "Limits", "Settings", "Where", "build", "feedback", "load", "load_settings"]


def load(uri: str = "models:/crag@champion", *, settings: Settings | None = None, lm: dspy.BaseLM | None = None) -> Crag:
    """Load a compiled version: `crag_dspy.load("models:/crag@champion")("What does the basic plan cost?")`.

    Args:
        uri: A model in MLflow's registry, by alias, version or id.
        settings: Which parts to use. Default: from the environment.
        lm: An LM to use instead of the one in the settings.

    Raises:
        StateError: there is no such version, or it was compiled from other code.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    import mlflow
    from mlflow.exceptions import MlflowException

    from crag_dspy.state import load_state

    try:
        folder = mlflow.artifacts.download_artifacts(f"{uri}/artifacts")
    except MlflowException as exc:
        raise StateError(
            f"MLflow has no {uri!r}. Compile a version with python -m optimize, or set MLFLOW_TRACKING_URI to where it is."
        ) from exc
    crag = build(settings or load_settings(), lm=lm)
    load_state(crag.program, Path(folder) / "program.json")
    # An alias moves; the run is what the version is called when it is served, too.
    crag.version = f"run {json.loads((Path(folder) / 'manifest.json').read_text(encoding='utf-8'))['run_id']}"
    return crag
