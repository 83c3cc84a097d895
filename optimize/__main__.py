"""`python -m optimize`: compile the program on a training set, show before and after, register a version in MLflow."""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import dspy
import mlflow
import typer

from crag_dspy import app
from crag_dspy.cli import run_in_one_line, show
from crag_dspy.errors import CragError
from crag_dspy.index import Where
from crag_dspy.ingest import ingest
from crag_dspy.settings import Settings, load_settings
from optimize import evaluate, registry
from optimize.compile import FULL, QUICK, compile_program
from optimize.dataset import Row, disjoint, load_rows, sample
from optimize.report import Steps, before_after, console, one_of_each_need

DATA = Path(__file__).resolve().parent.parent / "data"
WORLD_TODAY = datetime(2026, 3, 2)  # the day on which data/ is set
QUICK_TRAIN, QUICK_DEV = 16, 8
UNCOMPILED = "the uncompiled program"
logging.getLogger("mlflow").setLevel(logging.WARNING)

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@cli.command()
def main(
    train: Annotated[
        Path | None,
        typer.Option(help="Training questions, JSONL. Default: data/train.jsonl, on an index of data/corpus."),
    ] = None,
    dev: Annotated[Path | None, typer.Option(help="Questions to measure on, JSONL; none of them may be in --train.")] = None,
    as_of: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The day on which the questions are asked. Default: today."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small sample: to see it work.")] = False,
) -> None:
    """Compile the program, measure before and after on the same questions, and register a version in MLflow."""
    demo = train is None
    if (train is None) != (dev is None):
        raise CragError("Give both --train and --dev, or neither to use data/.")
    rows = {"train": load_rows(train or DATA / "train.jsonl"), "dev": load_rows(dev or DATA / "dev.jsonl")}
    disjoint(**rows)
    if quick:
        rows = {"train": sample(rows["train"], QUICK_TRAIN), "dev": sample(rows["dev"], QUICK_DEV)}
    settings = load_settings()
    with Steps() as steps:
        if demo:
            index_corpus(settings, DATA / "corpus", steps)
        day = (as_of or (WORLD_TODAY if demo else datetime.now())).date()
        optimize(settings, rows["train"], rows["dev"], day, quick=quick, steps=steps)


