"""The paper's network (its architecture table), and the convolutional network it is compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsroute.capsules import Capsules
from capsroute.geometry import output_space
from capsroute.layers import CapsuleLayer, ConvCapsules2d, DenseCapsules, Fused, PrimaryCapsules, pose_shape
from capsroute.mirror import Mirror, TwinNorm, check_mirror, looks, twin
from capsroute.norms import BatchNorm2d, CapsuleBatchNorm, ClassNorm, PoseNorm, TypeBatchNorm
from capsroute.routing import LayerShape, Routing, RoutingFactory, by_name, resolve
from capsroute.routing.tiling import DEFAULT_BUDGET
from capsroute.stereo import Disparity
from capsroute.thinning import thin as leave
from capsroute.votes import Start

# The paper's settings for its three routed layers: "the deeper layers have more parameters".
PAPER_OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "similarity": ({"components": 4}, {"components": 4}, {"components": 10}),
    "connectionist": (
        {"f_hidden": (), "g_hidden": (), "units": 16},
        {"f_hidden": (32, 32), "g_hidden": (64, 64), "units": 16},
        {"f_hidden": (64, 64), "g_hidden": (124, 124), "units": 16},
    ),
}


PoseNormName = Literal["scale", "batch", "type"]
_BLOCK = 3  # modules for each convolution of the stem
SWITCHED_OFF = -16.0  # the logit of a dropped capsule: an activation of a ten-millionth


Kind = TypeVar("Kind", bound="Saved")  # not Self: shapes are checked function by function in tests


class Saved(nn.Module):
    """A network that can be written to a folder and read back; `config` are the arguments it was built with."""

    config: dict[str, Any]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors` into `folder`."""
        from capsroute.pretrained import save

        save(self, folder)

    @classmethod
    def from_pretrained(cls: type[Kind], name: str | Path, **overrides: Any) -> Kind:
        """The network saved in a folder, or one that ships with capsroute, by name."""
        from capsroute.pretrained import load

        net = load(name, **overrides)
        if not isinstance(net, cls):
            kind = type(net).__name__
            raise ValueError(f"{name} holds a {kind}, not a {cls.__name__}; {kind}.from_pretrained loads it")
        return net


