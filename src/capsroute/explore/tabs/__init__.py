"""The page's tabs: controls, and which function answers which of them."""

from __future__ import annotations

from typing import Any

# answer at once, and drop what a later move has overtaken
LIVE: dict[str, Any] = {
    "show_progress": "hidden",
    "trigger_mode": "always_last",
    "queue": False,
    "api_visibility": "private",
}
# events that carry data of their own: an overtaken one would be answered with its old data, so none is dropped
EVERY = {**LIVE, "trigger_mode": "multiple", "queue": True}
