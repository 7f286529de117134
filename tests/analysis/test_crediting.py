"""Credit is conserved on its way to the pixels, and says what the class rests on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from capsroute import CapsNet
from capsroute.analysis import coupling_maps, credit, hide, hiding, most_credited, open_subject, trace
from capsroute.routing import ROUTINGS


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("stem_padding", [0, 1])
@pytest.mark.parametrize("stem", [(6, 3, 2), ((6, 3, 2), (4, 3, 1))])
def test_every_map_sums_to_one(routing, stem_padding, stem):
    net = CapsNet(
        routing,
        image_size=10,
        in_channels=2,
        classes=3,
        stem=stem,
        stem_padding=stem_padding,
        primary=2,
        capsules=((3, 2, 1), (2, 2, 1)),
    )
    images = torch.randn(2, 2, 10, 10)
    layers = trace(net, images)
    given = credit(net, images, traces=layers)
    assert given.pixels.shape == (2, 10, 10)
    for values in (given.pixels, *given.layers):
        assert values.min() >= 0
        np.testing.assert_allclose(values.sum(tuple(range(1, values.ndim))), 1, rtol=1e-4)
    for values in coupling_maps(layers, given):
        np.testing.assert_allclose(values.sum(tuple(range(2, values.ndim))), 1, rtol=1e-4)


def test_the_class_with_the_largest_logit_is_asked_even_where_activations_round_to_one():
    net = CapsNet("similarity", image_size=8, classes=4, stem=(4, 3, 1), primary=2, capsules=()).eval()
    with torch.no_grad():
        net.layers[-1].routing.activation.beta3 += torch.tensor([200.0, 210.0, 230.0, 220.0])
    images = torch.rand(3, 1, 8, 8)
    assert bool((net(images).activations == 1).all())
    assert credit(net, images).target.tolist() == [2, 2, 2]


def test_an_earlier_iteration_and_another_class_can_be_asked():
    net = CapsNet("similarity", image_size=8, classes=4, stem=(4, 3, 1), primary=2, capsules=((2, 3, 2),))
    images = torch.rand(1, 1, 8, 8)
    one, other = credit(net, images, target=[1]), credit(net, images, target=[3])
    assert one.target.tolist() == [1]
    assert np.abs(one.pixels - other.pixels).max() > 1e-6
    assert np.abs(credit(net, images, target=[1], iteration=0).pixels - one.pixels).max() > 1e-8
    # past the last iteration is the last
    np.testing.assert_array_equal(credit(net, images, target=[1], iteration=99).pixels, one.pixels)


def test_hiding_paints_the_background_over_the_masked_pixels_alone():
    images = torch.zeros(1, 1, 4, 4)
    images[0, 0, 1, 2] = 0.8
    images[0, 0, 3, 3] = 0.5
    mask = most_credited(images[:, 0].numpy(), 1 / 16)
    assert mask.sum() == 1
    assert mask[0, 1, 2]
    hidden = hide(images, mask)
    assert hidden[0, 0, 1, 2] == 0
    assert hidden[0, 0, 3, 3] == 0.5
    assert not most_credited(images[:, 0].numpy(), 0.0).any()


def test_hiding_credited_regions_lowers_the_class_more_than_hiding_random_ones(digits_run):
    subject = open_subject(digits_run)
    images = subject.images(range(0, 350, 4))
    given = credit(subject.net, images)
    with torch.no_grad():
        whole = subject.net(images).logits.softmax(1).amax(1).numpy()
    credited, by_chance = hiding(subject.net, images, given, (0.0, 0.05, 0.1, 0.2), draws=5)
    np.testing.assert_allclose(credited[0], whole, atol=1e-5)
    np.testing.assert_allclose(by_chance[0], whole, atol=1e-5)
    fall, chance = whole - credited[1:], whole - by_chance[1:]
    assert np.all(fall.mean(1) > 2 * chance.mean(1))
    assert np.all((fall > chance).mean(1) > 0.75)


def test_credit_is_about_this_image(digits_run):
    """Regions credited in another image, which are as central and as compact, matter less."""
    subject = open_subject(digits_run)
    images = subject.images(range(0, 350, 4))
    given = credit(subject.net, images)
    others = given._replace(pixels=np.roll(given.pixels, 11, axis=0))
    own, _ = hiding(subject.net, images, given, (0.05, 0.1), draws=1)
    foreign, _ = hiding(subject.net, images, others, (0.05, 0.1), draws=1)
    assert np.all(own.mean(1) < foreign.mean(1) - 0.03)