def optimize(
    settings: Settings,
    train: list[Row],
    dev: list[Row],
    day: date,
    *,
    quick: bool,
    steps: Steps,
    lm: dspy.LM | None = None,
) -> registry.Published:
    """Evaluate, compile, evaluate again, register; return the compiled program's version.

    Raises:
        CragError: a part cannot be had; nothing was asked of an LM yet.
    """
    steps.start("Starting the models and the web")
    # In memory only: DSPy's disk cache is shared between endpoints that give a model the same name.
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    # What an earlier question left in the index would answer the next one: measured is the index that the team filled, and the live web.
    crag = app.build(settings.model_copy(update={"remember": False}), today=lambda: day, lm=lm)
    crag.program.parts = replace(crag.program.parts, where=Where(source_type="internal"))
    lm = crag.lm.copy(cache=True)
    mlflow.set_experiment(registry.MODEL)
    shared = {"lm": lm.model, "as_of": day.isoformat(), "train": digest(train), "dev": digest(dev), "quick": quick}
    with app.context(lm), dspy.context(disable_history=True), mlflow.start_run(run_name="quick" if quick else "full"):
        before = steps.evaluate("Uncompiled on dev", crag.program, dev, day)
        steps.start("Compiling on train")
        compiled = compile_program(crag.program, train, day, QUICK if quick else FULL, steps.note)
        after = steps.evaluate("Compiled on dev", compiled.program, dev, day)
        steps.start("Registering the version")
        scorer = crag.program.parts.cross_encoder
        scores = {"before": evaluate.summarise(before, scorer), "after": evaluate.summarise(after, scorer)}
        recipe = {
            "optimizer": "few-shot",
            "demonstrations": compiled.demos,
            "policy": compiled.program.policy.value.model_dump(mode="json"),
        }
        published = registry.publish(
            compiled.program,
            lm,
            params=shared | recipe,
            manifest=shared | recipe,
            tables={"before": before, "after": after},
            metrics={f"{when}/{name}": value for when, found in scores.items() for name, value in found.items()},
        )
        rival, bar = _rival(crag, scores["before"]["answers_right"], shared, steps, dev, day)
        better = scores["after"]["answers_right"] > bar
        if better:
            registry.promote(published.version)
        elif rival == UNCOMPILED:
            # No champion yet, and compiling did not help: the uncompiled program is the better of the two.
            with mlflow.start_run(run_name="uncompiled", nested=True):
                plain = registry.publish(
                    crag.program,
                    lm,
                    params=shared | {"optimizer": "none"},
                    manifest=shared | {"optimizer": "none"},
                    tables={"after": before},
                    metrics={f"after/{name}": value for name, value in scores["before"].items()},
                )
            registry.promote(plain.version)
    steps.stop()
    console.print(before_after(scores["before"], scores["after"], lm.model))
    for warning in compiled.warnings:
        console.print(f"Note: {warning}.", style="yellow")
    if better:
        verdict = f"better than {rival}: it is the champion now"
    elif rival == UNCOMPILED:
        verdict = f"not better than {rival}, which was registered too and is the champion"
    else:
        verdict = f"not better than {rival}: the champion stays"
    console.print(f"\nRegistered [bold]{published.uri}[/bold] ({scores['after']['answers_right']:.0%} of dev answered rightly, {verdict}).")
    console.print('Ask it: crag ask "…"   Serve it: mlflow models serve -m models:/crag@champion --env-manager local\n')
    for outcome in one_of_each_need(after if better else before):
        console.print(f"Question ({outcome.row.need or 'unlabelled'}): {outcome.row.question}", style="bold cyan", markup=False)
        show(outcome.answer, console) if outcome.answer else console.print(outcome.error, style="red")
        console.print()
    return published


def _rival(crag: app.Crag, uncompiled: float, shared: dict[str, Any], steps: Steps, dev: list[Row], day: date) -> tuple[str, float]:
    """Return what a new version has to beat, and its share of answers right on this dev set with this LM."""
    number = registry.champion()
    if number is None:
        return UNCOMPILED, uncompiled
    known = registry.dev_score(number, shared)
    if known is None:  # measured on other questions, or with another LM
        program = registry.load_into(crag.program.deepcopy(), number)
        known = evaluate.summarise(steps.evaluate(f"Champion (version {number}) on dev", program, dev, day))["answers_right"]
    return f"version {number}", max(known, uncompiled)


def index_corpus(settings: Settings, corpus: Path, steps: Steps) -> None:
    """Bring the index up to date with a folder; refuse an index that holds anything else.

    Raises:
        CragError: the index holds other documents, which the training questions know nothing of.
    """
    steps.start("Indexing data/corpus")
    index = app.open_index(settings, create=True)
    base = Path.cwd()
    mine = {Path(os.path.relpath(path, base)).as_posix() for path in corpus.iterdir()}
    others = [name for name in index.document_ids() if name not in mine and "://" not in name]  # a page from the web is none of them
    if others:
        raise CragError(
            f"The index holds other documents ({others[0]!r} and {len(others) - 1} more). Set CRAG_HOME to another folder for the "
            "demonstration, or give your own questions with --train and --dev."
        )
    ingest([corpus], index, base=base, progress=lambda done, total, name: steps.note(f"{done} of {total} {name}"))


def digest(rows: list[Row]) -> str:
    """Return a short hash of questions and answers, to tell whether two runs were measured on the same."""
    return hashlib.sha256("\n".join(row.model_dump_json() for row in rows).encode()).hexdigest()[:16]


if __name__ == "__main__":
    run_in_one_line(cli, console)
