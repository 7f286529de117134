"""How far a fused layer may be from the reference, and the layers it is tried on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

import capsroute as cr
from capsroute import ops
from capsroute.capsules import Capsules
from capsroute.geometry import Field
from capsroute.layers import CapsuleLayer
from capsroute.routing import LayerShape, RoutingFactory
from capsroute.routing.tiling import route
from capsroute.testing import assert_capsules_close, assert_close, random_capsules, step

Make = Callable[..., CapsuleLayer]

# name -> (make(routing=..., **options), space, types, pose): odd sizes of everything, one to three dimensions and dense
LAYERS: dict[str, tuple[Make, tuple[int, ...], int, tuple[int, int]]] = {
    "1d, 3x2 to 5x2 poses": (
        lambda **o: cr.ConvCapsules1d(2, 3, 3, pose=(3, 2), out_pose=(5, 2), **o),
        (9,),
        2,
        (3, 2),
    ),
    "1d, dilated, vector poses": (
        lambda **o: cr.ConvCapsules1d(3, 2, 3, dilation=2, padding=1, pose=(7, 1), **o),
        (8,),
        3,
        (7, 1),
    ),
    "2d, stride 2, padding 1": (lambda **o: cr.ConvCapsules2d(3, 5, 3, stride=2, padding=1, **o), (7, 6), 3, (4, 4)),
    "2d, windows of padding alone": (
        lambda **o: cr.ConvCapsules2d(5, 3, 1, padding=1, pose=(2, 3), **o),
        (2, 3),
        5,
        (2, 3),
    ),
    "3d": (
        lambda **o: cr.ConvCapsules3d(1, 4, (2, 3, 1), stride=(1, 2, 1), padding=(1, 0, 0), **o),
        (2, 5, 2),
        1,
        (4, 4),
    ),
    "dense, largest poses": (lambda **o: cr.DenseCapsules(17, 2, pose=(8, 8), **o), (), 17, (8, 8)),
    "dense, coordinate addition": (
        lambda **o: cr.DenseCapsules(3, 4, space=(3, 3), shared=True, coordinate_addition=True, **o),
        (3, 3),
        3,
        (4, 4),
    ),
}


def layer_and_capsules(
    name: str, routing: RoutingFactory, batch: int = 3, **options: object
) -> tuple[CapsuleLayer, Capsules]:
    """A layer of `LAYERS` that must be fused, its parameters away from their starting values, and inputs for it."""
    make, space, types, pose = LAYERS[name]
    layer = make(routing=routing, fused=True, vote_budget=None, **options)
    with torch.no_grad():
        for parameter in layer.routing.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer, random_capsules(batch, space, types, pose)


def reference(layer: CapsuleLayer, dtype: torch.dtype = torch.float32) -> CapsuleLayer:
    """The same layer in plain PyTorch."""
    plain = copy.deepcopy(layer).to(dtype)
    plain.fused = False
    return plain


@contextmanager
def uninitialised_is_nan() -> Iterator[None]:
    """Fill what operators get from torch.empty with NaN, so that what they forget to write is seen."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def fused_step(layer: nn.Module, caps: Capsules) -> dict[str, Tensor]:
    """Outputs and gradients of a fused layer."""
    with uninitialised_is_nan():
        return _named(*step(layer, caps))


def _named(out: Capsules, grads: dict[str, Tensor]) -> dict[str, Tensor]:
    assert out.logits is not None
    return {"out poses": out.poses, "out logits": out.logits, **{f"grad {name}": g for name, g in grads.items()}}


def assert_agrees(name: str, routing: RoutingFactory, draws: int = 5, batch: int = 3) -> None:
    """Values and every gradient are no further from the float64 reference than four times the float32 reference is.

    Distances are norms over several draws: of a few numbers, one draw's reference may be exact by chance. What rounding
    the result to float32 costs is always allowed.
    """
    fused: dict[str, float] = {}
    plain: dict[str, float] = {}
    size: dict[str, float] = {}
    for _ in range(draws):
        layer, caps = layer_and_capsules(name, routing, batch)
        assert caps.logits is not None
        wide = Capsules.from_logits(caps.poses.double(), caps.logits.double())
        exact = _named(*step(reference(layer, torch.float64), wide))
        near = _named(*step(reference(layer), caps))
        for key, value in fused_step(layer, caps).items():
            fused[key] = fused.get(key, 0.0) + float((value - exact[key]).square().sum())
            plain[key] = plain.get(key, 0.0) + float((near[key] - exact[key]).square().sum())
            size[key] = size.get(key, 0.0) + float(exact[key].square().sum())
    eps = torch.finfo(torch.float32).eps
    for key, distance in fused.items():
        allowed = 4 * max(plain[key] ** 0.5, eps * size[key] ** 0.5)
        assert distance**0.5 <= allowed, (
            f"{name}, {key}: {distance**0.5:.3g} from float64, allowed {allowed:.3g} (norm {size[key] ** 0.5:.3g})"
        )


def assert_offset_gradients(routing: RoutingFactory) -> None:
    """Layers' offsets are constants, but an operator's are not: their gradients agree with the reference's too."""
    router = routing(LayerShape(3, 4, (2, 2)))
    index = torch.tensor([[0, 1, -1], [4, 2, 3]], dtype=torch.int32)
    poses, logits, weight = torch.randn(2, 5, 3, 2), torch.randn(2, 5), torch.randn(3, 4, 2, 3)
    offset = torch.randn(3, 4, requires_grad=True)
    operator = ops.find(router, torch.float32, torch.device("cpu"), 4)
    assert operator is not None
    fused = operator(router, poses, logits, weight, offset, index)
    plain = route(
        copy.deepcopy(router).double(),
        poses.double(),
        logits.double(),
        weight.double(),
        offset.double(),
        Field(index, index >= 0, 5),
        None,
    )
    actual, expected = (
        torch.autograd.grad(sum(out.square().sum() for out in outputs), offset)[0] for outputs in (fused, plain)
    )
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def assert_compiles_and_exports(routing: RoutingFactory) -> None:
    """The operator is one call in a captured graph, forward and backward."""
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing)
    expected = fused_step(layer, caps)
    compiled = fused_step(torch.compile(layer, backend="aot_eager", fullgraph=True), caps)
    for key, value in compiled.items():
        torch.testing.assert_close(value, expected[key.replace("_orig_mod.", "")])
    program = torch.export.export(layer, (caps,))
    calls = [node for node in program.graph.nodes if "capsroute" in str(node.target)]
    assert len(calls) == 1
    assert_capsules_close(program.module()(caps), layer(caps), 1e-6)


def assert_gradients_of_one_output(routing: RoutingFactory) -> None:
    """A loss of poses alone, or of logits alone, leaves the other output without a gradient."""
    layer, caps = layer_and_capsules("2d, stride 2, padding 1", routing)
    plain = reference(layer)
    for which in ("poses", "logits"):
        actual, expected = (
            torch.autograd.grad(getattr(made(caps), which).square().sum(), made.weight)[0] for made in (layer, plain)
        )
        assert_close(actual, expected, 1e-4, f"gradients of {which}")
