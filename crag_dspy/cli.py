"""The command line: `crag ingest PATH…`, `crag refresh`, `crag ask "…"`, `crag feedback`, `crag serve`, `crag status`."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import dspy
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from crag_dspy.errors import CragError, LMFailure, StateError
from crag_dspy.types import Answer

if TYPE_CHECKING:
    from crag_dspy.crag import Crag

cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Corrective RAG with checked citations.",
)
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

CHAMPION = "models:/crag@champion"


@cli.command()
def ingest(paths: Annotated[list[Path], typer.Argument(help="Files or folders: md, txt, html, pdf, docx.")]) -> None:
    """Bring the index up to date with documents; changed ones replace what was there, files that are gone are removed."""
    from crag_dspy import app
    from crag_dspy.ingest import ingest as run
    from crag_dspy.settings import load_settings

    index = app.open_index(load_settings(), create=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=err, transient=True) as bar:
        task = bar.add_task("Reading")
        report = run(
            paths,
            index,
            progress=lambda done, total, name: bar.update(task, completed=done, total=total, description=f"Reading {name}"),
        )
    out.print(
        f"{report.documents} documents: {report.added} passages added, {report.unchanged} unchanged, {report.removed} removed. "
        f"The index holds {index.count()} passages."
    )
    for path, reason in report.skipped:
        err.print(f"Skipped {path}: {reason}", style="yellow")


@cli.command()
def refresh(every: Annotated[bool, typer.Option("--all", help="All pages, however new.")] = False) -> None:
    """Fetch the index's web pages again that are past their age; exits with 1 where one cannot be had."""
    from crag_dspy import app
    from crag_dspy.refresh import refresh as run
    from crag_dspy.rows import due
    from crag_dspy.settings import load_settings

    settings = load_settings()
    index, now = app.open_index(settings), datetime.now(UTC)
    pages = index.pages()
    wanted = sorted(pages) if every else due(pages, now - timedelta(days=settings.refresh_days))
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=err, transient=True) as bar:
        task = bar.add_task("Reading pages")
        report = run(
            wanted,
            index,
            app.build_asking_fetcher(settings),
            now.date(),
            workers=settings.workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    out.print(
        f"{len(wanted)} of {len(pages)} pages asked for: {report.unchanged} unchanged, {report.changed} changed, {report.gone} gone, "
        f"{len(report.failed)} failed."
    )
    for url, code, reason in report.failed:
        err.print(f"Kept {url} as it was ({code}): {reason}", style="yellow", markup=False)
    if report.failed:
        raise typer.Exit(1)


@cli.command()
def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
    model: Annotated[str, typer.Option(help="A compiled version in MLflow, or 'none' for the uncompiled program.")] = CHAMPION,
    as_of: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Judge ages as of this day.")] = None,
) -> None:
    """Answer a question from the index and the web, with sources."""
    crag = _program(model)
    answer = crag(question, as_of=as_of.date() if as_of else None)
    if json:
        sys.stdout.write(answer.model_dump_json(indent=2) + "\n")
    else:
        show(answer, out)


@cli.command()
def feedback(
    trace_id: Annotated[str, typer.Argument(help="The answer's trace_id, where CRAG_TRACING is on.")],
    up: Annotated[bool | None, typer.Option("--up/--down", help="Whether the answer is right.")] = None,
    answer: Annotated[str | None, typer.Option(help="The right answer, short: later answers are right if they hold these words.")] = None,
    source: Annotated[list[str] | None, typer.Option(help="Document id or URL that the right answer rests on; several times.")] = None,
    by: Annotated[str, typer.Option(help="Who says it.")] = "",
) -> None:
    """Keep what you say of an answer at its trace; what is said later overrides."""
    import crag_dspy

    thumbs = {True: "up", False: "down", None: None}[up]
    crag_dspy.feedback(trace_id, thumbs=thumbs, answer=answer, sources=source or (), by=by)  # type: ignore[arg-type]
    out.print(f"Kept at {trace_id}.", markup=False)


