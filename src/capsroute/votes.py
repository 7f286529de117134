"""Votes: what each input capsule believes each output capsule's pose to be.

v_ij = W_ij / ||W_ij||_F  P_i                                                                          (eq. 1)
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Start = Literal["identity", "noise", "small"]


def matrices(weight: Float[Tensor, "I J r k"], normalise: bool = True) -> Float[Tensor, "I J r k"]:
    """The matrices that poses are multiplied by: W / ||W||_F as in the paper, or W itself (Hinton et al. 2018)."""
    if not normalise:
        return weight
    norm: Tensor = torch.linalg.matrix_norm(weight, keepdim=True)
    return weight / norm.clamp_min(torch.finfo(weight.dtype).tiny)


def votes(
    poses: Float[Tensor, "B P I k c"],
    matrices: Float[Tensor, "I J r k"],
    offset: Float[Tensor, "I D"] | None = None,
) -> Float[Tensor, "B P I J D"]:
    """Every input's vote for every output of its window, as flat vectors; `offset` is coordinate addition."""
    result = torch.einsum("ijrk,bpikc->bpijrc", matrices, poses).flatten(-2)
    return result if offset is None else result + offset[:, None, :]


@torch.no_grad()
def start(weight: Float[Tensor, "I J r k"], how: Start, noise: float = 0.3) -> None:
    """Fill `weight` with its starting values.

    Votes by noise average to almost nothing, so each layer would shrink the poses by an order of magnitude until all
    votes look alike; the identity keeps them. `small` noise is for routings with a prior, to which such votes are one.
    """
    if how == "identity":
        weight.normal_(std=noise)
        weight += torch.eye(*weight.shape[-2:], dtype=weight.dtype, device=weight.device)
    elif how == "noise":
        weight.normal_(std=weight.shape[-1] ** -0.5)
    elif how == "small":
        bound = (3 / (weight.shape[0] * weight.shape[-2] * weight.shape[-1])) ** 0.5
        weight.uniform_(-bound, bound)
    else:
        raise ValueError(f"start={how!r}: choose 'identity' (identity plus noise), 'noise' or 'small' (noise)")


def coordinates(space: tuple[int, ...], pose: tuple[int, int]) -> Float[Tensor, "taps D"]:
    """Coordinate addition (Hinton et al. 2018): where each position lies, for the right-hand column of its votes.

    The centre of each position, scaled to 0..1, is added to one element for each spatial axis.
    """
    rows, columns = pose
    if len(space) > rows:
        raise ValueError(
            f"coordinate addition writes {len(space)} coordinates into one column, but poses have {rows} rows; "
            f"use taller poses or coordinate_addition=False"
        )
    axes = torch.meshgrid(*[(torch.arange(n) + 0.5) / n for n in space], indexing="ij")
    result = torch.zeros(*space, rows, columns)
    for axis, values in enumerate(axes):
        result[..., axis, columns - 1] = values
    return result.reshape(-1, rows * columns)
