"""Two test processes share two cores: one thread each. Every test starts from the same seed."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_start():
    torch.set_num_threads(1)
    torch.manual_seed(0)
