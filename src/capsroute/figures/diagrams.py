"""Two diagrams of the paper: routing applied convolutionally in one dimension, and the connectionist cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from capsroute.figures import style
from capsroute.layers import ConvCapsules1d
from capsroute.routing import LayerShape, connectionist
from capsroute.routing.connectionist import LSTMActivation, LSTMCompatibility

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_routing1d(length: int = 7, kernel_size: int = 3, stride: int = 2, padding: int = 0, types: int = 2) -> Figure:
    """Every line is an entry of the layer's own index table; lines of one colour share their matrices W."""
    layer = ConvCapsules1d(types, types, kernel_size, stride, padding, routing="uniform")
    (out,), field = layer._look((length,), torch.device("cpu"))
    places = torch.where(field.mask, field.index // types, -1).unflatten(1, (kernel_size, types))[..., 0]
    with style.styled():
        shown = range(-padding, length + padding)
        # names stand side by side
        width = min(style.PAGE, max(style.COLUMN, (0.8 if stride == 1 else 0.48) * len(shown)))
        made = style.blank(width, 0.55 + 4.3 * width / (len(shown) + 0.2))
        axes = made.subplots()
        # an output stands above the middle of its window
        centres = [p * stride - padding + (kernel_size - 1) / 2 for p in range(out)]
        for place in shown:
            _capsule_column(
                axes, place, 0.0, types, f"$P_{{{place}}}^{{\\,l}}, a_{{{place}}}^{{\\,l}}$", 0 <= place < length
            )
        for position, centre in enumerate(centres):
            for tap in range(kernel_size):
                inside = int(places[position, tap]) >= 0
                place = position * stride - padding + tap
                colour = style.CYCLE[tap % len(style.CYCLE)]
                axes.plot([place, centre], [0.34, 1.3], color=colour, lw=1.1, ls="-" if inside else ":", zorder=1)
            _box(axes, centre, 1.45, "routing")
            axes.annotate(
                "", (centre, 2.02), (centre, 1.62), arrowprops={"arrowstyle": "-|>", "lw": 0.8, "color": "black"}
            )
            name = f"$P_{{{position}}}^{{\\,l+1}}, a_{{{position}}}^{{\\,l+1}}$"
            _capsule_column(axes, centre, 2.36, types, name, True, above=True)
        for tap in range(kernel_size):
            axes.plot([], [], color=style.CYCLE[tap % len(style.CYCLE)], label=f"$W_{{{tap + 1}}}$")
        made.legend(
            loc="outside lower center", ncols=min(kernel_size, 6), title="votes by shared matrices", title_fontsize=7
        )
        axes.set(xlim=(shown[0] - 0.6, shown[-1] + 0.6), ylim=(-0.95, 3.35), aspect="equal")
        axes.set_axis_off()
    return made


def _capsule_column(axes: Any, x: float, y: float, types: int, name: str, real: bool, above: bool = False) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (x - 0.3, y - 0.27),
            0.6,
            0.54,
            boxstyle="round,pad=0.04",
            fc=style.PALE if real else "white",
            ec=style.GREY,
            lw=0.7,
            ls="-" if real else ":",
        )
    )
    for number in range(types):
        offset = 0.0 if types == 1 else 0.36 * (number / (types - 1) - 0.5)
        axes.add_patch(
            Circle((x + offset, y), 0.28 / max(types, 2), fc=style.SKY if real else "white", ec=style.GREY, lw=0.6)
        )
    axes.text(
        x,
        y + (0.4 if above else -0.4),
        name if real else "padding",
        ha="center",
        va="bottom" if above else "top",
        fontsize=6,
    )


def _box(axes: Any, x: float, y: float, text: str, **options: Any) -> None:
    style_of = {"boxstyle": "round,pad=0.35", "fc": "white", "ec": "black", "lw": 0.8, **options}
    axes.text(x, y, text, ha="center", va="center", fontsize=7, bbox=style_of, zorder=2)


def draw_lstm(
    pose: tuple[int, int] = (4, 4), units: int = 16, f_hidden: Any = (32, 32), g_hidden: Any = (64, 64)
) -> Figure:
    """The cell that follows one vote through the iterations, with the sizes of a routing built to order."""
    routing = connectionist(units=units, f_hidden=f_hidden, g_hidden=g_hidden)(LayerShape(2, 1, pose))
    compatibility, activation = routing.compatibility, routing.activation
    assert isinstance(compatibility, LSTMCompatibility)
    assert isinstance(activation, LSTMActivation)
    cell = compatibility.cell
    with style.styled():
        made = style.blank(style.COLUMN, 3.1)
        axes = made.subplots()
        axes.set(xlim=(-0.35, 10.35), ylim=(-0.2, 9.4), aspect="equal")
        axes.set_axis_off()
        _cell(axes, units)
        _cell_inputs(axes, pose[0] * pose[1], cell.input_size)
        _cell_outputs(axes, _widths(compatibility.score), _widths(activation.judge))
    return made


def _widths(network: torch.nn.Sequential) -> str:
    """Sizes of a perceptron's layers, such as 16-32-32-1."""
    linear = [module for module in network if isinstance(module, torch.nn.Linear)]
    return "–".join(str(n) for n in [linear[0].in_features, *(module.out_features for module in linear)])


def _wire(axes: Any, *points: tuple[float, float], arrow: bool = True, **options: Any) -> None:
    """A line through points, its end an arrow."""
    look = {"color": "black", "lw": 0.8, "zorder": 1, **options}
    axes.plot(*zip(*points, strict=True), solid_capstyle="round", **look)
    if arrow:
        head = {"arrowstyle": "-|>", "lw": look["lw"], "color": look["color"], "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", points[-1], points[-2], arrowprops=head, zorder=1)


