"""`capsroute bench`: what it compares is the same network, and what it prints is what it promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from capsroute.bench import commands, compare, plots, report
from capsroute.bench.candidates import CNN, PATHS, Candidate
from capsroute.bench.compare import Row
from capsroute.bench.worker import Seconds, Workbench, Worker
from capsroute.cli import app
from capsroute.errors import RunError
from capsroute.models import count_parameters
from capsroute.routing import ROUTINGS
from capsroute.testing import assert_capsules_close


@pytest.mark.parametrize("routing", ROUTINGS)
@torch.no_grad()
def test_reference_and_fused_are_the_same_network(routing):
    images = torch.randn(1, 2, 32, 32)
    reference, fused = (Candidate(routing, path).build() for path in ("reference", "fused"))
    assert all(layer.fused is False and layer.vote_budget is None for layer in reference.layers)
    assert all(layer.fused is True for layer in fused.layers)
    assert count_parameters(reference) == 88_008  # the paper's 86,408 have one camera, not two
    # in double precision: of the two it is the reference that rounds more
    assert_capsules_close(fused.eval()(images), reference.eval().double()(images.double()), 1e-5)


def test_the_paths_are_told_apart():
    tiled, compiled = (Candidate("similarity", path).build() for path in ("tiled", "compiled"))
    assert all(layer.fused is False and layer.vote_budget is not None for layer in tiled.layers)
    assert "torch._dynamo" in type(compiled.route).__module__ or hasattr(compiled.route, "_torchdynamo_orig_callable")


def test_the_cnn_has_as_many_weights():
    caps, cnn = Candidate("similarity").build(), Candidate(CNN).build()
    assert abs(count_parameters(cnn) / count_parameters(caps) - 1) < 0.02


def test_json_has_the_promised_shape():
    arguments = "bench --json --routing similarity --path reference --path fused --phase infer --batch 2 --seconds 1"
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert set(told) == {"machine", "rows"}
    assert [(row["routing"], row["path"], row["phase"]) for row in told["rows"]] == [
        ("similarity", "reference", "infer"),
        ("similarity", "fused", "infer"),
    ]
    reference, fused = told["rows"]
    assert reference["ms_per_image"] > 0
    assert fused["ms_per_image"] > 0
    assert reference["extra_mb_per_image"] > 5  # the votes alone
    assert fused["extra_mb_per_image"] < reference["extra_mb_per_image"] / 5
    assert "taking turns" in result.stderr


def test_everything_is_measured_unless_told(monkeypatch):
    asked = []

    def note(candidates, phases, **options):
        asked.append(([(c.routing, c.path) for c in candidates], list(phases), options["batch"]))
        return []

    monkeypatch.setattr(compare, "compare", note)
    assert CliRunner().invoke(app, ["bench", "--json"]).exit_code == 0
    expected = [([(name, path) for path in PATHS], ["train", "infer"], 32) for name in ROUTINGS]
    assert asked == [*expected, ([(CNN, "reference")], ["train", "infer"], 32)]


def test_precision_is_of_the_operators_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(compare, "compare", lambda candidates, *_, **__: asked.extend(candidates) or [])
    arguments = "bench --json --routing connectionist --routing cnn --precision medium"
    result = CliRunner().invoke(app, arguments.split())
    assert json.loads(result.stdout)["machine"]["precision"] == "medium"
    assert [(c.routing, c.path) for c in asked if c.precision == "medium"] == [("connectionist", "fused")]
    assert len(asked) == len(PATHS) + 1


def test_plots_with_a_precision_are_refused(tmp_path):
    result = CliRunner().invoke(app, ["bench", "--precision", "medium", "--plots", str(tmp_path)])
    assert result.exit_code == 2
    assert "leave out --precision" in " ".join(result.output.split())


@pytest.mark.parametrize(("precision", "set_to"), [("32", "highest"), ("medium", "medium")])
def test_a_workbench_sets_the_precision(precision, set_to):
    before = torch.get_float32_matmul_precision(), torch.get_num_threads()
    try:
        Workbench(Candidate(CNN, threads=1, precision=precision))
        assert torch.get_float32_matmul_precision() == set_to
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.set_num_threads(before[1])


def _row(path, ms, mb, routing="em", phase="train"):
    return Row(routing, path, phase, ms, 2 * ms, mb, batch=32, steps=3)


def test_table_and_ratios():
    rows = [_row("reference", 100.0, 50.0), _row("fused", 4.0, 0.5), _row("fused", 1.0, 0.5, routing="dynamic")]
    assert report.ratios(rows, rows[1]) == (25.0, 100.0)
    assert report.ratios(rows, rows[2]) is None
    from rich.console import Console

    console = Console(width=120, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.table(rows))
    text = console.export_text()
    assert "25.0 x" in text
    assert "100 x" in text


class FakeWorker:
    """Answers as a candidate would that takes `pace` seconds and `need` bytes an image."""

    def __init__(self, pace, need, path="reference"):
        self.candidate, self.pace, self.need, self.calls = Candidate("em", path), pace, need, []

    def step(self, phase, batch):
        self.calls.append(("step", batch))
        return Seconds(self.pace * batch, 2 * self.pace * batch)

    def memory(self, phase, batch):
        self.calls.append(("memory", batch))
        return self.need


@pytest.mark.parametrize(
    ("pace", "need", "free", "batch", "measured"),
    [
        (0.01, 1e6, 1e10, 32, 32),
        (0.2, 1e6, 1e10, 32, 8),  # one step fits ten seconds, but is too long to be made twice
        (1.2, 1e6, 1e10, 8, 2),
        (50.0, 1e6, 1e10, 1, 1),
        (0.01, 1e9, 1e10, 4, 4),
    ],
)
def test_the_batch_fits_time_and_memory(monkeypatch, pace, need, free, batch, measured):
    monkeypatch.setattr(compare, "available_memory", lambda: free)
    worker = FakeWorker(pace, need)
    assert compare._need(worker, "train", 32, seconds=10.0) == (batch, need)
    assert worker.calls[-1] == ("memory", measured)


def test_the_memory_of_an_operator_is_that_of_the_whole_batch(monkeypatch):
    """Its buffers are shared by all images: a smaller batch would make them look large."""
    monkeypatch.setattr(compare, "available_memory", lambda: 1e10)
    worker = FakeWorker(1.2, 1e6, path="fused")
    assert compare._need(worker, "train", 32, seconds=10.0) == (8, 1e6)
    assert worker.calls[-1] == ("memory", 32)


def test_a_compiled_network_sees_one_batch_size():
    worker = FakeWorker(0.1, 1e6, path="compiled")
    assert compare._need(worker, "train", 32, seconds=1.0).batch == 32
    assert {batch for _, batch in worker.calls} == {32}


def test_candidates_take_turns_and_medians_count(monkeypatch):
    monkeypatch.setattr(compare, "available_memory", lambda: 1e12)
    order: list[str] = []

    class Turn(FakeWorker):
        def step(self, phase, batch):
            order.append(self.candidate.path)
            taken = super().step(phase, batch)
            return taken if len(order) != 5 else Seconds(1e3, 1e3)  # one hiccup

    ticks = iter(range(1000))
    monkeypatch.setattr(compare.time, "perf_counter", lambda: float(next(ticks)))
    workers: Any = [Turn(0.001, 1e6), Turn(0.002, 2e6, path="fused")]
    rows = compare._phase(workers, "train", 4, seconds=20.0, say=lambda _: None)
    turns = order[4:]
    assert turns == ["reference", "fused"] * (len(turns) // 2)
    assert [row.ms_per_image for row in rows] == [1.0, 2.0]
    assert [row.core_ms_per_image for row in rows] == [2.0, 4.0]
    assert rows[0].steps > 2


def test_what_goes_wrong_in_a_worker_is_told():
    worker = Worker(Candidate("similarity", image_size=5))
    try:
        with pytest.raises(RunError, match="similarity, reference path, train with batch 1: ValueError: input of size"):
            worker.step("train", 1)
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(RunError, match="smaller --batch"):
            worker.step("train", 1)
    finally:
        worker.stop()


def test_plots(monkeypatch, tmp_path):
    def measured(candidates, phases, *, batch, seconds):
        return [_row(c.path, 1.0 * c.types * (c.iterations or 3) + batch, 1.0 * c.image_size) for c in candidates]

    monkeypatch.setattr(plots, "compare", measured)
    result = CliRunner().invoke(app, ["bench", "--routing", "em", "--plots", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "new" / "bench-em.json").read_text())
    assert {row["axis"] for row in told["rows"]} == {"batch", "image_size", "types", "iterations"}
    assert [row["value"] for row in told["rows"] if row["axis"] == "types" and row["path"] == "fused"] == [4, 8, 16, 32]
    assert (tmp_path / "new" / "bench-em.png").stat().st_size > 10_000


def test_help_waits_for_nothing_heavy():
    heavy = {"torch", "numpy", "matplotlib"}
    code = f"import sys, capsroute.bench.commands; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_refused():
    result = CliRunner().invoke(commands.app, ["--routing", "nothing"])
    assert result.exit_code == 2
    assert "similarity" in result.output
