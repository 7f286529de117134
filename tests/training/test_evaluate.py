"""Evaluation: errors, intervals, confusion, mistakes, variations of the test set."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.data.made_up import write_mnist
from tests.training.tiny import Notes, tiny, train
from torch import nn

import capsroute as cr
from capsroute.capsules import Capsules
from capsroute.data import Split, Transform
from capsroute.data.transforms import THIRTEEN_CROPS
from capsroute.errors import RunError
from capsroute.training import Predictions, predict, recipe, verdict
from capsroute.training.commands import _print_missed, run_evaluation
from capsroute.training.config import ConfigError
from capsroute.training.evaluate import confusion, missed, wilson
from capsroute.training.report import worst_mistakes
from capsroute.training.verdict import LIGHTS, Trained, Verdict, beyond, draw, judge, load_trained, relit


@pytest.mark.parametrize(
    ("wrong", "count", "interval"),
    [
        # worked out from Wilson (1927): z = 1.96
        (0, 100, (0.0, 0.0370)),
        (100, 100, (0.9630, 1.0)),
        (7, 100, (0.0343, 0.1375)),
        (1000, 24300, (0.03873, 0.04372)),
    ],
)
def test_intervals(wrong: int, count: int, interval: tuple[float, float]) -> None:
    assert wilson(wrong, count) == pytest.approx(interval, abs=5e-5)


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.binomial(400, 0.07, size=4000)
    covered = np.mean([low <= 0.07 <= high for low, high in (wilson(int(k), 400) for k in drawn)])
    assert 0.93 < covered < 0.97


def test_errors_and_confusion() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [5.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    found = Predictions(logits, torch.tensor([0, 1, 2, 2]))
    assert found.error == 25.0
    assert confusion(found).tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 1]]


def test_the_surest_mistakes_come_first() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, 9.0], [9.0, 0.0], [0.0, 4.0]])
    assert worst_mistakes(Predictions(logits, torch.tensor([0, 0, 0, 0]))).tolist() == [1, 3, 0]
    pairs = Predictions(torch.tensor([[5.0, 1.0, 4.0], [5.0, 4.0, 1.0]]), torch.tensor([[0, 1], [1, 0]]))
    assert worst_mistakes(pairs).tolist() == [0]


def test_the_objects_with_most_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    made_up = Split.of(np.zeros((6, 1, 2, 2), np.uint8), [0, 0, 0, 1, 1, 1], {"instance": [3, 3, 8, 3, 3, 8]})
    logits = torch.eye(2)[[1, 0, 0, 0, 0, 1]]
    found = Predictions(logits, torch.from_numpy(made_up.labels))
    assert missed(found, made_up) == [(1, 3, 2, 2), (0, 3, 1, 2)]
    _print_missed(Verdict("made up", made_up, Transform(), found), ("cat", "dog"))
    assert capsys.readouterr().out == "most mistakes are views of dog 3: 2 of 2, cat 3: 1 of 2\n"
    assert missed(found, Split.of(np.zeros((6, 1, 2, 2), np.uint8), made_up.labels)) == [], "no objects are known"
    right = Predictions(torch.eye(2)[made_up.labels], found.labels)
    _print_missed(Verdict("made up", made_up, Transform(), right), ("cat", "dog"))
    assert capsys.readouterr().out == ""


class Mean(nn.Module):
    """Says class 1 where the middle of an image is bright; batches are noted."""

    def __init__(self, common: float = 0.0) -> None:
        super().__init__()
        self.common = common
        self.weight = nn.Parameter(torch.ones(1))
        self.sizes: list[int] = []

    def forward(self, images: torch.Tensor) -> Capsules:
        self.sizes.append(len(images))
        bright = 8 * images.mean((1, 2, 3)) - 4
        logits = torch.stack([-bright, bright], dim=1) + self.common
        return Capsules.from_logits(logits[..., None, None], logits)


def split(count: int = 10) -> Split:
    images = np.zeros((count, 1, 12, 12), np.uint8)
    images[1::2] = 255
    return Split.of(images, np.arange(count) % 2)


def test_predictions_come_in_the_order_of_the_split_and_leave_the_mode() -> None:
    net = Mean().train()
    found = predict(net, split(), Transform(crop=6), batch_size=4)
    assert net.sizes == [4, 4, 2]
    assert net.training
    assert found.error == 0.0
    torch.testing.assert_close(found.logits[:, 1], torch.tensor([-4.0, 4.0] * 5))


@pytest.mark.parametrize("common", [0.0, 50.0])  # where all classes are sure of themselves, shares still differ
def test_multicrop_averages_shares(common: float) -> None:
    net = Mean(common)
    images = np.zeros((1, 1, 12, 12), np.uint8)
    images[..., :6] = 255  # the centre crop is half bright; a shift to the side makes it more or less so
    found = predict(net, Split.of(images, [0]), Transform(crop=6), crops=THIRTEEN_CROPS)
    assert net.sizes == [13]
    share = torch.tensor([0.5] + [0.5 - s / 6 for step in (1, 2, 3) for s in (-step, step) * 2])
    expected = torch.sigmoid(2 * (8 * share - 4)).mean()  # of two logits x and -x, the softmax
    assert found.logits[0, 1].exp().item() == pytest.approx(expected.item(), abs=1e-5)


@pytest.mark.parametrize(("flip", "cameras"), [(True, [0, 1]), ("stereo", [1, 0])])
def test_the_mirror_image_has_half_a_say(flip: bool | str, cameras: list[int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 12, 12)).astype(np.uint8)
    seen: list[torch.Tensor] = []

    class Corner(Mean):
        def forward(self, images: torch.Tensor) -> Capsules:
            seen.append(images)
            score = 3 * images[:, 0, 0, :1]
            return Capsules.from_logits(score[..., None, None], torch.cat([-score, score], 1))

    transform = Transform(crop=6, flip=flip)
    found = predict(Corner(), Split.of(images, [0, 1, 0]), transform, mirrored=True)
    plain, mirrored = seen[0].unflatten(0, (3, 2)).unbind(1)
    torch.testing.assert_close(plain, torch.from_numpy(images[:, :, 3:9, 3:9] / np.float32(255)))
    torch.testing.assert_close(mirrored, plain[:, cameras].flip(-1), rtol=0, atol=0)
    shares = [torch.sigmoid(6 * image[:, 0, 0, 0].double()) for image in (plain, mirrored)]
    torch.testing.assert_close(found.logits[:, 1].exp(), sum(shares).float() / 2)


def test_mirrored_in_training_is_what_is_mirrored_in_a_test() -> None:
    made_up = Split.of(np.random.default_rng(0).integers(0, 256, (16, 2, 8, 8)).astype(np.uint8), [0] * 16)
    transform = Transform(flip="stereo", standardise="crop")
    plain = transform.apply(made_up, range(16), epoch=0, seed=0, train=False)
    drawn = transform.apply(made_up, range(16), epoch=0, seed=0, train=True)
    same = (drawn == plain).flatten(1).all(1)
    turned = (drawn == transform.mirrored(plain)).flatten(1).all(1)
    assert (same ^ turned).all()
    assert same.any()
    assert turned.any()


def test_relit_images() -> None:
    images = np.array([[[[0, 100], [100, 200]]]], np.uint8)
    plain = Split.of(images, [0])
    assert relit(plain, 1.0, 64.0).images.stored.ravel().tolist() == [64, 164, 164, 255]
    assert relit(plain, 0.5, 0.0).images.stored.ravel().tolist() == [50, 100, 100, 150]
    assert plain.images.stored.ravel().tolist() == [0, 100, 100, 200]


def test_robustness_is_judged() -> None:
    made_up = SimpleNamespace(title="made up", test=split())  # 12 x 12, so that a crop of 4 may move by 4
    verdicts = judge(Trained(Mean(), recipe(), made_up, Transform(crop=4)), robust=True)
    assert [verdict.title for verdict in verdicts] == [
        "made up",
        *(f"made up, {how}" for how in LIGHTS),
        "made up, crop 4 pixels down and right",
    ]
    assert [verdict.found.error for verdict in verdicts] == [0.0] * 5
    assert len(judge(Trained(Mean(), recipe(), made_up, Transform()), robust=True)) == 4  # no crop to move


def test_a_run_is_judged_as_it_was_tested_and_drawn(tmp_path: Path) -> None:
    run = train(tiny("epochs=2"), out="run", watcher=Notes())
    trained = load_trained(run.folder)
    verdicts = judge(trained)
    assert [verdict.found.error for verdict in verdicts] == [run.result["test_error"]]
    assert verdicts[0].to_dict()["test_interval"] == run.result["test_interval"]
    names = [path.name for path in draw(verdicts[0], trained.dataset.classes, tmp_path / "drawn")]
    assert names == ["confusion.png", "mistakes.png"]
    assert all((tmp_path / "drawn" / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_variations_that_the_data_set_does_not_have() -> None:
    trained = load_trained(train(tiny("epochs=1"), out="run", watcher=Notes()).folder)
    with pytest.raises(ConfigError, match="--multicrop is not for digits: crop=None of 8 pixels"):
        judge(trained, multicrop=True)
    with pytest.raises(ConfigError, match="--mirrored is not for digits-similarity: flip=False: the network was not"):
        judge(trained, mirrored=True)
    with pytest.raises(ConfigError, match="this network sees digits at 8 x 8; train affnist-similarity"):
        judge(trained, affine=True)
    with pytest.raises(ConfigError, match="--overlapping is for digits on a canvas of 40 x 40"):
        judge(trained, overlapping=True)


def test_beyond_sets_networks_side_by_side(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for name in ("digits-similarity", "digits-cnn"):
        run = train(tiny("epochs=1", name=name), out=name, watcher=Notes())
        names.append(str(run.folder))
    again = [f"{names[0]}/model", f"{names[1]}/model"]
    monkeypatch.setattr(verdict, "BEYOND", {tuple(names): {"robust": True}, tuple(again): {}})
    *rows, other = beyond()
    assert [name for name, _ in other] == again
    assert [[name for name, _ in row] for row in rows] == [names] * 4
    assert [row[0][1].title for row in rows] == [row[1][1].title for row in rows]
    assert len({row[0][1].title for row in rows}) == 4
    options = dict.fromkeys(("affine", "overlapping", "multicrop", "mirrored", "robust"), False)
    run_evaluation(None, None, data=None, **options, beyond=True, out=None, as_json=False, threads=1)
    printed = capsys.readouterr().out
    for row in rows:
        assert f"{row[0][1].found.error:.2f}" in printed
    titles = [line.split() for line in printed.splitlines() if " and " in line]
    assert titles == [[pair[0], "and", pair[1]] for pair in (names, again)], "a table for each pair"
    with pytest.raises(ConfigError, match="pass it alone"):
        run_evaluation(Path("run"), None, data=None, **options, beyond=True, out=None, as_json=False, threads=1)


@pytest.mark.parametrize("name", ["affnist-similarity", "mnist-similarity"])
def test_affine_digits_beside_plain_ones(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_mnist(tmp_path / "data" / "mnist", train=32, test=20)
    settings = [
        "data.options.verify=false",
        "data.val_split=none",
        "data.transform.pad_to=40",
        "epochs=1",
        "batch_size=16",
    ]
    small = [
        "epochs=1",
        "batch_size=16",
        "model.stem=[4,5,4]",
        "model.primary=2",
        "model.capsules=[]",
        "model.fused=false",
    ]
    config = recipe(name).with_settings([*settings, *small])
    run = train(config, out="run", data_dir=tmp_path / "data", watcher=Notes())
    trained = load_trained(run.folder, tmp_path / "data")
    own, other, pairs = judge(trained, affine=True, overlapping=True, data_dir=tmp_path / "data")
    assert own.found.error == run.result["test_error"]
    assert pairs.title.startswith("MultiMNIST")
    assert pairs.found.labels.shape == (20, 2)
    assert len(other.split) == 20
    assert {own.split.images.shape[2], other.split.images.shape[2]} == {28, 40}, "one plain, one affine"


def test_what_cannot_be_judged(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no network at nowhere: pass a folder"):
        load_trained("nowhere")
    cr.CapsNet(image_size=8, stem=(4, 3, 1), primary=2, capsules=()).save_pretrained(tmp_path / "bare")
    with pytest.raises(RunError, match=r"does not say what its network was trained on: there is no training\.json"):
        load_trained(tmp_path / "bare")
