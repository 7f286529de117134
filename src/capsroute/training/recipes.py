"""The paper's experiments and ours, by name: `<data set>-<routing>`, each a function that returns one `Config`.

The paper's protocol is what `Config` starts from: three iterations, Adam at 3e-3 with exponential decay, 100 epochs, a
tenth of the training set for validation, parameters recorded from the tenth epoch on.

`<data set>-<routing>-deep` is what did best in short runs (docs/experiments.md): convolutions before fewer capsules,
images turned and stretched, 20 epochs (40 on smallNORB). `<data set>-cnn-deep` has no capsules and is trained likewise.
`smallnorb-<routing>-fine` is the same on images as they were taken, 96 x 96, with one more convolution before and toys
joined from two, 30 epochs. `smallnorb-<routing>-deep-bounded` has another loss, bounded, of class logits that are
normed, without mixup; and images are not standardised one by one. `smallnorb-<routing>-disparity` is the deep one with
maps of how alike the two cameras' pictures are, one moved sideways; `smallnorb-<routing>-drawn` the deep one trained on
toys drawn by a program as well (`benchmarks/draw_toys.py`). `smallnorb-<routing>-stiff` is the deep one that leaves
cars and trucks in their proportions (`smallnorb-cnn-stiff`: without capsules), `-fine-stiff` the fine one that does;
`smallnorb-<routing>-whole` does so too, sees images of 96 x 96 whole, moved far, and has two more convolutions, 25
epochs. `smallnorb-<routing>-cut` is the stiff one with CutMix in half of the batches, `-fine-cut` the fine one with
both and without joined toys, `-whole-cut` the whole one with CutMix, 40 epochs each; `-fine-cut-drawn` is `-fine-cut`
trained on drawn toys as well. `smallnorb-similarity-taught` is
two networks side by side that learn what four of these, as they ship with capsroute, say together of toys mixed, bent
and joined beyond what their labels allow for; it begins with `-fine-cut`. `smallnorb-similarity-thin` is those four
side by side, two thirds of their weights left out, each of which learns to say what it said before, also of drawn toys;
`smallnorb-similarity-thin-drawn` has `-fine-cut-drawn` in the place of one of them. In `smallnorb-<routing>-cut-mirror`
and `-fine-cut-mirror` half of the filters are mirror images of the other half, and the network looks twice;
`smallnorb-similarity-pair` is one of each side by side, `smallnorb-similarity-thin-mirror` two of each, as they ship
with capsroute, half of their weights left out.
`smallnorb-<routing>-crops` is the paper's trunk trained as published networks were: long, batch norm throughout, that
loss, and of random changes crops alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from capsroute.training.config import (
    Config,
    ConfigError,
    DataConfig,
    LossConfig,
    OptimizerConfig,
    ScheduleConfig,
    nearest,
)

DATA: dict[str, DataConfig] = {
    "digits": DataConfig("digits", transform={"shift": 1}),
    "mnist": DataConfig("mnist"),
    "fashion-mnist": DataConfig("fashion-mnist"),
    "smallnorb": DataConfig("smallnorb", cameras="stereo"),
    "smallnorb-mono": DataConfig("smallnorb", cameras="left"),
    "affnist": DataConfig("affnist"),
    "multimnist": DataConfig("multimnist"),
}
ROUTINGS = ("similarity", "connectionist", "em", "variational", "dynamic", "entropy", "uniform")
DRAWN = "drawn-toys.npz"  # in the current folder
DRAWN_FINE = "drawn-toys-96.npz"

# The paper's network sees 32 x 32 pixels; 8 x 8 digits get one convolutional capsule layer and a stem without stride.
SMALL: dict[str, Any] = {"stem": [32, 5, 1], "stem_padding": 1, "primary": 4, "capsules": [[8, 3, 2]]}
# The authors' three iterations and inverse temperature of 0.01 stay at chance for many epochs (docs/experiments.md).
EM: dict[str, Any] = {
    "routing_options": {"iterations": 2, "inverse_temperature": 0.05},
    "coordinate_addition": True,
}
# The authors' norms, start and coordinates: the prior knows how large votes are, and class logits hardly differ before
# they are normed.
VARIATIONAL: dict[str, Any] = {
    "coordinate_addition": 0.1,
    "normalise": False,
    "pose_norm": "type",
    "class_norm": True,
    "weight_start": "small",
}
# Four convolutions to a quarter of the image's side, then few capsules: a third of the paper's votes.
DEEP: dict[str, Any] = {
    "stem": [[32, 5, 2], [32, 3, 1], [48, 3, 2], [64, 3, 1]],
    "primary": 4,
    "capsules": [[8, 3, 1]],
    "coordinate_addition": True,
}
# Of images twice as wide: a convolution with few channels halves them first.
FINE: dict[str, Any] = {**DEEP, "stem": [[16, 5, 2], [32, 3, 2], [32, 3, 1], [48, 3, 2], [64, 3, 1]]}
WHOLE: dict[str, Any] = {
    **DEEP,
    "stem": [[16, 5, 2], [32, 3, 1], [32, 3, 1], [48, 3, 2], [48, 3, 1], [64, 3, 2]],
}
# The fine network, and beside it a narrow one that sees half of the pixels: 99K weights together.
TAUGHT: dict[str, Any] = {
    **FINE,
    "network": "LaneNet",
    "lanes": [
        {},
        {
            "view": [80, 2],
            "stem": [[16, 5, 2], [24, 3, 1], [32, 3, 2], [44, 3, 1]],
            "routing_options": {"iterations": 1},
        },
    ],
}
# All shipped networks that leave cars and trucks in their proportions; views are in pixels of 80 x 80 windows.
TEACHERS: dict[str, Any] = {
    "smallnorb-similarity-stiff": [80, 2],
    "smallnorb-similarity-cut": [80, 2],
    "smallnorb-similarity-fine-cut": [80],
    "smallnorb-similarity-whole": [96],
}
# The same networks, of 99K weights together; views are in pixels of whole images.
THIN: dict[str, Any] = {
    **DEEP,
    "network": "LaneNet",
    "average": "shares",
    "lanes": [
        {"view": [80, 2], "thin": 22_000},
        {"view": [80, 2], "thin": 22_000},
        {"view": [80], "stem": FINE["stem"], "thin": 25_000},
        {"view": [96], "stem": WHOLE["stem"], "thin": 30_000},
    ],
}
# Instead of the one without CutMix, whose twin has it, one that has seen drawn toys.
DRAWN_TEACHERS: dict[str, Any] = {
    "smallnorb-similarity-fine-cut-drawn": [80],
    **{name: view for name, view in TEACHERS.items() if name != "smallnorb-similarity-stiff"},
}
THIN_DRAWN: dict[str, Any] = {
    **THIN,
    "lanes": [{"view": [80], "stem": FINE["stem"], "thin": 22_000}, *THIN["lanes"][1:]],
}
# Filters and their mirror images: a quarter more of both, with a fifth fewer weights.
MIRROR: dict[str, Any] = {**DEEP, "mirror": "stereo", "stem": [[40, 5, 2], [40, 3, 1], [56, 3, 2], [72, 3, 1]]}
FINE_MIRROR: dict[str, Any] = {**MIRROR, "stem": [[20, 5, 2], [40, 3, 2], [40, 3, 1], [56, 3, 2], [72, 3, 1]]}
# One such that sees all pixels, and beside it one that sees half of them: 97K weights together.
PAIR: dict[str, Any] = {
    **MIRROR,
    "network": "LaneNet",
    "average": "shares",
    "lanes": [{"stem": FINE_MIRROR["stem"]}, {"view": [80, 2]}],
}
# Two seeds of each of these, with half of their weights: 99K together. Views are in pixels of 80 x 80 windows.
MIRROR_TEACHERS: dict[str, Any] = {
    "smallnorb-similarity-cut-mirror": [80, 2],
    "smallnorb-similarity-cut-mirror-1": [80, 2],
    "smallnorb-similarity-fine-cut-mirror": [80],
    "smallnorb-similarity-fine-cut-mirror-1": [80],
}
THIN_MIRROR: dict[str, Any] = {
    **PAIR,
    "lanes": [
        *[{"view": [80, 2], "thin": 23_500}] * 2,
        *[{"stem": FINE_MIRROR["stem"], "thin": 26_000}] * 2,
    ],
}
DISPARITY: dict[str, Any] = {**DEEP, "disparity": 6}
DEEP_CNN: dict[str, Any] = {"parameters": 62_000}
MIRROR_CNN: dict[str, Any] = {"parameters": 47_000, "mirror": "stereo"}
# What new toys need: other shapes and other light of the known ones, and to be seen whole.
_TOYS: dict[str, Any] = {
    "crop": 40,
    "standardise": "crop",
    "brightness": 0,
    "contrast": 0,
    "rotation": 20,
    "scale": 0.2,
    "shear": 0.2,
    "stretch": 0.3,
    "bend": 6,
    "curve": 0.5,
    "noise": 0.3,
    "soften": 0.7,
    "fill": "edge",
}
_FINE_TOYS: dict[str, Any] = {"crop": 80, "bend": 12, "soften": 1.0, "chimera": 0.5}
_STIFF: dict[str, Any] = {"pliancy": [1, 1, 1, 0, 0]}
_WHOLE_TOYS: dict[str, Any] = {
    **_FINE_TOYS,
    **_STIFF,
    "crop": 96,
    "shift": 16,
    "rotation": 10,
    "scale": 0.1,
    "chimera": 0,
}
_THIN_TOYS: dict[str, Any] = {**_FINE_TOYS, "crop": 96, "shift": 8}
_DIGITS: dict[str, Any] = {"shift": 2, "rotation": 10, "scale": 0.1, "shear": 0.1}
MAPS: dict[str, dict[str, Any]] = {
    "mnist": _DIGITS,
    "fashion-mnist": {"shift": 2, "flip": True},
    "smallnorb": {**_TOYS, "flip": "stereo"},
    "smallnorb-mono": _TOYS,
}


class Variant(NamedTuple):
    """What follows the routing in a recipe's name: a trunk, and what is changed after that, in order."""

    trunk: Mapping[str, Any]
    changes: tuple[Callable[[Config], Config], ...] = ()
    routings: tuple[str, ...] = ROUTINGS
    data: tuple[str, ...] = ("smallnorb", "smallnorb-mono")


