"""Imagery: sources of tiles, places to look at, frozen image encoders, and the store of their features."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
