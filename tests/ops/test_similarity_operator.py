"""The fused similarity operator agrees with the reference and with the paper's equations, whatever the sizes."""

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
    uninitialised_is_nan,
)

import capsroute as cr
from capsroute import ops, routing
from capsroute.capsules import Capsules
from capsroute.ops.similarity.op import similarity, similarity_backward, similarity_forward
from capsroute.testing import assert_capsules_close, assert_finite

ROUTINGS = {
    "one component": routing.similarity(components=1),
    "four": routing.similarity(components=4),
    "seven, per channel": routing.similarity(components=7, per_channel=True),
    "sharp scores": routing.similarity(components=3, lambdas=(0.01, 0.01)),
    "flat": routing.uniform(components=5),
}


@pytest.mark.parametrize("how", ROUTINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_agrees_with_the_reference(name, how):
    assert_agrees(name, ROUTINGS[how])


@pytest.mark.parametrize("iterations", [1, 2, 3, 5])
def test_any_number_of_iterations(iterations):
    assert_agrees("2d, stride 2, padding 1", routing.similarity(iterations=iterations))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_threads_change_nothing_but_rounding(batch):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.similarity(), batch)
    one = fused_step(layer, caps)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert_agrees("2d, stride 2, padding 1", routing.similarity(), batch=batch, draws=1)
        some, again = fused_step(layer, caps), fused_step(layer, caps)
        for key in one:
            assert torch.equal(some[key], again[key]), f"{key} differs between two runs with {threads} threads"
            torch.testing.assert_close(some[key], one[key], rtol=1e-4, atol=1e-5)


def equations(poses, logits, weight, offset, index, lambda1, lambda2, beta1, beta2, beta3, heights, widths, iterations):
    """Section 4.1 written out for one window and one output type at a time, over its voters alone."""
    out_poses, out_logits = [], []
    for image in range(len(poses)):
        for row in index.tolist():
            voters = [(i, n) for i, n in enumerate(row) if n >= 0]
            for j in range(weight.shape[1]):
                votes = torch.stack([(weight[i, j] @ poses[image, n]).flatten() for i, n in voters])
                if offset is not None:
                    votes = votes + offset[[i for i, _ in voters]]
                log_a = torch.nn.functional.logsigmoid(logits[image, [n for _, n in voters]])
                h, w = heights[j % len(heights)], widths[j % len(widths)]

                def kernel(mu, votes=votes, h=h, w=w):
                    return (h * torch.exp(-(votes - mu).square().sum(-1, keepdim=True) / (2 * w**2))).sum(-1)

                c = torch.full_like(log_a, 1 / len(voters))
                mu = c @ votes
                for _ in range(iterations):
                    c = torch.softmax((lambda2[j] * log_a + kernel(mu)) / (lambda1[j] + lambda2[j]), 0)
                    mu = c @ votes
                out_poses.append(mu)
                out_logits.append(beta1[j] * c @ kernel(mu) - beta2[j] * c @ (c.log() - log_a) + beta3[j])
    shape = (len(poses), len(index), weight.shape[1])
    return torch.stack(out_poses).reshape(*shape, *weight.shape[2:3], -1), torch.stack(out_logits).reshape(shape)


def arguments(rows_out=4, rows_in=4, cols=4, window=11, outputs=3, components=4, kernels=1, iterations=3, offset=True):
    """Inputs of the operator, with padding among the voters."""
    index = torch.randint(0, 7, (2, window), dtype=torch.int32)
    index[0, ::3] = -1
    return (
        torch.randn(2, 7, rows_in, cols, requires_grad=True),
        (3 * torch.randn(2, 7)).requires_grad_(),
        (torch.randn(window, outputs, rows_out, rows_in) / rows_in).requires_grad_(),
        (0.3 * torch.randn(window, rows_out * cols)).requires_grad_() if offset else None,
        index,
        *((0.3 + torch.rand(outputs)).requires_grad_() for _ in range(4)),
        torch.randn(outputs, requires_grad=True),
        (0.3 + torch.rand(kernels, components)).requires_grad_(),
        (1 + torch.rand(kernels, components)).requires_grad_(),
        iterations,
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"iterations": 0},
        {"iterations": 5, "kernels": 3, "components": 5},
        {"rows_out": 3, "rows_in": 3, "cols": 3, "window": 8, "components": 1, "offset": False},
        {"rows_out": 2, "rows_in": 5, "cols": 1, "window": 16, "outputs": 1, "components": 10},
        {"rows_out": 8, "rows_in": 8, "cols": 8, "window": 1},
    ],
    ids=str,
)
def test_agrees_with_the_equations(sizes):
    narrow = arguments(**sizes)
    narrow[4][:, 0] = 1  # at least one voter in every window
    wide = [a.detach().double().requires_grad_() if torch.is_tensor(a) and a.is_floating_point() else a for a in narrow]
    with uninitialised_is_nan():
        actual = _with_gradients(similarity, narrow)
    for name, value, exact in zip(_NAMES, actual, _with_gradients(equations, wide), strict=False):
        distance, size = float((value - exact).norm()), float(exact.norm())
        assert distance <= 2e-5 * (size + 1), f"{name} is {distance:.3g} from float64, whose norm is {size:.3g}"


