"""What every routing must satisfy, for capsroute's own and for yours; and assertions on properties of layers.

    class TestMine(RoutingConformance):
        routing = staticmethod(lambda shape: Routing(MyCompatibility(), MyActivation()))

or, outside pytest, `check_routing(my_factory)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from capsroute.capsules import Capsules
from capsroute.layers import CapsuleLayer, ConvCapsules1d
from capsroute.routing import Routing, RoutingFactory


def random_capsules(
    batch: int, space: tuple[int, ...], channels: int, pose: tuple[int, int], dtype: torch.dtype = torch.float32
) -> Capsules:
    """Capsules with normal poses and activations away from 0 and 1, given by their logits."""
    poses = torch.randn(batch, *space, channels, *pose, dtype=dtype)
    return Capsules.from_logits(poses, torch.randn(batch, *space, channels, dtype=dtype))


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Normwise: ||actual - expected|| <= tolerance (||expected|| + 1)."""
    distance = float((actual - expected).detach().norm())
    allowed = tolerance * (float(expected.detach().norm()) + 1.0)
    assert distance <= allowed, f"{what} differ by {distance:.3g} (norm), allowed {allowed:.3g}"


def assert_capsules_close(actual: Capsules, expected: Capsules, tolerance: float) -> None:
    """Poses and logits agree normwise."""
    assert_close(actual.poses, expected.poses, tolerance, "poses")
    assert actual.logits is not None
    assert expected.logits is not None
    assert_close(actual.logits, expected.logits, tolerance, "logits")


def assert_finite(tensors: dict[str, Tensor | None]) -> None:
    """No NaN and no infinity anywhere."""
    for name, tensor in tensors.items():
        assert tensor is None or bool(torch.isfinite(tensor).all()), f"{name} is not finite"


def step(layer: nn.Module, caps: Capsules, probe: Capsules | None = None) -> tuple[Capsules, dict[str, Tensor]]:
    """The output of a layer, and the gradients of a fixed random projection of it to inputs and parameters."""
    poses = caps.poses.detach().requires_grad_()
    entered = caps.activations if caps.logits is None else caps.logits
    entered = entered.detach().requires_grad_()
    out = layer(Capsules(poses, entered) if caps.logits is None else Capsules.from_logits(poses, entered))
    if probe is None:
        generator = torch.Generator().manual_seed(0)
        probe = Capsules(
            torch.randn(out.poses.shape, generator=generator, dtype=torch.float64),
            torch.randn(out.logits.shape, generator=generator, dtype=torch.float64),
        )
    loss = (out.poses * probe.poses.to(out.poses.dtype)).sum()
    loss = loss + (out.logits * probe.activations.to(out.logits.dtype)).sum()
    named = {"poses": poses, "inputs": entered, **dict(layer.named_parameters())}
    grads = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    found = {name: torch.zeros_like(at) if g is None else g for (name, at), g in zip(named.items(), grads, strict=True)}
    return Capsules(out.poses.detach(), out.activations.detach(), out.logits.detach()), found


def assert_matches_reference(layer: nn.Module, reference: nn.Module, caps: Capsules, tolerance: float) -> None:
    """Two layers give the same capsules and the same gradients for inputs and for parameters of the same name."""
    actual, actual_grads = step(layer, caps)
    expected, expected_grads = step(reference, caps)
    assert_capsules_close(actual, expected, tolerance)
    assert actual_grads.keys() == expected_grads.keys()
    for name, expected_grad in expected_grads.items():
        assert_close(actual_grads[name], expected_grad, tolerance, f"gradients of {name}")


def orthogonal(size: int, dtype: torch.dtype) -> Tensor:
    """A random orthogonal matrix."""
    matrix: Tensor = torch.linalg.qr(torch.randn(size, size, dtype=dtype))[0]
    return matrix


def assert_equivariant(layers: Callable[[Capsules], Capsules], caps: Capsules, tolerance: float) -> None:
    """Poses times an orthogonal matrix R from the right: the same logits, output poses times R."""
    rotation = orthogonal(caps.poses.shape[-1], caps.poses.dtype)
    plain = layers(caps)
    turned = layers(caps._replace(poses=caps.poses @ rotation))
    assert_capsules_close(turned, plain._replace(poses=plain.poses @ rotation), tolerance)


