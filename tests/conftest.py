"""Two test processes share two cores: one thread each. Every test starts from the same seed."""

from __future__ import annotations

import sys

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "torch._dynamo" in sys.modules:
        # what earlier tests compiled would count as recompilations of the same code, of which there may be eight
        torch._dynamo.reset()
