"""Watching a run: a progress bar in a terminal, plain lines elsewhere, TensorBoard if wanted."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from capsroute.errors import RunError


class Watcher:
    """Sees what happens in a run; this one keeps silent, as all ranks but the first do."""

    def start(self, epochs: int, batches: int, done: int) -> None:
        """Training begins after `done` of epochs x batches steps."""

    def step(self, epoch: int, loss: float, accuracy: float, images: int) -> None:
        """One step on `images` images is done; loss and accuracy are those of the epoch so far."""

    def epoch(self, entry: dict[str, Any]) -> None:
        """An epoch is done, and this is its line in metrics.jsonl."""

    def note(self, text: str) -> None:
        """Something to tell the user."""

    def stop(self) -> None:
        """Training is over."""


class Lines(Watcher):
    """A line an epoch."""

    def __init__(self) -> None:
        self._epochs, self._left, self._steps = 0, 0, 0
        self._images, self._since = 0, time.perf_counter()

    def start(self, epochs: int, batches: int, done: int) -> None:
        self._epochs, self._left = epochs, epochs * batches - done
        self._since = time.perf_counter()

    def step(self, epoch: int, loss: float, accuracy: float, images: int) -> None:
        self._images += images
        self._steps += 1

    def epoch(self, entry: dict[str, Any]) -> None:
        seconds = max(time.perf_counter() - self._since, 1e-9)
        left = seconds / max(self._steps, 1) * (self._left - self._steps)
        print(f"{summary(entry, self._epochs)}  {self._images / seconds:.0f} images/s  {clock(left)} left", flush=True)

    def note(self, text: str) -> None:
        print(text, flush=True)


class Bar(Watcher):
    """One bar with epoch, loss, accuracy, images a second and time left; a line above it for each epoch."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  accuracy {task.fields[accuracy]:.1f} %"),
            TextColumn("{task.fields[speed]:.0f} images/s"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]} left"),
        )
        self._epochs, self._images, self._steps, self._since = 0, 0, 0, 0.0
        self._total = 0
        self._task: Any = None

    def start(self, epochs: int, batches: int, done: int) -> None:
        self._epochs, self._total, self._since = epochs, epochs * batches - done, time.perf_counter()
        self._task = self._progress.add_task(
            "train",
            total=epochs * batches,
            completed=done,
            epoch=f"0/{epochs}",
            loss=0.0,
            accuracy=0.0,
            speed=0.0,
            left="?",
        )
        self._progress.start()

    def step(self, epoch: int, loss: float, accuracy: float, images: int) -> None:
        self._images += images
        self._steps += 1
        seconds = max(time.perf_counter() - self._since, 1e-9)
        self._progress.update(
            self._task,
            advance=1,
            epoch=f"{epoch}/{self._epochs}",
            loss=loss,
            accuracy=accuracy,
            speed=self._images / seconds,
            left=clock(seconds / self._steps * (self._total - self._steps)),
        )

    def epoch(self, entry: dict[str, Any]) -> None:
        self._progress.console.print(summary(entry, self._epochs), highlight=False)

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def stop(self) -> None:
        self._progress.stop()


class Board(Watcher):
    """TensorBoard beside another watcher."""

    def __init__(self, inner: Watcher, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RunError(
                "--tensorboard needs the extra `log`; install it with: pip install 'capsroute[log]'"
            ) from error
        self._inner = inner
        self._writer = SummaryWriter(str(folder))

    def start(self, epochs: int, batches: int, done: int) -> None:
        self._inner.start(epochs, batches, done)

    def step(self, epoch: int, loss: float, accuracy: float, images: int) -> None:
        self._inner.step(epoch, loss, accuracy, images)

    def note(self, text: str) -> None:
        self._inner.note(text)

    def epoch(self, entry: dict[str, Any]) -> None:
        from capsroute.training.health import flatten

        self._inner.epoch(entry)
        names = ("train_loss", "train_error", "val_loss", "val_error", "lr")
        scalars = {name: entry[name] for name in names if entry[name] is not None} | flatten(entry["health"])
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, entry["step"])
        self._writer.flush()

    def stop(self) -> None:
        self._inner.stop()
        self._writer.close()


def default() -> Watcher:
    """A bar in a terminal, lines elsewhere."""
    return Bar() if sys.stdout.isatty() else Lines()


def summary(entry: dict[str, Any], epochs: int) -> str:
    """An epoch in one line."""
    validated = "" if entry["val_error"] is None else f"  validation error {entry['val_error']:.2f} %"
    chosen = "  best so far" if entry["best"] else ""
    return (
        f"epoch {entry['epoch']}/{epochs}  loss {entry['train_loss']:.4f}  "
        f"accuracy {100 - entry['train_error']:.1f} %{validated}{chosen}"
    )


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    whole = max(0, round(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
