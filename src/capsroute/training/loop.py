"""The training loop: epochs, validation, checkpoints; then, once, the test set.

    config = recipe("digits-similarity", epochs=5)
    run = train(config, out="runs/first")
    print(run.result["test_error"])

Every random number is decided by the seed and the step, and the learning rate by the step, so that a run taken up
again in the middle of an epoch continues to the same bits.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from capsroute.capsules import Capsules
from capsroute.data import Batch, Loader, Split
from capsroute.errors import RunError
from capsroute.training import checkpoint, ranks, watch
from capsroute.training.config import Config
from capsroute.training.evaluate import predict, summed
from capsroute.training.finish import conclusion, finish, write_model
from capsroute.training.health import name_non_finite, routing_health
from capsroute.training.learner import Best, Learner
from capsroute.training.material import Material, gather
from capsroute.training.objective import Objective, correct
from capsroute.training.optim import learning_rate
from capsroute.training.run import Run, open_run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LOG_EVERY = 20  # steps between lines of metrics.jsonl
HEALTH_IMAGES = 8


def train(
    config: Config,
    *,
    out: Path | str | None = None,
    data_dir: Path | str | None = None,
    resume: bool = False,
    force: bool = False,
    accelerator: str = "auto",
    threads: int | None = None,
    tensorboard: bool = False,
    watcher: watch.Watcher | None = None,
    checkpoint_seconds: float = 600.0,
) -> Run:
    """Train, choose parameters by validation, test them, and write a report; returns the finished run.

    A run that was stopped, by Ctrl-C or worse, goes on with `resume=True`.
    """
    threads = ranks.set_threads(threads)
    fabric = ranks.start(config, accelerator)
    watcher = (watcher or watch.default()) if fabric.is_global_zero else watch.Watcher()
    with ranks.telling_lost_ranks(fabric.world_size):
        material = gather(config, data_dir)
        trainer = Trainer(fabric, material, checkpoint_seconds)
        run = _shared_run(fabric, material.config, out, resume, force, threads, watcher)
        if run.finished:
            watcher.note(f"{run.folder} is finished already; nothing to do")
        else:
            if tensorboard and fabric.is_global_zero:
                watcher = watch.Board(watcher, run.board)
            trainer.fit(run, watcher)
            finish(fabric, material, run, trainer.learner, threads)
        if fabric.is_global_zero:
            watcher.note(conclusion(run))
        ranks.leave(fabric)
    return run


def _shared_run(
    fabric: Fabric,
    config: Config,
    out: Path | str | None,
    resume: bool,
    force: bool,
    threads: int,
    watcher: watch.Watcher,
) -> Run:
    """The run folder, opened by the first rank and told to the others."""
    folder = ""
    if fabric.is_global_zero:
        where = None if out is None else Path(out)
        run = open_run(config, where, resume=resume, force=force, threads=threads, notify=watcher.note)
        folder = str(run.folder)
    return Run(fabric.broadcast(folder))


class Stopped(RunError):
    """A signal asked the run to stop; a checkpoint was written."""

    exit_code = 130


class Trainer:
    """One run's loop. What cannot be trained is refused here, before a folder is touched; `fit` does the rest."""

    run: Run
    watcher: watch.Watcher

    def __init__(self, fabric: Fabric, material: Material, checkpoint_seconds: float = 600.0) -> None:
        self.fabric, self.material, self.config = fabric, material, material.config
        self.checkpoint_seconds = checkpoint_seconds
        train, self.held = material.splits()
        self.loader = self._loader(train)
        self.steps = self.config.epochs * len(self.loader)
        self.learner = Learner(material.network().to(fabric.device), self.config)
        self.objective = Objective(self.learner.net, self.config.loss, self.steps)
        # a few held-out images, the same each epoch, show how routing fares
        self.shown = self._first_images(train if self.held is None else self.held)

    @property
    def step(self) -> int:
        """Steps done since the start of the run."""
        return self.learner.progress.epoch * len(self.loader) + self.learner.progress.batch

    def fit(self, run: Run, watcher: watch.Watcher) -> None:
        """Train from wherever the run stands to the end, or to a signal."""
        self.run, self.watcher = run, watcher
        self._restore()
        self.model = self.fabric.setup_module(self.objective)
        progress = self.learner.progress
        self.watcher.start(self.config.epochs, len(self.loader), self.step)
        self._since = self._saved = time.perf_counter()
        try:
            with ranks.Interrupts() as interrupts:
                while progress.epoch < self.config.epochs:
                    for batch in self.loader.epoch(progress.epoch, start=progress.batch):
                        stop = self._learn(batch, interrupts.wanted)
                        if stop or time.perf_counter() - self._saved > self.checkpoint_seconds:
                            self._save()
                        if stop:
                            raise Stopped(f"stopped by a signal; go on with --out {self.run.folder} --resume")
                    self._end_epoch()
                    self._save()
        finally:
            self.watcher.stop()

    def _restore(self) -> None:
        snapshot = checkpoint.latest(self.run.checkpoints, self.watcher.note)
        if snapshot is not None:
            self.learner.restore(snapshot)
            where = self.learner.progress
            self.watcher.note(f"going on from {snapshot.path.name}: epoch {where.epoch + 1}, batch {where.batch + 1}")
        if self.fabric.is_global_zero:
            self.run.forget_after(self.step)

    def _learn(self, batch: Batch, stop: bool) -> bool:
        """One step; returns whether any rank wants to stop."""
        learner, step = self.learner, self.step
        rate = self._rate(step)
        for group in learner.optimizer.param_groups:
            group["lr"] = rate
        # random numbers inside the network, if any, follow the step, so a resumed run draws the same
        torch.manual_seed((self.config.seed << 40) + (step << 8) + self.fabric.global_rank)
        images, labels = batch.images.to(self.fabric.device), batch.labels.to(self.fabric.device)
        learner.net.train()
        loss, logits = self.model(images, labels, step)
        self.fabric.backward(loss)
        bound = self.config.optimizer.clip or math.inf
        norm = float(nn.utils.clip_grad_norm_(learner.net.parameters(), bound))
        told = torch.tensor([loss.detach(), correct(logits, labels).sum(), stop], dtype=torch.float64)
        loss_sum, hits, stops = summed(self.fabric, told.to(self.fabric.device)).tolist()
        mean = loss_sum / self.fabric.world_size
        if not (math.isfinite(mean) and math.isfinite(norm)):
            self._refuse(images, mean)
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
        if learner.average is not None:
            learner.average.update(step)
        self._advance(mean, int(hits), rate, norm)
        return bool(stops)

    def _rate(self, step: int) -> float:
        return learning_rate(self.config.schedule, self.config.optimizer.lr, step, self.steps, len(self.loader))

    def _advance(self, loss: float, hits: int, rate: float, norm: float) -> None:
        progress, images = self.learner.progress, self.loader.global_batch
        progress.loss_sum += loss
        progress.hits += hits
        progress.seen += images
        progress.batch += 1
        accuracy = 100 * progress.hits / progress.seen
        self.watcher.step(progress.epoch + 1, progress.loss_sum / progress.batch, accuracy, images)
        if self.step % LOG_EVERY == 0 and self.fabric.is_global_zero:
            self.run.append({"step": self.step, "loss": loss, "lr": rate, "grad_norm": norm})

    def _end_epoch(self) -> None:
        """Validate, remember the best, write it down."""
        learner, progress = self.learner, self.learner.progress
        epoch = progress.epoch + 1
        val_loss, val_error = self._validate()
        entry = {
            "epoch": epoch,
            "train_loss": progress.loss_sum / len(self.loader),
            "train_error": 100 - 100 * progress.hits / progress.seen,
            "val_loss": val_loss,
            "val_error": val_error,
            "lr": self._rate(self.step - 1),
        }
        recorded = epoch >= min(self.config.record_from, self.config.epochs)
        best = recorded and learner.record(Best(epoch, val_error, val_loss))
        progress.curve.append(entry)
        self._count_time()
        if self.fabric.is_global_zero:
            if best:
                write_model(self.run, self.material, learner)
            health = routing_health(learner.candidate, self.shown)
            line = {"step": self.step, **entry, "best": best, "wall_seconds": progress.wall_seconds, "health": health}
            self.run.append(line)
            self.watcher.epoch(line)
        progress.next_epoch()

    def _validate(self) -> tuple[float | None, float | None]:
        if self.held is None:
            return None, None
        found = predict(self.learner.candidate, self.held, self.material.transform, fabric=self.fabric)
        caps = Capsules.from_logits(found.logits[..., None, None], found.logits)
        return float(self.objective.classification(caps, found.labels, self.steps)), found.error

    def _save(self) -> None:
        self._count_time()
        self._saved = time.perf_counter()
        if self.fabric.is_global_zero:
            checkpoint.save(self.run.checkpoints, self.step, *self.learner.capture())

    def _count_time(self) -> None:
        now = time.perf_counter()
        self.learner.progress.wall_seconds += now - self._since
        self._since = now

    def _refuse(self, images: Tensor, loss: float) -> None:
        """Stop before the parameters are spoilt, and say where it began."""
        where = name_non_finite(self.learner.net, images)
        what = "the gradient is not finite" if math.isfinite(loss) else f"the loss is {loss}"
        raise RunError(
            f"{what} in epoch {self.learner.progress.epoch + 1}, batch {self.learner.progress.batch + 1}; the first "
            f"value that is not finite is in {where}. The last good checkpoint is kept; try a lower optimizer.lr or "
            "optimizer.clip"
        )

    def _loader(self, train: Split) -> Loader:
        world = self.fabric.world_size
        share = ranks.share(self.config.batch_size, world)
        return Loader(
            train,
            self.material.transform,
            batch_size=share,
            seed=self.config.seed,
            train=True,
            rank=self.fabric.global_rank,
            world_size=world,
            prefetch=2,
        )

    def _first_images(self, split: Split) -> Tensor:
        rows = np.linspace(0, len(split) - 1, min(HEALTH_IMAGES, len(split))).astype(np.int64)
        images = self.material.transform.apply(split, rows, epoch=0, seed=0, train=False)
        return images.to(self.fabric.device)
