"""Options that several subcommands share."""

import sys
from typing import Annotated

import typer

from tessearth.zoo.shipped import DEFAULT_MODEL

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME|PATH|HUB-ID",
        help="A name that `tessearth info` lists, a file or folder, a hub id; +range=DB.npz after any of them.",
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="Such as cpu or cuda:0; a GPU is taken when there is one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

__all__ = ["DEFAULT_MODEL", "DeviceOption", "JsonOption", "ModelOption", "warn_if_untrained"]


def warn_if_untrained(model: str) -> None:
    """Say plainly that random weights know nothing, before somebody builds on them."""
    from tessearth.zoo.names import is_untrained

    if is_untrained(model):
        print(f"tessearth: warning: model {model!r} has random weights; use it to try things out only", file=sys.stderr)