class RoutingConformance:
    """Inherit, set `routing` (a name, a factory `LayerShape -> Routing`, or a `Routing` for 3 output types and
    2 x 2 poses), and pytest runs the suite on a strided, padded layer."""

    routing: str | Routing | RoutingFactory = "similarity"
    in_channels, out_channels, pose, length = 2, 3, (2, 2), 7

    def layer(self, dtype: torch.dtype = torch.float64, vote_budget: int | None = None) -> CapsuleLayer:
        """The layer under test: kernel 3, stride 2, padding 1, never fused."""
        torch.manual_seed(0)
        layer = ConvCapsules1d(
            self.in_channels,
            self.out_channels,
            3,
            stride=2,
            padding=1,
            routing=self.routing,
            pose=self.pose,
            fused=False,
            vote_budget=vote_budget,
        )
        return layer.to(dtype)

    def capsules(self, batch: int = 2, dtype: torch.dtype = torch.float64) -> Capsules:
        """Random inputs for it, the same at every call."""
        torch.manual_seed(1)
        return random_capsules(batch, (self.length,), self.in_channels, self.pose, dtype)

    def test_shapes(self) -> None:
        out = self.layer()(self.capsules())
        space = (self.length + 1) // 2
        assert out.poses.shape == (2, space, self.out_channels, *self.pose)
        assert out.activations.shape == (2, space, self.out_channels)
        assert out.logits is not None
        torch.testing.assert_close(out.activations, torch.sigmoid(out.logits))
        states = list(self.layer().trace(self.capsules()))
        window = 3 * self.in_channels
        assert states[-1].coupling.shape == (2, space, window, self.out_channels)
        assert_capsules_close(Capsules.from_logits(states[-1].poses, states[-1].logits), out, 1e-12)

    def test_padding_never_votes(self) -> None:
        for state in self.layer().trace(self.capsules()):
            assert not bool(state.coupling[:, 0, : self.in_channels].any())

    def test_gradients(self) -> None:
        layer, caps = self.layer(), self.capsules(batch=1)
        assert caps.logits is not None

        def forward(poses: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
            out = layer(Capsules.from_logits(poses, logits))
            return out.poses, out.logits

        torch.autograd.gradcheck(forward, (caps.poses.requires_grad_(), caps.logits.requires_grad_()), atol=1e-6)

    def test_permutation_of_inputs(self) -> None:
        layer, caps = self.layer(), self.capsules()
        expected = layer(caps)
        with torch.no_grad():  # swap the types of the input, and of the matrices that read them
            weight = layer.weight.unflatten(0, (3, self.in_channels)).flip(1).flatten(0, 1)
            layer.weight.copy_(weight)
        flipped = Capsules.from_logits(caps.poses.flip(2), _logits(caps).flip(2))
        assert_capsules_close(layer(flipped), expected, 1e-10)

    def test_batch_independence(self) -> None:
        layer, caps = self.layer(), self.capsules(batch=3)
        whole = layer(caps)
        for n in range(3):
            alone = layer(Capsules.from_logits(caps.poses[n : n + 1], _logits(caps)[n : n + 1]))
            part = Capsules.from_logits(whole.poses[n : n + 1], _logits(whole)[n : n + 1])
            assert_capsules_close(alone, part, 1e-12)

    def test_dtype(self) -> None:
        wide = self.layer()(self.capsules())
        caps = self.capsules()
        narrow = self.layer(torch.float32)(Capsules.from_logits(caps.poses.float(), _logits(caps).float()))
        assert narrow.poses.dtype == narrow.activations.dtype == torch.float32
        assert wide.poses.dtype == torch.float64
        assert_capsules_close(Capsules.from_logits(narrow.poses.double(), _logits(narrow).double()), wide, 1e-4)

    def test_tiling(self) -> None:
        votes = 3 * self.in_channels * self.out_channels * self.pose[0] * self.pose[1] * 8
        for budget in (1, 2 * votes, 5 * votes):
            assert_matches_reference(self.layer(vote_budget=budget), self.layer(), self.capsules(batch=3), 1e-10)

    def test_extremes_stay_finite(self) -> None:
        caps = self.capsules(dtype=torch.float32)
        layer = self.layer(torch.float32)
        ones, zeros = torch.ones_like(caps.activations), torch.zeros_like(caps.activations)
        for name, poses, activations in (
            ("activations of 1", caps.poses, ones),
            ("activations of 0", caps.poses, zeros),
            ("identical poses", torch.ones_like(caps.poses), caps.activations),
            ("zero poses", torch.zeros_like(caps.poses), caps.activations),
            ("huge poses", caps.poses * 1e4, caps.activations),
            ("huge poses, silent", caps.poses * 1e4, zeros),
        ):
            out, grads = step(layer, Capsules(poses, activations))
            assert_finite({f"{name}: {k}": v for k, v in {**out._asdict(), **grads}.items()})

    def test_empty_batch(self) -> None:
        out = self.layer()(self.capsules(batch=0))
        assert out.poses.shape[0] == out.activations.shape[0] == 0


def _logits(caps: Capsules) -> Tensor:
    assert caps.logits is not None
    return caps.logits


def check_routing(routing: str | Routing | RoutingFactory) -> None:
    """Run the whole conformance suite on a routing; the first failing check raises."""
    suite = RoutingConformance()
    suite.routing = routing
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite, name)()
