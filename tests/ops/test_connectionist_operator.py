"""The fused connectionist operator agrees with the reference, in every geometry and with any number of threads."""

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
from capsroute.ops.connectionist.op import connectionist, connectionist_backward, connectionist_forward
from capsroute.testing import assert_capsules_close, assert_finite


def decided(*, f_hidden, **options):
    """Connectionist routing whose hidden units of f are clearly on or off.

    Of millions of ReLUs some would be so near their kink that rounding decides for a side, and with it for a gradient.
    """

    def make(shape):
        made = routing.connectionist(f_hidden=f_hidden, **options)(shape)
        with torch.no_grad():
            for layer in list(made.compatibility.score)[:-1:2]:
                layer.bias.fill_(4.0)[::3] = -4.0
        return made

    return make


ROUTINGS = {
    "no hidden layers": routing.connectionist(f_hidden=(), g_hidden=()),
    "two hidden layers": decided(f_hidden=(12, 8), g_hidden=(64, 64)),
    "odd widths": routing.connectionist(units=5, f_hidden=(7, 3, 9), g_hidden=(2,), iterations=2),
    "one hidden unit": decided(units=3, f_hidden=(1,), g_hidden=()),
}
LAYER = "2d, stride 2, padding 1"


@pytest.mark.parametrize("how", ROUTINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_agrees_with_the_reference(name, how):
    # many draws: the gradients of f's few numbers err all in one direction, by chance more or less than the reference's
    assert_agrees(name, ROUTINGS[how], draws=8, batch=2)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_any_number_of_iterations(iterations):
    assert_agrees(LAYER, routing.connectionist(f_hidden=(6,), iterations=iterations), draws=4)


@torch.no_grad()
def test_the_class_layer_of_the_paper():
    layer = cr.DenseCapsules(16, 5, space=(4, 4), routing=routing.connectionist(f_hidden=(64, 64)), fused=True)
    caps = Capsules.from_logits(torch.randn(3, 4, 4, 16, 4, 4), torch.randn(3, 4, 4, 16))
    exact = reference(layer, torch.float64)(Capsules.from_logits(caps.poses.double(), caps.logits.double()))
    fused, plain = layer(caps), reference(layer)(caps)
    for value in ("poses", "logits"):
        distance, allowed = (float((getattr(out, value) - getattr(exact, value)).norm()) for out in (fused, plain))
        assert distance <= 4 * allowed


@pytest.mark.parametrize("batch", [1, 5])
def test_threads_change_nothing_but_rounding(batch):
    layer, caps = layer_and_capsules(LAYER, decided(f_hidden=(6, 5)), batch)
    one = fused_step(layer, caps)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        some, again = fused_step(layer, caps), fused_step(layer, caps)
        for key in one:
            assert torch.equal(some[key], again[key]), f"{key} differs between two runs with {threads} threads"
            torch.testing.assert_close(some[key], one[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ROUTINGS)
def test_extremes_stay_finite(how):
    layer, caps = layer_and_capsules(LAYER, ROUTINGS[how])
    ones = torch.ones_like(caps.activations)
    for what, poses, logits in (
        ("activations of 1", caps.poses, 1e4 * ones),
        ("activations of 0", caps.poses, -1e4 * ones),
        ("identical poses", torch.ones_like(caps.poses), caps.logits),
        ("zero poses", torch.zeros_like(caps.poses), caps.logits),
        ("huge poses", caps.poses * 1e4, caps.logits),
        ("huge poses, silent", caps.poses * 1e4, -27.0 * ones),
    ):
        results = fused_step(layer, Capsules.from_logits(poses, logits))
        assert_finite({f"{what}: {key}": value for key, value in results.items()})


@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_saturated_gates_agree(scale):
    """Almost every gate is open or shut; of the sums that decide it, rounding leaves 1e-7 of `scale`."""
    layer, caps = layer_and_capsules(LAYER, ROUTINGS["two hidden layers"])
    far = Capsules.from_logits(caps.poses * scale, caps.logits)
    assert_capsules_close(layer(far), reference(layer)(far), 1e-7 * scale)


def test_couplings_that_decide_for_one_vote():
    """Scores so far apart that all couplings but one vanish."""
    layer, caps = layer_and_capsules(LAYER, ROUTINGS["no hidden layers"])
    with torch.no_grad():
        layer.routing.compatibility.score[-1].weight *= 1e4
    assert_capsules_close(layer(caps), reference(layer)(caps), 1e-5)
    assert_finite(fused_step(layer, caps))


def test_a_diverged_input_is_seen():
    layer, caps = layer_and_capsules(LAYER, ROUTINGS["two hidden layers"])
    poses = caps.poses.clone()
    poses[0] = torch.nan
    out = layer(Capsules.from_logits(poses, caps.logits))
    assert bool(out.poses[0].isnan().all())
    assert bool(out.logits[0].isnan().all())
    assert not bool(out.poses[1:].isnan().any())


def test_empty_batch():
    layer, caps = layer_and_capsules(LAYER, ROUTINGS["two hidden layers"], batch=0)
    results = fused_step(layer, caps)
    assert results["out poses"].shape == (0, 4, 3, 5, 4, 4)
    assert not bool(results["grad weight"].any())


def test_a_routing_shared_by_layers_of_different_width():
    shared = ROUTINGS["two hidden layers"](cr.routing.LayerShape(1, 1, (4, 4)))
    for types in (6, 9):
        layer = cr.DenseCapsules(types, 3, routing=shared, fused=True)
        caps = Capsules.from_logits(torch.randn(2, types, 4, 4), torch.randn(2, types))
        assert_capsules_close(layer(caps), reference(layer)(caps), 1e-5)


def test_window_competition_is_left_to_the_tiled_path():
    made = ROUTINGS["no hidden layers"](cr.routing.LayerShape(3, 4, (4, 4)))
    odd = cr.routing.Routing(made.compatibility, made.activation, competition="window")
    assert ops.find(odd, torch.float32, torch.device("cpu"), 16) is None
    assert "option" in ops.why_not(odd, torch.float32, torch.device("cpu"), 16)


def _arguments(offset=True):
    def made(*shape):
        return torch.randn(*shape, requires_grad=True)

    index = torch.tensor([[0, 1, -1], [4, 2, 3]], dtype=torch.int32)
    inputs = (made(2, 5, 3, 2), torch.rand(2, 5, requires_grad=True), made(3, 4, 2, 3), made(3, 4) if offset else None)
    return *inputs, index, made(12, 10), made(12, 3), made(12), made(2 * 4 + 3), [2], 2


@pytest.mark.parametrize("offset", [True, False])
def test_opcheck(offset):
    torch.library.opcheck(connectionist_forward, _arguments(offset))
    plain = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in _arguments(offset))
    poses, summary, trail = connectionist_forward(*plain)
    torch.library.opcheck(connectionist_backward, (torch.randn_like(poses), torch.randn_like(summary), trail, *plain))


def test_gradients_of_an_offset():
    assert_offset_gradients(ROUTINGS["two hidden layers"])


def test_gradients_of_one_output():
    assert_gradients_of_one_output(ROUTINGS["two hidden layers"])


def test_compiles_and_exports():
    assert_compiles_and_exports(ROUTINGS["two hidden layers"])


def _operands():
    *inputs, weight_ih, weight_hh, bias, _, _, iterations = _arguments()
    layers = [(torch.randn(2, 3), torch.randn(2)), (torch.randn(1, 2), torch.randn(1))]
    return [*inputs, weight_ih, weight_hh, bias, layers, iterations]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({5: torch.zeros(12, 9)}, "weight_ih"),
        ({6: torch.zeros(12, 3, dtype=torch.float64)}, "weight_hh"),
        ({7: torch.zeros(3)}, "bias"),
        ({8: [(torch.zeros(2, 4), torch.zeros(2)), (torch.zeros(1, 2), torch.zeros(1))]}, "score"),
        ({9: 0}, "at least 1"),
        ({1: torch.zeros(2, 4)}, "do not fit"),
        ({4: torch.tensor([[0, 1, 5], [4, 2, 3]], dtype=torch.int32)}, "does not exist"),
    ],
)
def test_refuses_what_does_not_fit(change, message):
    arguments = _operands()
    connectionist(*arguments)
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(ValueError, match=message):
        connectionist(*arguments)


