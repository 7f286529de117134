"""`python -m capsroute`, and `torchrun -m capsroute` for several processes."""

from __future__ import annotations

from capsroute.cli import main

main()
