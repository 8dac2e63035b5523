"""`tessearth info`: what a model is, without reading its source."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tessearth.cli.options import JsonOption
from tessearth.errors import ConfigError

MANIFEST = "manifest.json"


def info(
    what: Annotated[
        str | None,
        typer.Argument(metavar="MODEL|STORE", help="A model's name, path or hub id, or a store [default: list]."),
    ] = None,
    as_json: JsonOption = False,
    sheet: Annotated[
        str | None, typer.Option("--sheet", metavar="PNG", help="Draw a contact sheet of a store's tiles.")
    ] = None,
    tiles: Annotated[int, typer.Option(help="How many tiles the sheet shows.")] = 48,
) -> None:
    """Describe a model (sizes, sharpness, tokens, provenance) or a feature store; without a name, list all names."""
    if what is None:
        description = _list_names()
    elif (Path(what) / MANIFEST).is_file():
        description = _describe_store(what, sheet, tiles)
    else:
        description = _describe_model(what, sheet)
    if as_json:
        print(json.dumps(description, indent=2))
    else:
        print("\n".join(_lines(description)).lstrip("\n"))


def _list_names() -> dict[str, Any]:
    from tessearth.embedding.describe import list_names

    return dict(list_names())


def _describe_model(model: str, sheet: str | None) -> dict[str, Any]:
    from tessearth.embedding.describe import describe_model

    if sheet is not None:
        raise ConfigError(f"--sheet draws the tiles of a feature store, and {model!r} is none")
    return describe_model(model)


def _describe_store(path: str, sheet: str | None, tiles: int) -> dict[str, Any]:
    from tessearth.imagery.store import FeatureStore

    store = FeatureStore(path)
    if sheet is not None:
        from tessearth.imagery.contact_sheet import draw_contact_sheet

        draw_contact_sheet(store, sheet, count=tiles)
    return store.describe()


def _lines(description: Mapping[str, Any], indent: str = "") -> list[str]:
    """Nested values as aligned lines, headings for the parts."""
    plain = {key: value for key, value in description.items() if not isinstance(value, Mapping)}
    width = max((len(key) for key in plain), default=0)
    lines = [f"{indent}{key.replace('_', ' '):<{width}}  {_spoken(value)}".rstrip() for key, value in plain.items()]
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
