"""Settings as frozen dataclasses, read from plain values (JSON, TOML) with every key checked; tables of named cards;
the device to work on, and how many places it takes at once. Only `find_device` imports torch.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tessearth.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    import torch

Settings = TypeVar("Settings")
Card = TypeVar("Card")
Kind = Literal["classify", "regress"]
"""Whether a target is a class or a number; defined here because importing it loads neither pyarrow nor labels."""

LARGEST = 2**63 - 1
"""Whole numbers have 64 bits, as in TOML; Python prints no number of thousands of digits."""
NUMBERS_AT_ONCE = {"cpu": 2**23, "gpu": 2**27}
"""Of the widest array held at once: 32 MB of float32 keep a CPU's caches busy, a GPU wants more work per launch."""
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


def check_at_least(settings: object, least: float, *names: str, where: str = "") -> None:
    """Refuse settings that are below a number, or no number; `where` is their path in error messages."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise ConfigError(f"{where}{name} is {value}; it must be at least {least}")


def check_share(settings: object, *names: str, where: str = "", may_be_one: bool = False) -> None:
    """Refuse settings that are no share: below 0, above 1, or 1 itself where that leaves nothing."""
    for name in names:
        value = getattr(settings, name)
        if not (0 <= value < 1 or (may_be_one and value == 1)):
            raise ConfigError(f"{where}{name} is {value}; it must lie in [0, 1{']' if may_be_one else ')'}")


def check_dims(dims: int | None, width: int) -> int | None:
    """How many of the first numbers are kept, when there are that many."""
    if dims is not None and not 1 <= dims <= width:
        raise ConfigError(f"dims is {dims}; it must lie between 1 and the embedding's width, {width}")
    return dims


def read_value(text: str) -> Any:
    """A setting typed as text, read as TOML; a bare word is text, and none is None."""
    text = text.strip()
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


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
    if origin is dict:  # a table with free keys, which its reader checks
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {value!r}, not a table of settings")
        return {str(key): item for key, item in value.items()}
    if origin is Literal:
        if value not in parts:
            raise ConfigError(f"{where} is {value!r}; it must be one of {', '.join(map(repr, parts))}")
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, parts, where)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint or (hint is float and not math.isfinite(typing.cast("float", value))):
        raise ConfigError(f"{where} is {value!r}, not {_IN_WORDS.get(hint, hint)}")
    return value


def _convert_union(value: object, parts: tuple[Any, ...], where: str) -> object:
    """None, or a value of one of the other types: of a number and words the words where it is text, else the first."""
    if value is None and types.NoneType in parts:
        return None
    others = [part for part in parts if part is not types.NoneType]
    words = [part for part in others if typing.get_origin(part) is Literal]
    chosen = words[0] if words and isinstance(value, str) else others[0]
    if words and chosen is others[0] and isinstance(value, list | tuple):
        chosen = next((part for part in others if typing.get_origin(part) is tuple), chosen)
    return _convert(value, chosen, where)


def _convert_tuple(value: object, parts: tuple[Any, ...], where: str) -> tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(f"{where} is {value!r}, not a list")
    repeated = len(parts) == 2 and isinstance(parts[1], types.EllipsisType)
    if not repeated and len(value) != len(parts):
        raise ConfigError(f"{where} holds {len(value)} values, not {len(parts)}")
    kinds = [parts[0]] * len(value) if repeated else parts
    return tuple(_convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


class Registry(dict[str, Card]):
    """Cards of one kind by name, in order; it answers an unknown name with the nearest known one."""

    def __init__(self, kind: str, cards: Mapping[str, Card] | None = None) -> None:
        super().__init__(cards or {})
        self.kind = kind

    def register(self, name: str, card: Card) -> None:
        """Add a card under a new name."""
        if name in self:
            raise ValueError(f"a {self.kind} named {name!r} is registered already")
        self[name] = card

    def __missing__(self, name: str) -> Card:
        raise UnknownNameError(f"there is no {self.kind} named {name!r}{did_you_mean(name, self)}")


def places_at_once(device_type: str, widest: int) -> int:
    """How many places are taken at once where the widest array holds `widest` numbers for each."""
    return max(1, NUMBERS_AT_ONCE["cpu" if device_type == "cpu" else "gpu"] // widest)


def find_device(device: "str | torch.device | None" = None) -> "torch.device":
    """The device of a name such as "cpu" or "cuda:0"; None is a GPU when there is one."""
    import torch

    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or ["not available"])[0]
        raise ConfigError(f"the device {str(device)!r} cannot be used: {reason}") from None
    return found
