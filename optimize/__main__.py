"""`python -m optimize`: compile the program on a training set, prove what that changed, register a version in MLflow."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import dspy
import mlflow
import typer

from crag_dspy import app
from crag_dspy.cli import run_in_one_line, show
from crag_dspy.errors import CragError
from crag_dspy.index import Where
from crag_dspy.packed import pack
from crag_dspy.settings import Settings, load_settings
from optimize import html, registry
from optimize.baselines import NaiveRAG, TutorialCRAG
from optimize.champion import COMPILED, UNCOMPILED, judge, register
from optimize.compile import FULL, QUICK, compile_program
from optimize.dataset import Row, sample
from optimize.demo import DATA as DATA
from optimize.demo import WORLD_TODAY as WORLD_TODAY
from optimize.demo import index_corpus as index_corpus
from optimize.origin import digest, git_commit, parts_digest
from optimize.promote import VERDICTS, Mode, measure
from optimize.proof import prove, unmeasured
from optimize.report import Steps, before_after, console, one_of_each_need
from optimize.splits import load_splits, split_file

QUICK_TRAIN, QUICK_DEV = 16, 8
logging.getLogger("mlflow").setLevel(logging.WARNING)

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Options(NamedTuple):
    """What a run may do beside compiling."""

    quick: bool = False
    baselines: bool = False
    promote: Mode = "auto"
    seed: int = 0
    report: Path = Path("report.html")


@cli.command()
def main(
    train: Annotated[Path | None, typer.Option(help="Training questions, JSONL. Default: data/train.jsonl, on an index of it.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Questions to measure on, JSONL; none of them may be in --train.")] = None,
    test: Annotated[str, typer.Option(help="Questions measured once, at the end, JSONL; with --data also 'split': its last fifth.")] = "",
    data: Annotated[Path | None, typer.Option(help="One file instead, split 60/20/20 by --seed, each need in proportion.")] = None,
    seed: Annotated[int, typer.Option(help="Which split.")] = 0,
    as_of: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day of the questions. Default: today.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small sample: to see it work.")] = False,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Measure plain RAG and a tutorial's CRAG too: on --test, else on dev.")
    ] = False,
    promote: Annotated[Mode, typer.Option(help="Move the alias champion: if it is better (auto), never, or always (force).")] = "auto",
    report: Annotated[Path, typer.Option(help="Where the report is written.")] = Path("report.html"),
) -> None:
    """Compile the program, measure before and after on the same questions, and register a version in MLflow."""
    if (train is None) != (dev is None) or (data and train):
        raise CragError("Give --train and --dev, or --data with one file to split, or none of them to use the questions in data/.")
    if not report.resolve().parent.is_dir():
        raise CragError(f"--report {report}: there is no such folder.")

    def warn(text: str) -> None:
        console.print(f"Note: {text}", style="yellow", markup=False)

    demo = train is None and data is None
    if data:
        rows = split_file(data, test, seed, warn)
    else:
        rows = load_splits(train or DATA / "train.jsonl", dev or DATA / "dev.jsonl", test, warn)
    if quick:
        rows = {name: sample(mine, QUICK_TRAIN if name == "train" else QUICK_DEV) for name, mine in rows.items()}
    settings = load_settings()
    with Steps() as steps:
        if demo:
            index_corpus(settings, DATA / "corpus", steps)
        day = (as_of or (WORLD_TODAY if demo else datetime.now())).date()
        options = Options(quick, baselines, promote, seed, report)
        optimize(settings, rows["train"], rows["dev"], day, steps=steps, test=rows.get("test", ()), options=options)


def optimize(
    settings: Settings,
    train: list[Row],
    dev: list[Row],
    day: date,
    *,
    steps: Steps,
    test: Sequence[Row] = (),
    options: Options = Options(),  # noqa: B008  # immutable
    lm: dspy.LM | None = None,
) -> registry.Published:
    """Evaluate, compile, evaluate again, prove, decide, register, report; return the compiled program's version.

    Raises:
        CragError: a part cannot be had; nothing was asked of an LM yet.
    """
    steps.start("Starting the models and the web")
    # In memory only: DSPy's disk cache is shared between endpoints that give a model the same name.
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    # What an earlier question left in the index would answer the next one: measured is the index that the team filled, and the live web.
    crag = app.build(settings.model_copy(update={"remember": False}), today=lambda: day, lm=lm)
    parts = crag.program.parts = replace(crag.program.parts, where=Where(source_type="internal"))
    lm = crag.lm.copy(cache=True)
    mlflow.set_experiment(registry.MODEL)
    shared = {
        "lm": lm.model,
        "as_of": day.isoformat(),
        "train": digest(train),
        "dev": digest(dev),
        "test": digest(test) if test else "untouched",
        "parts": parts_digest(settings, app.open_index(settings)),
        "quick": options.quick,
        "seed": options.seed,
    }
    earlier = registry.earlier_touches(str(shared["test"])) if test else 0
    with app.context(lm), dspy.context(disable_history=True), mlflow.start_run(run_name="quick" if options.quick else "full") as run:
        runs = {UNCOMPILED: steps.evaluate(f"On dev: {UNCOMPILED}", crag.program, dev, day)}
        steps.start("Compiling on train")
        compiled = compile_program(crag.program, train, day, QUICK if options.quick else FULL, steps.note)
        ours: dict[str, dspy.Module] = {UNCOMPILED: crag.program, COMPILED: compiled.program}
        baselines = {baseline.__name__: baseline(parts) for baseline in (NaiveRAG, TutorialCRAG)} if options.baselines else {}
        on_dev = {COMPILED: compiled.program} | ({} if test else baselines)
        runs |= {name: steps.evaluate(f"On dev: {name}", program, dev, day) for name, program in on_dev.items()}
        candidate, uncompiled = measure(runs[COMPILED]), measure(runs[UNCOMPILED])
        decision = judge(options.promote, candidate, uncompiled, program=crag.program, shared=shared, steps=steps, dev=dev, day=day)
        # The test questions last: nothing is chosen after they were seen.
        mlflow.set_tags({"test": "touched", "test_questions": shared["test"]} if test else {"test": "untouched"})
        tested = {name: steps.evaluate(f"On test: {name}", program, test, day) for name, program in (ours | baselines).items() if test}
        steps.start("Comparing")
        proof = prove(runs, parts.cross_encoder)
        final = prove(tested, parts.cross_encoder) if test else None
        verdict = f"{VERDICTS[decision.champion]}: {decision.reason}."
        recipe = {"optimizer": "few-shot", "demonstrations": compiled.demos, "decision": decision.reason}
        notes = [f"{note}." for note in compiled.warnings]
        if earlier:
            notes.append(f"The test questions were used by {earlier} earlier runs: what was changed since may have been fitted to them.")
        text = html.render(
            proof=proof,
            test=final,
            before=crag.program,
            after=compiled.program,
            day=day,
            lm=lm.model,
            verdict=verdict,
            notes=notes,
            facts={"run": run.info.run_id, "commit": git_commit()} | {key: str(value) for key, value in (shared | recipe).items()},
        )
        steps.start("Registering the version")
        with tempfile.TemporaryDirectory() as scratch:
            packed = pack(app.index_folder(settings), Path(scratch) / "index") if settings.pack_index else None
            published = register(crag.program, compiled.program, lm, shared, recipe, proof, final, decision, text, packed)
    steps.stop()
    options.report.write_text(text, encoding="utf-8", errors="replace")
    console.print(before_after(proof, f"{len(dev)} dev questions, LM {lm.model}", unmeasured(dev)))
    if final:
        console.print(before_after(final, f"{len(test)} test questions, LM {lm.model}", unmeasured(test)))
    for note in notes:
        console.print(f"Note: {note}", style="yellow", markup=False)
    console.print(f"\nRegistered {published.uri}. {verdict}", style="bold", markup=False)
    console.print(f"Report: {options.report.resolve()}", markup=False)
    console.print('Ask it: crag ask "…"   Serve it: mlflow models serve -m models:/crag@champion --env-manager local\n')
    for outcome in one_of_each_need(runs[UNCOMPILED if decision.champion == "uncompiled" else COMPILED]):
        console.print(f"Question ({outcome.row.need or 'unlabelled'}): {outcome.row.question}", style="bold cyan", markup=False)
        show(outcome.answer, console) if outcome.answer else console.print(outcome.error, style="red", markup=False)
        console.print()
    return published


if __name__ == "__main__":
    run_in_one_line(cli, console)
