"""Nothing is lost: stopped runs go on to the same bits, whatever stopped them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.tiny import Notes, tiny, train

from capsroute.errors import RunError
from capsroute.training import Run, checkpoint, loop
from capsroute.training.loop import Stopped


def final_state(run: Run) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    snapshot = checkpoint.latest(run.checkpoints, print)
    assert snapshot is not None
    return snapshot.tensors, {k: v for k, v in snapshot.state.items() if k != "wall_seconds"}


def assert_same_run(one: Run, other: Run) -> None:
    """Parameters, averages, optimizer, best, curve and test error, to the last bit."""
    tensors, state = final_state(one)
    others, other_state = final_state(other)
    assert tensors.keys() == others.keys()
    different = [name for name in tensors if not torch.equal(tensors[name], others[name])]
    assert not different
    assert state == other_state
    keys = ("test_error", "val_error", "curve", "config")
    assert [one.result[k] for k in keys] == [other.result[k] for k in keys]
    saved, other_saved = (load_file(run.model / "model.safetensors") for run in (one, other))
    assert all(torch.equal(saved[name], other_saved[name]) for name in saved)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ((), 1),
        (("model.share_routing=true", "model.decoder=[16]", "loss.reconstruction=0.01", "ema=null"), 1),
        (("loss.cutmix=0.4", "loss.mixup=0.4", "model.pose_norm=batch"), 1),
        (("optimizer.name=sgd", "optimizer.weight_decay=0.01"), 1),
        pytest.param(("model.fused=auto",), 2, marks=pytest.mark.slow),
    ],
)
def test_resume_is_bit_identical_in_the_middle_of_an_epoch(settings: tuple[str, ...], threads: int) -> None:
    config = tiny(*settings)
    whole = train(config, out="whole", watcher=Notes(), threads=threads)
    # the signal is heard in the step that follows; of 6 steps an epoch, it stops in the middle of the first, at the end
    # of the second, and in the middle of the third
    for after in (3, 7, 1):
        with pytest.raises(Stopped, match="--resume"):
            train(config, out="parts", resume=True, watcher=Notes({after: interrupt}), threads=threads)
    watcher = Notes()
    parts = train(config, out="parts", resume=True, watcher=watcher, threads=threads)
    assert watcher.steps == 18 - 4 - 8 - 2
    assert_same_run(whole, parts)
    told = [{k: v for k, v in entry.items() if k != "wall_seconds"} for entry in whole.metrics]
    assert told == [{k: v for k, v in entry.items() if k != "wall_seconds"} for entry in parts.metrics]


def test_wall_time_adds_up_and_a_finished_run_stays() -> None:
    config = tiny()
    with pytest.raises(Stopped):
        train(config, out="run", watcher=Notes({9: interrupt}))
    first = checkpoint.latest(Path("run/checkpoints"), print)
    assert first is not None
    run = train(config, out="run", resume=True, watcher=Notes())
    assert run.result["wall_seconds"] > first.state["wall_seconds"] > 0
    before = run.result_file.read_bytes()
    watcher = Notes()
    train(config, out="run", resume=True, watcher=watcher)
    assert "finished already" in watcher.notes[0]
    with pytest.raises(RunError, match=r"run holds a finished run; --force starts it again"):
        train(config, out="run", watcher=Notes())
    assert run.result_file.read_bytes() == before
    again = train(config, out="run", force=True, watcher=Notes())
    assert again.result["test_error"] == json.loads(before)["test_error"]


def test_resume_without_a_checkpoint_starts_afresh_and_says_so() -> None:
    watcher = Notes()
    run = train(tiny("epochs=1"), out="run", resume=True, watcher=watcher)
    assert run.finished
    assert "starting afresh" in watcher.notes[0]


def test_a_run_of_a_version_with_fewer_options_goes_on() -> None:
    config = tiny("epochs=2")
    with pytest.raises(Stopped):
        train(config, out="run", watcher=Notes({1: interrupt}))
    about = json.loads(Path("run/config.json").read_text())
    del about["config"]["data"]["transform"]["chimera"], about["config"]["loss"]["mixup"]
    Path("run/config.json").write_text(json.dumps(about))
    assert train(config, out="run", resume=True, watcher=Notes()).finished


def test_a_run_of_another_configuration_is_refused() -> None:
    with pytest.raises(Stopped):
        train(tiny(), out="run", watcher=Notes({1: interrupt}))
    with pytest.raises(RunError, match=r"another configuration \(optimizer.lr: 0.02 -> 0.01\)"):
        train(tiny("optimizer.lr=0.01"), out="run", resume=True, watcher=Notes())
    with pytest.raises(RunError, match="unfinished run; --resume goes on with it"):
        train(tiny(), out="run", watcher=Notes())


def test_a_damaged_checkpoint_falls_back_to_the_one_before() -> None:
    config = tiny()
    whole = train(config, out="whole", watcher=Notes())
    for damage in (lambda b: b[: len(b) // 2], lambda b: b[:-5] + bytes([b[-5] ^ 1]) + b[-4:], lambda b: b""):
        with pytest.raises(Stopped):
            train(config, out="run", force=True, watcher=Notes({14: interrupt}))
        newest = max(Path("run/checkpoints").glob("step-*"))
        newest.write_bytes(damage(newest.read_bytes()))
        watcher = Notes()
        run = train(config, out="run", resume=True, watcher=watcher)
        assert newest.name in watcher.notes[0]
        assert "trying the one before it" in watcher.notes[0]
        assert_same_run(whole, run)


def test_all_checkpoints_damaged() -> None:
    with pytest.raises(Stopped):
        train(tiny(), out="run", watcher=Notes({8: interrupt}))
    for path in Path("run/checkpoints").glob("step-*"):
        path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="no checkpoint in run/checkpoints can be read; --force"):
        train(tiny(), out="run", resume=True, watcher=Notes())


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny()
    whole = train(config, out="whole", watcher=Notes())

    real = os.fsync

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fill_up = Notes({8: lambda: monkeypatch.setattr(os, "fsync", full)})
    with pytest.raises(RunError, match=r"the disk is full, .* what was saved before is intact"):
        train(config, out="run", watcher=fill_up)
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["step-00000006.safetensors"]
    monkeypatch.setattr(os, "fsync", real)
    assert_same_run(whole, train(config, out="run", resume=True, watcher=Notes()))


def test_a_checkpoint_every_few_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    real = checkpoint.save

    def note(folder: Path, step: int, *rest: Any) -> Path:
        saved.append(step)
        return real(folder, step, *rest)

    monkeypatch.setattr(loop.checkpoint, "save", note)
    train(tiny("epochs=1"), out="run", watcher=Notes(), checkpoint_seconds=0)
    assert saved == [1, 2, 3, 4, 5, 6, 6]
    assert len(list(Path("run/checkpoints").iterdir())) == checkpoint.KEPT


def test_no_permission_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # root may write anywhere, so the refusal is made up
    with pytest.raises(RunError, match=r"no permission to write run/config\.json; choose another folder with --out"):
        train(tiny(), out="run", watcher=Notes())


def test_loading_executes_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch executed",)

    path = tmp_path / "step-00000001.safetensors"
    torch.save({"net": Evil()}, path)
    with pytest.raises(RunError, match="cannot be read"):
        checkpoint.load(path)
    assert not Path("executed").exists()


def test_kill_at_any_moment(tmp_path: Path) -> None:
    """At least twenty real kills, some of them while a checkpoint is being written."""
    command = [sys.executable, "-m", "tests.training.killed", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] >= 20
    assert told["during_write"] >= 5
    assert told["resumed"] >= 10
    assert_same_run(Run(tmp_path / "whole"), Run(tmp_path / "killed"))
