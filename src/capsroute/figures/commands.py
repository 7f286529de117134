"""`capsroute figure NAME -o FILE`: what is computed for each figure, and with which options.

Nothing heavy is imported before a figure is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from capsroute.figures.style import FigureError, check_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from capsroute.models import CapsNet


class _Names(TyperGroup):
    """Says which figures there are when one is not among them."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        if found is None:
            raise FigureError(f"there is no figure {cmd_name!r}; the figures are {', '.join(self.list_commands(ctx))}")
        return found


app = typer.Typer(
    name="figure", help="Draw a figure of the paper, or of a run, as PNG, SVG or PDF.", cls=_Names, no_args_is_help=True
)

Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="The file: .png, .svg or .pdf; NAME.png if not given.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or the name of a shipped network.")]
DataDir = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets lie.")]
ImageNumber = Annotated[int, typer.Option("--image", min=0, help="Number of the test image.")]


def _file(output: Path | None, name: str) -> Path:
    return check_output(Path(f"{name}.png") if output is None else output)


def _save(drawn: Figure, path: Path) -> None:
    from capsroute.figures.style import save

    save(drawn, path)
    print(path)


def _numbers(text: str, name: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise FigureError(f"{name} {text}: write numbers with commas between, such as 0.05,0.3,2") from None
    return values


@app.command()
def toy(
    output: Output = None,
    kernel: Annotated[str, typer.Option(help="cosine, gaussian, laplace or linear.")] = "cosine",
    widths: Annotated[str, typer.Option(help="Widths of a gaussian or laplace mixture.")] = "1",
    lambda1: Annotated[str, typer.Option(help="Rows of the grid.")] = "0.05,0.3,2",
    lambda2: Annotated[str, typer.Option(help="Columns of the grid.")] = "0.01,0.3,2",
    votes: Annotated[int, typer.Option(min=1, help="Votes of each cluster.")] = 40,
    scale: Annotated[float, typer.Option(help="Scale of the covariances that decide activations.")] = 12.0,
    seed: Annotated[int, typer.Option(min=0, help="Decides the votes.")] = 0,
) -> None:
    """The clustering figure: optimal couplings and output pose over a grid of lambdas, and the activations."""
    path = _file(output, "toy")
    rows, columns = _numbers(lambda1, "--lambda1"), _numbers(lambda2, "--lambda2")
    wide = _numbers(widths, "--widths")
    from capsroute.analysis.toy import consensus, sample
    from capsroute.figures.toy import draw_toy

    try:
        drawn = sample(size=votes, covariance_scale=scale, seed=seed)
        found = {
            (first, second): consensus(
                drawn.votes, drawn.activations, lambda1=first, lambda2=second, kernel=kernel, widths=wide
            )
            for first in rows
            for second in columns
        }
    except ValueError as error:
        raise FigureError(str(error)) from error
    _save(draw_toy(drawn, rows, columns, found), path)


@app.command()
def samples(
    data_set: Annotated[str, typer.Argument(metavar="[DATA]", help="The data set.")] = "digits",
    output: Output = None,
    data: DataDir = None,
    part: Annotated[str, typer.Option(help="train or test.")] = "train",
    columns: Annotated[int, typer.Option(min=1, help="Examples of each class.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Decides which.")] = 0,
) -> None:
    """Examples of each class of a data set."""
    path = _file(output, "samples")
    if part not in ("train", "test"):
        raise FigureError(f"--part {part}: choose train or test")
    from capsroute.data import load
    from capsroute.figures.runs import draw_samples

    _save(draw_samples(load(data_set, data_dir=data), "train" if part == "train" else "test", columns, seed=seed), path)


@app.command()
def routing1d(
    output: Output = None,
    length: Annotated[int, typer.Option(min=1, help="Input positions.")] = 7,
    kernel_size: Annotated[int, typer.Option(min=1)] = 3,
    stride: Annotated[int, typer.Option(min=1)] = 2,
    padding: Annotated[int, typer.Option(min=0)] = 0,
    types: Annotated[int, typer.Option(min=1, max=8, help="Capsule types at each position.")] = 2,
) -> None:
    """How routing is applied convolutionally in one dimension, from a layer's own index table."""
    path = _file(output, "routing1d")
    from capsroute.figures.diagrams import draw_routing1d

    try:
        drawn = draw_routing1d(length, kernel_size, stride, padding, types)
    except ValueError as error:
        raise FigureError(str(error)) from error
    _save(drawn, path)


@app.command()
def lstm(
    output: Output = None,
    layer: Annotated[int, typer.Option(min=1, max=3, help="Which layer of the paper's network.")] = 2,
) -> None:
    """The connectionist cell with its real sizes."""
    path = _file(output, "lstm")
    from capsroute.figures.diagrams import draw_lstm
    from capsroute.models import PAPER_OPTIONS

    _save(draw_lstm(**PAPER_OPTIONS["connectionist"][layer - 1]), path)


@app.command()
def architecture(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run or shipped network; else the paper's.")
    ] = None,
    output: Output = None,
    routing: Annotated[str, typer.Option(help="Routing of the paper's network.")] = "similarity",
    stem_padding: Annotated[int, typer.Option(min=0, help="2 for the shapes of the paper's table, 0 for 86K.")] = 0,
) -> None:
    """The network with real shapes and parameter counts."""
    path = _file(output, "architecture")
    from capsroute.figures.architecture import draw_architecture

    _save(draw_architecture(_network(run, routing, stem_padding), run or "the paper's network"), path)


