"""What MLflow runs: the compiled program behind `/invocations` (models from code)."""

from __future__ import annotations

import json
import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import dspy
import mlflow
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.protos.databricks_pb2 import (
    INTERNAL_ERROR,
    INVALID_PARAMETER_VALUE,
    RESOURCE_EXHAUSTED,
    TEMPORARILY_UNAVAILABLE,
)
from mlflow.pyfunc.model import PythonModel
from mlflow.types.schema import Array, ColSpec, DataType, Object, Property, Schema

from crag_dspy import app
from crag_dspy.errors import CragError
from crag_dspy.settings import load_settings
from crag_dspy.state import load_state
from crag_dspy.types import Answer

log = logging.getLogger(__name__)
WORKERS = 8


class CragModel(PythonModel):
    """Rows of questions in, answers out, in order."""

    def load_context(self, context: Any) -> None:
        """Build the parts from the environment's settings and load the compiled state."""
        self.crag = app.build(load_settings())
        load_state(self.crag.program, Path(context.artifacts["program"]))
        self.crag.version = f"run {json.loads(Path(context.artifacts['manifest']).read_text(encoding='utf-8'))['run_id']}"
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="crag-batch")

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Answer every row's `question`, as of its `as_of` day (ISO) if it has one."""
        rows = model_input.to_dict(orient="records")
        if not rows:
            return []
        return list(self.pool.map(self._answer, rows))

    def _answer(self, row: dict[str, Any]) -> dict[str, Any]:
        # Whatever leaves predict() as another exception is answered by MLflow with a traceback, texts included.
        try:
            as_of = row.get("as_of")
            answer = self.crag(str(row["question"]), as_of=date.fromisoformat(as_of) if isinstance(as_of, str) and as_of else None)
            return answer.model_dump(mode="json")
        except (CragError, ValueError) as exc:
            message = str(exc) if isinstance(exc, CragError) else "as_of is not a day like 2026-03-02"
            raise MlflowException(message, error_code=INVALID_PARAMETER_VALUE) from None
        except dspy.LMRateLimitError as exc:
            _log(exc)
            raise MlflowException("language model rate limit", error_code=RESOURCE_EXHAUSTED) from None
        except dspy.LMError as exc:
            _log(exc)
            raise MlflowException("language model unavailable", error_code=TEMPORARILY_UNAVAILABLE) from None
        except Exception as exc:  # the last resort, see above; the caller gets a 500, the log where it arose
            _log(exc)
            raise MlflowException("internal error", error_code=INTERNAL_ERROR) from None


def _log(exc: Exception) -> None:
    """Log where an error arose, not its text: providers echo keys in it, and others the question."""
    log.error("%s\n%s", type(exc).__name__, "".join(traceback.format_tb(exc.__traceback__)))


def signature() -> ModelSignature:
    """Return the served model's signature: a required `question`, an optional `as_of`; out, the fields of `Answer`."""
    inputs = Schema([ColSpec(DataType.string, "question"), ColSpec(DataType.string, "as_of", required=False)])
    schema = Answer.model_json_schema(mode="serialization")
    outputs = Schema([ColSpec(_column(spec, schema), name) for name, spec in schema["properties"].items()])
    return ModelSignature(inputs=inputs, outputs=outputs)


def _column(spec: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Translate a JSON schema into MLflow's types; inference from type hints refuses `Literal` and optional fields."""
    if "$ref" in spec:
        target = schema["$defs"][spec["$ref"].rsplit("/", 1)[-1]]
        required = set(target.get("required", []))
        return Object([Property(name, _column(sub, schema), required=name in required) for name, sub in target["properties"].items()])
    if "anyOf" in spec:
        return _column(next(option for option in spec["anyOf"] if option.get("type") != "null"), schema)
    if spec.get("type") == "array":
        return Array(_column(spec["items"], schema))
    return {"integer": DataType.long, "number": DataType.double, "boolean": DataType.boolean}.get(str(spec.get("type")), DataType.string)


mlflow.models.set_model(CragModel())
