"""One frozen value that decides a result: data, network, loss, optimizer, schedule, epochs, seed.

It is written with every run and read back equal; `--set optimizer.lr=1e-3` changes one entry of it. Nothing here
imports torch, so that the command line can name recipes at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from capsroute.errors import RunError


class ConfigError(RunError, ValueError):
    """An entry of a configuration is unknown or out of range."""


@dataclass(frozen=True)
class DataConfig:
    """What is trained on, and what is held out to choose parameters by.

    `transform` goes over the data set's own preparation, entry by entry; `options` to `capsroute.data.load`. With
    `val_split="none"` everything is trained on and the last parameters are tested; with "by_instance", `val_fold` says
    which toy of each class is held out, else `val_seed` draws it. `limit` trains on so many images. `extra` is an
    `.npz` of images of one's own to train on as well (`capsroute.data.extra`).
    """

    name: str = "digits"
    cameras: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    transform: Mapping[str, Any] = field(default_factory=dict)
    val_split: Literal["random", "by_instance", "none"] = "random"
    val_fraction: float = 0.1
    val_seed: int = 0
    val_fold: int | None = None
    limit: int | None = None
    extra: str | None = None


@dataclass(frozen=True)
class LossConfig:
    """Cross-entropy on logits, spread (Hinton et al. 2018), margin (Sabour et al. 2017), or bounded: on activations.

    `margin` fixes the spread loss's margin; None lets it grow by the authors' schedule, stretched over the run.
    `reconstruction` weighs the squared error of the decoder's drawing (0.0005 in Sabour et al.). `mixup` and `cutmix`
    are the shares of batches in which pairs of images are made into one, with the loss of both labels. `teachers` are
    trained networks, by name or folder, each with its view of the images (`[side, shrink]`, `capsroute.lanes.View`):
    what they say together, softened by `temperature`, is then learned instead of the labels. With `apart` each of
    several networks side by side learns from one of them, in their order.
    """

    name: Literal["cross_entropy", "spread", "margin", "bounded"] = "cross_entropy"
    smoothing: float = 0.0
    margin: float | None = None
    reconstruction: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    teachers: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 2.0
    apart: bool = False

    @property
    def mixes(self) -> bool:
        """Whether some batches are mixed."""
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam (`adamw`: with decoupled weight decay), or `sgd`: Nesterov's momentum, which is the first of `betas`.

    `clip` bounds the norm of the gradient, None leaves it.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = 5.0


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate falls, step by step, to `final` times itself.

    Before that it rises over `warmup` epochs, at most half of the run. `exponential` falls by the same factor every
    epoch: final ^ (1 / epochs), so a shorter run still ends low.
    """

    name: Literal["exponential", "cosine", "constant"] = "exponential"
    final: float = 0.01
    warmup: float = 0.0


@dataclass(frozen=True)
class Config:
    """Everything that decides a result.

    `model` is the configuration of a network as `save_pretrained` writes it: `network` and the arguments of that
    class; image size, channels and classes come from the data. `batch_size` counts the images of all ranks together.
    `ema` averages weights with that decay and tests the average. Parameters are candidates from epoch `record_from` on.
    `precision` is float32; `medium`, where matrix products may round to bfloat16 if the processor has instructions for
    it (torch's word for it); or `bf16`, mixed precision. `start` names a network, shipped or in a folder, whose tensors
    are begun with where they fit by name and shape; of networks side by side, one for each or one for all.
    """

    recipe: str = "custom"
    data: DataConfig = field(default_factory=DataConfig)
    model: Mapping[str, Any] = field(default_factory=lambda: {"network": "CapsNet"})
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    epochs: int = 100
    batch_size: int = 64
    seed: int = 0
    ema: float | None = None
    record_from: int = 10
    start: str | tuple[str, ...] | None = None
    precision: Literal["32", "medium", "bf16"] = "32"

    def __post_init__(self) -> None:
        # lists for tuples, as after a round trip through JSON
        object.__setattr__(self, "model", _plain(self.model))
        rules = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "batch_size": (self.batch_size >= 1, "at least 1"),
            "seed": (self.seed >= 0, "not negative"),
            "ema": (self.ema is None or 0 < self.ema < 1, "between 0 and 1, or null"),
            "data.val_fraction": (0 < self.data.val_fraction < 1, "between 0 and 1"),
            "data.limit": (self.data.limit is None or self.data.limit >= 1, "at least 1, or null"),
            "loss.smoothing": (0 <= self.loss.smoothing < 1, "from 0 to below 1"),
            "loss.reconstruction": (self.loss.reconstruction >= 0, "not negative"),
            "loss.mixup": (0 <= self.loss.mixup <= 1, "from 0 to 1"),
            "loss.cutmix": (0 <= self.loss.cutmix <= 1 - self.loss.mixup, "from 0 to 1, loss.mixup and it together"),
            "loss.temperature": (self.loss.temperature > 0, "positive"),
            "optimizer.lr": (self.optimizer.lr > 0, "positive"),
            "optimizer.weight_decay": (self.optimizer.weight_decay >= 0, "not negative"),
            "optimizer.clip": (self.optimizer.clip is None or self.optimizer.clip > 0, "positive, or null"),
            "schedule.final": (0 < self.schedule.final <= 1, "above 0 and at most 1"),
            "schedule.warmup": (self.schedule.warmup >= 0, "not negative"),
        }
        for path, (holds, rule) in rules.items():
            if not holds:
                raise ConfigError(f"{path}={_get(self, path)!r}: must be {rule}")
        if self.loss.smoothing and self.loss.name != "cross_entropy":
            raise ConfigError(
                f"loss.smoothing={self.loss.smoothing} goes with cross_entropy, not with {self.loss.name!r}"
            )
        if self.loss.reconstruction and self.loss.mixes:
            raise ConfigError(
                f"loss.reconstruction={self.loss.reconstruction} draws one class, mixed images show two; leave out "
                "loss.mixup and loss.cutmix"
            )
        if self.loss.reconstruction and not self.model.get("decoder"):
            raise ConfigError(
                f"loss.reconstruction={self.loss.reconstruction} needs a decoder; --set model.decoder=[512,1024]"
            )

    def with_values(self, **values: Any) -> Config:
        """The same with some entries of the top level changed; None leaves one as it is."""
        return replace(self, **{name: value for name, value in values.items() if value is not None})

    def with_settings(self, settings: Iterable[str]) -> Config:
        """The same with entries set as on the command line: `optimizer.lr=1e-3`, `model.primary=16`."""
        config = self
        for setting in settings:
            path, sign, text = setting.partition("=")
            if not sign:
                raise ConfigError(f"--set {setting}: write it as name=value, for example optimizer.lr=1e-3")
            config = _assign(config, path.strip().split("."), _read(text.strip()), path.strip())
        return config

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """The inverse of `to_dict`."""
        config: Config = _build(cls, values, "")
        return config