@pytest.fixture
def bfloat16(monkeypatch):
    """Products in bfloat16, computed the long way where the processor has no instructions for them."""
    monkeypatch.setenv("CAPSROUTE_BFLOAT16", "emulate")
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", LAYERS)
def test_bfloat16_products_keep_two_digits(name, bfloat16):
    layer, caps = layer_and_capsules(name, routing.connectionist(f_hidden=(), g_hidden=()))
    exact = fused_step(reference(layer), caps)
    for key, value in fused_step(layer, caps).items():
        distance, size = float((value - exact[key]).norm()), float(exact[key].norm())
        # the bias of f's output moves all scores alike: its gradient is zero but for rounding
        assert distance <= max(2e-2 * size, 1e-5), f"{key}: {distance:.3g} of {size:.3g}"


@pytest.mark.parametrize("wide", [32, 64])
def test_bfloat16_in_the_deeper_layers_of_the_paper(wide, bfloat16):
    """Rounding takes some ReLUs across their kink, and sums that cancel lose more: the gradient as a whole counts."""
    how = routing.connectionist(f_hidden=(wide, wide), g_hidden=(2 * wide, 2 * wide))
    layer = cr.DenseCapsules(16, 5, space=(4, 4), routing=how, fused=True, vote_budget=None)
    caps = Capsules.from_logits(torch.randn(1, 4, 4, 16, 4, 4), torch.randn(1, 4, 4, 16))
    exact, rounded = fused_step(reference(layer), caps), fused_step(layer, caps)
    for key in ("out poses", "out logits"):
        assert float((rounded[key] - exact[key]).norm()) <= 2e-2 * float(exact[key].norm())
    whole, expected = (torch.cat([g.flatten() for k, g in named.items() if "grad" in k]) for named in (rounded, exact))
    assert float((whole - expected).norm()) <= 2e-2 * float(expected.norm())


def test_bfloat16_is_off_unless_torch_is_told(monkeypatch, bfloat16):
    layer, caps = layer_and_capsules(LAYER, ROUTINGS["two hidden layers"])
    rounded = layer(caps).poses
    torch.set_float32_matmul_precision("high")
    plain = layer(caps).poses
    assert not torch.equal(rounded, plain)
    monkeypatch.delenv("CAPSROUTE_BFLOAT16")
    torch.set_float32_matmul_precision("medium")
    has = ops.native.library("connectionist").capsroute_connectionist_has_bfloat16()
    assert torch.equal(layer(caps).poses, rounded if has else plain)