@cli.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 5002,
    model: Annotated[str, typer.Option(help="A compiled version in MLflow, or 'none' for the uncompiled program.")] = CHAMPION,
) -> None:
    """Answer over HTTP: POST /ask, /ask/stream (events), /feedback; GET /health, /ready.

    With CRAG_WEBHOOK_SECRET also POST /webhooks/content-changed.
    """
    from crag_dspy import app, http
    from crag_dspy.settings import load_settings

    settings = load_settings()
    webhook = app.open_webhook(settings)
    err.print(f"Listening at http://{host}:{port}", markup=False)
    http.serve(_program(model), host, port, settings.serve_workers, webhook)


def _program(model: str) -> Crag:
    """Return a compiled version; without a champion, the uncompiled program."""
    import crag_dspy
    from crag_dspy.status import has_registry

    if model == "none" or (model == CHAMPION and not has_registry()):
        crag = crag_dspy.build(crag_dspy.load_settings())
        if model != "none":
            err.print("No compiled version yet (python -m optimize makes one): using the uncompiled program.", style="dim")
    else:
        try:
            crag = crag_dspy.load(model)
        except StateError:
            if model != CHAMPION:
                raise
            crag = crag_dspy.build(crag_dspy.load_settings())
            err.print("No usable champion in MLflow: using the uncompiled program.", style="yellow")
    return crag


@cli.command()
def status() -> None:
    """Tell what the index holds, and which versions are registered."""
    from crag_dspy import app
    from crag_dspy.rows import due
    from crag_dspy.settings import load_settings
    from crag_dspy.status import index_status, versions

    settings = load_settings()
    index = index_status(app.open_chroma(settings), settings.collection)
    size = "" if index.size is None else f", {index.size / 1e6:.1f} MB"
    out.print(
        f"Index {settings.collection}: {index.documents} documents, {index.passages} passages "
        f"({index.internal} internal, {index.web} web){size}",
        markup=False,
    )
    for name, days in (("published", index.published), ("retrieved", index.retrieved)):
        out.print(f"  {name}: {f'{days[0]} to {days[1]}' if days else 'no dates'}", markup=False)
    if index.pages:
        old = len(due(index.pages, datetime.now(UTC) - timedelta(days=settings.refresh_days)))
        known = [when.date() for when in index.pages.values() if when]
        oldest = f", the oldest retrieved {min(known)}" if known else ""
        past = f"; {old} past {settings.refresh_days:g} days (crag refresh)" if old else ""
        out.print(f"  web pages: {len(index.pages)}{oldest}{past}", markup=False)
    out.print(f"  embedder: {index.embedder}", markup=False)
    registered = versions()
    if registered is None or not registered.numbers:
        out.print("Versions: none registered (python -m optimize makes one)", markup=False)
    else:
        numbers = ", ".join(map(str, registered.numbers))
        out.print(f"Versions: {numbers}; champion: {registered.champion or 'none'}", markup=False)


def show(answer: Answer, console: Console) -> None:
    """Print an answer for a person: text, sources, route."""
    console.print(answer.text, style="bold" if answer.status == "answered" else "yellow", markup=False)
    for citation in answer.citations:
        where = citation.url or citation.id
        when = f", {citation.published_at}" if citation.published_at else ""
        console.print(f"  [{citation.n}] {citation.title} ({where}{when})", markup=False)
        console.print(f"      “{citation.quote[:300]}”", style="dim", markup=False)
    query = f", web query: {answer.web_query}" if answer.web_query else ""
    console.print(
        f"  {answer.status}; evidence {answer.assessment}, action {answer.action}{query}; confidence {answer.confidence:.2f}; "
        f"{answer.usage.lm_calls} LM calls, {answer.usage.pages} pages, {answer.usage.seconds:.1f} s",
        style="dim",
        markup=False,
    )
    if answer.trace_id:
        console.print(f"  trace {answer.trace_id}", style="dim", markup=False)
    for warning in answer.warnings:
        console.print(f"  warning ({warning.code}): {warning.message}", style="yellow", markup=False)


def main() -> None:
    """Run the command line."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    run_in_one_line(cli, err)


def run_in_one_line(command: typer.Typer, console: Console) -> None:
    """Run a command; an error that a user can act on is one line, not a traceback."""
    try:
        command()
    except (CragError, dspy.LMError) as exc:
        said = LMFailure(exc) if isinstance(exc, dspy.LMError) else exc
        console.print(f"Error: {said}", style="red", markup=False)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
