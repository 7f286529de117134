"""The network with its real shapes and parameter counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from capsroute.analysis.tracing import capsule_network
from capsroute.figures import style
from capsroute.layers import CapsuleLayer, ConvCapsules2d
from capsroute.models import CapsNet, count_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Stage(NamedTuple):
    """One block of the drawing."""

    name: str
    detail: str
    space: tuple[int, ...]
    types: int
    pose: tuple[int, int] | None
    weights: int
    routing: int

    @property
    def shape(self) -> str:
        sides = " × ".join(str(n) for n in (*self.space, self.types))
        return sides if self.pose is None else f"{sides}\n× ({self.pose[0]} × {self.pose[1]} + 1)"


@torch.no_grad()
def stages(net: CapsNet) -> list[Stage]:
    """What each part of a network gives out, found by running it, and how many numbers it learns."""
    network = capsule_network(net).eval()
    convolutions = [module for module in network.stem if isinstance(module, torch.nn.Conv2d)]
    blank = torch.zeros(1, network.in_channels, *network.image_size)
    features = network.features(blank)
    caps = network.primary(features)
    found = [
        Stage("input", "", network.image_size, network.in_channels, None, 0, 0),
        Stage(
            "convolution",
            "\n".join([*(f"K={c.kernel_size[0]}, S={c.stride[0]}" for c in convolutions), "ReLU, batch norm"]),
            tuple(features.shape[2:]),
            features.shape[1],
            None,
            count_parameters(network.stem) + (count_parameters(network.disparity) if network.disparity else 0),
            0,
        ),
        _capsules("primary\ncapsules", "K=1, S=1", caps, count_parameters(network.primary), 0),
    ]
    for number, (norm, layer) in enumerate(zip(network.norms, network.layers, strict=True), 1):
        assert isinstance(layer, CapsuleLayer)
        caps = layer(norm(caps))
        weights = count_parameters(layer)
        routing = count_parameters(layer, routing=True) - weights
        if isinstance(layer, ConvCapsules2d):
            name, detail = f"convolutional\ncapsules {number}", f"K={layer.kernel_size[0]}, S={layer.stride[0]}"
        else:
            name, detail = "class\ncapsules", "listen to all"
        found.append(_capsules(name, detail, caps, weights, routing))
    return found


def _capsules(name: str, detail: str, caps: Any, weights: int, routing: int) -> Stage:
    shape = caps.poses.shape
    return Stage(name, detail, tuple(shape[1:-3]), shape[-3], (shape[-2], shape[-1]), weights, routing)


def draw_architecture(net: CapsNet, title: str = "") -> Figure:
    """Slabs as large as the layers they stand for, from the image to the class capsules."""
    blocks = stages(net)
    with style.styled():
        made = style.blank(style.PAGE, 2.75)
        axes = made.subplots()
        largest = max(blocks[0].space)
        for number, block in enumerate(blocks):
            _slab(axes, 1.0 * number, block, largest)
            if number:
                axes.annotate(
                    "",
                    (number - 0.36, 0.0),
                    (number - 0.56, 0.0),
                    arrowprops={"arrowstyle": "-|>", "lw": 0.8, "color": "black"},
                )
        total, routing = sum(b.weights for b in blocks), sum(b.routing for b in blocks)
        shared = count_parameters(net, routing=True) - count_parameters(net)
        summary = f"{total:,} weights, and {min(routing, shared):,} of the routing"
        axes.set_title(f"{title}: {summary}" if title else summary)
        axes.set(xlim=(-0.55, len(blocks) - 0.42), ylim=(-1.28, 0.64))
        axes.set_axis_off()
    return made


def _slab(axes: Any, x: float, block: Stage, largest: int) -> None:
    from matplotlib.patches import Rectangle

    # sides by the square root, so that small maps stay visible beside the image
    side = 0.62 * math.sqrt(max(block.space, default=1) / largest)
    sheets = min(1 + round(math.log2(block.types) * 1.5), 9)
    colour = style.SKY if block.pose is None else style.ORANGE
    step = 0.018
    for sheet in range(sheets):
        offset = step * (sheets - 1 - sheet - (sheets - 1) / 2)
        axes.add_patch(
            Rectangle(
                (x - side / 2 + offset, -side / 2 + 1.6 * offset), side, side, fc=colour, ec="black", lw=0.5, alpha=0.9
            )
        )
    text = {"ha": "center", "fontsize": 7}
    axes.text(x, 0.42, block.name, va="bottom", **text)
    axes.text(x, -0.47, block.shape, va="top", **text)
    axes.text(x, -0.75, block.detail, va="top", color=style.GREY, **{**text, "fontsize": 6.5})
    counts = f"{block.weights:,}" if block.weights else ""
    if block.routing:
        counts += f"\n+ {block.routing:,} routing"
    axes.text(x, -1.02, counts, va="top", color=style.BLUE, **{**text, "fontsize": 6.5})