def _recipe(data: str, kind: str) -> Config:
    """Data set defaults and routing defaults, and what the variant makes of them."""
    routing, _, name = kind.partition("-")
    variant = VARIANTS[name]
    model: dict[str, Any] = {"network": "CapsNet", "routing": routing, **variant.trunk}
    loss = LossConfig()
    if routing == "cnn":
        model = {"network": "ConvNet", **(DEEP_CNN if variant.trunk else {})}
        if "mirror" in variant.trunk:
            model |= MIRROR_CNN
    elif data == "digits":
        model |= SMALL
    if routing == "connectionist" and variant.trunk:
        model["capsules"] = [[8, 3, 2]]  # an LSTM for each vote: at every second place, for time
    if routing == "em":
        model |= EM
        if data != "multimnist" and not variant.trunk:  # the spread loss knows one label alone
            loss = LossConfig("spread")
    if routing == "variational":
        model |= VARIATIONAL
    if data == "multimnist" and routing != "cnn":
        loss = LossConfig("margin")
    config = Config(recipe=f"{data}-{kind}", data=DATA[data], model=model, loss=loss)
    if variant.trunk:
        config = _deep(config, MAPS.get(data, {}))
    for change in variant.changes:
        config = change(config)
    return _small(config) if data == "digits" else config


