"""Print how many training images a second one core prepares; the same as `capsroute bench data`."""

import typer

from capsroute.bench.data import command

if __name__ == "__main__":
    typer.run(command)
