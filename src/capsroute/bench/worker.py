"""One candidate in a process of its own, so that no other's memory or caches are measured with it."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from capsroute.errors import RunError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import Tensor

    from capsroute.bench.candidates import Candidate
    from capsroute.capsules import Capsules


Answer = TypeVar("Answer")


class Seconds(NamedTuple):
    """How long something took, on the wall and on all cores together."""

    wall: float
    cores: float


class Workbench:
    """Steps of one network, timed, and the memory that its capsule layers need."""

    def __init__(self, candidate: Candidate) -> None:
        import torch

        from capsroute.bench.candidates import CHANNELS

        torch.set_num_threads(candidate.threads)
        torch.set_float32_matmul_precision("medium" if candidate.precision == "medium" else "highest")
        self.net = candidate.build()
        if candidate.path == "fused":
            self._prebuild()
        self.optimizer = torch.optim.Adam(self.net.parameters(), fused=True)
        self._image = (CHANNELS, candidate.image_size, candidate.image_size)

    def _prebuild(self) -> None:
        """Compile the operators now, if they are not: that is no step."""
        import torch

        from capsroute import ops
        from capsroute.layers import CapsuleLayer

        for layer in self.net.modules():
            if isinstance(layer, CapsuleLayer):
                size = layer.out_pose[0] * layer.out_pose[1]
                ops.find(layer.routing, torch.float32, torch.device("cpu"), size)

    def step(self, phase: str, batch: int) -> Seconds:
        """One step: forward, loss, backward and update to `train`, forward alone to `infer`."""
        images, labels = self._data(batch)
        began = Seconds(time.perf_counter(), time.process_time())
        if phase == "train":
            from capsroute.losses import cross_entropy

            self.optimizer.zero_grad(set_to_none=True)
            cross_entropy(self._forward(phase, images), labels).backward()
            self.optimizer.step()
        else:
            self._forward(phase, images)
        return Seconds(time.perf_counter() - began.wall, time.process_time() - began.cores)

    def memory(self, phase: str, batch: int) -> float:
        """Bytes an image by which the process grows, at its peak, while the capsule layers work.

        Resident memory is what the system counts, so an operator's own buffers are in it. The layers' inputs are not:
        they are there before. Of the convolutional network the whole is measured. What is freed goes back to the
        system at once: what the C library would keep for later says nothing of the need.
        """
        images, _ = self._data(batch)
        inputs = self._inputs(phase, images)
        self.net.zero_grad(set_to_none=True)
        with _freed_at_once():
            before = _settle_memory()
            out = self._capsule_layers(phase, inputs)
            if phase == "train":
                assert out.logits is not None
                (out.poses.sum() + out.logits.sum()).backward()
            return max(0, _status("VmHWM") - before) / batch

    def _data(self, batch: int) -> tuple[Tensor, Tensor]:
        import torch

        generator = torch.Generator().manual_seed(batch)
        images = torch.randn(batch, *self._image, generator=generator)
        return images, torch.arange(batch) % self.net.classes

    def _forward(self, phase: str, images: Tensor) -> Capsules:
        import torch

        self.net.train(phase == "train")
        with torch.set_grad_enabled(phase == "train"):
            out: Capsules = self.net(images)
            return out

    def _inputs(self, phase: str, images: Tensor) -> Any:
        import torch

        from capsroute.capsules import Capsules
        from capsroute.models import CapsNet

        training = phase == "train"
        self.net.train(training)
        if not isinstance(self.net, CapsNet):
            return images
        with torch.no_grad():
            caps = self.net.primary_capsules(images)
        assert caps.logits is not None
        with torch.set_grad_enabled(training):
            return Capsules.from_logits(caps.poses.requires_grad_(training), caps.logits.requires_grad_(training))

    def _capsule_layers(self, phase: str, inputs: Any) -> Capsules:
        import torch

        from capsroute.models import CapsNet

        run = self.net.route if isinstance(self.net, CapsNet) else self.net
        with torch.set_grad_enabled(phase == "train"):
            out: Capsules = run(inputs)
            return out


@contextmanager
def _freed_at_once() -> Iterator[None]:
    """Blocks above 128 KB come from the system and go back when freed, as in glibc until it has seen larger ones."""
    import ctypes

    threshold, low, high = -3, 2**17, 2**25  # M_MMAP_THRESHOLD, where it starts and where it may rise to
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: None)
    mallopt(threshold, low)
    try:
        yield
    finally:
        mallopt(threshold, high)


def _settle_memory() -> int:
    """Give back what is free, start the peak anew, and return the resident bytes."""
    import ctypes

    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError) as error:
        raise RunError(f"peak memory can be measured on Linux with glibc only ({error})") from error
    return _status("VmRSS")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:"))) * 1024


class Worker:
    """The parent's end of a process with a `Workbench`."""

    def __init__(self, candidate: Candidate) -> None:
        context = multiprocessing.get_context("spawn")
        self.candidate = candidate
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, candidate), daemon=True)
        self._process.start()
        theirs.close()

    def step(self, phase: str, batch: int) -> Seconds:
        """`Workbench.step`, there."""
        seconds: Seconds = self._ask("step", phase, batch)
        return seconds

    def memory(self, phase: str, batch: int) -> float:
        """`Workbench.memory`, there."""
        count: float = self._ask("memory", phase, batch)
        return count

    def _ask(self, question: str, phase: str, batch: int) -> Any:
        what = f"{self.candidate.routing}, {self.candidate.path} path, {phase} with batch {batch}"
        try:
            self._connection.send((question, phase, batch))
            answer = self._connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise RunError(
                f"{what}: the process was killed, most likely for want of memory; use a smaller --batch"
            ) from error
        if isinstance(answer, str):
            raise RunError(f"{what}: {answer}")
        return answer

    def stop(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.kill()


def serve(connection: Connection, candidate: Candidate) -> None:
    """Answer the parent's questions until it hangs up; an error is answered with its text."""
    failure, bench = _attempt(lambda: Workbench(candidate))
    with suppress(EOFError, ConnectionError):
        while True:
            question, phase, batch = connection.recv()
            if bench is None:
                connection.send(failure)
                continue
            wrong, answer = _attempt(partial(getattr(bench, question), phase, batch))
            connection.send(answer if wrong is None else wrong)


def _attempt(work: Callable[[], Answer]) -> tuple[str | None, Answer | None]:
    """What went wrong, in one line, and the result if nothing did."""
    try:
        return None, work()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0], None
