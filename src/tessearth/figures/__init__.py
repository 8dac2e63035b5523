"""Figures that need a model, a run or a table of scores."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