class CapsNet(Saved):
    """The paper's network: convolution, primary capsules, convolutional capsules, class capsules.

    `net(images)` gives `Capsules` of the classes: activations and logits `[B, classes]`, poses `[B, classes, r, c]`.

    Args:
        routing: a name, a constructor's result, a `Routing`, or one of these for each capsule layer.
        routing_options: for a routing given by name; they go over the paper's own for each layer.
        image_size: side of the square images, or (height, width).
        stem: channels, kernel size and stride of the first convolution, or a list of these for several; all but the
            first are padded to keep the size at stride 1.
        stem_padding: of the first convolution; 2 gives the shapes of the paper's table, 0 its 86K weights.
        disparity: how many pixels, at most, one of two cameras' pictures is moved sideways to be compared with the
            other (`capsroute.stereo`); the second convolution hears of it. 0 leaves it out.
        mirror: half of the filters of the convolutions are mirror images of the other half (`capsroute.mirror`), and
            each image is looked at twice, the second time mirrored: class logits are the mean of both, poses those of
            the first. With "stereo" the cameras, which are the channels, change places in a mirror. In training there
            is one look; random flips show either side.
        primary: types of primary capsules.
        capsules: types, kernel size and stride of each convolutional capsule layer.
        coordinate_addition: class capsules share matrices between positions and are told where votes come from, by
            numbers from 0 to 1, or to the number given.
        shared_class_weights: share those matrices without (or with) coordinate addition.
        normalise: votes by W / ||W||_F (eq. 1).
        pose_norm: between layers, `scale` divides poses by their root mean square for each type; `batch` subtracts the
            mean of each pose element and logit and divides by its deviation; `type` has one mean and one deviation for
            all elements of a type's poses, and learned scales and shifts of the primary capsules (variational
            routing's).
        class_norm: the same of the class logits; goes with the bounded loss.
        capsule_dropout: share of the capsules that each layer does not hear of in training: their activation is zero.
        share_routing: one routing module for the whole network ("either for each layer or each network").
        faithful: nothing that the paper does not mention: no pose norm, weights start as noise, beta_3 at zero.
        decoder: hidden widths of a reconstruction network (Sabour et al. 2017), see `reconstruct`.
        thin: leave so many learned numbers at most, the largest; the others are zero (`capsroute.thinning`).
    """

    def __init__(
        self,
        routing: str | Routing | RoutingFactory | Sequence[str | Routing | RoutingFactory] = "similarity",
        *,
        image_size: int | Sequence[int] = 32,
        in_channels: int = 1,
        classes: int = 5,
        routing_options: Mapping[str, Any] | None = None,
        stem: Sequence[int] | Sequence[Sequence[int]] = (64, 5, 2),
        stem_padding: int = 0,
        disparity: int = 0,
        mirror: Mirror = False,
        primary: int = 8,
        capsules: Sequence[Sequence[int]] = ((16, 3, 2), (16, 3, 1)),
        pose: int | Sequence[int] = (4, 4),
        coordinate_addition: bool | float = False,
        shared_class_weights: bool | None = None,
        normalise: bool = True,
        pose_norm: PoseNormName | None = "scale",
        class_norm: bool = False,
        weight_start: Start = "identity",
        capsule_dropout: float = 0.0,
        share_routing: bool = False,
        faithful: bool = False,
        decoder: Sequence[int] = (),
        thin: int | None = None,
        fused: Fused = "auto",
        vote_budget: int | None = DEFAULT_BUDGET,
    ) -> None:
        super().__init__()
        self.config = {k: v for k, v in locals().items() if k not in ("self", "__class__", "fused", "vote_budget")}
        if classes < 1 or in_channels < 1:
            raise ValueError(f"classes={classes}, in_channels={in_channels}: a network needs at least one of each")
        if pose_norm not in ("scale", "batch", "type", None):
            raise ValueError(f"pose_norm={pose_norm!r}: choose 'scale', 'batch', 'type' or None")
        self.image_size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[1])
        self.in_channels, self.classes = in_channels, classes
        if not 0 <= capsule_dropout < 1:
            raise ValueError(f"capsule_dropout={capsule_dropout}: it is a share, from 0 to below 1")
        rows = _triples(stem)
        if disparity < 0 or (disparity and (in_channels != 2 or len(rows) < 2)):
            raise ValueError(
                f"disparity={disparity} with in_channels={in_channels} and {len(rows)} convolutions: it compares two "
                "cameras for the second convolution to hear of; pass both as channels, and a stem of several, or 0"
            )
        check_mirror(mirror, in_channels)
        if mirror and (disparity or any(out % 2 for out, _, _ in rows)):
            raise ValueError(
                f"mirror={mirror!r} with disparity={disparity} and stem={stem!r}: filters come in pairs, so their "
                "numbers are even, and disparity stays 0"
            )
        self.mirror = mirror
        self.pose = pose_shape(pose)
        self.capsule_dropout = capsule_dropout
        if faithful:
            pose_norm, weight_start = None, "noise"

        convolutions: list[nn.Module] = []
        space: tuple[int, ...] = self.image_size
        channels = in_channels
        self.disparity = Disparity(disparity, *rows[0][1:], stem_padding) if disparity else None
        for n, (out, kernel, stride) in enumerate(rows):
            padding = kernel // 2 if n else stem_padding
            if n == 1 and disparity:
                channels += 2 * disparity + 1
            convolutions += _block(channels, out, kernel, stride, padding, mirror, first=n == 0)
            space = output_space(space, (kernel,) * 2, (stride,) * 2, (padding,) * 2, (1, 1))
            channels = out
        self.stem = nn.Sequential(*convolutions)
        self.primary = PrimaryCapsules(channels, primary, pose=self.pose)
        shapes = _layer_shapes(space, primary, capsules, classes, self.pose)
        routings = _routings(routing, shapes, dict(routing_options or {}), share_routing, faithful)
        common: dict[str, Any] = {
            "pose": self.pose,
            "normalise": normalise,
            "weight_start": weight_start,
            "fused": fused,
            "vote_budget": vote_budget,
        }
        layers: list[CapsuleLayer] = []
        types = primary
        for (out, kernel, stride), chosen in zip(capsules, routings, strict=False):
            layer = ConvCapsules2d(types, out, kernel, stride, routing=chosen, **common)
            space, types = layer.output_space(space), out
            layers.append(layer)
        shared = bool(coordinate_addition) if shared_class_weights is None else shared_class_weights
        layers.append(
            DenseCapsules(
                types,
                classes,
                space=space,
                coordinate_addition=coordinate_addition,
                shared=shared,
                routing=routings[-1],
                **common,
            )
        )
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList([self._norm(pose_norm, layer.in_channels, n == 0) for n, layer in enumerate(layers)])
        self.class_norm = ClassNorm(classes) if class_norm else None
        self.decoder = Decoder(classes, self.pose, in_channels, self.image_size, decoder) if decoder else None
        if thin is not None:
            leave(self, thin)

    def _norm(self, kind: PoseNormName | None, types: int, first: bool) -> nn.Module:
        if kind == "batch":
            return CapsuleBatchNorm(types, self.pose)
        if kind == "type":
            return TypeBatchNorm(types, affine=first)
        return PoseNorm(types) if kind else nn.Identity()

    def primary_capsules(self, images: Float[Tensor, "B F H W"]) -> Capsules:
        """The capsules that the first routed layer sees, before their norm."""
        check_images(images, self.in_channels, self.image_size)
        caps: Capsules = self.primary(self.features(images))
        return caps

    def features(self, images: Float[Tensor, "B F H W"]) -> Float[Tensor, "B C h w"]:
        """What the convolutions make of images, before any capsule."""
        # capsules are channels last, and so their feature maps may as well be from the start
        images = images.contiguous(memory_format=torch.channels_last)
        if self.disparity is None:
            found: Tensor = self.stem(images)
            return found
        first = self.stem[:_BLOCK](images)
        rest: Tensor = self.stem[_BLOCK:](torch.cat([first, self.disparity(images)], 1))
        return rest

    def route(self, caps: Capsules) -> Capsules:
        """The class capsules, from primary capsules."""
        for norm, layer in zip(self.norms, self.layers, strict=True):
            if self.training and self.capsule_dropout:
                caps = _without_some(caps, self.capsule_dropout)
            caps = layer(caps, norm.scale(caps.poses)) if isinstance(norm, PoseNorm) else layer(norm(caps))
        return self.verdict(caps)

    def verdict(self, caps: Capsules) -> Capsules:
        """The class capsules as they leave the network, from those of the last layer."""
        if self.class_norm is None:
            return caps
        return Capsules.from_logits(caps.poses, self.class_norm(caps.logits))

    def forward(self, images: Float[Tensor, "B F H W"]) -> Capsules:
        return looks(self._look, images, False if self.training else self.mirror)

    def _look(self, images: Float[Tensor, "B F H W"]) -> Capsules:
        return self.route(self.primary_capsules(images))

    def reconstruct(self, caps: Capsules, labels: Tensor | None = None) -> Float[Tensor, "B F H W"]:
        """The image as one class capsule remembers it: that of `labels`, or of the most active class."""
        if self.decoder is None:
            raise ValueError("this network has no decoder; build it with decoder=(512, 1024)")
        if labels is None:
            # logits where there are any: activations may all have rounded to one
            labels = (caps.activations if caps.logits is None else caps.logits).argmax(1)
        drawn: Tensor = self.decoder(caps, labels)
        return drawn


