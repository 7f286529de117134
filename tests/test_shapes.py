"""The shapes written in signatures are those that run: checked by jaxtyping in a process of its own."""

from __future__ import annotations

import subprocess
import sys

CHECKED = """
import sys
from jaxtyping import install_import_hook
with install_import_hook("capsroute", "beartype.beartype"):
    import capsroute as cr
    from capsroute import geometry, layers, losses, models, norms, votes
    from capsroute.routing import algorithm, connectionist, dynamic, em, entropy, kernels, similarity, tiling, uniform
import torch
torch.set_num_threads(1)
for name in cr.routing.ROUTINGS:
    for budget in (None, 30_000):
        net = cr.CapsNet(name, image_size=16, stem=(8, 3, 2), primary=2, capsules=((3, 3, 2),), fused=False,
                         vote_budget=budget, decoder=(8,), coordinate_addition=True)
        caps = net(torch.randn(2, 1, 16, 16))
        labels = torch.tensor([0, 1])
        for loss in (losses.cross_entropy, losses.spread, losses.margin):
            loss(caps, labels)
        losses.reconstruction(torch.zeros(2, 1, 16, 16), net.reconstruct(caps))
for kernel in kernels.KERNELS:
    cr.ConvCapsules1d(2, 3, 3, routing=cr.routing.similarity(kernel=kernel), fused=False)(
        cr.Capsules(torch.randn(2, 5, 2, 4, 4), torch.rand(2, 5, 2)))
try:
    votes.votes(torch.zeros(1, 2, 3, 4, 4), torch.zeros(9, 2, 4, 4))
except Exception as error:
    print("caught", type(error).__name__)
"""


def test_signatures_tell_the_truth():
    run = subprocess.run([sys.executable, "-c", CHECKED], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.startswith("caught TypeCheckError"), "a wrong shape went unnoticed: the check does not check"
