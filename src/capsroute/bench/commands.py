"""`capsroute bench`: time and memory of every routing, computed in every way. Imports wait until something runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from capsroute.bench.candidates import CNN, PATHS, PHASES, PRECISIONS, Candidate
from capsroute.bench.data import command as data_command
from capsroute.training.recipes import ROUTINGS

app = typer.Typer(help="Measure how fast routings are, and how much memory they need.")
app.command("data")(data_command)

RoutingName = StrEnum("RoutingName", [(name, name) for name in (*ROUTINGS, CNN)])  # type: ignore[misc]
PathName = StrEnum("PathName", [(name, name) for name in PATHS])  # type: ignore[misc]
PhaseName = StrEnum("PhaseName", [(name, name) for name in PHASES])  # type: ignore[misc]
Precision = StrEnum("Precision", [(name, name) for name in PRECISIONS])  # type: ignore[misc]
FLOAT32 = Precision(PRECISIONS[0])


@app.callback(invoke_without_command=True)
def routings(
    context: typer.Context,
    routing: Annotated[
        list[RoutingName] | None, typer.Option(help="Which routings, or cnn; all unless told. Repeatable.")
    ] = None,
    path: Annotated[list[PathName] | None, typer.Option(help="Which ways; all unless told. Repeatable.")] = None,
    phase: Annotated[list[PhaseName] | None, typer.Option(help="Training steps, inference, or both.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images a step.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="Threads for torch.")] = 2,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long the ways of a routing take turns.")] = 20.0,
    precision: Annotated[
        Precision, typer.Option(help="Of fused operators; medium: bfloat16 products, where the processor has them.")
    ] = FLOAT32,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    plots: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Draw time and memory against batch, image size, types and iterations."),
    ] = None,
) -> None:
    """Measure the paper's network on smallNORB's shape: reference, tiled, torch.compile, fused, and a CNN of its size.

    Candidates take turns and medians are compared. Memory is what the process grows by while the capsule layers work.
    """
    if context.invoked_subcommand is not None:
        return
    import json

    from capsroute.bench import report
    from capsroute.bench.compare import compare

    names = [str(name) for name in routing or (*ROUTINGS, CNN)]
    paths = [str(name) for name in path or PATHS]
    phases = [str(name) for name in phase or PHASES]
    where = {**report.machine(threads), "precision": str(precision)}
    if plots is not None:
        if precision != FLOAT32:
            raise typer.BadParameter("plots are drawn in float32; leave out --precision or --plots")
        from capsroute.bench.plots import draw

        draw([name for name in names if name != CNN], [str(name) for name in path or ()], plots, threads, _say)
        return
    rows = []
    for name in names:
        # what they are compared with stays in float32
        chosen = [
            Candidate(name, way, threads=threads, precision=str(precision if way == "fused" else FLOAT32))
            for way in (paths if name != CNN else ["reference"])
        ]
        rows += compare(chosen, phases, batch=batch, seconds=seconds, say=_say)
    if as_json:
        typer.echo(json.dumps(report.as_json(rows, where), indent=2))
        return
    from rich.console import Console

    console = Console(width=110)
    told = f"{where['processor']}, {threads} threads, torch {where['torch']}, load {where['load']}"
    console.print(f"{told}, precision {where['precision']}\n")
    console.print(report.table(rows))


def _say(line: str) -> None:
    typer.echo(f"capsroute bench: {line}", err=True)
