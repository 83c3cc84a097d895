"""What is asked of a served program: a row and its parameters read and checked, and errors as a caller may see them."""

from __future__ import annotations

import logging
import math
import numbers
import re
import time
import traceback
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

import dspy
import pandas as pd
from pydantic import ValidationError

from crag_dspy.budget import Limits
from crag_dspy.crag import Crag, Options
from crag_dspy.domains import Domains
from crag_dspy.errors import CragError, IndexUnusable, QuestionError, SettingsError

log = logging.getLogger(__name__)

TEXTS = ("as_of", "allow_domains", "deny_domains", "language")
NUMBERS = tuple(Limits.model_fields)
COLUMNS = ("question", *TEXTS, *NUMBERS)
# MLflow casts a column of text with str(), where the request is of the form `inputs` or `instances`: null arrives as "None" or "nan".
NOTHING = frozenset(["", "none", "nan", "null", "<na>"])
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # as BCP 47 writes them, e.g. en, en-GB, zh-Hant


class RequestError(CragError):
    """A row or a parameter does not fit; nothing was asked of an LM."""

    code = "invalid_request"


class Failure(NamedTuple):
    """Why a question has no answer, in words that hold no text of questions or documents and no secret."""

    status: int
    """What HTTP calls it."""
    code: str
    message: str


def known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was really said beside a question.

    Raises:
        RequestError: something that does not exist.
    """
    for name in options:
        if name not in COLUMNS:
            raise RequestError(f"There is no {str(name)[:40]!r}. What may be said is {', '.join(COLUMNS)}.")
    return {name: value for name, value in options.items() if not _missing(value)}


def read(row: Mapping[str, Any], params: Mapping[str, Any], crag: Crag, deadline: float = math.inf) -> tuple[str, Options]:
    """Return the question of a row, and what else is said: in the row, else in the parameters, else by the settings.

    A request may narrow what the settings allow, never widen it.

    Args:
        row: The columns; what is None, NaN or empty was not said.
        params: The same names but `question`, for rows that do not say.
        crag: What will answer.
        deadline: When the answer must be there, on the monotonic clock.

    Raises:
        RequestError: a value does not fit; the message names it.
        TimeoutError: it is too late.
    """
    said = known(params) | known(row)
    question = said.get("question")
    if question is None:
        raise RequestError("The question is empty or missing. Send it as 'question'.")
    if not isinstance(question, str):
        raise RequestError("The question is no text. Send it as 'question'.")
    _encodable(question)
    _language(said.get("language"))
    options: Options = {"limits": _limits(said, crag.program.parts.limits, deadline - time.monotonic())}
    if "as_of" in said:
        options["as_of"] = _day(said["as_of"])
    if "allow_domains" in said or "deny_domains" in said:
        options["domains"] = _domains(said, crag.program.parts.fetch.domains)
    return question, options


def failure(exc: Exception) -> Failure:
    """Return what a caller is told of an error; the log is told where it arose."""
    if isinstance(exc, RequestError | QuestionError):
        return Failure(400, exc.code, str(exc))
    # Where it arose, not its text: providers echo keys in it, and others the question.
    log.error("%s\n%s", type(exc).__name__, "".join(traceback.format_tb(exc.__traceback__)))
    if isinstance(exc, dspy.LMRateLimitError):
        return Failure(429, "lm_rate_limit", "The language model's rate limit is reached. Ask again later.")
    if isinstance(exc, dspy.LMError):
        return Failure(503, "lm_unavailable", "The language model is unavailable. Ask again later.")
    if isinstance(exc, IndexUnusable):
        return Failure(503, "index_unavailable", "The index is unavailable. Ask again later.")
    if isinstance(exc, TimeoutError):
        return Failure(504, "timeout", "The time for this request was over. Send fewer questions at once, or raise the server's timeout.")
    return Failure(500, "internal", "An internal error. The server's log says where.")


def _missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in NOTHING
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _encodable(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise RequestError(f"The question holds half a character at position {exc.start} (a lone surrogate). Send whole ones.") from exc


def _day(value: Any) -> date:
    if isinstance(value, date):  # a frame may hold days as such
        return value.date() if isinstance(value, datetime) else value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError) as exc:
        raise RequestError(f"as_of={_shown(value)} is not a day like 2026-03-02.") from exc


def _language(value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not LANGUAGE.fullmatch(value):
        raise RequestError(f"language={_shown(value)} is not a language code like en or en-GB.")
    if value.lower().split("-")[0] != "en":
        raise RequestError(f"language={_shown(value)} cannot be had: answers are in English. Leave it out, or send en.")


def _domains(said: Mapping[str, Any], ours: Domains) -> Domains:
    for name in ("allow_domains", "deny_domains"):
        if not isinstance(said.get(name, ""), str):
            raise RequestError(f"{name}={_shown(said[name])} is no text. Write domains separated by commas, e.g. gov.uk,example.org.")
    try:
        wanted = Domains.parse(said.get("allow_domains", ""), said.get("deny_domains", ""))
    except SettingsError as exc:
        raise RequestError("allow_domains or deny_domains cannot be read. Write domains separated by commas, e.g. gov.uk,w3.org.") from exc
    for domain in wanted.allow:
        if not ours.permits(domain):
            raise RequestError(f"allow_domains: {domain[:80]!r} is not among the sites that this server may use.")
    return Domains(allow=wanted.allow or ours.allow, deny=(*ours.deny, *wanted.deny))


def _limits(said: Mapping[str, Any], ours: Limits, left: float) -> Limits:
    if left <= 0:
        raise TimeoutError
    wanted = {name: said[name] for name in NUMBERS if name in said}
    for name, value in wanted.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise RequestError(f"{name}={_shown(value)} is no number.")
        most = getattr(ours, name)
        if most is not None and value > most:
            raise RequestError(f"{name}={_shown(value)} is more than the {most:g} that this server allows.")
    try:
        limits = Limits.model_validate(ours.model_dump() | {name: float(value) for name, value in wanted.items()})
    except ValidationError as exc:
        first = exc.errors()[0]
        raise RequestError(f"{first['loc'][0]}={_shown(first.get('input'))} does not fit: {first['msg']}.") from exc
    return limits.model_copy(update={"max_seconds": min(limits.max_seconds, left)})


def _shown(value: Any) -> str:
    return repr(value)[:40]
