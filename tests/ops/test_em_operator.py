"""The fused operator of EM and variational routing agrees with the references, in every geometry, on any threads."""

from __future__ import annotations

from functools import partial

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
from capsroute.ops.em.op import em, em_backward, em_forward
from capsroute.testing import assert_capsules_close, assert_finite

ROUTINGS = {
    "parents": routing.em(),
    "window": routing.em(competition="window", inverse_temperature=0.3),
    "flat, parents": routing.uniform(control="em"),
    "flat, window": routing.uniform(control="em", competition="window", iterations=2),
    "variational, parents": routing.variational(scatter=4.0),
    "variational, window": routing.variational(competition="window", kappa=0.5, scatter=4.0),
    "variational, flat": routing.uniform(control="variational"),
}
# a prior as wide as these votes: with less, single draws are so sensitive that both paths' rounding is chance
MAKERS = {"em": routing.em, "variational": partial(routing.variational, scatter=4.0)}


@pytest.mark.parametrize("how", ROUTINGS)
@pytest.mark.parametrize("name", LAYERS)
def test_agrees_with_the_reference(name, how):
    assert_agrees(name, ROUTINGS[how])


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("competition", ["parents", "window"])
@pytest.mark.parametrize("which", MAKERS)
def test_any_number_of_iterations(which, competition, iterations):
    assert_agrees("2d, stride 2, padding 1", MAKERS[which](competition=competition, iterations=iterations))


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("which", MAKERS)
def test_threads_change_nothing_but_rounding(which, batch):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", MAKERS[which](), batch)
    one = fused_step(layer, caps)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert_agrees("2d, stride 2, padding 1", MAKERS[which](), batch=batch, draws=1)
        some, again = fused_step(layer, caps), fused_step(layer, caps)
        for key in one:
            assert torch.equal(some[key], again[key]), f"{key} differs between two runs with {threads} threads"
            torch.testing.assert_close(some[key], one[key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ROUTINGS)
def test_extremes_stay_finite(how):
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", ROUTINGS[how])
    ones = torch.ones_like(caps.activations)
    for what, poses, logits in (
        ("activations of 1", caps.poses, 1e4 * ones),
        ("activations of 0", caps.poses, -1e4 * ones),
        ("hardly any activation", caps.poses, -95.0 * ones),
        ("identical poses", torch.ones_like(caps.poses), caps.logits),
        ("zero poses", torch.zeros_like(caps.poses), caps.logits),
        ("huge poses", caps.poses * 1e4, caps.logits),
        ("huge poses, silent", caps.poses * 1e4, -27.0 * ones),
    ):
        results = fused_step(layer, Capsules.from_logits(poses, logits))
        assert_finite({f"{what}: {key}": value for key, value in results.items()})


def test_capsules_that_nobody_couples_to():
    """Far votes for one type leave it without mass: the reference clamps there, and so must the operator."""
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.em(min_variance=1e-6))
    with torch.no_grad():
        layer.weight[:, 0] *= 1e3
    layer.normalise = False
    plain = reference(layer)
    assert float(list(plain.trace(caps))[-1].memory.mass.detach().min()) < 1e-30
    assert_capsules_close(layer(caps), plain(caps), 1e-5)
    assert_finite(fused_step(layer, caps))


def test_empty_batch():
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing.em(), batch=0)
    results = fused_step(layer, caps)
    assert results["out poses"].shape == (0, 4, 3, 5, 4, 4)
    assert not bool(results["grad weight"].any())


@pytest.mark.parametrize("which", MAKERS)
def test_a_routing_shared_by_layers_of_different_width(which):
    shared = MAKERS[which]()(cr.routing.LayerShape(1, 1, (4, 4)))
    layer = cr.DenseCapsules(6, 3, routing=shared, fused=True)
    caps = Capsules.from_logits(torch.randn(2, 6, 4, 4), torch.randn(2, 6))
    assert_capsules_close(layer(caps), reference(layer)(caps), 1e-5)


def test_inputs_competition_is_left_to_the_tiled_path():
    known = routing.em()(cr.routing.LayerShape(4, 3, (4, 4)))
    odd = cr.routing.Routing(known.compatibility, known.activation, known.aggregation, competition="inputs")
    assert ops.find(odd, torch.float32, torch.device("cpu"), 16) is None
    assert "option" in ops.why_not(odd, torch.float32, torch.device("cpu"), 16)


def _arguments(offset=True, requires_grad=True, prior=()):
    def made(*shape):
        return torch.randn(*shape, requires_grad=requires_grad)

    index = torch.tensor([[0, 1, -1], [4, 2, 3]], dtype=torch.int32)
    inputs = (made(2, 5, 3, 2), made(2, 5), made(3, 4, 2, 3), made(3, 4) if offset else None, index, made(4), made(4))
    return *inputs, [0.2, 0.3, 0.5], True, 1e-3, list(prior)


@pytest.mark.parametrize("prior", [(), (1.0, 0.5, 2.0, 6.0)])
@pytest.mark.parametrize("offset", [True, False])
def test_opcheck(offset, prior):
    torch.library.opcheck(em_forward, _arguments(offset, prior=prior))
    plain = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in _arguments(offset, prior=prior))
    poses, logits, trail, shares = em_forward(*plain)
    torch.library.opcheck(em_backward, (torch.randn_like(poses), torch.randn_like(logits), trail, shares, *plain))


@pytest.mark.parametrize("which", MAKERS)
def test_gradients_of_one_output_alone(which):
    assert_gradients_of_one_output(MAKERS[which]())


@pytest.mark.parametrize("which", MAKERS)
def test_gradients_of_an_offset(which):
    assert_offset_gradients(MAKERS[which]())


@pytest.mark.parametrize("which", MAKERS)
def test_compiles_and_exports(which):
    assert_compiles_and_exports(MAKERS[which]())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({5: torch.zeros(3)}, "beta_use"),
        ({6: torch.zeros(4, dtype=torch.float64)}, "beta_activate"),
        ({7: []}, "at least one"),
        ({10: [1.0, 1.0, 1.0]}, "prior is"),
        ({10: [1.0, 1.0, 1.0, 3.0]}, "degrees above 3"),
        ({1: torch.zeros(2, 4)}, "do not fit"),
        ({4: torch.tensor([[0, 1, 5], [4, 2, 3]], dtype=torch.int32)}, "does not exist"),
    ],
)
def test_refuses_what_does_not_fit(change, message):
    arguments = list(_arguments())
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(ValueError, match=message):
        em(*arguments)
