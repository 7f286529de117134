"""The command line: `capsroute train | evaluate | table | figure | bench | explore | data`.

Every command imports what it needs when it runs, so that `capsroute --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from capsroute.bench.commands import app as bench_app
from capsroute.data.commands import app as data_app
from capsroute.errors import CapsrouteError
from capsroute.explore.commands import explore
from capsroute.figures.commands import app as figure_app

app = typer.Typer(
    name="capsroute",
    help="Train and look into capsule networks whose routing is learned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
app.add_typer(figure_app, name="figure")
app.command()(explore)

DataDir = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets lie.")]
Threads = Annotated[int | None, typer.Option(help="Threads for torch; all cores unless told.")]


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="DATA-ROUTING, digits-similarity unless told.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change an entry: optimizer.lr=1e-3.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="How often to go through the training set.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random number.")] = None,
    data: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/RECIPE-SEED-N unless told.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start again in a folder that holds a run.")] = False,
    precision: Annotated[str | None, typer.Option(help="32, medium (products in bfloat16), or bf16 (mixed).")] = None,
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    threads: Threads = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard events too.")] = False,
) -> None:
    """Train a recipe, choose its parameters by validation, test them, and write a report."""
    from capsroute.training.commands import run_training

    run_training(
        recipe,
        settings=settings or [],
        epochs=epochs,
        seed=seed,
        data=data,
        out=out,
        resume=resume,
        force=force,
        precision=precision,
        accelerator=accelerator,
        threads=threads,
        tensorboard=tensorboard,
    )


@app.command()
def evaluate(
    run: Annotated[Path | None, typer.Argument(help="A run's folder, or one that save_pretrained wrote.")] = None,
    pretrained: Annotated[str | None, typer.Option(metavar="NAME", help="A network that ships with capsroute.")] = None,
    data: DataDir = None,
    affine: Annotated[bool, typer.Option("--affine", help="Also on affine-transformed digits.")] = False,
    overlapping: Annotated[bool, typer.Option("--overlapping", help="Also on pairs of overlapping digits.")] = False,
    multicrop: Annotated[bool, typer.Option("--multicrop", help="Also averaged over 13 crops.")] = False,
    mirrored: Annotated[bool, typer.Option("--mirrored", help="Also averaged with the mirror image.")] = False,
    robust: Annotated[bool, typer.Option("--robust", help="Also under other light, and with the crop moved.")] = False,
    beyond: Annotated[
        bool,
        typer.Option(
            "--beyond", help="Affine, overlapping and robust for shipped networks, beside the CNN of their size."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Where pictures go; RUN/evaluation unless told.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    threads: Threads = None,
) -> None:
    """Test error with a 95 % interval, confusion matrix, and the worst mistakes as a picture."""
    from capsroute.training.commands import run_evaluation

    run_evaluation(
        run,
        pretrained,
        data=data,
        affine=affine,
        overlapping=overlapping,
        multicrop=multicrop,
        mirrored=mirrored,
        robust=robust,
        beyond=beyond,
        out=out,
        as_json=as_json,
        threads=threads,
    )


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, result files, or folders of either.")],
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the table into a picture too.")] = None,
) -> None:
    """The paper's results table with our numbers beside the published ones."""
    from capsroute.training import table as tables

    results = tables.collect(runs)
    if as_markdown:
        typer.echo(tables.markdown(results), nl=False)
    else:
        tables.show(results)
    if png is not None:
        tables.picture(results, png)
        typer.echo(f"drawn into {png}", err=True)


@app.callback()
def _options() -> None:
    """Train and look into capsule networks whose routing is learned."""


def main() -> None:
    """Run the command line; what the user did wrong, or the machine refused, is one readable line."""
    try:
        app()
    except CapsrouteError as error:
        typer.secho(f"capsroute: {error}", fg="red", err=True)
        sys.exit(getattr(error, "exit_code", 2))
