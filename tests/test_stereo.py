"""Two cameras compared: the sum it should be, the shift it should find, and a network that hears of it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from capsroute.analysis import credit
from capsroute.figures.architecture import stages
from capsroute.models import CapsNet, count_parameters
from capsroute.stereo import Disparity, correlate

SEEING = {"in_channels": 2, "image_size": 20, "stem": ((8, 5, 2), (8, 3, 1)), "primary": 2, "capsules": ((3, 3, 1),)}


@pytest.mark.parametrize("reach", [1, 3, 9])
def test_correlation_is_the_sum_of_products(reach):
    left, right = torch.randn(2, 2, 3, 5, 7, dtype=torch.float64)
    moved = F.pad(right, (reach, reach))
    sums = [(left * moved[..., d : d + 7]).sum(1) for d in range(2 * reach + 1)]
    torch.testing.assert_close(correlate(left, right, reach), torch.stack(sums, 1))


def test_correlation_has_the_right_gradient():
    left, right = torch.randn(2, 1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: correlate(a, b, 2), (left, right))


@pytest.mark.parametrize("shift", [-4, 0, 3])
def test_a_moved_picture_is_found_where_it_was_moved_to(shift):
    torch.manual_seed(0)
    picture = torch.randn(4, 32, 40)
    both = torch.stack([picture, picture.roll(shift, -1)], 1)
    maps = Disparity(5, 5, 2, 0).eval()(both)
    assert tuple(maps.shape) == (4, 11, 14, 18)
    inner = maps[..., 4:-4]  # what was rolled around the border lies outside
    assert (inner.argmax(1) == 5 + shift).float().mean() > 0.99


def test_a_mirrored_pair_has_the_mirrored_maps():
    """Cameras swapped and pictures mirrored is what a mirror would show them: heights are what they were."""
    torch.manual_seed(0)
    left, right = torch.randn(2, 1, 4, 6, 12)
    plain = correlate(left, right, 3)
    mirrored = correlate(right.flip(-1), left.flip(-1), 3)
    for place in range(7):
        d = place - 3
        inside = slice(max(0, -d), 12 - max(0, d))
        there = slice(max(0, d), 12 - max(0, -d))
        torch.testing.assert_close(mirrored[:, place].flip(-1)[..., there], plain[:, place][..., inside])


def test_a_network_hears_of_disparity(tmp_path):
    torch.manual_seed(0)
    net = CapsNet(disparity=4, **SEEING)
    added = count_parameters(net) - count_parameters(CapsNet(**SEEING))
    assert added == 16 * 25 + 3 * 16 + 9 * 8 * 9, "an eye and its norm, and nine maps for the second convolution"
    images = torch.randn(6, 2, 20, 20)
    net(images).logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert net.disparity.eye[0].weight.grad.abs().max() > 0
    net.eval().save_pretrained(tmp_path)
    again = CapsNet.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(again(images).logits, net(images).logits)
    heard = stages(net)
    assert heard[1].weights == count_parameters(net.stem) + count_parameters(net.disparity)
    pixels = credit(net, images).pixels
    assert pixels.shape == (6, 20, 20)
    assert pixels.sum((1, 2)) == pytest.approx(1)


@pytest.mark.parametrize(
    "wrong", [{"disparity": -1}, {"disparity": 3, "in_channels": 1}, {"disparity": 3, "stem": (8, 5, 2)}]
)
def test_what_has_no_disparity_is_refused(wrong):
    with pytest.raises(ValueError, match=r"disparity=-?\d with in_channels=\d and \d convolutions"):
        CapsNet(**{**SEEING, **wrong})
