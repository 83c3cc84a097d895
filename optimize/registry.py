"""A compiled program into MLflow: run, metrics, artifact, prompts, version, alias."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from packaging.requirements import Requirement

import crag_dspy
from crag_dspy.errors import SecretLeak, StateError
from crag_dspy.local_lm import embedded
from crag_dspy.program import CRAG
from crag_dspy.serving import signature
from crag_dspy.state import chat_template, fingerprint, load_state, save_state
from crag_dspy.status import has_registry
from optimize.dataset import Row
from optimize.evaluate import Outcome
from optimize.origin import git_commit
from optimize.promote import GUARDED, Measured
from optimize.proof import question_objective

MODEL = "crag"
CHAMPION = "champion"
PACKAGE = Path(crag_dspy.__file__).parent
SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASSWORD", "AUTHORIZATION")
SAME = ("lm", "dev", "as_of", "parts")
"""What two versions must have been measured with to be compared."""


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
            body = path.read_bytes().replace(b"\\/", b"/")  # as pandas writes it into JSON
            for name, value in credentials.items():
                if value.encode() in body:
                    raise SecretLeak(
                        f"{name} stands in {path.name}: nothing was logged. Remove it from the questions or documents that carry it."
                    )


def requirements(lm: dspy.BaseLM) -> list[str]:
    """Return what a served version needs, as installed here: the dependencies of the package, and of the embedded LM where it is that."""
    extras = ("", "local") if embedded(lm) else ("",)
    needed = [Requirement(line) for line in requires("crag-dspy") or ()]
    wanted = [one for one in needed if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)]
    return [f"{one.name}=={version(one.name)}" for one in wanted]


def publish(
    program: CRAG,
    lm: dspy.BaseLM,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    manifest: Mapping[str, Any],
    tables: Mapping[str, Sequence[Outcome]],
    files: Mapping[str, str] | None = None,
    index: Path | None = None,
) -> Published:
    """Log the program to the active run and register it as a version, without moving an alias.

    Prompts and version are registered last, after everything else was logged; a run that is interrupted even then takes its prompts
    back. It leaves a run, never half a version.

    Args:
        program: What is registered.
        lm: The LM that it was measured with; its credentials are searched for in what is logged.
        params: The run's parameters.
        metrics: The run's metrics, and the manifest's.
        manifest: What the version came from.
        tables: Outcomes, logged as one table each.
        files: Further texts of the run by file name.
        index: A folder to pack into the version, as its artifact `index`.

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
            "policy": program.policy.value.model_dump(mode="json"),
            "metrics": dict(metrics),
            "git_commit": git_commit(),
            "run_id": run.info.run_id,
        }
        (folder / "manifest.json").write_text(json.dumps(full, indent=1), encoding="utf-8")
        frames = {key: table(outcomes) for key, outcomes in tables.items()}
        for key, frame in frames.items():
            frame.to_json(folder / f"{key}.json", orient="records")
        for key, text in (files or {}).items():
            (folder / key).write_text(text, encoding="utf-8", errors="replace")
        for place in (folder, index) if index else (folder,):
            refuse_secrets(place, secrets(lm))
        mlflow.log_params({key: str(value)[:500] for key, value in params.items()})
        mlflow.log_metrics(dict(metrics))
        for key, frame in frames.items():
            mlflow.log_table(frame, f"{key}.json")
        for key in files or {}:
            mlflow.log_artifact(str(folder / key))
        artifacts = {"program": str(folder / "program.json"), "manifest": str(folder / "manifest.json")}
        # The signature is given, so an input example, which would ask the LM while logging, is not needed.
        warnings.filterwarnings("ignore", message=".*An input example was not provided")
        with _prompts(program, run.info.run_id) as prompts:
            info = mlflow.pyfunc.log_model(
                name=MODEL,
                python_model=str(PACKAGE / "serving.py"),
                artifacts=artifacts | ({"index": str(index)} if index else {}),
                code_paths=[str(PACKAGE)],
                signature=signature(),
                pip_requirements=requirements(lm),
                prompts=prompts,
            )
            registered = mlflow.register_model(info.model_uri, MODEL)
    return Published(str(registered.version), run.info.run_id, f"models:/{MODEL}/{registered.version}")


@contextlib.contextmanager
def _prompts(program: CRAG, run_id: str) -> Iterator[list[Any]]:
    """Register the predictors' prompts; take them back if what they are registered for does not come about."""
    client = mlflow.MlflowClient()
    made: list[Any] = []
    try:
        for stage, predictor in program.named_predictors():
            made.append(
                mlflow.genai.register_prompt(
                    name=f"{MODEL}.{stage}",
                    template=chat_template(predictor),
                    commit_message=f"run {run_id}",
                    tags={"run_id": run_id, "demonstrations": str(len(predictor.demos))},
                )
            )
        yield made
    except BaseException:  # an interrupt too
        for prompt in made:
            client.delete_prompt_version(prompt.name, str(prompt.version))
            if int(prompt.version) == 1:
                client.delete_prompt(prompt.name)
        raise


def champion() -> str | None:
    """Return the version that the alias `champion` names; None where there is none yet.

    Raises:
        StateError: MLflow cannot tell, which is not the same as none.
    """
    if not has_registry():  # asking would make one
        return None
    try:
        return str(mlflow.MlflowClient().get_model_version_by_alias(MODEL, CHAMPION).version)
    except MlflowException as exc:
        if exc.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):  # no such model, no such alias
            return None
        raise StateError(f"MLflow cannot tell which version is the champion ({exc.error_code}). Check MLFLOW_TRACKING_URI.") from exc


def promote(number: str) -> None:
    """Move the alias `champion` to a version."""
    mlflow.MlflowClient().set_registered_model_alias(MODEL, CHAMPION, number)


def measured(number: str, shared: Mapping[str, Any], rows: Sequence[Row]) -> Measured | None:
    """Return what a version was worth, if it was measured on these questions, on that day, with the same LM and parts; else None."""
    client = mlflow.MlflowClient()
    run_id = client.get_model_version(MODEL, number).run_id
    if not run_id:
        return None
    try:
        run = client.get_run(run_id).data
        logged = mlflow.load_table("after.json", run_ids=[run_id])
    except MlflowException:  # the run was deleted, or made by other code
        return None
    if any(run.params.get(key) != str(shared[key]) for key in SAME) or "objective" not in logged:
        return None
    worth = [float(value) for value in logged["objective"]]  # in the questions' order, which their hash covers
    guarded = {name: run.metrics[f"after/{name}"] for name in GUARDED if f"after/{name}" in run.metrics}
    return Measured(worth, guarded) if len(worth) == len(rows) else None


def earlier_touches(test: str) -> int:
    """Return how many earlier runs were measured on test questions of this hash."""
    return len(mlflow.search_runs(filter_string=f"tags.test_questions = '{test}'", output_format="list"))


def load_into(program: CRAG, number: str) -> CRAG:
    """Give a program the state of a registered version.

    Raises:
        StateError: there is no such version, its files are gone, or they do not fit this code.
    """
    try:
        folder = mlflow.artifacts.download_artifacts(f"models:/{MODEL}/{number}/artifacts")
    except (MlflowException, OSError) as exc:
        raise StateError(f"MLflow has no version {number} of {MODEL}, or its files are gone. See them with: crag status") from exc
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
                "judged_right": o.judged,
                "objective": question_objective(o),
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
