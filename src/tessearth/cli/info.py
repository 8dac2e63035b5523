"""`tessearth info`: what a model is, without reading its source."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tessearth.cli.options import DEFAULT_MODEL, JsonOption


def info(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A shipped name, a file or folder, or a hub id.")] = (
        DEFAULT_MODEL
    ),
    as_json: JsonOption = False,
) -> None:
    """Describe a model: sizes, sharpness and token statistics, provenance."""
    from tessearth.inference.describe import describe_model

    description = describe_model(model)
    if as_json:
        print(json.dumps(description, indent=2))
    else:
        print("\n".join(_lines(description)))


def _lines(description: Mapping[str, Any], indent: str = "") -> list[str]:
    """Nested values as aligned lines, headings for the parts."""
    plain = {key: value for key, value in description.items() if not isinstance(value, Mapping)}
    width = max((len(key) for key in plain), default=0)
    lines = [f"{indent}{key.replace('_', ' '):<{width}}  {_spoken(value)}" for key, value in plain.items()]
    for key, value in description.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"{indent}{key.replace('_', ' ')}", *_lines(value, indent + "  ")]
    return lines


def _spoken(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
