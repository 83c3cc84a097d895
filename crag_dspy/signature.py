"""The served model's signature: what goes in and comes out, column by column."""

from __future__ import annotations

from functools import cache
from typing import Any

from mlflow.models import ModelSignature
from mlflow.types.schema import AnyType, Array, ColSpec, DataType, Object, ParamSchema, ParamSpec, Property, Schema

from crag_dspy.requests import NUMBERS, TEXTS, Failure
from crag_dspy.types import Answer


@cache
def signature() -> ModelSignature:
    """Return the signature: in, a required `question`, and what may be said beside it, by row or as parameters; out, `item`'s fields."""
    inputs = Schema(
        [
            ColSpec(DataType.string, "question"),
            *(ColSpec(DataType.string, name, required=False) for name in TEXTS),
            # Of any type: for one row's number that is none, MLflow would refuse all rows.
            *(ColSpec(AnyType(), name, required=False) for name in NUMBERS),  # type: ignore[no-untyped-call]
        ]
    )
    params = ParamSchema(
        [ParamSpec(name, DataType.string, None) for name in TEXTS] + [ParamSpec(name, DataType.double, None) for name in NUMBERS]
    )
    schema = Answer.model_json_schema(mode="serialization")
    error = Object([Property("code", DataType.string, required=False), Property("message", DataType.string, required=False)])
    columns = [ColSpec(_column(spec, schema), name) for name, spec in schema["properties"].items()]
    return ModelSignature(inputs=inputs, outputs=Schema([*columns, ColSpec(error, "error", required=False)]), params=params)


def item(outcome: Answer | Failure, question: object, *, columns: bool) -> dict[str, Any]:
    """Return a row's answer, or its error with the same fields: status `error`, texts and lists empty, numbers 0.

    Args:
        outcome: What came of the row.
        question: What the row asked, kept (at most 200 characters of it) where it has no answer.
        columns: Every field becomes a column, as in Spark, where a struct cannot be None: an answer's `error` has empty fields then.
    """
    if isinstance(outcome, Answer):
        return outcome.model_dump(mode="json") | {"error": {"code": None, "message": None} if columns else None}
    empty = {column.name: _empty(column.type) for column in signature().outputs.inputs}
    asked = question[:200] if isinstance(question, str) else ""
    return empty | {"question": asked, "status": "error", "error": {"code": outcome.code, "message": outcome.message}}


def _empty(kind: Any) -> Any:
    """Return a type's empty value."""
    if isinstance(kind, Object):
        return {field.name: _empty(field.dtype) for field in kind.properties}
    if isinstance(kind, Array):
        return []
    return {DataType.long: 0, DataType.double: 0.0, DataType.boolean: False}.get(kind, "")


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
