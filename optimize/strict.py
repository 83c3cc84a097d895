"""How DSPy's optimizers are run here: they take any failure for a score of 0 and go on; here a failure ends the run."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import AdapterParseError, LMInvalidRequestError

from crag_dspy.chat import Chat
from crag_dspy.errors import CragError, LMFailure
from crag_dspy.lm import salvage
from optimize.spend import Halt


class OptimizerFailure(CragError):
    """An optimizer failed: there is no program, never another optimizer's."""

    code = "optimizer"


class Strict(BaseCallback):  # type: ignore[misc]
    """Ends the run where DSPy would score a failure.

    Two are a prompt's own, and rightly score 0: a reply out of format, and a prompt that is longer than the LM's window.
    """

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Look at how an LM call ended."""
        _halt(exception)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Look at how a predictor or the program ended."""
        _halt(exception)


def _halt(error: BaseException | None) -> None:
    if not isinstance(error, Exception) or isinstance(error, AdapterParseError):
        return
    if isinstance(error, LMInvalidRequestError) and "context" in str(error).lower():
        return
    if isinstance(error, dspy.LMError):
        raise Halt(LMFailure(error))
    raise Halt(
        error
        if isinstance(error, CragError)
        else OptimizerFailure(f"Program or metric failed ({type(error).__name__}: {error}). Nothing was registered; please report it.")
    )


def strict(metric: Callable[..., Any]) -> Callable[..., Any]:
    """Return a metric whose failure ends the run, with the signature that it had."""

    @functools.wraps(metric)
    def measured(*args: Any, **kwargs: Any) -> Any:
        try:
            return metric(*args, **kwargs)
        except Exception as exc:  # whatever it is: DSPy would score it 0 and go on
            _halt(exc)
            raise

    return measured


class Lenient(Chat):
    """Reads a reply out of format as the program does (`lm.salvage`), an instruction from a small LM too."""

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Return the fields; of a signature with one output, whatever can be read."""
        try:
            return dict(super().parse(signature, completion))
        except AdapterParseError:
            names = list(signature.output_fields)
            text = salvage(completion, names[0]) if len(names) == 1 else ""
            if not text:
                raise
            return {names[0]: text}


class _Quiet(io.StringIO):
    """Swallows what DSPy prints; Rich, whose progress goes to the same place, finds the real one under this name."""

    def __init__(self) -> None:
        super().__init__()
        self.rich_proxied_file = getattr(sys.stdout, "rich_proxied_file", sys.stdout)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let an optimizer run: one thread, no failure swallowed, nothing printed but errors."""
    logger = logging.getLogger("dspy")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            dspy.context(num_threads=1, adapter=Lenient(), callbacks=[*dspy.settings.get("callbacks", []), Strict()]),
            contextlib.redirect_stdout(_Quiet()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # Optuna and GEPA call parts of themselves experimental
            yield
    finally:
        logger.setLevel(level)
