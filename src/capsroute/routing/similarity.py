"""Similarity learning (section 4.1): routing as the minimisation of a clustering objective with a learned kernel.

    L(C, μ) = -Σ c_i <μ, v_i>_θ + λ₁ D_KL(C ‖ U) + λ₂ D_KL(C ‖ A),   Σ c_i = 1                          (eq. 2, 3)
    μ       = Σ c_i v_i                                                                                  (eq. 4)
    c_i     ∝ a_i^(λ₂/(λ₁+λ₂)) exp(<μ, v_i>_θ / (λ₁+λ₂))                                              (eq. 5-12)
    p       = sigmoid(β₁ Σ c_i <μ, v_i>_θ - β₂ D_KL(C ‖ A) + β₃)                                          (eq. 13)

Equation 4 minimises equation 2 over μ for a linear kernel, not for a Gaussian one: the objective need not fall.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsroute.routing.algorithm import (
    Activation,
    Compatibility,
    Edges,
    Inputs,
    LayerShape,
    Memory,
    Outputs,
    Poses,
    Routing,
    RoutingFactory,
    RoutingState,
    Votes,
    check_iterations,
)
from capsroute.routing.kernels import Kernel, Positive, build_kernel


def coupling_scores(
    similarity: Edges, log_activations: Float[Tensor, "B P I"], lambda1: Tensor, lambda2: Tensor
) -> Edges:
    """(λ₂ log a_i + <μ, v_i>) / (λ₁+λ₂), whose softmax over i is equation 12."""
    return (lambda2 * log_activations.unsqueeze(-1) + similarity) / (lambda1 + lambda2)


def divergence(coupling: Edges, log_activations: Float[Tensor, "B P I"]) -> Outputs:
    """D_KL(C ‖ A) = Σ c_i (log c_i - log a_i), with A not normalised; padding, where c is 0, adds nothing."""
    log_coupling = coupling.clamp_min(torch.finfo(coupling.dtype).tiny).log()
    return (coupling * (log_coupling - log_activations.unsqueeze(-1))).sum(2)


class KernelCompatibility(Compatibility):
    """c_i ∝ a_i^(λ₂/(λ₁+λ₂)) exp(<μ, v_i> / (λ₁+λ₂))                                          (eq. 12)"""

    def __init__(self, kernel: Kernel, outputs: int, lambda1: float, lambda2: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.lambda1 = Positive(torch.full((outputs,), lambda1))
        self.lambda2 = Positive(torch.full((outputs,), lambda2))

    def forward(self, votes: Votes, inputs: Inputs, state: RoutingState) -> tuple[Edges, Memory]:
        similarity = self.kernel(state.poses, votes)
        return coupling_scores(similarity, inputs.log_activations, self.lambda1(), self.lambda2()), None


class KernelActivation(Activation):
    """logit p = β₁ Σ c_i <μ, v_i> - β₂ D_KL(C ‖ A) + β₃                                          (eq. 13)"""

    def __init__(self, kernel: Kernel, outputs: int, beta1: float, beta2: float, beta3: float) -> None:
        super().__init__()
        self.kernel = kernel
        self.beta1 = Positive(torch.full((outputs,), beta1))
        self.beta2 = Positive(torch.full((outputs,), beta2))
        self.beta3 = nn.Parameter(torch.full((outputs,), beta3))

    def forward(self, votes: Votes, inputs: Inputs, coupling: Edges, poses: Poses, memory: Memory) -> Outputs:
        agreement = (coupling * self.kernel(poses, votes)).sum(2)
        surprise = divergence(coupling, inputs.log_activations)
        logits: Outputs = self.beta1() * agreement - self.beta2() * surprise + self.beta3
        return logits


def _build(
    shape: LayerShape,
    kernel: str,
    components: int,
    per_channel: bool,
    learn_kernel: bool,
    iterations: int,
    lambdas: tuple[float, float],
    betas: tuple[float, float],
    calibrate: bool,
) -> Routing:
    shared = build_kernel(kernel, shape, components, per_channel).requires_grad_(learn_kernel)
    beta1, beta2 = betas
    # D_KL(C ‖ A) of a flat C is log 2 - log I for activations of a half: without this, every logit starts at log I
    beta3 = -beta1 * shared.typical() - beta2 * (math.log(shape.inputs) - math.log(2)) if calibrate else 0.0
    return Routing(
        KernelCompatibility(shared, shape.outputs, *lambdas),
        KernelActivation(shared, shape.outputs, beta1, beta2, beta3),
        iterations=iterations,
    )


def similarity(
    *,
    kernel: str = "gaussian",
    components: int = 4,
    per_channel: bool = False,
    learn_kernel: bool = True,
    iterations: int = 3,
    lambdas: tuple[float, float] = (1.0, 1.0),
    betas: tuple[float, float] = (40.0, 1.0),
    calibrate: bool = True,
) -> RoutingFactory:
    """The similarity learning routing.

    Args:
        kernel: `gaussian` (eq. 15), `laplace`, `cosine` or `linear`.
        components: Q, the components of a mixture kernel.
        per_channel: kernel parameters for each output type of its own (the paper's future work).
        learn_kernel: else its heights and widths stay as they start: a control.
        iterations: the couplings are updated this often.
        lambdas: where λ₁ and λ₂ start; learned, one for each output type. Large ones start near flat couplings.
        betas: where β₁ and β₂ start; learned likewise. Kernels of votes differ by a tenth or so, hence a large β₁.
        calibrate: start β₃ so that a flat coupling gives a logit near 0; else at 0.
    """
    return partial(
        _build,
        kernel=kernel,
        components=components,
        per_channel=per_channel,
        learn_kernel=learn_kernel,
        iterations=check_iterations(iterations),
        lambdas=lambdas,
        betas=betas,
        calibrate=calibrate,
    )
