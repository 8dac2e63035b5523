"""Training recipes as TOML files: found by name, laid over their base, changed from the command line, written back.

A recipe may begin from another one, `base = "paper"`: tables are laid over the base's, anything else replaces it.
`--set training.batch_size=512` does the same for one value; `--set features=none` takes a table away.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tessearth.errors import ConfigError
from tessearth.imagery.recipe import RECIPE_FOLDERS, find_recipe
from tessearth.pretraining.recipe import Recipe
from tessearth.settings import from_plain

MAX_BASES = 8


def read_recipe(name_or_path: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file, over its base, with changes such as "training.batch_size=512" on top."""
    values = _overlaid(Recipe().to_dict(), _read_values(name_or_path))
    for change in changes:
        _apply(values, change)
    try:
        return from_plain(Recipe, values)
    except ConfigError as error:
        raise ConfigError(f"{name_or_path}: {error}") from None


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values as TOML that reads back as the same; None is left out."""
    return "\n".join(_toml_lines(values, ())).lstrip("\n") + "\n"


def first_difference(old: object, new: object, where: str = "") -> str | None:
    """Where two plain values differ first, said in words; None when they are the same."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        pairs: list[tuple[str, object, object]] = [(str(key), old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(i), *both) for i, both in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{where} is {json.dumps(new)}, there it is {json.dumps(old)}"
    deeper = (first_difference(a, b, f"{where}.{key}" if where else key) for key, a, b in pairs)
    return next((difference for difference in deeper if difference), None)


def _read_values(name_or_path: str, depth: int = 0) -> dict[str, Any]:
    path = _find(name_or_path)
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str) or depth == MAX_BASES:
        raise ConfigError(f"{path}: base is {base!r}; it must name a recipe, and not lead back to itself")
    return _overlaid(_read_values(base, depth + 1), values)


def _find(name_or_path: str) -> Path:
    """A file, or a shipped recipe, also one in a folder such as ablations/fixed-sites."""
    nested = [folder / f"{name_or_path}.toml" for folder in RECIPE_FOLDERS if "/" in name_or_path]
    return next((path for path in nested if path.is_file()), None) or find_recipe(name_or_path)


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _overlaid(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }
    return {**below, **both}


def _apply(values: dict[str, Any], change: str) -> None:
    """Set one value by its dotted path; whole numbers on the path count into lists."""
    path, equals, text = change.partition("=")
    *parents, last = path.strip().split(".")
    if not equals or not last:
        raise ConfigError(f"--set {change!r} is not of the form a.b=value")
    table: Any = values
    for name in parents:
        table = table.setdefault(name, {}) if isinstance(table, dict) else _item(table, name, change)
        if table is None or not isinstance(table, dict | list):
            raise ConfigError(f"--set {change!r}: {name} is no table")
    if isinstance(table, list):
        _item(table, last, change)
        table[int(last)] = _value(text)
    else:
        table[last] = _value(text)


def _item(table: list[Any], name: str, change: str) -> Any:
    if not name.isdecimal() or int(name) >= len(table):
        raise ConfigError(f"--set {change!r}: {name!r} is no place in a list of {len(table)}")
    return table[int(name)]


def _value(text: str) -> Any:
    """A value as TOML writes it; bare words are text, and none is nothing."""
    text = text.strip()
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own values first, then its tables under their headings, as TOML wants it."""
    for key, value in table.items():
        if value is not None and not _is_tables(value):
            yield f"{_key(key)} = {_inline(value)}"
    for key, value in table.items():
        inner = (*path, _key(key))
        if isinstance(value, Mapping):
            yield from ("", f"[{'.'.join(inner)}]", *_toml_lines(value, inner))
        elif _is_tables(value):
            for item in value:
                yield from ("", f"[[{'.'.join(inner)}]]", *_toml_lines(item, inner))


def _is_tables(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _inline(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)
