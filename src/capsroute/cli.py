"""The command line: `capsroute train | evaluate | table | figure | bench | explore | data`.

Every command imports what it needs when it runs, so that `capsroute --help` answers at once.
"""

from __future__ import annotations

import sys

import typer

from capsroute.errors import CapsrouteError

app = typer.Typer(
    name="capsroute",
    help="Train and look into capsule networks whose routing is learned.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _options() -> None:
    """Train and look into capsule networks whose routing is learned."""


def main() -> None:
    """Run the command line; what the user did wrong, or the machine refused, is one readable line."""
    try:
        app()
    except CapsrouteError as error:
        typer.secho(f"capsroute: {error}", fg="red", err=True)
        sys.exit(2)
