"""The clustering figure: optimal couplings over a grid of λ₁ and λ₂, and the votes' activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capsroute.analysis.toy import Consensus, Toy
from capsroute.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAT_AREA = 9.0  # square points of a bubble that has its equal share


def draw_toy(
    toy: Toy, lambda1: Sequence[float], lambda2: Sequence[float], found: Mapping[tuple[float, float], Consensus]
) -> Figure:
    """`found[l1, l2]` for each pair: couplings as the areas of blue bubbles, the output pose as a yellow one."""
    with style.styled():
        rows, columns = len(lambda1), len(lambda2)
        made = style.blank(style.PAGE, 0.45 + 4.2 * rows / columns)
        left, right = made.subfigures(1, 2, width_ratios=[1.65, 1], squeeze=False)[0]
        left.suptitle("(a) optimal couplings $C$ and output pose $\\mu$")
        grid = left.subplots(rows, columns, squeeze=False)
        for axes_row, first in zip(grid, lambda1, strict=True):
            for axes, second in zip(axes_row, lambda2, strict=True):
                state = found[first, second]
                _bubbles(axes, toy, state.couplings[-1], style.BLUE)
                axes.plot(*state.poses[-1], "o", ms=7, mfc=style.YELLOW, mec="black", mew=0.8, zorder=3)
            axes_row[0].set_ylabel(f"$\\lambda_1 = {first:g}$")
        for axes, second in zip(grid[-1], lambda2, strict=True):
            axes.set_xlabel(f"$\\lambda_2 = {second:g}$")
        right.suptitle("(b) activations")
        axes = right.subplots()
        _bubbles(axes, toy, toy.activations, style.GREEN, spread=2.2)
    return made


def _bubbles(axes: Any, toy: Toy, weights: Any, colour: str, spread: float = 1.0) -> None:
    area = FLAT_AREA * spread * len(weights) * weights
    axes.scatter(*toy.votes.T, s=area, c=colour, alpha=0.55, linewidths=0.3, edgecolors="white")
    axes.plot(0, 0, "+", color="black", ms=5, mew=0.8)  # cosine similarity is seen from here
    seen = np.vstack([toy.votes, [0.0, 0.0]])
    middle, reach = (seen.min(0) + seen.max(0)) / 2, 0.58 * np.ptp(seen, axis=0).max()
    axes.set(xlim=(middle[0] - reach, middle[0] + reach), ylim=(middle[1] - reach, middle[1] + reach), aspect="equal")
    style.bare(axes)
