"""What MLflow runs: the compiled program behind `/invocations` (models from code)."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.environment_variables import MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT
from mlflow.exceptions import MlflowException, get_error_code
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc.model import PythonModel

from crag_dspy import app
from crag_dspy.crag import Crag
from crag_dspy.packed import unpack
from crag_dspy.ready import warm
from crag_dspy.requests import Failure, RequestError, failure, known, read
from crag_dspy.settings import Settings, load_settings
from crag_dspy.signature import item
from crag_dspy.signature import signature as signature
from crag_dspy.state import load_state
from crag_dspy.types import Answer

IN_TIME = 0.9  # share of the server's time for a request that its answers may take
LAST = 0.96  # after which a row that is not there yet is told so: a busy machine must not cost the other rows


class ServedError(MlflowException):
    """An error as HTTP tells it: status, code and message. MLflow's own would put the whole request before the message."""

    def __init__(self, why: Failure) -> None:
        code: int = INVALID_PARAMETER_VALUE if why.status == 400 else get_error_code(why.status)  # type: ignore[no-untyped-call]
        super().__init__(why.message, error_code=code)
        self.why = why

    def serialize_as_json(self) -> str:
        """Return the body."""
        return json.dumps({"error_code": self.error_code, **self.why._asdict()})


class CragModel(PythonModel):
    """Rows of questions in, answers out, in order."""

    def load_context(self, context: Any) -> None:
        """Build the parts from the environment's settings, load the compiled state, and warm up.

        A packed index is used unless CRAG_CHROMA names another.
        """
        settings = load_settings()
        if "index" in context.artifacts and settings.chroma is None:
            self.index = unpack(Path(context.artifacts["index"]))
            settings = settings.model_copy(update={"chroma": self.index.name})
        crag = app.build(settings)
        load_state(crag.program, Path(context.artifacts["program"]))
        crag.version = f"run {json.loads(Path(context.artifacts['manifest']).read_text(encoding='utf-8'))['run_id']}"
        self.start(crag, settings)

    def start(self, crag: Crag, settings: Settings) -> None:
        """Take a ready program and warm it up."""
        self.crag, self.settings = crag, settings
        self.pool = ThreadPoolExecutor(settings.serve_workers, thread_name_prefix="crag-batch")
        warm(crag)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Answer every row's `question`; a row that cannot be answered gives an error item in its place.

        Behind HTTP a single row that cannot be answered gives the response its status, and rows have a limit (CRAG_SERVE_MAX_ROWS)
        and a deadline: 90 % of the server's timeout, so that what the server gives up stops working.
        """
        rows = model_input.to_dict(orient="records")
        served = os.environ.get("_MLFLOW_IS_IN_SERVING_ENVIRONMENT") == "true"
        most = self.settings.serve_max_rows
        try:
            said = known(params or {})
            if served and len(rows) > most:
                raise RequestError(
                    f"{len(rows):,} rows in one request; at most {most:,} are taken (CRAG_SERVE_MAX_ROWS). Send them in parts."
                )
        except RequestError as exc:
            raise ServedError(failure(exc)) from None
        seconds: float = MLFLOW_SCORING_SERVER_REQUEST_TIMEOUT.get() if served else math.inf  # type: ignore[no-untyped-call]
        begun = time.monotonic()
        deadline = begun + IN_TIME * seconds
        if len(rows) == 1:
            outcomes = [self._answer(rows[0], said, deadline)]
        else:
            asked = [self.pool.submit(copy_context().run, self._answer, row, said, deadline) for row in rows]
            outcomes = [_settled(one, begun + LAST * seconds) for one in asked]
        if served and len(rows) == 1 and isinstance(outcomes[0], Failure):
            raise ServedError(outcomes[0])
        return [item(outcome, row.get("question"), columns=not served) for outcome, row in zip(outcomes, rows, strict=True)]

    def _answer(self, row: Mapping[str, Any], params: Mapping[str, Any], deadline: float) -> Answer | Failure:
        # Whatever leaves predict() as another exception is answered by MLflow with a traceback, texts included.
        try:
            question, options = read(row, params, self.crag, deadline)
            return self.crag(question, **options)
        except Exception as exc:  # the last resort, see above
            return failure(exc)


def _settled(asked: Future[Answer | Failure], end: float) -> Answer | Failure:
    """Return what became of a row by the end; one that is still under way stops by its own limits, one that waits is not begun."""
    try:
        return asked.result(None if math.isinf(end) else max(0.0, end - time.monotonic()))
    except TimeoutError as exc:
        asked.cancel()
        return failure(exc)


mlflow.models.set_model(CragModel())
