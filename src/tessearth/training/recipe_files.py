"""Training recipes as TOML files: found by name, laid over their base, changed from the command line, written back.

A recipe may begin from another one, `base = "paper"`: tables are laid over the base's, anything else replaces it.
`--set training.batch_size=512` does the same for one value; `--set features=none` takes a table away. An [encoder]
and a [baseline] take each other's place: the one laid on top is the one that is trained.
"""

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tessearth.errors import ConfigError
from tessearth.imagery.recipe import lay_over, read_layers
from tessearth.settings import from_plain
from tessearth.training.recipe import Recipe

ENCODERS = ("encoder", "baseline")
REPLACED_BY = {"baseline": ("encoder", "sites"), "encoder": ("baseline",)}
"""A table to those of a base that it takes the place of."""


def read_recipe(name_or_path: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file, over its base, with changes such as "training.batch_size=512" on top."""
    own: dict[str, Any] = {}
    for layer in read_layers(name_or_path):
        own = lay_over(_making_way(own, layer), layer)
    if any(change.strip().startswith("baseline.") for change in changes):
        own = _making_way(own, ["baseline"])
    values = lay_over(Recipe().to_dict(), own)
    for change in changes:
        _apply(values, change)
    try:
        return from_plain(Recipe, _with_sizes(values, own, changes))
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


def _making_way(below: Mapping[str, Any], above: Collection[str]) -> dict[str, Any]:
    """The tables below without those that one above takes the place of."""
    replaced = {name for table in above for name in REPLACED_BY.get(table, ()) if name not in above}
    return {name: table for name, table in below.items() if name not in replaced}


def _with_sizes(values: dict[str, Any], own: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The sizes of an encoder nobody described: those of the weights it starts from, else the defaults."""
    described = any(name in own or any(change.startswith(f"{name}.") for change in changes) for name in ENCODERS)
    taken_away = [name for name in ENCODERS if name in values and values[name] is None]
    kept = {name: table for name, table in values.items() if name not in taken_away}
    if not isinstance(values.get("start_from"), str) or (described and not taken_away):
        return kept
    from tessearth.training.start import describe_start

    return {
        **{name: table for name, table in kept.items() if name not in ENCODERS},
        **describe_start(values["start_from"]),
    }


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
    except (ValueError, RecursionError):
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
