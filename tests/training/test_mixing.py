"""Mixed pairs of images: what is shown and what is asked for agree."""

from __future__ import annotations

import pytest
import torch

from capsroute.models import ConvNet
from capsroute.training.config import LossConfig
from capsroute.training.mixing import mixed
from capsroute.training.objective import Objective


def numbered(count: int = 6, size: tuple[int, int] = (20, 30)) -> torch.Tensor:
    """Image n is n everywhere."""
    return torch.arange(float(count))[:, None, None, None].expand(count, 2, *size).contiguous()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0)])
def test_the_share_is_what_the_image_shows(seed: int, shares: tuple[float, float]) -> None:
    torch.manual_seed(seed)
    mix = mixed(numbered(), *shares)
    assert mix is not None
    assert sorted(mix.partners.tolist()) == list(range(6))
    own, other = torch.arange(6.0), mix.partners.float()
    torch.testing.assert_close(mix.images.mean((1, 2, 3)), mix.share * own + (1 - mix.share) * other)
    assert 0 <= mix.share <= 1


def test_a_patch_is_a_rectangle_of_the_partner_in_its_place() -> None:
    torch.manual_seed(1)
    images = torch.rand(4, 2, 16, 16)
    mix = mixed(images, 0.0, 1.0)
    assert mix is not None
    assert 0 < mix.share < 1
    foreign = (mix.images == images[mix.partners]).all(1) & (mix.partners != torch.arange(4))[:, None, None]
    assert bool((foreign | (mix.images == images).all(1)).all())
    inside = foreign[mix.partners != torch.arange(4)][0]
    assert torch.equal(inside, inside.any(1)[:, None] & inside.any(0)[None])


def test_the_rest_of_the_batches_is_left_alone() -> None:
    torch.manual_seed(0)
    kinds = [mixed(numbered(), 0.25, 0.25) for _ in range(400)]
    left = sum(mix is None for mix in kinds)
    blended = sum(mix is not None and mix.images[1].unique().numel() == 1 and mix.share < 1 for mix in kinds)
    assert 160 < left < 240
    assert 60 < blended < 160


def test_the_images_given_are_not_changed() -> None:
    images = numbered()
    for shares in ((1.0, 0.0), (0.0, 1.0)):
        mixed(images, *shares)
    assert torch.equal(images, numbered())


def test_the_loss_asks_for_both_labels() -> None:
    net = ConvNet(image_size=16, in_channels=2, parameters=2000).eval()
    images, labels = torch.randn(8, 2, 16, 16), torch.arange(8) % 5
    objective = Objective(net, LossConfig(cutmix=1.0), steps=10)
    torch.manual_seed(3)
    loss, logits = objective(images, labels, 0)
    torch.manual_seed(3)
    mix = mixed(images, 0.0, 1.0)
    assert mix is not None
    wanted = torch.zeros(8, 5).scatter(1, labels[:, None], mix.share)
    wanted.scatter_add_(1, labels[mix.partners][:, None], torch.full((8, 1), 1 - mix.share))
    torch.testing.assert_close(loss, -(wanted * logits.log_softmax(1)).sum(1).mean())
    torch.testing.assert_close(logits, net(mix.images).logits)