_NAMES = (
    *("poses", "logits", "grad poses", "grad logits", "grad weight", "grad offset", "grad lambda1", "grad lambda2"),
    *("grad beta1", "grad beta2", "grad beta3", "grad heights", "grad widths"),
)


def _with_gradients(function, values):
    poses, logits = function(*values)
    generator = torch.Generator().manual_seed(1)
    loss = sum((out * torch.randn(out.shape, generator=generator)).sum() for out in (poses, logits))
    inputs = [a for a in values if torch.is_tensor(a) and a.requires_grad]
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    grads = [torch.zeros_like(a) if g is None else g for a, g in zip(inputs, grads, strict=True)]
    if values[3] is None:
        grads.insert(3, torch.zeros(()))
    return [poses.detach(), logits.detach(), *grads]


@pytest.mark.parametrize("how", ROUTINGS)
def test_extremes_stay_finite(how):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", ROUTINGS[how])
    ones = torch.ones_like(caps.activations)
    for what, poses, logits in (
        ("activations of 1", caps.poses, 30 * ones),
        ("activations of 1, beyond rounding", caps.poses, 1e4 * ones),
        ("activations of 0", caps.poses, -30 * ones),
        ("activations of 0, beyond rounding", caps.poses, -1e4 * ones),
        ("one silent among loud", caps.poses, torch.where(torch.rand_like(ones) < 0.3, -1e4, 1e4)),
        ("identical poses", torch.ones_like(caps.poses), caps.logits),
        ("zero poses", torch.zeros_like(caps.poses), caps.logits),
        ("huge poses", caps.poses * 1e4, caps.logits),
        ("huge poses, silent", caps.poses * 1e4, -27.0 * ones),
        ("identical huge poses", 1e4 * torch.ones_like(caps.poses), caps.logits),
    ):
        results = fused_step(layer, Capsules.from_logits(poses, logits))
        assert_finite({f"{what}: {key}": value for key, value in results.items()})


def test_scores_that_lie_far_below_their_bound():
    """Votes far apart have k near 0 while its bound says 1000: the softmax must count from the true largest score."""
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.similarity(lambdas=(5e-4, 5e-4)))
    far = Capsules.from_logits(caps.poses * 20, caps.logits)
    assert_capsules_close(layer(far), reference(layer, torch.float64)(_wide(far)), 1e-4)


def _wide(caps):
    return Capsules.from_logits(caps.poses.double(), caps.logits.double())


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF], ids=hex)
def test_not_a_number_is_not_hidden(bits):
    """Whatever its low bits are: torch's own functions give either, depending on the processor."""
    layer, caps = layer_and_capsules("dense, coordinate addition", routing.similarity())
    nan = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    for what in ("poses", "logits"):
        broken = {"poses": caps.poses.clone(), "logits": caps.logits.clone()}
        broken[what].view(3, -1)[1, 5] = nan
        out = layer(Capsules.from_logits(**broken))
        assert out.poses[1].isnan().all(), what
        assert_finite({"other images": out.poses[::2]})


def test_padding_alone_gives_zero_poses_and_the_bias():
    values = list(arguments(offset=True))
    values[4] = torch.full((2, 11), -1, dtype=torch.int32)
    with uninitialised_is_nan():
        poses, logits = similarity(*values)
        grads = torch.autograd.grad(
            poses.sum() + logits.sum(), [v for v in values if torch.is_tensor(v) and v.requires_grad]
        )
    assert not bool(poses.any())
    assert torch.equal(logits, values[9].detach().expand_as(logits))
    assert [bool(g.any()) for g in grads] == [False] * 8 + [True] + [False] * 2  # beta3 alone


