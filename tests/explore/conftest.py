from __future__ import annotations

from digits_run import digits_run

__all__ = ["digits_run"]
