"""The sphere: coordinates, land, places drawn on it, grids and Voronoi cells."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
