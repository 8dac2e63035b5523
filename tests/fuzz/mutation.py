"""Small damage to valid inputs: to bytes, and to the trees that JSON, TOML and headers are."""

import copy
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

LIMITS = (0, 1, 2, 7, 16, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32)
WIDTHS = (1, 2, 4, 8)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        " ",
        "nan",
        "inf",
        "1e400",
        "text",
        "\x00",
        "../../../etc/passwd",
        "\U0001f30d",
        "x" * 300,
    ),
    *(0, 1, -1, 2, 90, 91, 180, 360, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, 1e-320, 1e308, -1e308),
    *(float("inf"), float("-inf"), float("nan"), [], [[]], {}, [None], [0, 1], {"a": 1}),
)
"""What stands in a tree where something else was."""

BytesChange = Callable[[Random, bytearray, Sequence[bytes]], None]


def damage_bytes(random: Random, content: bytes, others: Sequence[bytes] = (), tokens: Sequence[bytes] = ()) -> bytes:
    """One to sixteen small changes; `others` are spliced in, `tokens` are words the format knows."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 1, 2, 2, 4, 8, 16))):
        change = random.choice(BYTE_CHANGES)
        change(random, changed, tokens)
    if others and random.random() < 0.1:
        changed = _splice(random, changed, random.choice(others))
    return bytes(changed)


def damage_tree(random: Random, tree: Any, values: Sequence[Any] = VALUES) -> Any:
    """One to four changes to a copy of a tree of lists and tables."""
    changed = {"root": copy.deepcopy(tree)}
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        holder, key = _pick(random, changed)
        random.choice(ROOT_CHANGES if holder is changed else TREE_CHANGES)(random, holder, key, values)
    return changed["root"]


def _at(random: Random, content: bytearray, room: int = 0) -> int:
    """Anywhere, but more often near an end, where headers and footers are."""
    most = max(0, len(content) - room)
    near = min(most, 64)
    return random.choice((random.randint(0, most), random.randint(0, near), most - random.randint(0, near)))


def _flip(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    if content:
        content[min(_at(random, content, 1), len(content) - 1)] ^= 1 << random.randrange(8)


def _set_byte(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    if content:
        content[min(_at(random, content, 1), len(content) - 1)] = random.randrange(256)


def _set_number(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    width = random.choice(WIDTHS)
    order = random.choice(("little", "big"))
    number = random.choice((random.choice(LIMITS), -random.choice(LIMITS), random.getrandbits(8 * width)))
    place = _at(random, content, width)
    content[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, order)  # type: ignore[arg-type]


def _delete(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    place = _at(random, content)
    del content[place : place + random.choice((1, 2, 4, 16, 200))]


def _repeat(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    place = _at(random, content)
    piece = content[place : place + random.choice((1, 4, 16, 100))]
    content[place:place] = piece * random.choice((1, 2, 50))


def _insert(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    place = _at(random, content)
    content[place:place] = random.randbytes(random.choice((1, 2, 4, 16)))


def _insert_token(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    if tokens:
        place, token = _at(random, content), random.choice(tokens)
        content[place : place + random.choice((0, len(token)))] = token


def _cut(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    del content[_at(random, content) :]


def _zero(random: Random, content: bytearray, tokens: Sequence[bytes]) -> None:
    place = _at(random, content)
    length = len(content[place : place + random.choice((4, 16, 100))])
    content[place : place + length] = random.choice((b"\0", b"\xff", b" ")) * length


BYTE_CHANGES: tuple[BytesChange, ...] = (
    *(_flip, _flip, _set_byte, _set_byte, _set_number, _set_number, _delete, _repeat, _insert),
    *(_insert_token, _insert_token, _cut, _zero),
)


def _splice(random: Random, content: bytearray, other: bytes) -> bytearray:
    return content[: _at(random, content)] + other[random.randint(0, len(other)) :]


def _pick(random: Random, tree: Any) -> tuple[Any, Any]:
    """A random node, as the list or table that holds it and its key there."""
    holder, key = tree, "root"
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.8:
        holder = holder[key]
        key = random.choice(list(holder)) if isinstance(holder, dict) else random.randrange(len(holder))
    return holder, key


def _replace(random: Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    holder[key] = copy.deepcopy(random.choice(values))


def _remove(random: Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    if len(holder) > 1:
        del holder[key]


def _wrap(random: Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    for _ in range(random.choice((1, 1, 2, 40))):
        holder[key] = random.choice(([holder[key]], [holder[key], holder[key]] if _ < 3 else [holder[key]]))


def _rename(random: Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    if isinstance(holder, dict):
        holder[random.choice((str(key)[:-1], f"{key}s", "", "x", "lat", "__class__"))] = holder[key]


def _repeat_item(random: Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key])] * random.choice((1, 2, 30))


def _nudge(random: Random, holder: Any, key: Any, values: Sequence[Any]) -> None:
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int | float):
        holder[key] = random.choice((-value, value + 1, value - 1, value * 2, value * 1000, value / 3, str(value)))
    elif isinstance(value, str):
        holder[key] = random.choice((value[:-1], value + "0", value.upper(), value * 3, value[::-1]))


TREE_CHANGES = (_replace, _replace, _replace, _remove, _wrap, _rename, _repeat_item, _nudge, _nudge)
ROOT_CHANGES = (_replace, _wrap, _nudge)
