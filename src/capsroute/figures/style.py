"""What all figures share: size, type, colours that colour-blind readers tell apart, and saving."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsroute.errors import CapsrouteError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.4, 7.0  # inches
SUFFIXES = (".png", ".svg", ".pdf")

# Okabe & Ito 2008
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#6E6E6E", "#EDEDED"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
HEAT, WHEEL = "viridis", "twilight"

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same letters everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "image.interpolation": "nearest",
    "mathtext.fontset": "dejavusans",
}
# letters stay letters in files, and the same figure gives the same file
_SAVE: Any = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "capsroute"}


class FigureError(CapsrouteError, ValueError):
    """A figure cannot be drawn or written as asked."""


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this style."""
    from cycler import cycler
    from matplotlib import rc_context

    chosen: Any = {**_RC, "axes.prop_cycle": cycler(color=CYCLE)}
    with rc_context(chosen):
        yield


def blank(width: float, height: float, gap: float | None = None) -> Figure:
    """A figure of so many inches that belongs to no window; `gap` inches lie between its parts."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    tight: dict[str, Any] = {} if gap is None else {"w_pad": gap, "h_pad": gap, "wspace": 0.0, "hspace": 0.0}
    made = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**tight))
    FigureCanvasAgg(made)
    return made


def check_output(path: Path) -> Path:
    """`path`, if a figure can be written there; asked before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        ending = f"ends in {path.suffix!r}" if path.suffix else "has no ending"
        raise FigureError(f"{path} {ending}; figures are written as {', '.join(SUFFIXES)}")
    return path


def save(drawn: Figure, path: Path) -> None:
    """Write a figure in the format that the file's name asks for."""
    from matplotlib import rc_context

    check_output(path)
    dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context(_SAVE):
            drawn.savefig(path, dpi=200, metadata=dated.get(path.suffix.lower()))
    except OSError as error:
        raise FigureError(f"{path} cannot be written ({error.strerror or error}); choose another -o") from error


def bare(axes: Any, *, frame: bool = True) -> None:
    """No ticks; a thin grey frame, or none."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=frame, color=GREY, linewidth=0.5)


def show_image(axes: Any, image: Any, **options: Any) -> None:
    """An image [C, H, W] as it is seen: three channels in colour, else the first in grey, from darkest to brightest."""
    import numpy as np

    shown = np.moveaxis(np.asarray(image), 0, -1) if len(image) == 3 else np.asarray(image)[0]
    low, high = float(shown.min()), float(shown.max())
    axes.imshow((shown - low) / max(high - low, 1e-6), cmap="gray", vmin=0, vmax=1, **options)
    bare(axes, frame=False)
