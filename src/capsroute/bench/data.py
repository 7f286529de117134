"""How fast batches come: `capsroute bench data`. One core must give 20,000 training images a second and more."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from capsroute.data import Loader

FLOOR = 20_000  # training images a second from one core, smallNORB 32 x 32 stereo


def measure(
    name: str = "smallnorb", *, data_dir: Path | None = None, batch_size: int = 64, seconds: float = 3.0
) -> dict[str, Any]:
    """Training images a second from one thread, the median of many short runs; and the time to open the data set.

    A second is counted both on the wall and on the processor: on a busy machine only the latter is one core's second.
    """
    import statistics

    import torch

    from capsroute.data import Loader, load

    began = time.perf_counter()
    dataset = load(name, data_dir=data_dir)
    train = dataset.train
    opened = time.perf_counter() - began
    batches = Loader(train, dataset.default_transform(train=True), batch_size=batch_size, seed=0, train=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = _rates(batches, seconds)
    finally:
        torch.set_num_threads(threads)
    shape = next(batches.epoch(0)).images.shape[1:]
    return {
        **dataset.describe(),
        "image": list(shape),
        "batch_size": batch_size,
        "threads": 1,
        "open_seconds": round(opened, 3),
        "images_per_second": round(statistics.median(wall for wall, _ in rates)),
        "images_per_core_second": round(statistics.median(core for _, core in rates)),
    }


def _rates(batches: Loader, seconds: float) -> list[tuple[float, float]]:
    """Images a second, by the wall and by the core, of one short run after another."""
    run = max(1, min(len(batches), 2048 // batches.global_batch))
    rates: list[tuple[float, float]] = []
    epoch, finish = 0, time.perf_counter() + seconds
    while not rates or time.perf_counter() < finish:
        stream = batches.epoch(epoch)
        for _ in range(len(batches) // run):
            wall, core = time.perf_counter(), time.thread_time()
            seen = sum(len(batch.images) for batch in itertools.islice(stream, run))
            rates.append((seen / (time.perf_counter() - wall), seen / (time.thread_time() - core)))
        epoch += 1
    return rates


def command(
    name: Annotated[str, typer.Argument(help="A data set, or folder:PATH.")] = "smallnorb",
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder with data; else $CAPSROUTE_DATA, else the user cache.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images a batch.")] = 64,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure how many training images a second one core prepares."""
    result = measure(name, data_dir=data, batch_size=batch_size, seconds=seconds)
    if as_json:
        import json

        typer.echo(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "value", box=None, pad_edge=False)
    for key, value in result.items():
        table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)
    if name == "smallnorb" and result["cameras"] == "stereo":
        reached = result["images_per_core_second"] >= FLOOR
        typer.echo(f"{'at least' if reached else 'LESS THAN'} {FLOOR:,} images a second from one core")