def _deep(config: Config, maps: Mapping[str, Any]) -> Config:
    """A run of half an hour to an hour on one core."""
    config = replace(
        config,
        data=replace(config.data, transform={**config.data.transform, **maps}),
        schedule=ScheduleConfig("cosine"),
        epochs=20,
        ema=0.999,
        record_from=1,
    )
    return _for_new_toys(config) if config.data.name == "smallnorb" else config


def _for_new_toys(config: Config) -> Config:
    """Five toys a class are soon known by heart: what keeps a network from it.

    Validation on their other views soon has no error left to choose by, while new toys gain until the rate has fallen
    to zero (docs/experiments.md): the last parameters are the ones.
    """
    model = config.model if config.model["network"] == "ConvNet" else {"pose_norm": "batch", **config.model}
    return replace(
        config,
        model=model,
        loss=replace(config.loss, mixup=1.0),
        optimizer=OptimizerConfig("adamw", weight_decay=0.05),
        epochs=40,
        record_from=40,
    )


def _fine(config: Config, maps: Mapping[str, Any] = _FINE_TOYS, epochs: int = 30) -> Config:
    """All pixels of smallNORB, and what is counted in pixels doubled."""
    fine = replace(config.data, options={"side": 96}, transform={**config.data.transform, **maps})
    return replace(config, data=fine, epochs=epochs, record_from=epochs)