def _network(run: str | None, routing: str, stem_padding: int) -> CapsNet:
    from capsroute.analysis import capsule_network, open_subject
    from capsroute.models import CapsNet

    if run is not None:
        return capsule_network(open_subject(run, need_data=False).net)
    try:
        return CapsNet(routing, stem_padding=stem_padding)
    except ValueError as error:
        raise FigureError(str(error)) from error


@app.command()
def curves(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs.")], output: Output = None
) -> None:
    """Loss and error over the epochs of one or more runs."""
    path = _file(output, "curves")
    from capsroute.analysis.history import read_curve
    from capsroute.figures.runs import draw_curves

    _save(draw_curves({Path(run).name: read_curve(run) for run in runs}), path)


@app.command()
def confusion(run: RunName, output: Output = None, data: DataDir = None) -> None:
    """How often each class of the test set was taken for another."""
    path = _file(output, "confusion")
    from capsroute.analysis import open_subject
    from capsroute.figures.runs import draw_confusion
    from capsroute.training.evaluate import confusion as count
    from capsroute.training.evaluate import predict

    subject = open_subject(run, data)
    if subject.split().labels.ndim > 1:
        raise FigureError(f"{subject.dataset.name} has two labels an image; a confusion matrix is for one")
    found = predict(subject.net, subject.split(), subject.transform)
    _save(draw_confusion(count(found).numpy(), subject.classes, found.error), path)


@app.command()
def kernels(run: RunName, output: Output = None) -> None:
    """The similarity kernels of each layer, before and after training."""
    path = _file(output, "kernels")
    from capsroute.analysis import capsule_network, kernel_profiles, open_subject
    from capsroute.figures.runs import draw_kernels

    _save(draw_kernels(kernel_profiles(capsule_network(open_subject(run, need_data=False).net))), path)


@app.command()
def couplings(run: RunName, output: Output = None, image: ImageNumber = 0, data: DataDir = None) -> None:
    """Where the capsules behind the winning class listen, layer by layer and iteration by iteration."""
    path = _file(output, "couplings")
    from capsroute.analysis import capsule_network, coupling_maps, credit, open_subject, trace
    from capsroute.figures.inside import draw_couplings

    subject = open_subject(run, data)
    net, images = capsule_network(subject.net), subject.images([image])
    traces = trace(net, images)
    given = credit(net, images, traces=traces)
    maps = [m[:, 0] for m in coupling_maps(traces, given)]
    _save(draw_couplings(images[0].numpy(), traces, maps, _verdict(subject, image, int(given.target[0]))), path)


@app.command()
def credit(run: RunName, output: Output = None, image: ImageNumber = 0, data: DataDir = None) -> None:
    """Which pixels' capsules the winning class listened to, and what hiding them does."""
    path = _file(output, "credit")
    import numpy as np

    from capsroute.analysis import capsule_network, hiding, open_subject
    from capsroute.analysis import credit as give
    from capsroute.figures.inside import draw_credit

    subject = open_subject(run, data)
    net = capsule_network(subject.net)
    others = np.linspace(0, len(subject.split()) - 1, 31).astype(int)
    images = subject.images([image, *(int(n) for n in others if n != image)])
    given = give(net, images)
    shares = [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4]
    credited, by_chance = hiding(net, images, given, shares, score=subject.scores)
    title = _verdict(subject, image, int(given.target[0]))
    _save(draw_credit(images[0].numpy(), given, shares, credited, by_chance, title, len(images)), path)


@app.command()
def poses(
    run: RunName,
    output: Output = None,
    by: Annotated[str, typer.Option(help="rotation, shift, scale, shear, azimuth or elevation.")] = "rotation",
    image: ImageNumber = 0,
    count: Annotated[int, typer.Option(min=10, help="Images to measure on.")] = 60,
    data: DataDir = None,
) -> None:
    """How the class pose moves as the input is turned, moved, scaled or seen from elsewhere."""
    path = _file(output, "poses")
    from capsroute.analysis import capsule_network, measure, open_subject
    from capsroute.analysis.equivariance import UNITS, walk
    from capsroute.figures.inside import draw_poses

    subject = open_subject(run, data)
    capsule_network(subject.net)
    walked = walk(subject, by, image, count)
    measured = measure(walked.path, reference=walked.reference, period=walked.period)
    title = f"{subject.name}: {subject.classes[walked.label]}, {by}"
    periodic = walked.period is not None
    _save(draw_poses(walked.frames.numpy(), walked.path, measured, by, UNITS.get(by, ""), periodic, title), path)


def _verdict(subject: Any, image: int, chosen: int) -> str:
    labels = subject.split().labels[image]
    truth = " and ".join(subject.classes[int(n)] for n in (labels if labels.ndim else [labels]))
    return f"{subject.name}, test image {image}: {truth}, taken for {subject.classes[chosen]}"
