"""What is committed of the runs holds together: results, weights, and the names they go by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from capsroute import pretrained
from capsroute.models import count_parameters
from capsroute.training import Config

RESULTS = sorted(p for p in (Path(__file__).parent.parent / "results").glob("*.json") if not p.stem.startswith("bench"))
KEYS = (
    "recipe dataset source cameras routing seed epochs parameters val_error val_split test_error test_interval "
    "wall_seconds threads commit config curve"
)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_says_all(path):
    result = json.loads(path.read_text())
    assert set(KEYS.split()) <= set(result)
    assert path.stem == f"{result['recipe']}-{result['seed']}"
    low, high = result["test_interval"]
    assert 0 <= low <= result["test_error"] <= high <= 100
    # the parameters tested are those that validation chose
    first = min(result["config"]["record_from"], result["epochs"])
    chosen = min(row["val_error"] for row in result["curve"] if row["epoch"] >= first)
    assert result["val_error"] == chosen


@pytest.mark.parametrize("name", pretrained.shipped_names())
def test_shipped_weights_belong_to_a_result(name):
    folder = pretrained.locate(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 1_000_000
    trained = Config.from_dict(json.loads((folder / "training.json").read_text()))
    assert any(Config.from_dict(json.loads(path.read_text())["config"]) == trained for path in RESULTS)
    net = pretrained.load(name).eval()
    result = next(json.loads(p.read_text()) for p in RESULTS if p.stem == f"{trained.recipe}-{trained.seed}")
    assert count_parameters(net, routing=True) == result["parameters"]
    with torch.no_grad():
        caps = net(torch.randn(2, net.in_channels, *net.image_size))
    assert caps.activations.shape == (2, net.classes)
    assert torch.isfinite(caps.poses).all()
