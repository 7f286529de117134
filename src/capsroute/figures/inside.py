"""Figures of what happens inside a network: couplings, credit, and the class pose as the input changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from capsroute.analysis.crediting import Credit
from capsroute.analysis.equivariance import Equivariance, Path
from capsroute.analysis.tracing import LayerTrace
from capsroute.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def layer_name(number: int, layers: int) -> str:
    """What a routed layer is called, counted from 1."""
    return "class capsules" if number == layers else f"capsule layer {number}"


def draw_couplings(
    image: npt.NDArray[Any], traces: Sequence[LayerTrace], maps: Sequence[npt.NDArray[Any]], title: str
) -> Figure:
    """Rows are layers, columns iterations: where the capsules behind the class listened.

    `maps[l]` [T, *space] of one image; colours count the mean over positions as 1. The first column shows where these
    capsules look while they listen evenly.
    """
    steps = max(len(m) for m in maps)
    with style.styled():
        made = style.blank(style.PAGE, 0.4 + 1.45 * len(maps))
        made.suptitle(title, fontsize=8)
        grid = made.subplots(len(maps), steps + 1, squeeze=False)
        for number, (axes_row, layer, shown) in enumerate(zip(grid, traces, maps, strict=True), 1):
            for axes in axes_row:
                axes.set_axis_off()
            scaled = shown * shown[0].size
            high = max(float(scaled.max()), 1.5)
            for step, (axes, values) in enumerate(zip(axes_row[1:], scaled, strict=False)):
                axes.set_axis_on()
                drawn = axes.imshow(_plane(values), cmap=style.HEAT, vmin=0, vmax=high)
                style.bare(axes, frame=False)
                weight = layer.activations[-1, 0] / max(float(layer.activations[-1, 0].sum()), 1e-12)
                entropy = float((layer.entropy[step, 0] * weight).sum())
                axes.set_xlabel(f"evenness {entropy:.3f}", fontsize=7)
                if number == 1:
                    axes.set_title("flat" if step == 0 else f"iteration {step}")
                if step == 0:
                    axes.set_ylabel(layer_name(number, len(maps)))
            bar = made.colorbar(drawn, ax=axes_row[1:].tolist(), shrink=0.75, pad=0.01)
            bar.set_label("listening, × mean", fontsize=7)
            bar.outline.set_visible(False)
        style.show_image(grid[0, 0], image)
        grid[0, 0].set_axis_on()
    return made


def _plane(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A map as something two-dimensional."""
    return values if values.ndim == 2 else values.reshape(1, -1) if values.ndim < 2 else values.sum(0)


def draw_credit(
    image: npt.NDArray[Any],
    given: Credit,
    shares: Sequence[float],
    credited: npt.NDArray[Any],
    by_chance: npt.NDArray[Any],
    title: str,
    count: int,
) -> Figure:
    """The image, the class's credit from its own inputs down to the pixels, and what hiding pixels does to the class.

    `credited` and `by_chance` [shares, n] are over n = `count` images, this one first.
    """
    with style.styled():
        made = style.blank(style.PAGE, 1.95)
        made.suptitle(title, fontsize=8)
        panels = 2 + len(given.layers)
        grid = made.subplots(1, panels + 1, width_ratios=[1] * panels + [1.5])
        style.show_image(grid[0], image)
        grid[0].set_title("image")
        overlay(grid[-2], image, given.pixels[0])
        grid[-2].set_title("pixels")
        for number, (axes, layer) in enumerate(zip(grid[1:-2], reversed(given.layers), strict=True)):
            axes.imshow(_plane(layer[0].sum(-1)), cmap="magma", vmin=0)
            style.bare(axes, frame=False)
            source = len(given.layers) - 1 - number
            axes.set_title("primary capsules" if source == 0 else layer_name(source, len(given.layers)))
        axes = grid[-1]
        per_cent = 100 * np.asarray(shares)
        for values, colour, name in ((credited, style.VERMILION, "most credited"), (by_chance, style.BLUE, "random")):
            axes.plot(per_cent, values.mean(1), color=colour, label=name)
            axes.plot(per_cent, values[:, 0], color=colour, ls=":", lw=0.9)
        axes.plot([], [], ":", color=style.GREY, label="this image")
        axes.set(xlabel="hidden pixels (%)", ylabel="class score", ylim=(0, 1.02))
        axes.set_title(f"mean of {count} images")
        axes.legend()
    return made


