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
from crag_dspy.local_lm import embedded
from crag_dspy.packed import pack
from crag_dspy.settings import Settings, load_settings
from optimize import html, registry
from optimize.baselines import NaiveRAG, TutorialCRAG
from optimize.champion import COMPILED, UNCOMPILED, judge, register
from optimize.compile import FULL, QUICK, compile_program, prepare
from optimize.dataset import Row, sample
from optimize.demo import DATA as DATA
from optimize.demo import WORLD_TODAY as WORLD_TODAY
from optimize.demo import index_corpus as index_corpus
from optimize.evaluate import Outcome
from optimize.optimizers import FULL_BUDGET, QUICK_BUDGET, Optimizer, Recipe, writer
from optimize.origin import digest, git_commit, parts_digest
from optimize.preflight import afford, check, estimate, table
from optimize.promote import VERDICTS, Mode, measure
from optimize.proof import prove, unmeasured
from optimize.report import Steps, before_after, console, one_of_each_need
from optimize.spend import recording, run_folder
from optimize.splits import load_splits, split_file

QUICK_TRAIN, QUICK_DEV = 20, 8  # 20: enough for every optimizer to have 4 examples of each predictor
logging.getLogger("mlflow").setLevel(logging.WARNING)

cli = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Options(NamedTuple):
    """What a run may do beside compiling."""

    quick: bool = False
    baselines: bool = False
    promote: Mode = "auto"
    seed: int = 0
    report: Path = Path("report.html")
    optimizer: Optimizer = "few-shot"
    end_to_end: bool = False
    judge: bool = False
    max_cost: float | None = None

    @property
    def recipe(self) -> Recipe:
        """How the program is compiled."""
        return Recipe(self.optimizer, self.end_to_end, self.seed, QUICK_BUDGET if self.quick else FULL_BUDGET)


