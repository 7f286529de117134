"""Learning rates, averaged weights, and what weight decay acts on."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import pytest
import torch
from torch import nn

import capsroute as cr
from capsroute.training.config import LossConfig, OptimizerConfig, ScheduleConfig
from capsroute.training.objective import Objective, correct
from capsroute.training.optim import Average, build_optimizer, learning_rate, unique_tensors


@pytest.mark.parametrize("name", ["exponential", "cosine"])
def test_the_rate_falls_from_base_to_final(name: str) -> None:
    schedule = ScheduleConfig(name, final=0.01)  # type: ignore[arg-type]
    rates = [learning_rate(schedule, 2.0, step, 100, 10) for step in range(101)]
    assert rates[0] == 2.0
    assert rates[-1] == pytest.approx(0.02)
    assert all(before > after for before, after in pairwise(rates))


def test_exponential_decay_is_one_factor_an_epoch() -> None:
    schedule = ScheduleConfig("exponential", final=0.01)
    rates = [learning_rate(schedule, 1.0, step, 100, 10) for step in range(0, 100, 10)]
    assert [after / before for before, after in pairwise(rates)] == pytest.approx([0.01**0.1] * 9)


def test_warm_up_rises_in_equal_steps() -> None:
    schedule = ScheduleConfig("cosine", warmup=2)
    rates = [learning_rate(schedule, 1.0, step, 100, 10) for step in range(22)]
    assert rates[0] == pytest.approx(1 / 21)
    assert rates[19] == pytest.approx(20 / 21)
    assert rates[20] == 1.0
    assert rates[21] < 1.0


def test_warm_up_takes_at_most_half_of_the_run() -> None:
    rates = [learning_rate(ScheduleConfig("cosine", warmup=5), 1.0, step, 10, 10) for step in range(10)]
    assert max(rates) == rates[5] == 1.0


def test_constant() -> None:
    assert {learning_rate(ScheduleConfig("constant"), 0.5, step, 10, 5) for step in range(10)} == {0.5}


def test_an_average_is_the_exponential_one_once_it_is_warm() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = Average(net, decay=0.9)
    expected = net[0].weight.detach().clone()
    for step in range(200, 205):
        with torch.no_grad():
            net[0].weight.add_(1.0)
        net(torch.randn(4, 2))
        average.update(step)
        expected = 0.9 * expected + 0.1 * net[0].weight.detach()
    torch.testing.assert_close(average.net[0].weight.detach(), expected)
    assert average.net[1].num_batches_tracked == 5, "counts are copied, not averaged"
    assert not torch.equal(average.net[1].running_mean, net[1].running_mean)


def test_an_average_soon_forgets_the_start() -> None:
    net = nn.Linear(1, 1, bias=False)
    average = Average(net, decay=0.999)
    with torch.no_grad():
        net.weight.fill_(7.0)
    for step in range(20):
        average.update(step)
    assert average.net.weight.item() == pytest.approx(7.0, abs=1e-3)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_weight_decay_leaves_norms_biases_and_routing_alone(name: Literal["adam", "adamw", "sgd"]) -> None:
    net = cr.CapsNet(image_size=8, stem=(4, 3, 1), primary=2, capsules=((2, 3, 1),))
    groups = build_optimizer(net, OptimizerConfig(name, weight_decay=0.1)).param_groups
    names = {id(p): name for name, p in net.named_parameters()}
    decayed = {names[id(p)] for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {
        "stem.0.weight",
        "primary.poses.weight",
        "primary.logits.weight",
        "layers.0.weight",
        "layers.1.weight",
    }
    assert sum(len(group["params"]) for group in groups) == len(names)


def test_sgd_takes_its_momentum_from_the_first_beta() -> None:
    weight = nn.Parameter(torch.zeros(1, 1))
    net = nn.ParameterList([weight])
    optimizer = build_optimizer(net, OptimizerConfig("sgd", lr=0.1, betas=(0.5, 0.0)))
    for _ in range(2):
        weight.grad = torch.ones(1, 1)
        optimizer.step()
    # Nesterov: the first step is g + 0.5 v with v = g, the second with v = 0.5 g + g
    assert weight.item() == pytest.approx(-0.1 * (1.5 + 1.75))


def test_shared_tensors_appear_once() -> None:
    net = cr.CapsNet(image_size=8, stem=(4, 3, 1), primary=2, capsules=((2, 3, 1),), share_routing=True)
    tensors = unique_tensors(net)
    assert len({t.data_ptr() for t in tensors.values()}) == len(tensors) < len(net.state_dict())


def test_the_margin_grows_over_the_run() -> None:
    objective = Objective(cr.models.ConvNet(parameters=2000), LossConfig("spread"), steps=1000)
    margins = [objective.margin_at(step) for step in (0, 500, 1000)]
    assert margins == pytest.approx([0.2 + 0.79 * 0.018, 0.2 + 0.79 / 2, 0.2 + 0.79 * 0.982], abs=1e-3)


def test_correct_compares_sets_of_labels() -> None:
    logits = torch.tensor([[0.1, 3.0, 2.0], [5.0, 1.0, 2.0]])
    assert correct(logits, torch.tensor([1, 2])).tolist() == [True, False]
    assert correct(logits, torch.tensor([[2, 1], [1, 0]])).tolist() == [True, False]
