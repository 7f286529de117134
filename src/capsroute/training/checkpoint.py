"""Checkpoints that a kill at any moment leaves usable, and that are read without executing anything.

One file is one consistent state: tensors as safetensors, all else as JSON in its header, and a digest over both. It is
written beside its final name, flushed to the disk, then renamed. The newest two are kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from capsroute.errors import RunError
from capsroute.training.writing import UNFINISHED, write_atomically

KEPT = 2


class Snapshot(NamedTuple):
    """What a checkpoint holds."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    path: Path


def save(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> Path:
    """Write the state after `step` steps, and drop all but the newest checkpoints."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state)
    content = to_bytes(tensors, {"state": text, "digest": _digest(tensors, text)})
    path = folder / f"step-{step:08d}.safetensors"
    write_atomically(path, content)
    for old in (*_newest_first(folder)[KEPT:], *folder.glob(f"*{UNFINISHED}")):
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> Snapshot:
    """Read a checkpoint, and make sure that it is whole."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        text = header["state"]
        whole = header["digest"] == _digest(tensors, text)
    except (SafetensorError, OSError, KeyError) as error:
        raise RunError(f"checkpoint {path} cannot be read ({error})") from error
    if not whole:
        raise RunError(f"checkpoint {path} is damaged: its content does not match its digest")
    return Snapshot(tensors, json.loads(text), path)


def latest(folder: Path, notify: Callable[[str], None]) -> Snapshot | None:
    """The newest checkpoint that can be read, or None where there is none yet; says what had to be passed over."""
    paths = _newest_first(folder)
    for path in paths:
        try:
            snapshot = load(path)
        except RunError as error:
            notify(f"{error}; trying the one before it")
        else:
            return snapshot
    if paths:
        raise RunError(f"no checkpoint in {folder} can be read; --force starts the run again")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), reverse=True)


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
