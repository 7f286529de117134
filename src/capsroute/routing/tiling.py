"""Route a layer without holding all its votes: tile by tile over batch and positions, recomputed in backward."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from capsroute.geometry import Field
from capsroute.routing.algorithm import Inputs, Routing
from capsroute.votes import votes

DEFAULT_BUDGET = 64 * 2**20


def route(
    routing: Routing,
    poses: Float[Tensor, "B N k c"],
    logits: Float[Tensor, "B N"],
    matrices: Float[Tensor, "I J r k"],
    offset: Float[Tensor, "I D"] | None,
    field: Field,
    budget: int | None = DEFAULT_BUDGET,
) -> tuple[Float[Tensor, "B P J D"], Float[Tensor, "B P J"]]:
    """Poses and logits of the output capsules.

    No more than `budget` bytes of votes, with the copies that autograd makes of them, are held at a time (`None`: all),
    though at least those of one position of one image, or of one image where the routing couples positions.
    """
    images, positions = tile_sizes(routing, len(poses), matrices, poses, field, budget)
    if images >= len(poses) and positions >= len(field.index):
        return _route_tile(routing, poses, logits, matrices, offset, field)
    keep = torch.is_grad_enabled()
    rows = []
    # split, not slicing: its backward joins the parts once instead of padding each to full size
    for some_poses, some_logits in zip(poses.split(images), logits.split(images), strict=True):
        tiles = []
        for part in _parts(field, positions):
            arguments = (routing, some_poses, some_logits, matrices, offset, part)
            tiles.append(
                checkpoint(_route_tile, *arguments, use_reentrant=False, preserve_rng_state=False)
                if keep
                else _route_tile(*arguments)
            )
        rows.append([torch.cat(parts, dim=1) for parts in zip(*tiles, strict=True)])
    out_poses, out_logits = (torch.cat(parts) for parts in zip(*rows, strict=True))
    return out_poses, out_logits


def tile_sizes(
    routing: Routing,
    images: int,
    matrices: Float[Tensor, "I J r k"],
    poses: Float[Tensor, "B N k c"],
    field: Field,
    budget: int | None,
) -> tuple[int, int]:
    """How many images and positions one tile has."""
    positions, inputs = field.index.shape
    if budget is None:
        return images, positions
    # in backward, autograd keeps the votes once more for each forming of the capsules
    copies = routing.updates + 2
    numbers = copies * inputs * matrices.shape[1] * matrices.shape[2] * poses.shape[-1]
    fitting = budget // max(1, numbers * poses.element_size())
    if fitting >= positions or routing.couples_positions:
        return max(1, min(images, fitting // max(1, positions))), positions
    return 1, max(1, fitting)


def _parts(field: Field, positions: int) -> Iterator[Field]:
    for start in range(0, len(field.index), positions):
        yield field.rows(start, start + positions)


def _route_tile(
    routing: Routing, poses: Tensor, logits: Tensor, matrices: Tensor, offset: Tensor | None, field: Field
) -> tuple[Tensor, Tensor]:
    state = routing(votes(field.gather(poses), matrices, offset), Inputs(field.gather(logits), field.mask), field)
    return state.poses, state.logits