def check_images(images: Tensor, in_channels: int, image_size: tuple[int, int]) -> None:
    """Refuse images that a network was not built for."""
    if images.dim() != 4 or tuple(images.shape[1:]) != (in_channels, *image_size):
        raise ValueError(
            f"images have shape {list(images.shape)}; this network takes [batch, {in_channels}, {image_size[0]}, "
            f"{image_size[1]}]; pass image_size= and in_channels= when building it"
        )


def _without_some(caps: Capsules, share: float) -> Capsules:
    """The same capsules, but that share of them, drawn anew, all but switched off."""
    assert caps.logits is not None
    kept = torch.rand_like(caps.logits) >= share
    return Capsules.from_logits(caps.poses, caps.logits.masked_fill(~kept, SWITCHED_OFF))


def _triples(stem: Sequence[Any]) -> list[tuple[int, int, int]]:
    """Channels, kernel size and stride of each convolution of the stem."""
    rows = [stem] if stem and not isinstance(stem[0], Sequence) else list(stem)
    if not rows or any(len(row) != 3 for row in rows):
        raise ValueError(f"stem={stem!r}: pass (channels, kernel size, stride), or a list of these")
    return [(row[0], row[1], row[2]) for row in rows]


def _layer_shapes(
    space: tuple[int, ...], types: int, capsules: Sequence[Sequence[int]], classes: int, pose: tuple[int, int]
) -> list[LayerShape]:
    shapes = []
    for out, kernel, stride in capsules:
        shapes.append(LayerShape(kernel * kernel * types, out, pose))
        space, types = output_space(space, (kernel,) * 2, (stride,) * 2, (0, 0), (1, 1)), out
    return [*shapes, LayerShape(space[0] * space[1] * types, classes, pose)]


