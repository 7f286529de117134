"""Thinned networks: few weights, the largest, and everything else as in a network that has zeros in their place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.tiny import Notes, tiny, train
from torch.nn.utils import parametrize

import capsroute as cr
from capsroute import pretrained, thinning
from capsroute.errors import RunError
from capsroute.lanes import LaneNet
from capsroute.models import CapsNet, count_parameters
from capsroute.training.config import OptimizerConfig
from capsroute.training.optim import Average, build_optimizer

SMALL: dict[str, Any] = {
    "image_size": 20,
    "in_channels": 2,
    "stem": [[16, 5, 2], [24, 3, 1]],
    "primary": 3,
    "capsules": [[3, 3, 1]],
    "pose_norm": "batch",
    "coordinate_addition": True,
}
WEIGHTS = 3500


def whole(**options: Any) -> CapsNet:
    torch.manual_seed(0)
    return CapsNet(**{**SMALL, **options})


def thin(**options: Any) -> CapsNet:
    return whole(thin=WEIGHTS, **options)


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 2, 20, 20, generator=torch.Generator().manual_seed(1))


def with_zeros(net: CapsNet) -> CapsNet:
    """A network that is not thinned, with the same weights and zeros."""
    other = whole()
    layers = thinning.thinned(net)
    state = {name: tensor for name, tensor in net.state_dict().items() if "parametrizations" not in name}
    other.load_state_dict({**state, **{f"{name}.weight": layer.weight for name, layer in layers.items()}})
    return other


def test_so_many_numbers_are_left() -> None:
    assert count_parameters(whole(), routing=True) > 6000
    assert WEIGHTS - 10 < count_parameters(thin(), routing=True) <= WEIGHTS


def test_the_largest_stay_where_they_were() -> None:
    dense, net = whole(), thin()
    layers = thinning.thinned(net)
    assert set(layers) == {"stem.3", "primary.poses", "layers.0"}, "the first convolution has 800 numbers"
    for name, layer in layers.items():
        before, after = dense.get_submodule(name).weight, layer.weight
        kept = after != 0
        assert torch.equal(after[kept], before[kept])
        assert before[kept].abs().min() >= before[~kept].abs().max()
    others = {name: tensor for name, tensor in net.state_dict().items() if "parametrizations" not in name}
    assert all(torch.equal(tensor, dense.state_dict()[name]) for name, tensor in others.items())


def test_of_small_tensors_a_larger_share_stays() -> None:
    shares = {name: (layer.weight != 0).float().mean() for name, layer in thinning.thinned(thin()).items()}
    assert shares["primary.poses"] > shares["stem.3"]


@pytest.mark.parametrize("fused", [False, "auto"])
def test_values_and_gradients_are_those_of_a_network_with_zeros(fused: Any) -> None:
    net = thin(fused=fused)
    other = with_zeros(net)
    logits, wanted = net(images()).logits, other(images()).logits
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
    logits.square().sum().backward()
    wanted.square().sum().backward()
    for name, layer in thinning.thinned(net).items():
        placed = layer.parametrizations.weight
        gradient = other.get_submodule(name).weight.grad.flatten()[placed[0].places.long()]
        torch.testing.assert_close(placed.original.grad, gradient, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(net.stem[0].weight.grad, other.stem[0].weight.grad, atol=1e-3, rtol=1e-3)


def test_zeros_stay_zeros_and_the_others_learn() -> None:
    net = thin()
    before = {name: layer.weight.detach().clone() for name, layer in thinning.thinned(net).items()}
    optimizer = build_optimizer(net, OptimizerConfig("adamw", weight_decay=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        net(images()).logits.square().sum().backward()
        optimizer.step()
    for name, layer in thinning.thinned(net).items():
        assert torch.equal(layer.weight == 0, before[name] == 0)
        assert (layer.weight != before[name]).any()


def test_what_is_left_decays_as_matrices_do() -> None:
    net = thin()
    decayed = {
        id(p) for p in build_optimizer(net, OptimizerConfig("adamw", weight_decay=0.1)).param_groups[0]["params"]
    }
    assert len(thinning.values(net)) == 3
    assert {id(p) for p in thinning.values(net)} <= decayed


def test_an_assigned_tensor_is_thinned_anew() -> None:
    layer = thin().stem[3]
    places = layer.parametrizations.weight[0].places.clone()
    given = torch.randn(24, 16, 3, 3, generator=torch.Generator().manual_seed(5))
    layer.weight = given
    assert not torch.equal(layer.parametrizations.weight[0].places, places)
    kept = layer.weight != 0
    assert int(kept.sum()) == len(places)
    assert torch.equal(layer.weight[kept], given[kept])


def test_saved_and_loaded_it_says_the_same_and_the_file_is_small(tmp_path: Path) -> None:
    net = thin().eval()
    net.save_pretrained(tmp_path / "thin")
    whole().save_pretrained(tmp_path / "whole")
    again = cr.CapsNet.from_pretrained(tmp_path / "thin")
    assert again.config["thin"] == WEIGHTS
    assert torch.equal(again(images()).logits, net(images()).logits)
    held = load_file(tmp_path / "thin" / "model.safetensors")
    floats = sum(t.numel() for t in held.values() if t.is_floating_point())
    assert floats < 0.6 * sum(t.numel() for t in load_file(tmp_path / "whole" / "model.safetensors").values())


def test_it_begins_with_the_largest_weights_of_another(tmp_path: Path) -> None:
    torch.manual_seed(3)
    CapsNet(**SMALL).save_pretrained(tmp_path / "whole")
    net = thin()
    pretrained.borrow(net, tmp_path / "whole")
    torch.manual_seed(3)
    wanted = CapsNet(**SMALL, thin=WEIGHTS)
    assert torch.equal(net.eval()(images()).logits, wanted.eval()(images()).logits)
    wanted.save_pretrained(tmp_path / "thin")
    third = thin()
    pretrained.borrow(third, tmp_path / "thin")
    assert torch.equal(third.eval()(images()).logits, wanted(images()).logits)


def test_lanes_begin_with_a_network_each(tmp_path: Path) -> None:
    for seed in (3, 4):
        torch.manual_seed(seed)
        CapsNet(**SMALL).save_pretrained(tmp_path / str(seed))
    net = LaneNet(**SMALL, lanes=[{}, {"thin": WEIGHTS}])
    pretrained.borrow(net, [tmp_path / "3", tmp_path / "4"])
    torch.manual_seed(4)
    second = CapsNet(**SMALL, thin=WEIGHTS).eval()
    first = cr.CapsNet.from_pretrained(tmp_path / "3")
    heads = net.eval().heads(images())
    assert torch.equal(heads[0].logits, first(images()).logits)
    assert torch.equal(heads[1].logits, second(images()).logits)
    with pytest.raises(RunError, match=r"start=\[.*\]: 1 networks to begin with for 2"):
        pretrained.borrow(net, [tmp_path / "3"])
    net.save_pretrained(tmp_path / "lanes")
    again = LaneNet(**SMALL, lanes=[{}, {"thin": WEIGHTS}])
    pretrained.borrow(again, [tmp_path / "4", tmp_path / "lanes"])
    heads = again.eval().heads(images())
    assert torch.equal(heads[0].logits, cr.CapsNet.from_pretrained(tmp_path / "4")(images()).logits)
    assert torch.equal(heads[1].logits, second(images()).logits), "the lane in its place"


def test_its_average_and_a_copy_know_its_places() -> None:
    net = thin()
    average = Average(net, 0.9)
    for value in thinning.values(net):
        value.data.add_(1.0)
    average.update(1000)
    for name, layer in thinning.thinned(average.net).items():
        assert torch.equal(layer.weight == 0, net.get_submodule(name).weight == 0)
    assert torch.equal(copy.deepcopy(net).eval()(images()).logits, net.eval()(images()).logits)


@pytest.mark.parametrize("weights", [0, -1, 1000, 1_000_000])
def test_too_few_and_too_many_are_told(weights: int) -> None:
    with pytest.raises(ValueError, match=rf"thin={weights}: this network has 7,\d+ learned numbers and can be left"):
        whole(thin=weights)


def test_a_network_with_nothing_large_has_nothing_to_leave_out() -> None:
    with pytest.raises(ValueError, match="thin=100: this network has"):
        CapsNet(image_size=12, stem=[4, 5, 2], primary=1, capsules=[], thin=100)


def test_what_a_routing_learns_stays_whole() -> None:
    options = {"routing": "connectionist", "routing_options": {"f_hidden": [64, 64], "g_hidden": [64, 64]}}
    dense = whole(**options)
    assert any(p.numel() > thinning.LARGE for p in dense.layers[0].routing.parameters())
    weights = count_parameters(dense, routing=True) - 2000
    assert set(thinning.thinned(whole(**options, thin=weights))) == {"stem.3", "primary.poses", "layers.0"}


def test_of_filters_with_mirror_images_the_learned_half_is_thinned(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mirror": "stereo", "stem": [[16, 5, 2], [32, 3, 1]]}
    dense, net = whole(**options), whole(**options, thin=3000)
    assert 2990 < count_parameters(net, routing=True) <= 3000 < count_parameters(dense, routing=True)
    filters = net.stem[3].weight
    zeros = filters[:16] == 0
    assert zeros.any()
    assert torch.equal(filters[:16][~zeros], dense.stem[3].weight[:16][~zeros]), "the largest, where they were"
    torch.testing.assert_close(filters[16:], filters[:16].roll(8, 1).flip(-1))

    torch.manual_seed(3)
    other = CapsNet(**{**SMALL, **options})
    other.save_pretrained(tmp_path / "whole")
    pretrained.borrow(net, tmp_path / "whole")
    kept = net.stem[3].weight != 0
    assert torch.equal(net.stem[3].weight[kept], other.stem[3].weight[kept])
    assert other.stem[3].weight[kept].abs().min() >= other.stem[3].weight[~kept].abs().max()

    net.eval().save_pretrained(tmp_path / "thin")
    again = cr.CapsNet.from_pretrained(tmp_path / "thin")
    assert torch.equal(again(images()).logits, net(images()).logits)
    assert torch.equal(copy.deepcopy(net)(images()).logits, net(images()).logits)
    net.train()(images()).logits.square().sum().backward()
    assert all(value.grad is not None and value.grad.any() for value in thinning.values(net))


def test_a_thinned_network_trains_and_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ("model.stem=[[16,3,2],[16,3,1]]", "model.thin=2000", "ema=0.9")
    straight = train(tiny(*settings), out="straight", watcher=Notes())

    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train(tiny(*settings), out="stopped", watcher=Notes({8: stop}))
    resumed = train(tiny(*settings), out="stopped", resume=True, watcher=Notes())
    assert resumed.result["parameters"] == straight.result["parameters"] <= 2000
    assert resumed.result["test_error"] == straight.result["test_error"]
    first, second = (load_file(run.model / "model.safetensors") for run in (straight, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(parametrize.is_parametrized(m) for m in cr.CapsNet.from_pretrained(straight.model).modules())
