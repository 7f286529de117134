"""`capsroute data list | fetch | show`. What a command needs is imported when it runs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="data", help="Find, fetch and look at data sets.", no_args_is_help=True)

DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with data; else $CAPSROUTE_DATA, else the user cache.", show_default=False),
]


class SplitName(StrEnum):
    """The two splits, for the command line."""

    train = "train"
    test = "test"


@app.command("list")
def list_(
    data: DataOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show the data sets: which are here, where, how many examples, and whether they are the published files."""
    from capsroute.data.survey import survey

    entries = survey(data)
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from capsroute.data.store import looked_in

    table = Table("name", "train", "test", "examples", "source", "verified", box=None, pad_edge=False)
    table.add_column("where", overflow="fold")
    for entry in entries:
        counts = ("" if count is None else f"{count:,}" for count in (entry.train, entry.test))
        examples = "" if entry.problem else entry.examples
        row = (entry.name, *counts, examples, entry.source, entry.verified, entry.where or entry.problem)
        table.add_row(*(escape(cell) for cell in row))
    Console().print(table)
    if any(entry.problem for entry in entries):
        typer.echo(f"\nLooked in {looked_in(data)}. `capsroute data fetch NAME` downloads what is missing.")


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="mnist, fashion-mnist or smallnorb.")],
    data: Annotated[Path | None, typer.Option("--data", help="Folder to put it in; else the user cache.")] = None,
) -> None:
    """Download a data set; an interrupted download is resumed, and every file is compared with its published digest."""
    from capsroute.data import fetch as fetching

    if name == "digits":
        typer.echo("digits comes with scikit-learn; nothing to fetch")
        return
    made_from = {"affnist": "mnist", "multimnist": "mnist"}
    folder = fetching.fetch(made_from.get(name, name), data)
    typer.echo(f"{name} is {'made from what is ' if name in made_from else ''}in {folder}")
    if name == "smallnorb":
        typer.echo("NORB is for research, not for sale; cite LeCun, Huang & Bottou, CVPR 2004")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A data set, or folder:PATH.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Picture to write.")] = Path("sheet.png"),
    data: DataOption = None,
    split: Annotated[SplitName, typer.Option(help="Which split.")] = SplitName.train,
    columns: Annotated[int, typer.Option(min=1, max=40, help="Examples of each class.")] = 8,
    seed: Annotated[int, typer.Option(help="Which examples.")] = 0,
) -> None:
    """Draw a labelled contact sheet: some examples of each class."""
    from capsroute.data.catalogue import load
    from capsroute.data.sheet import draw_sheet

    draw_sheet(load(name, data_dir=data), output, part=split.value, columns=columns, seed=seed)
    typer.echo(f"wrote {output}")
