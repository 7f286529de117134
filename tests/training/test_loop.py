"""The loop: what it trains, what it chooses, what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.tiny import Notes, tiny, train

import capsroute as cr
from capsroute.data import digits
from capsroute.errors import DataError, RunError
from capsroute.models import ConvNet, count_parameters
from capsroute.training import Run, predict, ranks
from capsroute.training.config import ConfigError
from capsroute.training.learner import Best
from capsroute.training.loop import Trainer
from capsroute.training.material import gather
from capsroute.training.recipes import ROUTINGS

RESULT_KEYS = (
    "recipe dataset source cameras routing seed epochs parameters val_error val_split test_error test_interval "
    "wall_seconds threads commit config curve"
)


@pytest.mark.parametrize("routing", [*ROUTINGS, "cnn"])
def test_every_routing_learns_and_leaves_its_evidence(routing: str) -> None:
    config = tiny("epochs=8", "optimizer.lr=0.02", "data.transform.shift=0", name=f"digits-{routing}")
    run = train(config, out="run", watcher=Notes())
    result = run.result
    assert list(result) == RESULT_KEYS.split()
    assert result["routing"] == routing
    curve = result["curve"]
    assert [entry["epoch"] for entry in curve] == list(range(1, 9))
    assert min(entry["train_error"] for entry in curve) < curve[0]["train_error"] - 10
    low, high = result["test_interval"]
    assert low < result["test_error"] < high
    net = ConvNet if routing == "cnn" else cr.CapsNet
    loaded = cr.pretrained.load(run.model)
    assert isinstance(loaded, net)
    assert count_parameters(loaded, routing=True) == result["parameters"]
    assert {path.name for path in run.folder.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "checkpoints",
        "model",
        "result.json",
    }


def test_the_saved_network_is_the_one_that_was_tested() -> None:
    config = tiny("epochs=4")
    run = train(config, out="run", watcher=Notes())
    material = gather(config)
    net = cr.CapsNet.from_pretrained(run.model)
    found = predict(net, material.dataset.test, material.transform)
    assert found.error == run.result["test_error"]
    held = material.splits()[1]
    assert held is not None
    assert predict(net, held, material.transform).error == run.result["val_error"]


def test_the_best_on_validation_from_the_recorded_epochs_is_chosen() -> None:
    run = train(tiny("epochs=5", "record_from=3", "optimizer.lr=0.03"), out="run", watcher=Notes())
    recorded = [entry for entry in run.result["curve"] if entry["epoch"] >= 3]
    best = min(recorded, key=lambda entry: (entry["val_error"], entry["val_loss"]))
    assert run.result["val_error"] == best["val_error"]
    marked = [entry["epoch"] for entry in run.metrics if entry.get("best")]
    assert marked[-1] == best["epoch"]
    assert min(marked) == 3


def test_of_equal_errors_the_lower_loss_wins() -> None:
    assert Best(4, 1.0, 0.2).beats(Best(3, 1.0, 0.3))
    assert not Best(4, 1.0, 0.3).beats(Best(3, 1.0, 0.3))
    assert not Best(4, 1.1, 0.1).beats(Best(3, 1.0, 0.3))
    assert Best(2).beats(Best(1)), "without validation the latest is taken"


def test_without_validation_everything_is_trained_on() -> None:
    run = train(tiny("data.val_split=none", "data.limit=none", "epochs=1"), out="run", watcher=Notes())
    assert run.result["val_error"] is None
    assert run.result["val_split"] == "none"
    assert gather(run.config).splits()[1] is None


def test_the_test_set_is_read_after_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, opened = Notes(), []
    real = digits._open

    def note(part: str) -> object:
        opened.append((part, watcher.steps))
        return real(part)

    monkeypatch.setattr(digits, "_open", note)
    train(tiny(), out="run", watcher=watcher)
    assert opened == [("train", 0), ("test", 18)]


def test_the_configuration_is_saved_with_all_that_decided_it() -> None:
    run = train(tiny("epochs=1", "data.transform.shift=0"), out="run", watcher=Notes())
    about = run.about
    assert set(about) == {"config", "commit", "threads", "versions", "machine"}
    assert about["versions"]["torch"] == torch.__version__
    assert about["config"]["data"]["transform"]["standardise"] is None, "the data set's own preparation is written out"
    assert about["config"]["model"]["image_size"] == 8
    assert run.config.to_dict() == about["config"] == run.result["config"]


def test_runs_are_numbered() -> None:
    config = tiny("epochs=1")
    assert [str(train(config, watcher=Notes()).folder) for _ in range(2)] == [
        "runs/digits-similarity-0-1",
        "runs/digits-similarity-0-2",
    ]


def trainer(*settings: str) -> Trainer:
    config = tiny(*settings)
    return Trainer(ranks.start(config), gather(config))


def test_a_non_finite_loss_names_the_layer_and_keeps_the_checkpoint() -> None:
    watcher = Notes()
    made = trainer()

    def poison() -> None:
        with torch.no_grad():
            made.learner.net.layers[1].weight[0, 0, 0, 0] = math.nan

    watcher._after[8] = poison
    with pytest.raises(RunError, match=r"the loss is nan in epoch 2, batch 3; .* is in layers\.1 \(DenseCapsules\)"):
        made.fit(Run("run"), watcher)
    assert [path.name for path in Path("run/checkpoints").iterdir()] == ["step-00000006.safetensors"]


def test_a_non_finite_gradient_stops_before_it_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer()
    weight = made.learner.net.primary.poses.weight
    weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(RunError, match=r"the gradient is not finite in epoch 1, batch 1; .* of primary\.poses\.weight"):
        made.fit(Run("run"), Notes())
    assert torch.isfinite(weight).all()


def test_images_that_are_not_finite_are_named() -> None:
    made = trainer()
    real = made.loader.transform

    class Broken:
        def apply(self, *arguments: object, **options: object) -> torch.Tensor:
            return real.apply(*arguments, **options).fill_(math.inf)  # type: ignore[arg-type]

    made.loader.transform = Broken()  # type: ignore[assignment]
    with pytest.raises(RunError, match="is in the images"):
        made.fit(Run("run"), Notes())


def test_a_large_rate_is_told_not_endured() -> None:
    with pytest.raises(
        RunError, match=r"not finite is in .*\. The last good checkpoint is kept; try a lower optimizer.lr"
    ):
        train(tiny("optimizer.lr=1e30", "optimizer.clip=none"), out="run", watcher=Notes())


def test_too_small_a_data_set_for_the_batch() -> None:
    with pytest.raises(DataError, match="96 samples do not fill one batch of 97"):
        train(tiny("batch_size=97"), out="run", watcher=Notes())
    assert not Path("run").exists(), "nothing is left of a run that cannot begin"


def test_a_network_that_cannot_be_built() -> None:
    with pytest.raises(ConfigError, match="the network cannot be built: "):
        train(tiny("model.capsules=[[2,9,1]]"), out="run", watcher=Notes())


def test_mixed_precision_trains() -> None:
    config = tiny("precision=bf16", "epochs=8", "optimizer.lr=0.02", "data.transform.shift=0")
    curve = train(config, out="run", watcher=Notes()).result["curve"]
    assert curve[-1]["train_loss"] < curve[0]["train_loss"] - 0.1


def test_medium_precision_is_set_for_its_run_alone() -> None:
    seen = []
    for precision in ("medium", "32"):
        watcher = Notes({1: lambda: seen.append(torch.get_float32_matmul_precision())})
        train(tiny(f"precision={precision}", "epochs=1"), out=precision, watcher=watcher)
    assert seen == ["medium", "highest"]


@pytest.mark.parametrize(
    "settings",
    [
        ("loss.name=margin",),
        ("loss.name=spread", "loss.margin=0.5"),
        ("loss.smoothing=0.1",),
        ("optimizer.name=adamw",),
        ("optimizer.name=sgd", "optimizer.lr=0.1"),
        ("model.pose_norm=batch",),
        ("loss.name=bounded", "model.class_norm=true"),
    ],
)
def test_other_losses_and_optimizers_learn(settings: tuple[str, ...]) -> None:
    config = tiny("epochs=8", "optimizer.lr=0.02", "data.transform.shift=0", "loss.smoothing=0", *settings)
    curve = train(config, out="run", watcher=Notes()).result["curve"]
    assert curve[-1]["train_loss"] < 0.95 * curve[0]["train_loss"]


def test_reconstruction_trains_the_decoder() -> None:
    settings = ("model.decoder=[8]", "loss.reconstruction=0.05", "epochs=1")
    made = trainer(*settings)
    before = [p.detach().clone() for p in made.learner.net.decoder.parameters()]
    made.fit(Run("run"), Notes())
    after = list(made.learner.net.decoder.parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_ten_lines_of_python(tmp_path: Path) -> None:
    """The same as a library; kept in step with the documentation."""
    from capsroute.training import recipe, train

    config = recipe("digits-similarity", epochs=1).with_settings(["optimizer.lr=1e-2", "data.limit=64"])
    run = train(config, out=tmp_path / "first", threads=1)
    print(run.result["test_error"], run.report)
    net = cr.CapsNet.from_pretrained(run.model)
    caps = net(torch.zeros(1, 1, 8, 8))

    assert caps.activations.shape == (1, 10)
    assert json.loads(run.result_file.read_text())["epochs"] == 1


def test_a_run_can_begin_with_another_network() -> None:
    first = train(tiny(), out="first", watcher=Notes())
    saved = cr.CapsNet.from_pretrained(first.model).state_dict()
    begun = gather(tiny(f"start={first.model}", name="digits-connectionist")).network().state_dict()
    plain = gather(tiny(name="digits-connectionist")).network().state_dict()
    for name, tensor in begun.items():
        fits = name in saved and saved[name].shape == tensor.shape
        assert torch.equal(tensor, saved[name] if fits else plain[name]), name
        assert fits == (".routing." not in name), name
    assert train(tiny(f"start={first.model}", "epochs=1"), out="second", watcher=Notes()).finished


@pytest.mark.parametrize("start", ["nowhere", "broken", "other"])
def test_a_start_that_cannot_be_used_is_refused_before_a_folder_is_made(start: str) -> None:
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{}")
    Path("broken/model.safetensors").write_bytes(b"short")
    cr.pretrained.save(ConvNet(image_size=8, in_channels=1, classes=10, parameters=2000), "other")
    with pytest.raises(RunError, match=start):
        train(tiny(f"start={start}"), out="second", watcher=Notes())
    assert not Path("second").exists()


def test_extra_images_are_trained_on_and_not_held_out(tmp_path: Path) -> None:
    more = np.zeros((32, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "more.npz", images=more, labels=np.arange(32) % 10)
    config = tiny(f"data.extra={tmp_path / 'more.npz'}")
    train_split, held = gather(config).splits()
    assert len(train_split) == 96 + 32
    assert held is not None
    assert len(held) == len(gather(tiny()).splits()[1] or ())
    run = train(config, out=tmp_path / "run", watcher=Notes())
    assert run.result["config"]["data"]["extra"].endswith("more.npz")