def _routings(
    routing: str | Routing | RoutingFactory | Sequence[str | Routing | RoutingFactory],
    shapes: list[LayerShape],
    options: dict[str, Any],
    share: bool,
    faithful: bool,
) -> list[str | Routing | RoutingFactory]:
    """One routing for each layer; a name gets the paper's options for that layer."""
    if isinstance(routing, Sequence) and not isinstance(routing, str):
        if len(routing) != len(shapes):
            raise ValueError(f"{len(routing)} routings for {len(shapes)} capsule layers; pass one, or one for each")
        if share or options:
            raise ValueError("share_routing and routing_options go with one routing; a list already says all")
        return list(routing)
    chosen: list[str | Routing | RoutingFactory] = [routing] * len(shapes)
    if isinstance(routing, str):
        control = options.get("control", "similarity") if routing == "uniform" else routing
        plain = {"calibrate": False} if faithful and control == "similarity" else {}
        table = PAPER_OPTIONS.get(control, ({},))
        # networks of another depth: the class layer has the last entry, what is between repeats the one before it
        rows = [table[min(n, max(len(table) - 2, 0))] for n in range(len(shapes) - 1)] + [table[-1]]
        chosen = [by_name(routing, **{**plain, **row, **options}) for row in rows]
    elif options:
        raise ValueError("routing_options go with a routing given by name; pass them to the constructor instead")
    if share:
        # parameters for each output type have nothing to be shared by: one set serves all types
        chosen = [resolve(chosen[-1], shapes[0]._replace(outputs=1))] * len(shapes)
    return chosen