def _stiff(config: Config) -> Config:
    """A bent animal, human or airplane is one; a car made taller may be a truck."""
    return replace(config, data=replace(config.data, transform={**config.data.transform, **_STIFF}))


def _cut(config: Config) -> Config:
    """Half of the batches are patched rather than blended: a part must tell its class without the rest of the toy.

    It takes longer to learn. Toys are not joined besides.
    """
    single = {name: value for name, value in config.data.transform.items() if name != "chimera"}
    return replace(
        config,
        data=replace(config.data, transform=single),
        loss=replace(config.loss, mixup=0.5, cutmix=0.5),
        epochs=40,
        record_from=40,
    )


def _taught(config: Config) -> Config:
    """Teachers have an answer for toys of every shape, so all classes are bent, and toys joined."""
    return replace(
        config,
        loss=replace(config.loss, mixup=0.5, cutmix=0.5, teachers=TEACHERS),
        optimizer=replace(config.optimizer, lr=2e-3),
        schedule=replace(config.schedule, warmup=0.5),
        start="smallnorb-similarity-fine-cut",
    )


def _drawn(config: Config, file: str = DRAWN) -> Config:
    return replace(config, data=replace(config.data, extra=file))


def _drawn_fine(config: Config) -> Config:
    """Ten thousand drawn toys beside the real ones: fewer epochs, so that there are as many steps as without."""
    return replace(_drawn(config, DRAWN_FINE), epochs=27, record_from=27)


def _thinned(config: Config) -> Config:
    """Each network is its own teacher and start, and is shown toys of many more shapes than five a class have."""
    return replace(
        config,
        data=replace(config.data, extra=DRAWN_FINE),
        loss=replace(config.loss, apart=True),
        optimizer=OptimizerConfig(),
        start=tuple(TEACHERS),
    )


def _thinned_drawn(config: Config) -> Config:
    """Three of the four are thinned already, so half as many epochs do."""
    fresh, *others = DRAWN_TEACHERS
    return replace(
        config,
        loss=replace(config.loss, teachers=DRAWN_TEACHERS),
        start=(fresh, *["smallnorb-similarity-thin"] * len(others)),
        epochs=5,
        record_from=5,
    )


def _thinned_mirror(config: Config) -> Config:
    teachers = replace(config.loss, teachers=MIRROR_TEACHERS)
    return replace(config, loss=teachers, start=tuple(MIRROR_TEACHERS))


def _bounded(config: Config) -> Config:
    """Views of a class made alike, rather than each far from other classes; that does mixup's work, and better.

    And pixels as bright as they are: standardised by fixed numbers, about those of all training images.
    """
    light = {"standardise": "fixed", "mean": [0.754], "std": [0.174]}
    return replace(
        config,
        data=replace(config.data, transform={**config.data.transform, **light}),
        model={**config.model, "class_norm": True},
        loss=LossConfig("bounded"),
    )


def _crops(config: Config) -> Config:
    """Trunk, preparation, norms and loss of De Sousa Ribeiro et al. (2020); rate, schedule and average are ours."""
    model: dict[str, Any] = {
        "coordinate_addition": True,
        "normalise": False,
        "pose_norm": "batch",
        "class_norm": True,
        **config.model,
    }
    if model["routing"] == "em":
        model["routing_options"] = {**EM["routing_options"], "competition": "window"}
    plain = {"crop": 32, "standardise": "crop", "brightness": 0, "contrast": 0}
    return replace(
        config,
        data=replace(config.data, transform={**config.data.transform, **plain}),
        model=model,
        loss=LossConfig("bounded"),
        schedule=ScheduleConfig("cosine"),
        epochs=100,
        ema=0.999,
        record_from=100,
    )


