"""Options that several subcommands share."""

import sys
from typing import Annotated

import typer

from tessearth.models import DEFAULT_MODEL, MODELS

ModelOption = Annotated[
    str, typer.Option("--model", metavar="NAME|PATH|HUB-ID", help="A shipped name, a file or folder, or a hub id.")
]
DeviceOption = Annotated[str | None, typer.Option(help="Such as cpu or cuda:0; a GPU is taken when there is one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

__all__ = ["DEFAULT_MODEL", "DeviceOption", "JsonOption", "ModelOption", "warn_if_untrained"]


def warn_if_untrained(model: str) -> None:
    """Say plainly that random weights know nothing, before somebody builds on them."""
    if model in MODELS and not MODELS[model].trained:
        print(f"tessearth: warning: model {model!r} has random weights; use it to try things out only", file=sys.stderr)