class Decoder(nn.Module):
    """Draws the image from the pose of one class capsule, the others masked (Sabour et al. 2017)."""

    def __init__(
        self, classes: int, pose: tuple[int, int], channels: int, size: tuple[int, int], hidden: Sequence[int]
    ) -> None:
        super().__init__()
        self.image = (channels, *size)
        widths = [classes * pose[0] * pose[1], *hidden]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(widths[-1], channels * size[0] * size[1]), nn.Sigmoid())

    def forward(self, caps: Capsules, labels: Tensor) -> Float[Tensor, "B F H W"]:
        chosen = torch.zeros_like(caps.activations).scatter(1, labels.reshape(len(labels), -1), 1.0)
        drawn: Tensor = self.net((caps.poses * chosen[..., None, None]).flatten(1))
        return drawn.reshape(-1, *self.image)


class ConvNet(Saved):
    """A plain convolutional network with about as many weights as the paper's, to compare with.

    Its output is `Capsules` whose poses are the class scores themselves, so that it trains by the same loop. For
    `mirror` see `CapsNet`.
    """

    def __init__(
        self,
        *,
        image_size: int | Sequence[int] = 32,
        in_channels: int = 1,
        classes: int = 5,
        parameters: int = 86_408,
        mirror: Mirror = False,
        class_norm: bool = False,
    ) -> None:
        super().__init__()
        self.config = {k: v for k, v in locals().items() if k not in ("self", "__class__")}
        self.image_size = (image_size, image_size) if isinstance(image_size, int) else (image_size[0], image_size[1])
        self.in_channels, self.classes = in_channels, classes
        check_mirror(mirror, in_channels)
        self.mirror = mirror
        widths = range(4, 1025, 2 if mirror else 1)
        width = min(widths, key=lambda w: abs(_count(w, in_channels, classes, bool(mirror)) - parameters))
        self.net = nn.Sequential(
            *_block(in_channels, width, 5, 2, 2, mirror, first=True),
            *_block(width, width, 3, 2, 1, mirror),
            *_block(width, 2 * width, 3, 1, 1, mirror),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )
        self.class_norm = ClassNorm(classes) if class_norm else None

    def forward(self, images: Float[Tensor, "B F H W"]) -> Capsules:
        return looks(self._look, images, False if self.training else self.mirror)

    def _look(self, images: Float[Tensor, "B F H W"]) -> Capsules:
        scores = self.net(images)
        if self.class_norm is not None:
            scores = self.class_norm(scores)
        return Capsules.from_logits(scores[..., None, None], scores)


def _block(
    inputs: int, outputs: int, kernel: int, stride: int, padding: int, mirror: Mirror, first: bool = False
) -> list[nn.Module]:
    """A convolution, rectified, and its norm; of a network's first one the inputs are cameras."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    if not mirror:
        return [convolution, nn.ReLU(), BatchNorm2d(outputs)]
    return [twin(convolution, swap=not first or mirror == "stereo"), nn.ReLU(), TwinNorm(outputs)]


def _count(width: int, inputs: int, classes: int, mirror: bool) -> int:
    convolutions = 25 * inputs * width + 9 * width * width + 9 * width * 2 * width
    features = convolutions + 3 * (width + width + 2 * width)
    return features // (2 if mirror else 1) + (8 * width + 1) * classes


def look_once(net: nn.Module) -> None:
    """From now on a network, or each of its lanes, looks at an image once, in half of the time."""
    for module in net.modules():
        if isinstance(module, (CapsNet, ConvNet)):
            module.mirror = False


def count_parameters(net: nn.Module, routing: bool = False) -> int:
    """Learned numbers of a network; those of its routings are left out, as in the paper, unless asked for."""
    excluded: set[int] = set()
    if not routing:
        routings = [module for module in net.modules() if isinstance(module, Routing)]
        excluded = {id(parameter) for module in routings for parameter in module.parameters()}
    return sum(p.numel() for p in net.parameters() if id(p) not in excluded)


def to_json(config: Mapping[str, Any]) -> str:
    """A network's configuration as JSON; a routing can be written down only by its name."""
    if not isinstance(config.get("routing", ""), str):
        raise ValueError("only networks whose routing is given by name can be saved; pass routing='...'")
    return json.dumps(dict(config), indent=2)