def _knob(axes: Any, x: float, y: float, text: str, colour: str, radius: float = 0.3) -> None:
    """A pointwise operation."""
    from matplotlib.patches import Circle

    axes.add_patch(Circle((x, y), radius, fc=colour, ec="black", lw=0.7, zorder=2))
    axes.text(x, y - 0.01, text, ha="center", va="center", fontsize=7, zorder=3)


def _cell(axes: Any, units: int) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (1.55, 2.05), 6.9, 3.75, boxstyle="round,pad=0.15", fc="#F5F9FC", ec=style.BLUE, lw=0.9, zorder=0
        )
    )
    axes.text(8.45, 2.02, f"LSTM, {units} units", ha="right", va="bottom", fontsize=6, color=style.BLUE)
    bus, gates, line = 2.62, 3.4, 5.2
    _wire(axes, (0.75, line), (9.9, line), arrow=False)  # the cell state
    _wire(axes, (0.75, bus), (5.9, bus), arrow=False)
    for x in (2.6, 3.8, 4.8, 5.9):
        _wire(axes, (x, bus), (x, gates), arrow=False)
    _wire(axes, (2.6, gates), (2.6, line - 0.3))
    _wire(axes, (3.8, gates), (3.8, 4.3), (4.5, 4.3))
    _wire(axes, (4.8, gates), (4.8, 4.0))
    _wire(axes, (4.8, 4.6), (4.8, line - 0.3))
    _wire(axes, (5.9, gates), (5.9, 3.75), (6.9, 3.75))
    _wire(axes, (7.2, line), (7.2, 4.05))
    _wire(axes, (7.2, 3.45), (7.2, bus), (9.3, bus), arrow=False)
    for x, text in ((2.6, "σ"), (3.8, "σ"), (5.9, "σ")):
        _knob(axes, x, gates, text, style.YELLOW)
    _knob(axes, 4.8, gates, "tanh", style.YELLOW, 0.42)
    _knob(axes, 7.2, 4.55, "tanh", "#F7C6A3", 0.42)
    for x, y, text in ((2.6, line, "×"), (4.8, 4.3, "×"), (4.8, line, "+"), (7.2, 3.75, "×")):
        _knob(axes, x, y, text, "#F7C6A3", 0.26)
    axes.text(0.7, line, "$s_i^{t-1}$", ha="right", va="center")
    axes.text(0.7, bus, "$h_i^{t-1}$", ha="right", va="center")


def _cell_inputs(axes: Any, numbers: int, size: int) -> None:
    parts = (("$\\mu$", numbers), ("$c_i^{t-1}$", 1), ("$v_i$", numbers), ("$a_i$", 1))
    for x, (name, count) in zip((0.7, 1.9, 3.1, 4.3), parts, strict=True):
        _box(axes, x, 0.55, name, fc=style.PALE, ec=style.GREY)
        axes.text(x, -0.05, f"{count}", ha="center", va="center", fontsize=6, color=style.GREY)
        _wire(axes, (x, 0.9), (x, 1.3), arrow=False)
    _wire(axes, (0.7, 1.3), (4.3, 1.3), arrow=False)
    _wire(axes, (1.9, 1.3), (1.9, 2.6))
    axes.text(2.05, 1.62, f"$x_i^t$: concatenated, {size} numbers", ha="left", va="center", fontsize=6)


def _cell_outputs(axes: Any, scorer: str, judge: str) -> None:
    upper, lower = 8.55, 7.0
    _wire(axes, (9.3, 2.62), (9.3, lower), (8.55, lower))
    axes.text(9.25, 3.2, "$h_i^t$", ha="right", va="center")
    _wire(axes, (9.9, 5.2), (9.9, upper), (8.65, upper))
    axes.text(9.85, 5.6, "$s_i^t$", ha="right", va="center")
    _box(axes, 7.6, lower, "$f_\\theta$", fc="#D9EFE7")
    axes.text(7.6, lower - 0.62, scorer, ha="center", va="center", fontsize=6, color=style.GREY)
    _wire(axes, (6.95, lower), (6.1, lower))
    _box(axes, 4.9, lower, "softmax$_i$")
    _wire(axes, (3.75, lower), (2.75, lower))
    axes.text(2.4, lower, "$c_i^t$", ha="center", va="center")
    _box(axes, 7.6, upper, "$\\sum_i c_i^t s_i^t$")
    _wire(axes, (6.4, upper), (5.6, upper))
    _box(axes, 4.9, upper, "$g_\\beta$", fc="#D9EFE7")
    axes.text(4.9, upper + 0.62, judge, ha="center", va="center", fontsize=6, color=style.GREY)
    _wire(axes, (4.25, upper), (3.65, upper))
    _knob(axes, 3.3, upper, "σ", style.YELLOW)
    _wire(axes, (2.95, upper), (2.5, upper))
    axes.text(2.2, upper, "$p$", ha="center", va="center")
    loop: dict[str, Any] = {"color": style.VERMILION, "ls": "--", "lw": 0.8}
    _wire(axes, (2.05, lower), (-0.2, lower), (-0.2, 0.55), (0.2, 0.55), **loop)
    axes.text(
        -0.1,
        lower - 0.15,
        "next iteration:\n$\\mu = \\sum_i c_i^t v_i$",
        ha="left",
        va="top",
        fontsize=6,
        color=style.VERMILION,
    )
