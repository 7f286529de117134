"""Configurations and recipes: complete, equal after a round trip, and helpful about mistakes."""

from __future__ import annotations

import json

import pytest

from capsroute import pretrained
from capsroute.models import count_parameters
from capsroute.routing import ROUTINGS
from capsroute.training import RECIPES, Config, recipe
from capsroute.training.config import ConfigError, LossConfig, differences

REST = ("fine", "deep-bounded", "crops", "stiff", "fine-stiff", "whole", "cut", "fine-cut", "whole-cut")
STEREO = ("disparity", "drawn", "fine-cut-drawn", "cut-mirror", "fine-cut-mirror")  # one camera has none
NAMES = (
    {
        f"{data}-{routing}{deep}"
        for data in ("digits", "mnist", "fashion-mnist", "smallnorb", "smallnorb-mono", "affnist", "multimnist")
        for routing in (*ROUTINGS, "cnn")
        for deep in ("", "-deep")
        if not (deep and data == "digits")
    }
    | {
        f"{data}-{kind}"
        for data in ("smallnorb", "smallnorb-mono")
        for kind in (
            *(f"{routing}-{rest}" for rest in REST for routing in ROUTINGS),
            *("cnn-deep-bounded", "cnn-stiff", "cnn-cut"),
        )
    }
    | {f"smallnorb-{routing}-{kind}" for kind in STEREO for routing in ROUTINGS}
    | {f"smallnorb-similarity-{kind}" for kind in ("taught", "thin", "thin-drawn", "thin-mirror", "pair")}
    | {"smallnorb-cnn-cut-mirror"}
)


def test_one_recipe_for_each_data_set_and_routing() -> None:
    assert set(RECIPES) == NAMES
    for name in RECIPES:
        assert recipe(name).recipe == name


@pytest.mark.parametrize("name", sorted(NAMES))
def test_round_trip_through_json(name: str) -> None:
    config = recipe(name)
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "kind",
    [
        *(
            f"{routing}-{rest}"
            for rest in ("deep", "fine", "deep-bounded", "stiff", "fine-stiff", "cut", "fine-cut", *STEREO)
            for routing in ROUTINGS
        ),
        *("cnn-deep", "cnn-deep-bounded", "cnn-stiff", "cnn-cut", "similarity-crops", "em-crops", "similarity-whole"),
        *("similarity-whole-cut", "similarity-taught", "similarity-thin", "similarity-thin-drawn"),
        *("similarity-pair", "similarity-thin-mirror", "cnn-cut-mirror"),
    ],
)
def test_deep_recipes_have_below_a_hundred_thousand_weights(kind: str) -> None:
    config = recipe(f"smallnorb-{kind}")
    size = {"image_size": config.data.transform["crop"], "in_channels": 2, "classes": 5}
    assert 45_000 < count_parameters(pretrained.build({**config.model, **size}), routing=True) < 100_000


@pytest.mark.parametrize(("stiff", "other"), [("stiff", "deep"), ("fine-stiff", "fine")])
def test_stiff_recipes_differ_in_that_alone(stiff: str, other: str) -> None:
    pair = [recipe(f"smallnorb-similarity-{kind}").to_dict() for kind in (other, stiff)]
    names = f'recipe: "smallnorb-similarity-{other}" -> "smallnorb-similarity-{stiff}"'
    assert differences(*pair) == ["data.transform.pliancy: null -> [1, 1, 1, 0, 0]", names]


def test_cut_is_stiff_with_cutmix_in_half_of_the_batches() -> None:
    pair = [recipe(f"smallnorb-similarity-{kind}").to_dict() for kind in ("stiff", "cut")]
    assert differences(*pair)[:-1] == ["loss.cutmix: 0.0 -> 0.5", "loss.mixup: 1.0 -> 0.5"]
    fine = recipe("smallnorb-similarity-fine-cut")
    assert "chimera" not in fine.data.transform
    assert (fine.loss.mixup, fine.loss.cutmix, fine.epochs, fine.record_from) == (0.5, 0.5, 40, 40)


def test_drawn_toys_come_beside_as_many_steps() -> None:
    without, drawn = (recipe(f"smallnorb-similarity-fine-cut{rest}") for rest in ("", "-drawn"))
    assert [line.split(":")[0] for line in differences(without.to_dict(), drawn.to_dict())] == [
        *("data.extra", "epochs", "recipe", "record_from"),
    ]
    real, pairs = 21_870, 10_000
    assert drawn.epochs * (real + pairs) == pytest.approx(without.epochs * real, rel=0.03)


def test_each_thinned_network_begins_with_its_teacher_or_as_it_was_thinned_before() -> None:
    first, second = (recipe(f"smallnorb-similarity-{kind}") for kind in ("thin", "thin-drawn"))
    assert first.start == tuple(first.loss.teachers)
    fresh, *others = second.loss.teachers
    assert (fresh, *others) == ("smallnorb-similarity-fine-cut-drawn", *first.start[1:])
    assert second.start == (fresh, *["smallnorb-similarity-thin"] * 3)
    assert second.model["lanes"][1:] == first.model["lanes"][1:]


