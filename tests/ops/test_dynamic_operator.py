"""The fused dynamic operator agrees with dynamic, entropy and flat references, with any number of threads."""

from __future__ import annotations

import pytest
import torch
from agreement import (
    LAYERS,
    assert_agrees,
    assert_compiles_and_exports,
    assert_gradients_of_one_output,
    assert_offset_gradients,
    fused_step,
    layer_and_capsules,
    reference,
)

import capsroute as cr
from capsroute import ops, routing
from capsroute.capsules import Capsules
from capsroute.ops.dynamic.op import dynamic, dynamic_backward, dynamic_forward
from capsroute.routing.dynamic import Agreement, LengthActivation, SquashedSum
from capsroute.testing import assert_capsules_close, assert_finite

ROUTINGS = {
    "dynamic": routing.dynamic(),
    "entropy": routing.entropy(alpha=0.3),
    "flat": routing.uniform(control="dynamic"),
}


@pytest.mark.parametrize("how", ROUTINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_agrees_with_the_reference(name, how):
    assert_agrees(name, ROUTINGS[how])


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("make", [routing.dynamic, routing.entropy])
def test_any_number_of_iterations(make, iterations):
    assert_agrees("2d, stride 2, padding 1", make(iterations=iterations))


@pytest.mark.parametrize("how", ["dynamic", "entropy"])
def test_windows_too_large_to_keep(how):
    """Votes beyond what a cache holds are made again in every round."""
    layer = cr.DenseCapsules(70, 11, space=4, routing=ROUTINGS[how], fused=True)
    caps = Capsules.from_logits(torch.randn(2, 4, 70, 4, 4), torch.randn(2, 4, 70))
    actual, expected = fused_step(layer, caps), fused_step(reference(layer), caps)
    for key, value in actual.items():
        torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_threads_change_nothing_but_rounding(batch):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.dynamic(), batch)
    one = fused_step(layer, caps)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert_agrees("2d, stride 2, padding 1", routing.dynamic(), batch=batch, draws=1)
        some, again = fused_step(layer, caps), fused_step(layer, caps)
        for key in one:
            assert torch.equal(some[key], again[key]), f"{key} differs between two runs with {threads} threads"
            torch.testing.assert_close(some[key], one[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ROUTINGS)
def test_extremes_stay_finite(how):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", ROUTINGS[how])
    for what, poses in (
        ("identical poses", torch.ones_like(caps.poses)),
        ("zero poses", torch.zeros_like(caps.poses)),
        ("tiny poses", caps.poses * 1e-20),
        ("huge poses", caps.poses * 1e4),
        ("poses of the largest length", caps.poses * 1e16),
    ):
        results = fused_step(layer, Capsules.from_logits(poses, caps.logits))
        assert_finite({f"{what}: {key}": value for key, value in results.items()})


@pytest.mark.parametrize("how", ROUTINGS)
def test_zero_poses_have_the_reference_slope(how):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", ROUTINGS[how])
    zeros = Capsules.from_logits(torch.zeros_like(caps.poses), caps.logits)
    actual, expected = fused_step(layer, zeros), fused_step(reference(layer), zeros)
    for key, value in actual.items():
        torch.testing.assert_close(value, expected[key])


def test_empty_batch():
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.dynamic(), batch=0)
    results = fused_step(layer, caps)
    assert results["out poses"].shape == (0, 4, 3, 5, 4, 4)
    assert not bool(results["grad weight"].any())


def test_activations_take_no_part():
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.dynamic())
    assert_capsules_close(layer(Capsules.from_logits(caps.poses, caps.logits + 3)), layer(caps), 0.0)


def test_other_competition_is_left_to_the_tiled_path():
    odd = cr.routing.Routing(Agreement(), LengthActivation(), SquashedSum(), competition="parents")
    assert ops.find(odd, torch.float32, torch.device("cpu"), 16) is None


def _arguments(offset=True, requires_grad=True):
    def made(*shape):
        return torch.randn(*shape, requires_grad=requires_grad)

    index = torch.tensor([[0, 1, -1], [4, 2, 3]], dtype=torch.int32)
    return made(2, 5, 3, 2), made(3, 4, 2, 3), made(3, 4) if offset else None, index, 3, offset, 1.5


@pytest.mark.parametrize("offset", [True, False])
def test_opcheck(offset):
    torch.library.opcheck(dynamic_forward, _arguments(offset))
    plain = _arguments(offset, requires_grad=False)
    poses, logits, trail = dynamic_forward(*plain)
    grads = torch.randn_like(poses), torch.randn_like(logits)
    torch.library.opcheck(dynamic_backward, (*grads, poses, trail, *plain))


@pytest.mark.parametrize("how", ROUTINGS)
def test_gradients_of_one_output_alone(how):
    assert_gradients_of_one_output(ROUTINGS[how])


@pytest.mark.parametrize("how", ROUTINGS)
def test_gradients_of_an_offset(how):
    assert_offset_gradients(ROUTINGS[how])


@pytest.mark.parametrize("how", ["dynamic", "entropy"])
def test_compiles_and_exports(how):
    assert_compiles_and_exports(ROUTINGS[how])


def test_refuses_what_does_not_fit():
    poses, weight, offset, index, *_ = _arguments()
    with pytest.raises(ValueError, match="at least once"):
        dynamic(poses, weight, offset, index, 0)
    with pytest.raises(ValueError, match="do not fit"):
        dynamic(poses, weight, offset, index[:, :2], 1)
    with pytest.raises(ValueError, match="does not exist"):
        dynamic(poses, weight, offset, index + 1, 1)
    with pytest.raises(ValueError, match=r"torch\.float32"):
        dynamic(poses.double(), weight, offset, index, 1)
