"""`capsroute explore`: open the page. Nothing heavy is imported before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsroute.errors import CapsrouteError


def explore(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run's folder or the name of a shipped network; else the digits."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 7860,
    host: Annotated[str, typer.Option(help="Who may connect: this machine alone, unless told.")] = "127.0.0.1",
    runs: Annotated[Path, typer.Option(metavar="DIR", help="The folder whose runs are compared.")] = Path("runs"),
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where the data sets lie.")] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Watch a capsule network reach consensus, in a web page on this machine."""
    try:
        from capsroute.explore import page
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise CapsrouteError("the explorer needs gradio; install it with pip install 'capsroute[explore]'") from error
    import torch

    from capsroute.explore.gallery import Gallery, starting_network

    # small networks gain nothing from many threads, and a page must leave room for training
    torch.set_num_threads(1)
    gallery = Gallery(starting_network(run, runs, print), runs, data)
    gallery.open(gallery.names[0])
    built = page.build(gallery)
    address = page.launch(built, host, port, open_browser=open_browser)
    print(f"the explorer is at {address} (Ctrl-C ends it)", flush=True)
    built.block_thread()
