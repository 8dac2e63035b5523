"""Settings as frozen dataclasses, read from plain values (JSON, TOML) with every key checked; tables of named cards."""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

from tessearth.errors import ConfigError, UnknownNameError

Settings = TypeVar("Settings")
Card = TypeVar("Card")
Kind = Literal["classify", "regress"]
"""Whether a target is a class or a number; defined here because importing it loads neither pyarrow nor labels."""

LARGEST = 2**63 - 1
"""Whole numbers have 64 bits, as in TOML; Python prints no number of thousands of digits."""
_IN_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def from_plain(cls: type[Settings], values: object, where: str = "") -> Settings:
    """Build a settings dataclass from a mapping; `where` is the path in error messages, such as "encoder."."""
    _refuse_long_numbers(values, where)
    return _build(cls, values, where)


def _build(cls: type[Settings], values: object, where: str) -> Settings:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where.rstrip('.') or 'the configuration'} is {values!r}, not a table of settings")
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise ConfigError(f"unknown setting {where}{key}{did_you_mean(str(key), hints)}")
    for field in dataclasses.fields(typing.cast("Any", cls)):
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and field.name not in values:
            raise ConfigError(f"setting {where}{field.name} is missing")
    return cls(**{key: _convert(value, hints[key], f"{where}{key}") for key, value in values.items()})


def _refuse_long_numbers(values: object, where: str) -> None:
    """Refuse whole numbers beyond 64 bits at any depth, also in tables that are not read here."""
    waiting = [(where.rstrip("."), values)]
    while waiting:
        path, value = waiting.pop()
        if type(value) is int and abs(value) > LARGEST:
            raise ConfigError(
                f"{path or 'the configuration'} is a number beyond {LARGEST}, more than settings can hold"
            )
        if isinstance(value, Mapping):
            waiting += [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}[{i}]", item) for i, item in enumerate(value)]


def read_value(text: str) -> Any:
    """A setting typed as text, read as TOML; a bare word is text, and none is None."""
    text = text.strip()
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def check_at_least(minimum: float, **values: float) -> None:
    """Refuse settings below their minimum, by name."""
    for name, value in values.items():
        if not value >= minimum:
            raise ConfigError(f"{name} is {value}; it must be at least {minimum}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, else all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; there are: {', '.join(names)}" if names else ""


def _convert(value: object, hint: Any, where: str) -> object:
    """One value as the type its field declares."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast("type[object]", hint), value, f"{where}.")
    if origin is tuple:
        return _convert_tuple(value, parts, where)
    if origin is dict:
        return _convert_table(value, where)
    if origin is Literal:
        return _convert_choice(value, parts, where)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, parts, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(typing.cast("float", value))):
        raise ConfigError(f"{where} is {value!r}, not {_IN_WORDS.get(hint, hint)}")
    return value


def _convert_table(value: object, where: str) -> dict[str, object]:
    """A table with free keys, which its reader checks."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {value!r}, not a table of settings")
    return {str(key): item for key, item in value.items()}


def _convert_choice(value: object, choices: tuple[Any, ...], where: str) -> object:
    if value not in choices:
        raise ConfigError(f"{where} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
    return value


def _convert_union(value: object, parts: tuple[Any, ...], where: str) -> object:
    """An optional value: None, or the one other type (settings have no wider unions)."""
    if value is None and types.NoneType in parts:
        return None
    (kind,) = (part for part in parts if part is not types.NoneType)
    return _convert(value, kind, where)


def _convert_tuple(value: object, parts: tuple[Any, ...], where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} is {value!r}, not a list")
    repeated = len(parts) == 2 and isinstance(parts[1], types.EllipsisType)
    if not repeated and len(value) != len(parts):
        raise ConfigError(f"{where} holds {len(value)} values, not {len(parts)}")
    kinds = [parts[0]] * len(value) if repeated else parts
    return tuple(_convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


class Registry(Mapping[str, Card], Generic[Card]):
    """An ordered mapping of names to cards of one kind; it answers an unknown name with the nearest known one."""

    def __init__(self, kind: str, cards: Mapping[str, Card] | None = None) -> None:
        self.kind = kind
        self._cards: dict[str, Card] = dict(cards or {})

    def register(self, name: str, card: Card) -> None:
        """Add a card under a new name."""
        if name in self._cards:
            raise ValueError(f"a {self.kind} named {name!r} is registered already")
        self._cards[name] = card

    def __getitem__(self, name: str) -> Card:
        try:
            return self._cards[name]
        except KeyError:
            raise UnknownNameError(f"there is no {self.kind} named {name!r}{did_you_mean(name, self)}") from None

    def get(self, name: str, default: Card | None = None) -> Card | None:  # type: ignore[override]
        """The card of a name, or the default; unlike indexing it raises nothing."""
        return self._cards.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._cards

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)
