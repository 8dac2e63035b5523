"""Names to cards: one small mapping that answers an unknown name with the nearest known one."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from tessearth.errors import UnknownNameError

Card = TypeVar("Card")


class Registry(Mapping[str, Card], Generic[Card]):
    """An ordered table of named things of one kind, such as models or image encoders."""

    def __init__(self, kind: str, cards: Mapping[str, Card] | None = None) -> None:
        self.kind = kind
        self._cards: dict[str, Card] = dict(cards or {})

    def register(self, name: str, card: Card) -> None:
        """Add a card under a name nobody has yet."""
        if name in self._cards:
            raise ValueError(f"a {self.kind} named {name!r} is registered already")
        self._cards[name] = card

    def __getitem__(self, name: str) -> Card:
        try:
            return self._cards[name]
        except KeyError:
            raise UnknownNameError(f"there is no {self.kind} named {name!r}{self.advice(name)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._cards

    def __iter__(self) -> Iterator[str]:
        return iter(self._cards)

    def __len__(self) -> int:
        return len(self._cards)

    def advice(self, name: str) -> str:
        """What to say after an unknown name: the nearest one when there is any, else all of them."""
        near = difflib.get_close_matches(name, self._cards, n=1)
        if near:
            return f"; did you mean {near[0]!r}?"
        return f"; there are: {', '.join(self._cards)}" if self._cards else ""
