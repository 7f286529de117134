"""The report, the progress display, and TensorBoard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.training.tiny import Notes, tiny, train

from capsroute.training.watch import Bar, Lines, clock


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(("name", "pictures"), [("digits-similarity", 5), ("digits-cnn", 3)])
def test_a_report_is_one_page_with_everything(name: str, pictures: int) -> None:
    run = train(tiny("epochs=2", name=name), out="run", watcher=Notes())
    page = run.report.read_text()
    assert len(re.findall("<img alt='[^']+' src='data:image/png;base64,", page)) == pictures
    assert "http" not in re.sub(r"base64,[^']+", "", page), "nothing is fetched"
    assert f"{run.result['test_error']:.2f} %" in page
    assert ("Routing health" in page) == (name != "digits-cnn")
    for heading in ("Curves", "Confusion matrix", "The worst mistakes", "Configuration"):
        assert f"<h2>{heading}</h2>" in page
    shown = re.search(r"<pre>(.*)</pre>", page, re.DOTALL)
    assert shown is not None
    assert json.loads(shown.group(1).replace("&quot;", '"')) == run.result["config"]


def test_lines_tell_loss_accuracy_speed_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny("epochs=2"), out="run", watcher=Lines())
    said = capsys.readouterr().out.splitlines()
    pattern = r"epoch 1/2  loss \d\.\d+  accuracy \d+\.\d %  validation error \d+\.\d+ %  \d+ images/s  \d+:\d\d left"
    assert re.fullmatch(pattern, said[0])
    assert "best so far" in said[1]
    assert said[1].endswith("0:00 left")
    assert said[-2].startswith("test error ")
    assert said[-1] == "the report is run/report.html"


def test_a_bar_shows_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    train(tiny("epochs=1"), out="run", watcher=Bar())
    said = capsys.readouterr().out
    for part in ("epoch 1/1", "accuracy", "images/s", "left", "the report is"):
        assert part in said


def test_tensorboard_has_curves_and_routing_health() -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra log is missing"
    )
    run = train(tiny("epochs=2"), out="run", watcher=Notes(), tensorboard=True)
    read = events.EventAccumulator(str(run.board))
    read.Reload()
    assert {"train_loss", "val_error", "lr", "routing/layer1/entropy/3", "routing/layer2/widths"} <= set(
        read.Tags()["scalars"]
    )
    losses = [event.value for event in read.Scalars("train_loss")]
    assert losses == pytest.approx([entry["train_loss"] for entry in run.result["curve"]])
    assert [event.step for event in read.Scalars("train_loss")] == [6, 12]


def test_metrics_are_written_always() -> None:
    run = train(tiny("epochs=4"), out="run", watcher=Notes())
    steps = [entry for entry in run.metrics if "loss" in entry]
    epochs = [entry for entry in run.metrics if "health" in entry]
    assert [entry["step"] for entry in steps] == [20]
    assert set(steps[0]) == {"step", "loss", "lr", "grad_norm"}
    assert [entry["step"] for entry in epochs] == [6, 12, 18, 24]
    assert len(epochs[0]["health"]) == 2
    with Path("run/metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "lo')  # a killed process
    assert len(run.metrics) == 5


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]
