"""Where a version comes from: hashes of questions and parts, the commit."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from pathlib import Path

from crag_dspy.index import Index
from crag_dspy.settings import Settings
from optimize.dataset import Row

ELSEWHERE = {
    "home",
    "lm",
    "lm_api_base",
    "reflection_lm",
    "reflection_lm_api_base",
    "judge_lm",
    "judge_lm_api_base",
    "local_model",
    "sandbox",
    "page_cache",
    "chroma",
    "collection",
    "remember",
    "tracing",
    "workers",
}
"""Settings that change where things are, not what is answered."""


def digest(rows: Sequence[Row]) -> str:
    """Return a short hash of questions and answers, to tell whether two runs were measured on the same."""
    return hashlib.sha256("\n".join(row.model_dump_json() for row in rows).encode()).hexdigest()[:16]


def parts_digest(settings: Settings, index: Index) -> str:
    """Return a short hash of what answers depend on beside program and LM: settings, and the team's passages."""
    chosen = settings.model_dump_json(exclude=ELSEWHERE)
    return hashlib.sha256("\n".join([chosen, *index.internal_ids()]).encode()).hexdigest()[:16]


def git_commit() -> str:
    """Return the commit of the working tree, with "-dirty" where files differ from it; "unknown" outside one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        asked = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"