@pytest.mark.parametrize("routing", ["similarity", "connectionist"])
@pytest.mark.parametrize("data", ["mnist", "smallnorb"])
def test_the_papers_protocol_is_the_default_of_its_recipes(data: str, routing: str) -> None:
    config = recipe(f"{data}-{routing}")
    assert (config.epochs, config.record_from) == (100, 10)
    assert (config.optimizer.name, config.optimizer.lr, config.schedule.name) == ("adam", 3e-3, "exponential")
    assert (config.data.val_split, config.data.val_fraction) == ("random", 0.1)
    assert config.loss.name == "cross_entropy"
    assert "routing_options" not in config.model, "three iterations are the routing's own default"


def test_em_uses_the_spread_loss() -> None:
    assert recipe("smallnorb-em").loss.name == "spread"
    assert recipe("multimnist-em").loss.name == "margin"


def test_em_starts_with_two_iterations() -> None:
    assert recipe("mnist-em").model["routing_options"] == {"iterations": 2, "inverse_temperature": 0.05}


def test_settings_change_one_entry_each() -> None:
    config = recipe("smallnorb-similarity").with_settings(
        [
            "optimizer.lr=1",
            "optimizer.betas=[0.8, 0.99]",
            "optimizer.clip=none",
            "data.cameras=left",
            "data.transform.cutout=8",
            "model.routing_options.iterations=5",
            "model.coordinate_addition=true",
            "precision=32",
        ]
    )
    before = recipe("smallnorb-similarity").to_dict()
    assert differences(before, config.to_dict()) == [
        'data.cameras: "stereo" -> "left"',
        "data.transform.cutout: null -> 8",
        "model.coordinate_addition: null -> true",
        'model.routing_options: null -> {"iterations": 5}',
        "optimizer.betas: [0.9, 0.999] -> [0.8, 0.99]",
        "optimizer.clip: 5.0 -> null",
        "optimizer.lr: 0.003 -> 1.0",
    ]
    assert isinstance(config.optimizer.lr, float)
    assert config.optimizer.betas == (0.8, 0.99)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("optimizer.lrr=1", r"unknown option 'optimizer.lrr' \(did you mean 'lr'\?\); there are name, lr, "),
        ("optimiser.lr=1", r"unknown option 'optimiser.lr' \(did you mean 'optimizer'\?\)"),
        ("model.primry=1", r"unknown option 'model.primry' \(did you mean 'primary'\?\)"),
        ("model.classes=3", r"unknown option 'model.classes'"),
        ("data.transform.cutot=1", r"unknown option 'data.transform.cutot' \(did you mean 'cutout'\?\)"),
        ("epochs=many", "epochs='many': takes an int"),
        ("epochs=2.5", "epochs=2.5: takes an int"),
        ("epochs=0", "epochs=0: must be at least 1"),
        ("epochs", "--set epochs: write it as name=value"),
        ("epochs.x=1", "'epochs' is one value, nothing lies below it"),
        ("optimizer=3", "'optimizer' has several entries; set one of optimizer.name, "),
        ("data.options=3", "data.options=3: takes named entries; set data.options.NAME=value"),
        ("optimizer.betas=0.9", r"optimizer.betas=0.9: write 2 values as \[a, b\]"),
        ("loss.name=spred", "loss.name='spred': choose one of cross_entropy, spread, margin, bounded"),
        ("precision=16", "precision='16': choose one of 32, medium, bf16"),
        ("ema=1", "ema=1.0: must be between 0 and 1"),
        ("schedule.warmup=-1", "schedule.warmup=-1.0: must be not negative"),
        ("loss.cutmix=1.5", "loss.cutmix=1.5: must be from 0 to 1"),
        ("loss.mixup=-1", "loss.mixup=-1.0: must be from 0 to 1"),
        ("start=3", "start=3: takes a str"),
        ("start=[3]", "start=3: takes a str"),
        ("loss.reconstruction=0.1", r"needs a decoder; --set model.decoder=\[512,1024\]"),
    ],
)
def test_wrong_settings_are_told_with_the_way_out(setting: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        recipe("mnist-similarity").with_settings([setting])
    assert "\n" not in str(caught.value)


def test_smoothing_goes_with_cross_entropy() -> None:
    with pytest.raises(ConfigError, match=r"loss.smoothing=0.1 goes with cross_entropy, not with 'spread'"):
        recipe("mnist-em").with_settings(["loss.smoothing=0.1"])


def test_mixed_images_are_not_reconstructed() -> None:
    with pytest.raises(ConfigError, match=r"mixed images show two; leave out loss.mixup and loss.cutmix"):
        recipe("mnist-similarity", loss=LossConfig(cutmix=0.5, reconstruction=0.01))


def test_unknown_recipe() -> None:
    with pytest.raises(
        ConfigError,
        match=r"'minst-em' \(did you mean 'mnist-em'\?\); .* cnn, or ROUTING-deep, on smallNORB also ROUTING-fine, .*",
    ):
        recipe("minst-em")


def test_unknown_entry_of_a_file() -> None:
    with pytest.raises(ConfigError, match=r"unknown entry 'optimizer.lrate' \(did you mean 'lr'\?\)"):
        Config.from_dict({"optimizer": {"lrate": 1.0}})
