"""`python -m optimize.evaluate models:/crag/3 models:/crag/5`: two registered versions on the same questions, each on its own code."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import mlflow
import typer
from pydantic import ValidationError

from crag_dspy import app
from crag_dspy.cli import run_in_one_line
from crag_dspy.errors import CragError, StateError
from crag_dspy.settings import load_settings
from crag_dspy.types import Answer, Trace
from optimize.dataset import Row, load_rows, sample
from optimize.demo import DATA, day_of
from optimize.evaluate import Outcome
from optimize.proof import prove, unmeasured
from optimize.report import Steps, before_after, console

ANSWERS = Path(__file__).with_name("answers.py")
cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Asked(NamedTuple):
    """A version's outcomes, and the code that they came from."""

    outcomes: list[Outcome]
    code: str
    """Where the version's own package lies."""


@cli.command()
def main(
    before: Annotated[str, typer.Argument(help="A version, e.g. models:/crag/3 or models:/crag@champion.")],
    after: Annotated[str, typer.Argument(help="Another one.")],
    data: Annotated[Path, typer.Option(help="Questions, JSONL.")] = DATA / "dev.jsonl",
    as_of: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day of the questions. Default: today.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Questions, at most.")] = 10_000,
) -> None:
    """Compare two versions: answers right and objective, by need and kind, with 95 % intervals."""
    if before == after:
        raise CragError("Give two different versions.")
    rows = sample(load_rows(data), most)
    day = day_of(data, as_of)
    load_settings()  # a misspelt one is named here, not in another process
    with Steps() as steps:
        runs = {}
        for uri in (before, after):
            steps.start(f"Asking {uri}", len(rows))
            runs[uri] = ask(uri, rows, day, steps.answered).outcomes
    proof = prove(runs, app.cross_encoder())
    console.print(before_after(proof, f"{len(rows)} questions of {data}, asked as of {day}", unmeasured(rows)))


def ask(uri: str, rows: Sequence[Row], day: date, done: Callable[[Outcome], None] = lambda outcome: None) -> Asked:
    """Ask a registered version every question, in a process of its own, with the settings of the environment.

    Raises:
        StateError: there is no such version, or it cannot be run.
    """
    # -P: the folder of the script, with its statistics.py, must not come before the standard library.
    command = [sys.executable, "-P", str(ANSWERS), uri, day.isoformat()]
    # What one question left in the index would answer the next one.
    env = os.environ | {"MLFLOW_TRACKING_URI": mlflow.get_tracking_uri(), "CRAG_REMEMBER": "false", "CRAG_TRACING": "off"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    outcomes: list[Outcome] = []
    code = ""
    with subprocess.Popen(command, env=env, text=True, encoding="utf-8", **pipes) as process:  # type: ignore[call-overload]
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):  # it ended at once, which is told below
            process.stdin.write(json.dumps([row.question for row in rows]))
            process.stdin.close()
        for line in process.stdout:
            said = json.loads(line)
            if "failed" in said:
                raise StateError(f"{uri} could not be run: {said['failed']}")
            if "code" in said:
                code = said["code"]
                continue
            outcome = _outcome(rows[len(outcomes)], said, uri)._replace(as_of=day)
            outcomes.append(outcome)
            done(outcome)
    if len(outcomes) < len(rows):
        raise StateError(f"{uri} ended after {len(outcomes)} of {len(rows)} answers (exit code {process.returncode}).")
    return Asked(outcomes, code)


def _outcome(row: Row, said: dict[str, object], uri: str) -> Outcome:
    if "error" in said:
        return Outcome(row, None, None, str(said["error"]))
    try:
        return Outcome(row, Answer.model_validate(said["answer"]), Trace.model_validate(said["trace"]), None)
    except ValidationError as exc:
        raise StateError(f"{uri} answers in a form that this code cannot read ({exc.error_count()} fields differ).") from None


def run() -> None:
    """Run the command line."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    run_in_one_line(cli, console)


if __name__ == "__main__":
    run()
