"""Convolutional routing is dense routing of each window; layers take any routing, pose and dimension."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch

import capsroute as cr
from capsroute.routing import ROUTINGS
from capsroute.testing import assert_capsules_close, assert_equivariant, random_capsules

LAYERS = {1: cr.ConvCapsules1d, 2: cr.ConvCapsules2d, 3: cr.ConvCapsules3d}
GEOMETRIES = [
    (1, (7,), {"kernel_size": 3, "stride": 2, "padding": 1}),
    (1, (8,), {"kernel_size": 2, "dilation": 3}),
    (2, (4, 5), {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0)}),
    (2, (5, 5), {"kernel_size": 3, "padding": 2, "dilation": 2, "stride": 2}),
    (3, (3, 2, 3), {"kernel_size": 2, "padding": (0, 1, 0)}),
]


def window_of(caps, layer, where):
    """The inputs of one output position, by Python loops: rows of the weight and the capsules they read."""
    rows, poses, logits = [], [], []
    space = caps.poses.shape[1:-3]
    taps = itertools.product(*(range(k) for k in layer.kernel_size))
    for row, tap in enumerate(taps):
        geometry = zip(where, tap, layer.stride, layer.padding, layer.dilation, strict=True)
        place = tuple(o * s - p + t * d for o, t, s, p, d in geometry)
        if all(0 <= x < n for x, n in zip(place, space, strict=True)):
            for c in range(layer.in_channels):
                rows.append(row * layer.in_channels + c)
                poses.append(caps.poses[(slice(None), *place, c)])
                logits.append(caps.logits[(slice(None), *place, c)])
    return rows, torch.stack(poses, 1), torch.stack(logits, 1)


@pytest.mark.parametrize("name", ["similarity", "connectionist", "dynamic", "entropy", "uniform"])
@pytest.mark.parametrize(("dims", "space", "options"), GEOMETRIES)
def test_convolution_is_dense_routing_of_each_window(name, dims, space, options):
    layer = LAYERS[dims](2, 3, routing=name, pose=(2, 2), fused=False, **options).double()
    caps = random_capsules(2, space, 2, (2, 2), torch.float64)
    out = layer(caps)
    assert out.poses.shape[1:-3] == layer.output_space(space)
    for where in itertools.product(*(range(n) for n in layer.output_space(space))):
        rows, poses, logits = window_of(caps, layer, where)
        dense = cr.DenseCapsules(len(rows), 3, routing=layer.routing, pose=(2, 2), fused=False).double()
        with torch.no_grad():
            dense.weight.copy_(layer.weight[rows])
        expected = dense(cr.Capsules.from_logits(poses, logits))
        there = (slice(None), *where)
        assert_capsules_close(cr.Capsules.from_logits(out.poses[there], out.logits[there]), expected, 1e-12)


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_in_every_dimension(name, dims):
    layer = LAYERS[dims](1, 2, 2, padding=1, routing=name, pose=(2, 1), fused=False).double()
    caps = random_capsules(1, (2,) * dims, 1, (2, 1), torch.float64)

    def forward(poses, logits, weight):
        bound = {**dict(layer.named_parameters()), "weight": weight}
        out = torch.func.functional_call(layer, bound, (cr.Capsules.from_logits(poses, logits),))
        return out.poses, out.logits

    inputs = (caps.poses.requires_grad_(), caps.logits.requires_grad_(), layer.weight)
    assert torch.autograd.gradcheck(forward, inputs, fast_mode=dims > 1)


@pytest.mark.parametrize("name", ROUTINGS)
def test_gradients_of_routing_parameters(name):
    layer = cr.DenseCapsules(3, 2, routing=name, pose=(2, 2), coordinate_addition=False, fused=False).double()
    caps = random_capsules(1, (), 3, (2, 2), torch.float64)
    names = [n for n, _ in layer.named_parameters()]

    def forward(*values):
        out = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (caps,))
        return out.poses, out.logits

    assert torch.autograd.gradcheck(forward, tuple(layer.parameters()), fast_mode=True)


@pytest.mark.parametrize(
    ("pose", "out_pose"), [((4, 4), None), ((3, 3), (2, 3)), ((2, 6), (5, 6)), (8, 16), ((1, 1), None)]
)
@pytest.mark.parametrize("name", ROUTINGS)
def test_any_pose_shape(name, pose, out_pose):
    layer = cr.ConvCapsules2d(2, 3, 2, routing=name, pose=pose, out_pose=out_pose, fused=False)
    out = layer(random_capsules(2, (3, 3), 2, layer.pose))
    assert out.poses.shape == (2, 2, 2, 3, *layer.out_pose)
    assert torch.isfinite(out.poses).all()


@pytest.mark.parametrize("name", ["similarity", "dynamic", "uniform", "entropy"])
def test_layers_are_equivariant(name):
    layer = cr.ConvCapsules2d(3, 4, 3, padding=1, routing=name, fused=False).double()
    assert_equivariant(layer, random_capsules(2, (4, 4), 3, (4, 4), torch.float64), 1e-10)


def test_coordinate_addition_tells_positions_apart():
    """Shared matrices and equal capsules everywhere: only the added coordinates differ, by half a step each."""
    layer = cr.DenseCapsules(1, 1, space=(2, 4), shared=True, coordinate_addition=True, routing="uniform", fused=False)
    assert layer.weight.shape == (1, 1, 4, 4)
    caps = cr.Capsules(torch.ones(1, 2, 4, 1, 4, 4), torch.full((1, 2, 4, 1), 0.5))
    plain = cr.DenseCapsules(1, 1, space=(2, 4), shared=True, routing="uniform", fused=False)
    plain.load_state_dict(layer.state_dict())
    moved = (layer(caps).poses - plain(caps).poses)[0, 0]
    expected = torch.zeros(4, 4)
    expected[0, 3] = expected[1, 3] = 0.5  # the mean of 0.25, 0.75 and of 0.125 .. 0.875
    torch.testing.assert_close(moved, expected)


def test_votes_are_scaled_by_the_frobenius_norm():
    caps = random_capsules(1, (), 2, (4, 4))
    one = cr.DenseCapsules(2, 1, routing="uniform", fused=False)
    two = copy.deepcopy(one)
    with torch.no_grad():
        two.weight.mul_(7.0)
    assert_capsules_close(two(caps), one(caps), 1e-5)
    one.normalise = two.normalise = False
    torch.testing.assert_close(two(caps).poses, 7 * one(caps).poses)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_primary_capsules(dims):
    primary = cr.PrimaryCapsules(5, 3, 2, pose=(2, 3), dimensions=dims)
    features = torch.randn(2, 5, *([4] * dims))
    caps = primary(features)
    assert caps.poses.shape == (2, *([3] * dims), 3, 2, 3)
    # the numbers of one type's pose are neighbouring feature maps
    torch.testing.assert_close(caps.poses[..., 1, :, :].flatten(-2).movedim(-1, 1), primary.poses(features)[:, 6:12])
    torch.testing.assert_close(caps.logits[..., 1], primary.logits(features)[:, 1])


@pytest.mark.parametrize("shared", [False, True])
def test_scaled_inputs(shared):
    layer = cr.DenseCapsules(2, 3, space=(2, 2), shared=shared, coordinate_addition=shared, pose=(2, 2))
    caps, scale = random_capsules(2, (2, 2), 2, (2, 2)), torch.tensor([0.5, 3.0])
    scaled = caps._replace(poses=caps.poses * scale[:, None, None])
    assert_capsules_close(layer(caps, scale), layer(scaled), 1e-6)


def test_squashed_primary_capsules():
    caps = cr.PrimaryCapsules(5, 3, pose=8, squash=True)(torch.randn(2, 5, 4, 4))
    torch.testing.assert_close(caps.poses.flatten(-2).norm(dim=-1), caps.activations, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ROUTINGS)
def test_copies_and_round_trips(name):
    layer = cr.ConvCapsules1d(2, 3, 3, routing=name, pose=(2, 2), fused=False)
    caps = random_capsules(2, (5,), 2, (2, 2))
    expected = layer(caps)
    other = cr.ConvCapsules1d(2, 3, 3, routing=name, pose=(2, 2), fused=False)
    other.load_state_dict(layer.state_dict())
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        assert_capsules_close(same(caps), expected, 1e-7)


@pytest.mark.parametrize("name", ROUTINGS)
def test_bf16_autocast(name):
    layer = cr.ConvCapsules1d(2, 3, 3, routing=name, pose=(4, 4), fused=False)
    caps = random_capsules(2, (5,), 2, (4, 4))
    expected = layer(caps)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(caps)
        loss = out.poses.float().sum() + out.logits.float().sum()
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    close = cr.Capsules.from_logits(out.poses.float(), out.logits.float())
    # a difference of two close votes is all that variational couplings are made of
    assert_capsules_close(close, expected, 0.2 if name == "variational" else 0.1)


@pytest.mark.parametrize("name", ROUTINGS)
def test_compiles(name):
    layer = cr.ConvCapsules1d(1, 2, 2, routing=name, pose=(2, 2), fused=False)
    caps = random_capsules(2, (3,), 1, (2, 2))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    out = compiled(caps)
    assert_capsules_close(out, layer(caps), 1e-5)
    (out.poses.sum() + out.logits.sum()).backward()
    assert torch.isfinite(layer.weight.grad).all()


def test_compiles_to_native_code():
    layer = cr.ConvCapsules1d(1, 2, 2, routing=cr.routing.dynamic(iterations=2), pose=(2, 2), fused=False)
    caps = random_capsules(2, (3,), 1, (2, 2))
    assert_capsules_close(torch.compile(layer, fullgraph=True)(caps), layer(caps), 1e-5)


def test_trace_counts_as_each_paper_does():
    caps = random_capsules(1, (4,), 2, (4, 4))
    formed = {name: len(list(cr.ConvCapsules1d(2, 3, 3, routing=name, fused=False).trace(caps))) for name in ROUTINGS}
    assert formed == {
        "similarity": 4,
        "connectionist": 4,
        "em": 3,
        "variational": 3,
        "dynamic": 3,
        "entropy": 3,
        "uniform": 1,
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cr.ConvCapsules2d(2, 3, 3, routing="similarty"), "did you mean 'similarity'.*connectionist, em"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, routing=5), "pass a name"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, routing=lambda shape: 5), "returns a Routing"),
        (lambda: cr.ConvCapsules2d(2, 0, 3), "at least one"),
        (lambda: cr.ConvCapsules2d(2, 3, (3, 3, 3)), "kernel_size=.*one for each axis"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, stride=0), "stride=0"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, pose=(4, 4, 4)), r"pass \(rows, columns\)"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, pose=(4, 4), out_pose=(4, 3)), "as many columns"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, weight_start="zeros"), "identity"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, fused="yes"), "choose 'auto'"),
        (lambda: cr.ConvCapsules2d(2, 3, 3, vote_budget=0), "number of bytes"),
        (lambda: cr.DenseCapsules(2, 3, space=(2, 2), pose=(1, 4), coordinate_addition=True), "taller poses"),
        (lambda: cr.PrimaryCapsules(2, 3, dimensions=4), "1, 2 or 3"),
        (lambda: cr.routing.similarity(iterations=0), "integer >= 1"),
        (lambda: cr.routing.em(iterations=True), "integer >= 1"),
        (lambda: cr.routing.entropy(alpha=0.0), "must be positive"),
        (lambda: cr.routing.uniform(control="none"), "choose one of"),
        (lambda: cr.routing.by_name("em", temperature=1), "unexpected keyword.*help"),
        (lambda: cr.routing.Routing(None, None, competition="all"), "choose 'inputs'"),
    ],
)
def test_wrong_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def wrong_inputs():
    good = random_capsules(2, (4, 4), 2, (4, 4))
    activations = good.activations
    yield cr.Capsules(good.poses[:, :, :, :1], activations[..., :1]), "1 capsule types.*built for 2.*in_channels=1"
    yield cr.Capsules(good.poses[..., :3], activations), r"poses are 4 x 3.*pose=\(4, 3\)"
    yield cr.Capsules(good.poses, activations[..., :1]), "one activation for each capsule"
    yield cr.Capsules(good.poses[:, 0], activations[:, 0]), "6 axes"
    yield cr.Capsules(good.poses[:, :2], activations[:, :2]), "size 2 .*smaller than the kernel's reach 3.*padding"
    yield cr.Capsules(good.poses, activations - 1), "an activation is -.*between 0 and 1"
    yield cr.Capsules(good.poses, activations + 1), "between 0 and 1"
    yield cr.Capsules(good.poses, activations * float("nan")), "an activation is nan"


@pytest.mark.parametrize(("caps", "message"), list(wrong_inputs()))
def test_wrong_inputs(caps, message):
    with pytest.raises(ValueError, match=message):
        cr.ConvCapsules2d(2, 3, 3, fused=False)(caps)


def test_dense_layers_know_their_space():
    with pytest.raises(ValueError, match=r"covers \[4, 4\].*space=\(4, 4\)"):
        cr.DenseCapsules(2, 3, space=(3, 3))(random_capsules(1, (4, 4), 2, (4, 4)))
