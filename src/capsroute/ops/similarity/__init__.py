"""Fused similarity routing (paper, section 4.1) with a Gaussian mixture kernel."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from capsroute import ops
from capsroute.ops.similarity.op import similarity
from capsroute.routing.algorithm import Routing, WeightedMean
from capsroute.routing.kernels import GaussianMixture
from capsroute.routing.similarity import KernelActivation, KernelCompatibility
from capsroute.routing.uniform import FlatCompatibility


def _operator(
    routing: Routing, poses: Tensor, logits: Tensor, matrices: Tensor, offset: Tensor | None, index: Tensor
) -> tuple[Tensor, Tensor]:
    compatibility, activation = routing.compatibility, cast(KernelActivation, routing.activation)
    kernel = cast(GaussianMixture, activation.kernel)
    beta1, beta2 = activation.beta1(), activation.beta2()
    if isinstance(compatibility, KernelCompatibility):
        lambda1, lambda2, iterations = compatibility.lambda1(), compatibility.lambda2(), routing.updates
    else:  # flat couplings never ask for them
        lambda1, lambda2, iterations = beta1.new_ones(beta1.shape), beta1.new_ones(beta1.shape), 0
    # a routing that several layers share has one parameter for all output types
    lambda1, lambda2, beta1, beta2, beta3 = (
        p.expand(matrices.shape[1]) for p in (lambda1, lambda2, beta1, beta2, activation.beta3)
    )
    heights, widths = kernel.heights(), kernel.widths()
    return similarity(
        poses, logits, matrices, offset, index, lambda1, lambda2, beta1, beta2, beta3, heights, widths, iterations
    )


def _accepts(routing: Routing) -> bool:
    """One Gaussian mixture for scores and activation, and couplings that sum to one over the inputs."""
    compatibility, kernel = routing.compatibility, cast(KernelActivation, routing.activation).kernel
    # not `is`: while a graph is exported, one module may come in two wrappers
    same = not isinstance(compatibility, KernelCompatibility) or vars(compatibility.kernel) is vars(kernel)
    return same and ops.exact_type(kernel) is GaussianMixture and routing.competition == "inputs"


for _compatibility in (KernelCompatibility, FlatCompatibility):
    ops.register((_compatibility, WeightedMean, KernelActivation), _operator, name="similarity", accepts=_accepts)
