"""Run every operator's test grid in a standalone driver built with the address and undefined behaviour sanitisers.

`python tests/ops/sanitize.py [OPERATOR ...]` records each call that fused layers make over the grid of `agreement.py`,
compiles the operator and `driver.cpp` with -fsanitize=address,undefined, and replays the calls there.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import torch
from agreement import LAYERS, fused_step, layer_and_capsules
from torch import Tensor

from capsroute import routing
from capsroute.ops import build, native

ROUTINGS = {
    "similarity": [
        routing.similarity(components=5, per_channel=True),
        routing.similarity(lambdas=(0.01, 0.01)),
        routing.uniform(),
    ],
    "em": [
        routing.em(),
        routing.em(competition="window"),
        routing.uniform(control="em"),
        routing.variational(),
        routing.variational(competition="window"),
    ],
    "dynamic": [routing.dynamic(), routing.entropy(), routing.uniform(control="dynamic")],
    "connectionist": [routing.connectionist(), routing.connectionist(f_hidden=(5, 3), g_hidden=(7,), units=3)],
}


@contextmanager
def recorded(folder: Path, operator: str) -> Iterator[None]:
    """Write a record of every call of one operator into `folder`: its arguments before and after."""
    words, call = native.words, native.call
    fields: dict[int, tuple[object, tuple[Tensor | int | None, ...]]] = {}

    def remembered_words(*values: Tensor | int | None) -> object:
        made = words(*values)
        fields[id(made)] = (made, values)
        return made

    def recorded_call(function: object, *structures: object) -> None:
        values = [fields[id(structure)][1] for structure in structures]
        before = [[_bytes(value) for value in row] for row in values]
        call(function, *structures)
        name = function.__name__
        if f"_{operator}_" in name:
            path = folder / f"{len(list(folder.iterdir())):04}"
            path.write_bytes(_record(name.encode(), values, before))
        fields.clear()

    native.words, native.call = remembered_words, recorded_call
    try:
        yield
    finally:
        native.words, native.call = words, call


def _bytes(value: Tensor | int | None) -> bytes:
    return value.numpy().tobytes() if isinstance(value, Tensor) else b""


def _record(name: bytes, values: list[tuple[Tensor | int | None, ...]], before: list[list[bytes]]) -> bytes:
    parts = [struct.pack("<q", len(name)), name, struct.pack("<q", len(values))]
    for row, old in zip(values, before, strict=True):
        parts.append(struct.pack("<q", len(row)))
        for value, content in zip(row, old, strict=True):
            if isinstance(value, Tensor):
                parts += [struct.pack("<qq", 1, len(content)), content, _bytes(value)]
            else:
                parts.append(struct.pack("<qq", 0, value or 0))
    return b"".join(parts)


def record_grid(operator: str, folder: Path) -> list[Path]:
    """Forward and backward of all layers, on one thread and on two."""
    for name, how, threads in product(LAYERS, ROUTINGS[operator], (1, 2)):
        torch.manual_seed(0)
        torch.set_num_threads(threads)
        layer, caps = layer_and_capsules(name, how)
        with recorded(folder, operator):
            fused_step(layer, caps)
    return sorted(folder.iterdir())


def build_driver(operator: str, folder: Path) -> Path:
    """Compile the driver with the operator in it."""
    driver = folder / "driver"
    flags = [flag for flag in build.flags() if flag not in ("-O3", "-fPIC")]
    sanitisers = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fopenmp", "-rdynamic"]
    sources = [str(Path(__file__).with_name("driver.cpp")), str(build.HERE / operator / "cpu.cpp")]
    subprocess.run(["g++", *flags, *sanitisers, "-I", str(build.HERE), *sources, "-o", str(driver), "-ldl"], check=True)
    return driver


def sanitize(operator: str) -> str:
    """Build, record, replay; raises where a sanitiser complains."""
    with tempfile.TemporaryDirectory() as scratch:
        records = Path(scratch) / "records"
        records.mkdir()
        driver = build_driver(operator, Path(scratch))
        calls = record_grid(operator, records)
        result = subprocess.run([driver, *calls], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{operator}: {result.stderr}")
        return result.stdout.strip()


if __name__ == "__main__":
    for chosen in sys.argv[1:] or ROUTINGS:
        print(f"{chosen}: {sanitize(chosen)}, no complaint", flush=True)
