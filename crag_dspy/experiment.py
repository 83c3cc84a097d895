"""Where traces go: an MLflow experiment that is there before the first question needs it."""

from __future__ import annotations

import os
import threading

from crag_dspy.errors import SettingsError

NAME = "crag"
_BATCHES = {"MLFLOW_ASYNC_TRACE_LOGGING_MAX_SPAN_BATCH_SIZE": "512", "MLFLOW_ASYNC_TRACE_LOGGING_MAX_INTERVAL_MILLIS": "1000"}
"""MLflow's default of 5 spans makes three transactions of a question; so, all of a second are written in one."""

_known: dict[tuple[str | None, ...], str] = {}
_lock = threading.Lock()


def experiment(*, create: bool = True) -> str:
    """Return the id of the experiment that traces go to.

    It is the one of `mlflow.set_experiment` or MLFLOW_EXPERIMENT_ID, else that of MLFLOW_EXPERIMENT_NAME, else `crag`, and looked up once
    for each tracking store. It is made where there is none of its name, by one thread: of questions that make it together MLflow loses
    the root spans.

    Raises:
        SettingsError: MLflow cannot be asked, has no such experiment or a deleted one, or MLFLOW_TRACE_SAMPLING_RATIO is no share.
    """
    import mlflow

    if run := mlflow.active_run():
        return str(run.info.experiment_id)
    number, name = os.environ.get("MLFLOW_EXPERIMENT_ID"), os.environ.get("MLFLOW_EXPERIMENT_NAME") or NAME
    key = (mlflow.get_tracking_uri(), number, name)
    if key not in _known:
        with _lock:
            if key not in _known:
                _check_sampling()
                for variable, value in _BATCHES.items():
                    os.environ.setdefault(variable, value)
                _known[key] = _find(number, name, create)
    return _known[key]


def _find(number: str | None, name: str, create: bool) -> str:
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    try:
        found = client.get_experiment(number) if number else client.get_experiment_by_name(name)
        if found is None and create:
            try:
                return str(client.create_experiment(name))
            except MlflowException:  # another process made it meanwhile
                found = client.get_experiment_by_name(name)
    except MlflowException as exc:  # its words may hold the store's address, and that a password
        raise SettingsError(
            f"MLflow cannot give the experiment {number or name!r} ({exc.error_code}). Check MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_ID and "
            "MLFLOW_EXPERIMENT_NAME, or set CRAG_TRACING=off."
        ) from exc
    if found is None:
        raise SettingsError(f"MLflow has no experiment {name!r}. Check MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME.")
    if found.lifecycle_stage != "active":
        raise SettingsError(f"The experiment {found.name!r} was deleted. Restore it (mlflow experiments restore), or name another.")
    return str(found.experiment_id)


def _check_sampling() -> None:
    """MLflow would trace nothing, or everything, and say so in a log at most."""
    share = os.environ.get("MLFLOW_TRACE_SAMPLING_RATIO", "1")
    try:
        fits = 0 <= float(share) <= 1
    except ValueError:
        fits = False
    if not fits:
        raise SettingsError(f"MLFLOW_TRACE_SAMPLING_RATIO={share!r} is no share of the questions. Give a number from 0 to 1.")