def nearest(word: str, words: Iterable[str]) -> str:
    """` (did you mean ...?)` where a known word is close."""
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[str]:
    """The entries in which two configurations differ, as `path: before -> after`."""
    found = []
    for name in sorted({*before, *after}):
        old, new, here = before.get(name), after.get(name), f"{path}{name}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{here}.")
        elif old != new:
            found.append(f"{here}: {json.dumps(old)} -> {json.dumps(new)}")
    return found


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _get(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _read(text: str) -> Any:
    words = {"none": None, "null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _assign(holder: Any, path: list[str], value: Any, full: str) -> Any:
    """A copy of a dataclass or mapping with the entry at `path` changed."""
    name, rest = path[0], path[1:]
    if isinstance(holder, Mapping):
        known = _mapping_names(full, len(path))
        if known is not None and name not in known:
            raise ConfigError(f"unknown option {full!r}{nearest(name, known)}; there are {', '.join(sorted(known))}")
        new = _assign(holder.get(name) or {}, rest, value, full) if rest else value
        return {**holder, name: new}
    hints = typing.get_type_hints(type(holder))
    if name not in hints:
        raise ConfigError(f"unknown option {full!r}{nearest(name, hints)}; there are {', '.join(hints)}")
    inner = getattr(holder, name)
    if rest:
        if not (dataclasses.is_dataclass(inner) or isinstance(inner, Mapping)):
            raise ConfigError(f"unknown option {full!r}: {name!r} is one value, nothing lies below it")
        return replace(holder, **{name: _assign(inner, rest, value, full)})
    if dataclasses.is_dataclass(inner):
        below = ", ".join(f"{full}.{entry.name}" for entry in fields(inner))
        raise ConfigError(f"{full!r} has several entries; set one of {below}")
    return replace(holder, **{name: _convert(hints[name], value, full)})


def _mapping_names(full: str, left: int) -> set[str] | None:
    """Which names a mapping of the configuration takes, or None where anything goes."""
    top = full.split(".")[: len(full.split(".")) - left]
    if top == ["model"]:
        from capsroute.lanes import LaneNet
        from capsroute.models import CapsNet, ConvNet

        arguments = {name for kind in (CapsNet, ConvNet, LaneNet) for name in inspect.signature(kind).parameters}
        return {"network", *arguments} - {"image_size", "in_channels", "classes", "options"}
    if top == ["data", "transform"]:
        from capsroute.data import Transform

        return {entry.name for entry in fields(Transform)}
    return None


def _convert(hint: Any, value: Any, path: str) -> Any:
    """`value` as the type `hint`, where it is one; JSON has lists for tuples and may write 1 for 1.0."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        listed = isinstance(value, (list, tuple))
        kinds = [a for a in arguments if a is not type(None)]
        return _convert(next((a for a in kinds if (typing.get_origin(a) is tuple) == listed), kinds[0]), value, path)
    if origin is Literal:
        # JSON reads a name such as 32 as a number, and `none` may be a name
        name = "none" if value is None else str(value)
        if name not in arguments:
            raise ConfigError(f"{path}={name!r}: choose one of {', '.join(arguments)}")
        return name
    if origin is tuple and Ellipsis in arguments:
        return tuple(_convert(arguments[0], v, path) for v in value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or len(value) != len(arguments):
            raise ConfigError(f"{path}={value!r}: write {len(arguments)} values as [a, b]")
        return tuple(_convert(a, v, path) for a, v in zip(arguments, value, strict=True))
    if origin is not None:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}={value!r}: takes named entries; set {path}.NAME=value")
        return _plain(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{path}={value!r}: takes {'an' if hint is int else 'a'} {hint.__name__}")
    return value


def _build(kind: Any, values: Mapping[str, Any], path: str) -> Any:
    hints = typing.get_type_hints(kind)
    unknown = [name for name in values if name not in hints]
    if unknown:
        raise ConfigError(f"unknown entry {path + unknown[0]!r}{nearest(unknown[0], hints)} of a configuration")
    given = {}
    for name, value in values.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            given[name] = _build(hint, value, f"{path}{name}.")
        else:
            given[name] = _convert(hint, value, path + name)
    return kind(**given)