def _small(config: Config) -> Config:
    """A run of a minute or two, for a first look; the rate and its schedule were chosen on the validation split."""
    model = {**config.model, "parameters": 13_000} if config.model["network"] == "ConvNet" else config.model
    smooth = replace(config.loss, smoothing=0.1) if config.loss.name == "cross_entropy" else config.loss
    return replace(
        config,
        model=model,
        loss=smooth,
        optimizer=OptimizerConfig(lr=2e-2),
        schedule=ScheduleConfig("cosine", warmup=1.0),
        epochs=30,
        batch_size=32,
        ema=0.98,
    )


_ALL = (*ROUTINGS, "cnn")
_STEREO = ("smallnorb",)  # one camera is not enough
_whole = partial(_fine, maps=_WHOLE_TOYS, epochs=25)
_THINNING = (partial(_fine, maps=_THIN_TOYS, epochs=10), _taught, _thinned)
VARIANTS: dict[str, Variant] = {
    "": Variant({}, routings=_ALL, data=tuple(DATA)),
    "deep": Variant(DEEP, routings=_ALL, data=tuple(name for name in DATA if name != "digits")),  # they have no room
    "fine": Variant(FINE, (_fine,)),
    "deep-bounded": Variant(DEEP, (_bounded,), _ALL),
    "crops": Variant({}, (_crops,)),
    "disparity": Variant(DISPARITY, data=_STEREO),
    "drawn": Variant(DEEP, (_drawn,), data=_STEREO),
    "stiff": Variant(DEEP, (_stiff,), _ALL),
    "fine-stiff": Variant(FINE, (_fine, _stiff)),
    "whole": Variant(WHOLE, (_whole,)),
    "cut": Variant(DEEP, (_stiff, _cut), _ALL),
    "fine-cut": Variant(FINE, (_fine, _stiff, _cut)),
    "cut-mirror": Variant(MIRROR, (_stiff, _cut), _ALL, _STEREO),
    "fine-cut-mirror": Variant(FINE_MIRROR, (_fine, _stiff, _cut), data=_STEREO),
    "pair": Variant(PAIR, (_fine, _stiff, _cut), ("similarity",), _STEREO),
    "thin-mirror": Variant(
        THIN_MIRROR, (partial(_fine, epochs=10), _taught, _thinned, _thinned_mirror), ("similarity",), _STEREO
    ),
    "fine-cut-drawn": Variant(FINE, (_fine, _stiff, _cut, _drawn_fine), data=_STEREO),
    "whole-cut": Variant(WHOLE, (_whole, _cut)),
    "taught": Variant(TAUGHT, (partial(_fine, epochs=24), _taught), ("similarity",), _STEREO),
    "thin": Variant(THIN, _THINNING, ("similarity",), _STEREO),
    "thin-drawn": Variant(THIN_DRAWN, (*_THINNING, _thinned_drawn), ("similarity",), _STEREO),
}
RECIPES: dict[str, partial[Config]] = {
    f"{data}-{kind}": partial(_recipe, data, kind)
    for data in DATA
    for name, variant in VARIANTS.items()
    if data in variant.data
    for kind in (f"{routing}-{name}" if name else routing for routing in variant.routings)
}
DEFAULT = "digits-similarity"


def kind_of(name: str) -> str | None:
    """What follows the data set in a recipe's name: `similarity` of `smallnorb-mono-similarity`."""
    return RECIPES[name].args[1] if name in RECIPES else None


def recipe(name: str = DEFAULT, **values: Any) -> Config:
    """The configuration of that name, with entries of its top level changed: `recipe("mnist-em", epochs=20)`."""
    if name not in RECIPES:
        raise ConfigError(
            f"unknown recipe {name!r}{nearest(name, RECIPES)}; recipes are named DATA-ROUTING, with DATA one of "
            f"{', '.join(DATA)} and ROUTING one of {', '.join((*ROUTINGS, 'cnn'))}, or ROUTING-deep, on "
            f"smallNORB also {', '.join(f'ROUTING-{name}' for name in VARIANTS if name not in ('', 'deep'))}"
        )
    return RECIPES[name]().with_values(**values)
