"""Figures of data sets and of training: samples, curves, confusion, kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capsroute.analysis.kernels import KernelProfile
from capsroute.data import DataSet
from capsroute.data.dataset import Part
from capsroute.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Entry = Mapping[str, Any]


def draw_samples(
    dataset: DataSet, part: Part = "train", columns: int = 8, classes: Sequence[int] | None = None, seed: int = 0
) -> Figure:
    """A row of examples for each class, as stored; of a stereo pair the left camera."""
    split = dataset.train if part == "train" else dataset.test
    labels = split.labels if split.labels.ndim == 1 else split.labels[:, 0]
    rows = list(range(len(dataset.classes))) if classes is None else list(classes)
    random = np.random.default_rng(seed)
    side = split.images.shape[2]
    step = side + max(1, side // 16)
    sheet = np.full((step * len(rows), step * columns, 3), 255, dtype=np.uint8)
    for number, label in enumerate(rows):
        members = np.flatnonzero(labels == label)
        for column, index in enumerate(random.choice(members, min(columns, len(members)), replace=False)):
            top, left = number * step, column * step
            sheet[top : top + side, left : left + side] = _pixels(split.images[int(index)])
    with style.styled():
        made = style.blank(style.COLUMN, style.COLUMN * (len(rows) + 0.1) / (columns + 0.2 * _longest(dataset.classes)))
        axes = made.subplots()
        axes.imshow(sheet[: step * len(rows) - step + side, : step * columns - step + side])
        style.bare(axes, frame=False)
        axes.set_yticks([step * n + side / 2 for n in range(len(rows))], [dataset.classes[label] for label in rows])
        axes.tick_params(length=0)
    return made


def _pixels(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An image [C, H, W] as [H, W, 1 or 3]."""
    return np.moveaxis(image, 0, -1) if len(image) == 3 else image[0][..., None]


def _longest(names: Sequence[str]) -> int:
    return max(map(len, names))


def draw_curves(runs: Mapping[str, Sequence[Entry]]) -> Figure:
    """Loss and error over the epochs of one or more runs, by name; validation drawn through, training dotted."""
    with style.styled():
        made = style.blank(style.PAGE if len(runs) > 1 else style.PAGE * 0.8, 2.4)
        for axes, what, unit in zip(made.subplots(1, 2), ("loss", "error"), ("", " (%)"), strict=True):
            for (name, curve), colour in zip(runs.items(), _colours(len(runs)), strict=True):
                epochs = [entry["epoch"] for entry in curve]
                mark = "." if len(epochs) < 40 else None
                for part, line in (("train", ":"), ("val", "-")):
                    values = [entry[f"{part}_{what}"] for entry in curve]
                    if None in values:
                        continue
                    axes.plot(
                        epochs, values, line, color=colour, marker=mark, ms=3, label=name if part == "val" else None
                    )
                best = [entry["epoch"] for entry in curve if entry.get("best")]
                if best and curve[best[-1] - 1][f"val_{what}"] is not None:
                    axes.plot(best[-1], curve[best[-1] - 1][f"val_{what}"], "o", mfc="none", mec=colour, ms=7)
            axes.set(xlabel="epoch", ylabel=what + unit)
            axes.set_ylim(bottom=0)
        axes.plot([], [], "-", color=style.GREY, label="validation")
        axes.plot([], [], ":", color=style.GREY, label="training")
        axes.plot([], [], "o", mfc="none", mec=style.GREY, label="chosen")
        axes.legend()
    return made


def _colours(count: int) -> list[str]:
    return [style.CYCLE[n % len(style.CYCLE)] for n in range(count)]


def draw_confusion(counts: np.ndarray[Any, Any], classes: Sequence[str], error: float) -> Figure:
    """How often a class (row) was taken for another (column); colour is for mistakes alone."""
    number = len(classes)
    with style.styled():
        side = style.COLUMN if number <= 10 else style.PAGE
        made = style.blank(side, side * 0.97)
        axes = made.subplots()
        wrong = counts.astype(float)
        np.fill_diagonal(wrong, 0)
        axes.imshow(wrong, cmap="Blues", vmin=0, vmax=max(wrong.max(), 1))
        for row, column in np.ndindex(*counts.shape):
            if counts[row, column]:
                dark = wrong[row, column] > 0.5 * max(wrong.max(), 1)
                weight = "bold" if row == column else "normal"
                colour = "white" if dark else "black"
                axes.text(
                    column,
                    row,
                    f"{counts[row, column]}",
                    ha="center",
                    va="center",
                    fontsize=6,
                    color=colour,
                    weight=weight,
                )
        long = max(map(len, classes)) > 2
        axes.set_xticks(range(number), classes, rotation=40 if long else 0, ha="right" if long else "center")
        axes.set_yticks(range(number), classes)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel="taken for", ylabel="is", title=f"{error:.2f} % of {counts.sum():,} wrong")
    return made


def draw_kernels(profiles: Sequence[KernelProfile]) -> Figure:
    """Each layer's learned kernel over the distance between pose and vote, and the one it started from."""
    with style.styled():
        made = style.blank(style.PAGE, 2.2)
        grid = made.subplots(1, len(profiles), sharey=True, squeeze=False)[0]
        for number, (axes, profile) in enumerate(zip(grid, profiles, strict=True), 1):
            axes.plot(profile.distances, profile.before[0], "--", color=style.GREY, label="before training")
            for channel, curve in enumerate(profile.after):
                axes.plot(
                    profile.distances,
                    curve,
                    color=style.BLUE,
                    alpha=max(0.25, 1 / len(profile.after)),
                    label="" if channel else "after",
                )
            for width in profile.widths.flatten():
                axes.plot(width, 0, "|", color=style.VERMILION, ms=7, mew=1.0, clip_on=False)
            lambdas = f"$\\lambda_1$ = {_range(profile.lambda1)}\n$\\lambda_2$ = {_range(profile.lambda2)}"
            axes.text(0.97, 0.95, lambdas, transform=axes.transAxes, ha="right", va="top", fontsize=7)
            name = "class capsules" if number == len(profiles) else f"capsule layer {number}"
            axes.set(title=name, xlabel="distance of vote and pose", xlim=(0, profile.distances[-1]))
        grid[0].set_ylim(bottom=0)
        grid[0].set_ylabel("similarity $\\langle \\mu, v \\rangle_\\theta$")
        grid[0].plot([], [], "|", color=style.VERMILION, ms=7, label="widths $\\theta_2$")
        grid[0].legend(loc="center right")
    return made


def _range(values: Any) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f}"
