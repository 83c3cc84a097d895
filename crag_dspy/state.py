"""The compiled state as JSON: prompts, demonstrations and policy; no LM, no credential, no pickle."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dspy

from crag_dspy.errors import StateError
from crag_dspy.program import CRAG


def fingerprint(program: CRAG) -> dict[str, dict[str, list[str]]]:
    """Return each predictor's input and output fields with their types: what a saved state must fit."""
    return {
        name: {
            "inputs": [f"{key}: {field.annotation}" for key, field in predictor.signature.input_fields.items()],
            "outputs": [f"{key}: {field.annotation}" for key, field in predictor.signature.output_fields.items()],
        }
        for name, predictor in program.named_predictors()
    }


def save_state(program: CRAG, path: Path) -> None:
    """Write the program's state. The LM stays out of it: a saved one would carry its headers and address."""
    state = program.dump_state()
    for part in state.values():
        if "lm" in part:
            part["lm"] = None
    saved = {"dspy": version("dspy"), "fingerprint": fingerprint(program), "state": state}
    path.write_text(json.dumps(saved, indent=1, ensure_ascii=False), encoding="utf-8")


def load_state(program: CRAG, path: Path) -> CRAG:
    """Give a program the state in a file; on any error the program is as before.

    Raises:
        StateError: the file is no saved state, or was saved from other signatures, predictors or policy fields.
    """
    try:
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        state, theirs = dict(saved["state"]), dict(saved["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise StateError(f"{path.name} is not a saved program ({type(exc).__name__}). Compile one with: python -m optimize") from exc
    mine = fingerprint(program)
    if theirs != mine:
        changed = sorted(name for name in theirs.keys() | mine.keys() if theirs.get(name) != mine.get(name))
        raise StateError(
            f"The saved program does not fit this code: {', '.join(changed)} differ. Compile it again with: python -m optimize"
        )
    names = {name for name, _ in program.named_parameters()}
    if names != set(state):
        odd = sorted(names ^ set(state))
        raise StateError(
            f"The saved program does not fit this code: {', '.join(odd)} missing or unknown. Compile it again with: python -m optimize"
        )
    try:
        program.load_state(state)  # tries on a copy first
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise StateError(
            f"The saved program cannot be loaded ({type(exc).__name__}: {exc}). Compile it again with: python -m optimize"
        ) from exc
    return program


def chat_template(predictor: dspy.Predict) -> list[dict[str, str]]:
    """Return the prompt of a predictor in DSPy's own chat format, its inputs as `{{name}}`, for people to read."""
    slots = {name: "{{" + name + "}}" for name in predictor.signature.input_fields}
    messages = dspy.ChatAdapter().format(predictor.signature, predictor.demos, slots)
    return [{"role": message["role"], "content": message["content"]} for message in messages]
