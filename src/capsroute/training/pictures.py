"""Small pictures of a run: each function draws into a matplotlib figure of its own and returns it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2b6cb0", "#dd6b20", "#718096"


def figure(width: float, height: float) -> Figure:
    """A figure that belongs to no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def _tidy(axes: Any) -> None:
    """Whole epochs below, nothing above and to the right."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.spines[["top", "right"]].set_visible(False)


def curves(curve: Sequence[Mapping[str, Any]], chosen: int | None = None) -> Figure:
    """Loss and error over the epochs, in training and validation; `chosen` marks the epoch that was tested."""
    made = figure(9, 3.2)
    epochs = [entry["epoch"] for entry in curve]
    for axes, what, unit in zip(made.subplots(1, 2), ("loss", "error"), ("", " (%)"), strict=True):
        for part, name, colour in (("train", "training", GREY), ("val", "validation", BLUE)):
            values = [entry[f"{part}_{what}"] for entry in curve]
            if None not in values:
                axes.plot(epochs, values, color=colour, label=name, marker="." if len(epochs) < 40 else None)
        if chosen is not None:
            axes.axvline(chosen, color=ORANGE, linewidth=1, label="tested")
        axes.set(xlabel="epoch", ylabel=what + unit, ylim=(0, None))
        axes.legend(frameon=False)
        _tidy(axes)
    return made


def confusion_matrix(counts: npt.NDArray[Any], classes: Sequence[str]) -> Figure:
    """How often a class (row) was taken for another (column); colours leave out the diagonal."""
    size = 2.0 + 0.34 * len(classes)
    made = figure(size, size)
    axes = made.subplots()
    wrong = counts.astype(float)
    np.fill_diagonal(wrong, 0)
    axes.imshow(wrong, cmap="Oranges", vmin=0, vmax=max(wrong.max(), 1))
    for row, column in np.ndindex(*counts.shape):
        if counts[row, column]:
            dark = wrong[row, column] > 0.6 * wrong.max() > 0
            axes.text(
                column,
                row,
                str(counts[row, column]),
                ha="center",
                va="center",
                fontsize=7,
                fontweight="bold" if row == column else None,
                color="white" if dark else "black",
            )
    ticks = range(len(classes))
    axes.set_xticks(ticks, classes, rotation=45 if max(map(len, classes)) > 2 else 0)
    axes.set_yticks(ticks, classes)
    axes.set(xlabel="taken for", ylabel="is")
    return made


def mistakes(images: npt.NDArray[Any], captions: Sequence[str], columns: int = 8) -> Figure:
    """Images [n, C, H, W] with a caption each; of several channels the first, of three all as colour."""
    rows = max(1, -(-len(images) // columns))
    made = figure(1.35 * columns, 1.6 * rows)
    for number, axes in enumerate(np.atleast_1d(made.subplots(rows, columns)).flat):
        axes.set_axis_off()
        if number < len(images):
            picture = images[number]
            shown = np.moveaxis(picture, 0, -1) if len(picture) == 3 else picture[0]
            low, high = shown.min(), shown.max()
            axes.imshow((shown - low) / max(high - low, 1e-6), cmap="gray", interpolation="nearest")
            axes.set_title(captions[number], fontsize=7)
    return made


def entropies(epochs: Sequence[int], health: Sequence[Sequence[Mapping[str, Any]]]) -> Figure:
    """Entropy of the couplings of each layer over the epochs, as a share of that of flat couplings."""
    layers = len(health[0])
    made = figure(3 * layers, 2.6)
    for number, axes in enumerate(np.atleast_1d(made.subplots(1, layers, sharey=True))):
        states = np.array([entry[number]["entropy"] for entry in health])
        flat = np.maximum(states[:, :1], 1e-12)
        for iteration in range(1, states.shape[1]):
            shade = 0.35 + 0.65 * iteration / max(states.shape[1] - 1, 1)
            axes.plot(
                epochs, states[:, iteration] / flat[:, 0], color=BLUE, alpha=shade, label=f"iteration {iteration}"
            )
        axes.set(title=f"capsule layer {number + 1}", xlabel="epoch")
        _tidy(axes)
        if states.shape[1] > 1:
            axes.legend(frameon=False, fontsize=7)
        if number == 0:
            axes.set_ylabel("coupling entropy / flat")
    return made


def learned_values(epochs: Sequence[int], health: Sequence[Sequence[Mapping[str, Any]]]) -> Figure | None:
    """What the routings learned: mean of each parameter over its channels, with the range as a band."""
    names = list(health[0][0]["learned"]) if health[0] else []
    if not names:
        return None
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    made = figure(2.4 * columns, 2.2 * rows)
    grid = np.atleast_1d(made.subplots(rows, columns)).flatten()
    for axes in grid[len(names) :]:
        axes.set_axis_off()
    for name, axes in zip(names, grid, strict=False):
        for number in range(len(health[0])):
            values = np.array([entry[number]["learned"][name] for entry in health])
            colour = f"C{number}"
            axes.plot(epochs, values[:, 1], color=colour, label=f"layer {number + 1}")
            axes.fill_between(epochs, values[:, 0], values[:, 2], color=colour, alpha=0.15, linewidth=0)
        axes.set(title=name, xlabel="epoch")
        _tidy(axes)
    grid[0].legend(frameon=False, fontsize=7)
    return made


def table_picture(header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> Figure:
    """A table; rows whose second cell is `capsroute` are set off."""
    lengths = np.array([[len(text) for text in line] for line in (header, *rows)]).max(axis=0) + 2
    made = figure(0.085 * lengths.sum() + 0.4, 0.27 * (len(rows) + 1) + 0.6)
    axes = made.subplots()
    axes.set_axis_off()
    drawn = axes.table(
        cellText=rows, colLabels=header, colWidths=list(lengths / lengths.sum()), cellLoc="left", loc="center"
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8.5)
    for (line, _), cell in drawn.get_celld().items():
        cell.set_edgecolor("#cbd5e0")
        if line == 0:
            cell.set_facecolor("#edf2f7")
        elif rows[line - 1][1] == "capsroute":
            cell.set_facecolor("#ebf8ff")
            cell.get_text().set_fontweight("bold")
    made.supxlabel(note, fontsize=7)
    return made
