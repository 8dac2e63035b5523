"""Mapping of names to cards that answers an unknown name with the nearest known one."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from tessearth.errors import UnknownNameError
from tessearth.settings import did_you_mean

Card = TypeVar("Card")


class Registry(Mapping[str, Card], Generic[Card]):
    """An ordered table of named things of one kind, such as models or image encoders."""

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