def overlay(axes: Any, image: npt.NDArray[Any], pixels: npt.NDArray[Any]) -> None:
    """Credit in colour over the image in grey; no credit, no colour."""
    style.show_image(axes, image[:1] if len(image) != 3 else image)
    strength = np.sqrt(pixels / max(float(pixels.max()), 1e-12))
    axes.imshow(strength, cmap="magma", vmin=0, vmax=1, alpha=np.clip(0.15 + 0.85 * strength, 0, 1))


def draw_poses(
    frames: npt.NDArray[Any], path: Path, measured: Equivariance, name: str, unit: str, periodic: bool, title: str
) -> Figure:
    """Frames of one object; its pose's way through pose space beside those of others; class scores; the measures.

    `frames` [T, C, H, W] are of the first object of the path.
    """
    cmap = style.WHEEL if periodic else style.HEAT
    with style.styled():
        made = style.blank(style.PAGE, 3.6)
        made.suptitle(title, fontsize=8)
        top, bottom = made.subfigures(2, 1, height_ratios=[1, 2.6], squeeze=False)[:, 0]
        shown = np.unique(np.linspace(0, len(frames) - 1, 9).round().astype(int))
        for axes, step in zip(top.subplots(1, len(shown)), shown, strict=True):
            style.show_image(axes, frames[step])
            axes.set_xlabel(f"{path.values[step]:g}{unit}", fontsize=7)
        ways, active, text = bottom.subplots(1, 3, width_ratios=[1.3, 1.1, 0.9])
        _ways(ways, path, cmap, name, unit, bottom)
        mean, spread = path.scores.mean(1), path.scores.std(1)
        active.fill_between(path.values, mean - spread, mean + spread, color=style.SKY, alpha=0.3, lw=0)
        active.plot(path.values, mean, color=style.BLUE, label="class score")
        active.plot(path.values, path.won.mean(1), "--", color=style.VERMILION, label="share won")
        active.set(xlabel=f"{name} ({unit})" if unit else name, ylim=(0, 1.03), title="presence: should stay")
        active.legend(loc="lower center")
        text.set_axis_off()
        text.set_title("measured", loc="left")
        lines = (
            ("pose moves by", f"{100 * measured.moved:.0f} % of its length"),
            ("one matrix a step explains", f"{100 * measured.carried:.0f} % of the movement"),
            (f"{name} read off the pose", f"$R^2$ = {measured.readout:.2f}"),
            ("class score stays", f"to within {1 - measured.steady:.3f}"),
            ("class still wins at", f"{100 * measured.won:.0f} % of steps"),
        )
        for row, (what, value) in enumerate(lines):
            text.text(0.0, 0.95 - 0.2 * row, what, color=style.GREY, va="top", transform=text.transAxes, fontsize=7)
            text.text(0.0, 0.87 - 0.2 * row, value, va="top", transform=text.transAxes, fontsize=8)
    return made


def _ways(axes: Any, path: Path, cmap: str, name: str, unit: str, figure: Any) -> None:
    """Poses in the plane of their two main directions of movement, one line for each object."""
    flat = path.poses.reshape(*path.poses.shape[:2], -1).astype(np.float64)
    moved = flat - flat.mean(0)
    directions = np.linalg.svd(moved.reshape(-1, flat.shape[2]), full_matrices=False)[2][:2]
    seen = moved @ directions.T
    for number in range(min(seen.shape[1], 12)):
        first = number == 0
        axes.plot(
            *seen[:, number].T,
            color="black" if first else style.GREY,
            lw=1.0 if first else 0.4,
            zorder=2 if first else 1,
        )
        dots = axes.scatter(
            *seen[:, number].T, c=path.values, cmap=cmap, s=18 if first else 4, zorder=3 if first else 1
        )
    axes.set(xlabel="1st direction", ylabel="2nd direction", title="class pose: should move")
    axes.set(xticks=[], yticks=[])
    figure.colorbar(dots, ax=axes, label=f"{name} ({unit})" if unit else name, shrink=0.8)
