"""Networks on disk: a folder with `config.json` and `model.safetensors`. Loading never executes code from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_model
from torch import nn

from capsroute.errors import RunError
from capsroute.lanes import LaneNet
from capsroute.models import CapsNet, ConvNet, Saved, to_json
from capsroute.thinning import refill, thinned

SHIPPED = Path(__file__).parent / "weights"
Network = CapsNet | ConvNet | LaneNet
_KINDS: dict[str, type[Network]] = {"CapsNet": CapsNet, "ConvNet": ConvNet, "LaneNet": LaneNet}


def shipped_names() -> list[str]:
    """The networks that come with capsroute."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/model.safetensors"))


def save(net: Saved, folder: str | Path) -> None:
    """Write the network; tensors that several layers share are stored once."""
    config = to_json({"network": type(net).__name__, **net.config})
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    save_model(net, str(path / "model.safetensors"))
    (path / "config.json").write_text(config + "\n")


def locate(name: str | Path) -> Path:
    """The folder of a network, given by its path or by the name of one that ships with capsroute."""
    path = Path(name)
    if (path / "config.json").is_file():
        return path
    if isinstance(name, str) and name in shipped_names():
        return SHIPPED / name
    names = ", ".join(shipped_names()) or "none yet"
    raise RunError(f"no network at {name!s}: pass a folder with config.json, or a name that ships here ({names})")


def build(config: dict[str, Any], **overrides: Any) -> Network:
    """The network that a saved configuration describes."""
    options = {**config, **overrides}
    kind = options.pop("network", "CapsNet")
    if kind not in _KINDS:
        raise RunError(f"network {kind!r} is unknown; this version knows {', '.join(_KINDS)}")
    net: Network = _KINDS[kind](**options)
    return net


def load(name: str | Path, **overrides: Any) -> Network:
    """The network in a folder, or the shipped one of that name, ready for inference."""
    folder = locate(name)
    try:
        config = json.loads((folder / "config.json").read_text())
        net = build(config, **overrides)
        load_model(net, str(folder / "model.safetensors"))
    except (json.JSONDecodeError, SafetensorError, FileNotFoundError, TypeError) as error:
        raise RunError(f"the network in {folder} cannot be read ({error}); save it again") from error
    return net.eval()


@torch.no_grad()
def borrow(net: Network, name: str | Path | Sequence[str | Path]) -> None:
    """Copy what fits by name and shape from a saved network; what does not fit stays as it was.

    A network can so begin with the trunk and the matrices of one whose routing, or number of classes, is another. Of
    several lanes each takes what fits it, of one network or of one each; of another network with lanes, of the lane in
    its place, here too if that is but one of several. A thinned network takes the largest weights.
    """
    lanes = list(net.lanes) if isinstance(net, LaneNet) else [net]
    if isinstance(name, (str, Path)):
        folder = locate(name)
        if not (_borrow(net, folder) or sum([_borrow(lane, folder) for lane in lanes])):
            raise RunError(_NOTHING_FITS.format(folder))
        return
    if len(name) != len(lanes):
        raise RunError(f"start={list(map(str, name))}: {len(name)} networks to begin with for {len(lanes)}")
    for place, (lane, one) in enumerate(zip(lanes, name, strict=True)):
        folder = locate(one)
        if not (_borrow(lane, folder) or _borrow(lane, folder, f"lanes.{place}.")):
            raise RunError(_NOTHING_FITS.format(folder))


_NOTHING_FITS = "nothing of the network in {} fits this one by name and shape; begin without start="


def _borrow(net: nn.Module, folder: Path, part: str = "") -> int:
    """How many tensors fitted, of all or of those whose names begin with the part's."""
    try:
        tensors = load_file(str(folder / "model.safetensors"))
    except (SafetensorError, FileNotFoundError) as error:
        raise RunError(f"the network in {folder} cannot be read ({error}); save it again") from error
    saved = {key.removeprefix(part): tensor for key, tensor in tensors.items() if key.startswith(part)}
    fitting = 0
    for key, tensor in net.state_dict().items():
        if key in saved and saved[key].shape == tensor.shape:
            tensor.copy_(saved[key])
            fitting += 1
    for key, layer in thinned(net).items():
        learned = saved.get(f"{key}.weight", saved.get(f"{key}.parametrizations.weight.original"))
        fitting += learned is not None and refill(layer, learned)
    return fitting