def test_empty_batch():
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.similarity(), batch=0)
    results = fused_step(layer, caps)
    assert results["out poses"].shape == (0, 4, 3, 5, 4, 4)
    assert not bool(results["grad weight"].any())


def test_a_routing_shared_by_layers_of_different_width():
    shared = routing.similarity()(cr.routing.LayerShape(1, 1, (4, 4)))
    layer = cr.DenseCapsules(6, 3, routing=shared, fused=True)
    caps = Capsules.from_logits(torch.randn(2, 6, 4, 4), torch.randn(2, 6))
    assert_capsules_close(layer(caps), reference(layer)(caps), 1e-5)


def test_other_kernels_are_left_to_the_tiled_path():
    for kernel in ("laplace", "cosine", "linear"):
        other = routing.similarity(kernel=kernel)(cr.routing.LayerShape(4, 3, (4, 4)))
        assert ops.find(other, torch.float32, torch.device("cpu"), 16) is None
        assert "option" in ops.why_not(other, torch.float32, torch.device("cpu"), 16)


def test_poses_too_large_for_operators_are_left_to_the_tiled_path():
    for pose, out_pose in (((65, 1), (4, 1)), ((4, 1), (65, 1))):
        layer = cr.DenseCapsules(3, 2, pose=pose, out_pose=out_pose)
        caps = Capsules.from_logits(torch.randn(2, 3, *pose), torch.randn(2, 3))
        assert layer(caps).poses.shape == (2, 2, *out_pose)
        layer.fused = True
        with pytest.raises(ValueError, match="up to 64 elements, not 65"):
            layer(caps)


def test_autocast_gets_float32_results():
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.similarity())
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(Capsules.from_logits(caps.poses.bfloat16(), caps.logits.bfloat16()))
    assert out.poses.dtype == torch.float32
    assert_capsules_close(out, layer(caps), 0.05)


@pytest.mark.parametrize("sizes", [{}, {"offset": False, "iterations": 0}, {"kernels": 3, "rows_out": 2}], ids=str)
def test_opcheck(sizes):
    torch.library.opcheck(similarity_forward, arguments(**sizes))
    plain = tuple(a.detach() if torch.is_tensor(a) else a for a in arguments(**sizes))
    poses, logits, trail = similarity_forward(*plain)
    torch.library.opcheck(
        similarity_backward, (torch.randn_like(poses), torch.randn_like(logits), poses, trail, *plain)
    )


def test_strided_inputs():
    values = list(arguments())
    expected = similarity(*values)
    values[0] = values[0].detach().mT.contiguous().mT
    values[2] = values[2].detach().permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
    assert not values[2].is_contiguous()
    for actual, wanted in zip(similarity(*values), expected, strict=True):
        assert torch.equal(actual, wanted)


def test_gradients_of_one_output_alone():
    assert_gradients_of_one_output(routing.similarity())


def test_gradients_of_an_offset():
    assert_offset_gradients(routing.similarity())


def test_compiles_and_exports():
    assert_compiles_and_exports(routing.similarity())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({5: torch.ones(2)}, "lambda1 is"),
        ({9: torch.ones(3, dtype=torch.float64)}, "beta3 is"),
        ({10: torch.ones(2, 4), 11: torch.ones(2, 4)}, "heights"),
        ({12: -1}, "iterations is -1"),
        ({1: torch.zeros(2, 6)}, "do not fit"),
        ({3: torch.zeros(11, 3)}, "offset is"),
        ({4: torch.zeros(2, 11, dtype=torch.int64)}, "torch.int32"),
        ({4: torch.full((2, 11), 7, dtype=torch.int32)}, "does not exist"),
        ({4: torch.full((2, 11), -2, dtype=torch.int32)}, "does not exist"),
        ({0: torch.zeros(2, 7, 4, 17)}, "up to 64"),
    ],
)
def test_refuses_what_does_not_fit(change, message):
    values = list(arguments())
    for place, value in change.items():
        values[place] = value
    if 0 in change:
        values[3] = None
    with pytest.raises(ValueError, match=message):
        similarity(*values)