@cli.command()
def main(
    train: Annotated[Path | None, typer.Option(help="Training questions, JSONL. Default: data/train.jsonl, on an index of it.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Questions to measure on, JSONL; none of them may be in --train.")] = None,
    test: Annotated[str, typer.Option(help="Questions measured once, at the end, JSONL; with --data also 'split': its last fifth.")] = "",
    data: Annotated[Path | None, typer.Option(help="One file instead, split 60/20/20 by --seed, each need in proportion.")] = None,
    seed: Annotated[int, typer.Option(help="Which split, and where the optimizer begins.")] = 0,
    as_of: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day of the questions. Default: today.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small sample: to see it work.")] = False,
    optimizer: Annotated[Optimizer, typer.Option(help="What writes the prompts; see the README.")] = "few-shot",
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Optimize all predictors at once for whole answers, not each on its own examples.")
    ] = False,
    max_cost: Annotated[float | None, typer.Option(min=0, help="USD that LM calls may cost; the same command with more resumes.")] = None,
    judge: Annotated[bool, typer.Option("--judge", help="Let CRAG_JUDGE_LM judge the answers too.")] = False,
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
        options = Options(quick, baselines, promote, seed, report, optimizer, end_to_end, judge, max_cost)
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
        CragError: a part cannot be had, the optimizer lacks something, or the run would cost too much: nothing was asked of an LM yet.
            Or the money was spent, the LM or the optimizer failed: the same run resumes.
    """
    if settings.pack_index and app.index_folder(settings) is None:
        raise CragError("CRAG_PACK_INDEX needs an index in a folder; this one is on a server. Unset it: the model finds the server.")
    steps.start("Starting the models and the web")
    # What an earlier question left in the index would answer the next one: measured is the index that the team filled, and the live web.
    crag = app.build(settings.model_copy(update={"remember": False}), today=lambda: day, lm=lm)
    parts = crag.program.parts = replace(crag.program.parts, where=Where(source_type="internal"))
    lm, recipe, effort = crag.lm.copy(cache=True), options.recipe, QUICK if options.quick else FULL
    reflects = options.optimizer in ("mipro", "gepa")
    prompt_lm = writer(app.build_lm(settings, "reflection") if reflects and settings.reflection_lm else lm, options.seed)
    judging = app.build_lm(settings, "judge").copy(cache=True) if options.judge else None
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
    steps.start("Observing the training questions")
    prepared = prepare(crag.program, train, day, recipe, steps.note)
    steps.stop()
    notes = check(recipe, prepared.tasks)
    baselines = {baseline.__name__: baseline(parts) for baseline in (NaiveRAG, TutorialCRAG)} if options.baselines else {}
    on_dev, on_test = 2 + (0 if test else len(baselines)), 2 + len(baselines)
    measured = [(f"dev, {on_dev} programs", [*dev] * on_dev)] + ([(f"test, {on_test} programs", [*test] * on_test)] if test else [])
    champion = registry.champion()
    again = champion is not None and registry.measured(champion, shared, dev) is None
    measured += [("dev, the champion", dev)] if again else []
    costs = estimate(recipe, effort, prepared.tasks, lm, prompt_lm, measured=measured, judge=judging)
    console.print(table(costs, prepared.tasks))
    for note in notes:
        console.print(f"Note: {note}.", style="yellow", markup=False)
    afford(costs, options.max_cost)
    mlflow.set_experiment(registry.MODEL)
    names = {str(one.kwargs.get("api_base")): "embedded" for one in (lm, prompt_lm, judging) if one and embedded(one)}
    endpoints = [(one.model, names.get(base := str(one.kwargs.get("api_base")), base)) for one in (lm, prompt_lm, judging) if one]
    folder = run_folder(settings.home, endpoints, recipe.facts(), shared["train"], shared["dev"], options.quick)
    earlier = registry.earlier_touches(str(shared["test"])) if test else 0

    def warn(text: str) -> None:
        console.print(f"Note: {text}.", style="yellow", markup=False)

    with (
        recording(folder, max_usd=options.max_cost, names=names, warn=warn) as replies,
        app.context(lm),
        dspy.context(disable_history=True),
        mlflow.start_run(run_name="quick" if options.quick else "full") as run,
    ):

        def ask(split: str, name: str, program: dspy.Module, rows: Sequence[Row]) -> list[Outcome]:
            what = f"On {split}: {name}"
            with replies.during(what):
                return steps.evaluate(what, program, rows, day, judging)

        runs = {UNCOMPILED: ask("dev", UNCOMPILED, crag.program, dev)}
        steps.start("Compiling on train")
        compiled = compile_program(crag.program, prepared, day, effort, recipe, prompt_lm, steps.note)
        programs = {UNCOMPILED: crag.program, COMPILED: compiled.program} | baselines
        runs |= {name: ask("dev", name, programs[name], dev) for name in (COMPILED, *(() if test else baselines))}
        candidate, uncompiled = measure(runs[COMPILED]), measure(runs[UNCOMPILED])
        with replies.during("champion"):
            decision = judge(
                options.promote, candidate, uncompiled, program=crag.program, shared=shared, steps=steps, dev=dev, day=day,
                max_cost=options.max_cost,
            )  # fmt: skip
        # The test questions last: nothing is chosen after they were seen.
        mlflow.set_tags({"test": "touched", "test_questions": shared["test"]} if test else {"test": "untouched"})
        tested = {name: ask("test", name, program, test) for name, program in programs.items() if test}
        steps.start("Comparing")
        proof = prove(runs, parts.cross_encoder)
        final = prove(tested, parts.cross_encoder) if test else None
        verdict = f"{VERDICTS[decision.champion]}: {decision.reason}."
        mlflow.log_metrics({f"spent/{name}": value for name, value in replies.spent.items()})
        made = recipe.facts() | {"demonstrations": compiled.demos, "decision": decision.reason}
        made |= ({"reflection_lm": prompt_lm.model} if reflects else {}) | ({"judge_lm": judging.model} if judging else {})
        notes = [f"{note}." for note in compiled.warnings]
        if replies.replayed:
            notes.append(
                f"This run resumed an interrupted one: of {replies.replayed + replies.made} LM calls {replies.replayed} were replayed. "
                "They count as calls and with their tokens, but took no time: the seconds of what they answered are too low."
            )
        if earlier:
            runs_before = "an earlier run" if earlier == 1 else f"{earlier} earlier runs"
            notes.append(f"The test questions were used by {runs_before}: what was changed since may have been fitted to them.")
        text = html.render(
            proof=proof,
            test=final,
            before=crag.program,
            after=compiled.program,
            day=day,
            lm=lm.model,
            verdict=verdict,
            notes=notes,
            facts={"run": run.info.run_id, "commit": git_commit()} | {key: str(value) for key, value in (shared | made).items()},
        )
        steps.start("Registering the version")
        with tempfile.TemporaryDirectory() as scratch:
            packed = pack(app.index_folder(settings), Path(scratch) / "index") if settings.pack_index else None
            published = register(crag.program, compiled.program, lm, shared, made, proof, final, decision, text, packed)
    steps.stop()
    options.report.write_text(text, encoding="utf-8", errors="replace")
    console.print(before_after(proof, f"{len(dev)} dev questions, LM {lm.model}", unmeasured(dev)))
    if final:
        console.print(before_after(final, f"{len(test)} test questions, LM {lm.model}", unmeasured(test)))
    for note in notes:
        console.print(f"Note: {note}", style="yellow", markup=False)
    console.print(f"LM calls: {', '.join(f'{name} {value:,g}' for name, value in replies.spent.items())}.", style="dim", markup=False)
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
