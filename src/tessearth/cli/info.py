"""`tessearth info`: what a model or a feature store holds."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tessearth.cli import options
from tessearth.errors import ConfigError

MANIFEST = "manifest.json"


def info(
    name: Annotated[
        str | None,
        typer.Argument(metavar="MODEL|STORE", help="A model's name, path or hub id, or a store [default: list names]."),
    ] = None,
    as_json: options.Json = False,
    sheet: Annotated[
        str | None, typer.Option("--sheet", metavar="PNG", help="Draw a contact sheet of a store's tiles.")
    ] = None,
    tiles: Annotated[int, typer.Option(help="Tiles on the sheet.")] = 48,
) -> None:
    """Describe a model (sizes, sharpness, tokens, provenance) or a feature store; without a name, list all names.

    tessearth info earth
    """
    is_store = name is not None and (Path(name) / MANIFEST).is_file()
    if sheet is not None and not is_store:
        raise ConfigError(f"--sheet draws the tiles of a feature store, and {name!r} is none")
    if name is not None and is_store:
        description = _describe_store(name, sheet, tiles)
    else:
        from tessearth.embedding import describe_model, list_names

        description = dict(list_names()) if name is None else describe_model(name)
    if as_json:
        print(json.dumps(description, indent=2))
    else:
        print("\n".join(_lines(description)).lstrip("\n"))


def _describe_store(path: str, sheet: str | None, tiles: int) -> dict[str, Any]:
    from tessearth.imagery import FeatureStore

    store = FeatureStore(path)
    if sheet is not None:
        from tessearth.imagery import draw_contact_sheet

        draw_contact_sheet(store, sheet, count=tiles)
    return store.describe()


def _lines(description: Mapping[str, Any], indent: str = "") -> list[str]:
    """Nested values as aligned lines, headings for the parts."""
    plain = {key: value for key, value in description.items() if not isinstance(value, Mapping)}
    width = max((len(key) for key in plain), default=0)
    lines = [f"{indent}{key.replace('_', ' '):<{width}}  {_format(value)}".rstrip() for key, value in plain.items()]
    for key, value in description.items():
        if isinstance(value, Mapping) and value:
            lines += ["", f"{indent}{key.replace('_', ' ')}", *_lines(value, indent + "  ")]
    return lines


def _format(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
