"""The answers of one registered version, as lines of JSON on stdout; started by `compare` as a process of its own.

Nothing of this project is imported before the version's own code stands first on the path: a second version loaded into one process
would run on the first one's code. Questions come as a JSON list on stdin.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import dspy
import mlflow
from mlflow.exceptions import MlflowException

GIVE_UP = 3  # LM failures in a row


class NotThere(Exception):
    """MLflow has no such version, or one without code."""


def main(uri: str, day: date, say: Callable[..., None]) -> None:
    """Answer the questions on stdin with a version; `say` takes each answer's parts."""
    questions = json.load(sys.stdin)
    try:
        crag = load(uri)
        say(code=sys.modules["crag_dspy"].__file__)
        answer(crag, questions, day, say)
    except NotThere:
        say(failed="MLflow has no such version of crag. Make one with python -m optimize, or set MLFLOW_TRACKING_URI to where it is.")
    except Exception as exc:  # the last resort: type and place only, for a provider's text may hold the key
        last = traceback.extract_tb(exc.__traceback__)[-1]
        known = str(exc) if getattr(exc, "code", None) and type(exc).__module__ == "crag_dspy.errors" else ""
        say(failed=known or f"{type(exc).__name__} in {Path(last.filename).name}, line {last.lineno}.")


def load(uri: str) -> Any:
    """Return a version as its own code builds it from the environment, over the documents alone that are no web pages."""
    try:
        folder = Path(mlflow.artifacts.download_artifacts(uri)).resolve()
    except MlflowException:
        raise NotThere from None
    sys.path.insert(0, str(folder / "code"))
    import crag_dspy
    from crag_dspy.index import Where

    if not Path(str(crag_dspy.__file__)).resolve().is_relative_to(folder):
        raise NotThere
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    crag = crag_dspy.load(uri)
    crag.program.parts = replace(crag.program.parts, where=Where(source_type="internal"))
    return crag


def answer(crag: Any, questions: list[str], day: date, say: Callable[..., None]) -> None:
    """Ask one question after the other; three LM failures in a row end it."""
    from crag_dspy.errors import CragError, LMFailure

    failures = 0
    for question in questions:
        try:
            found = crag.predict(question, as_of=day)
            say(answer=found.answer.model_dump(mode="json"), trace=found.trace.model_dump(mode="json"))
            failures = 0
        except dspy.LMError as exc:
            failures += 1
            if failures >= GIVE_UP:
                raise LMFailure(exc) from None
            say(error=str(LMFailure(exc)))
        except CragError as exc:
            say(error=str(exc))


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer

    def write(**line: Any) -> None:  # noqa: D103
        print(json.dumps(line), file=out, flush=True)

    main(sys.argv[1], date.fromisoformat(sys.argv[2]), write)
