"""The encoder of the method: soft Voronoi cells on the sphere, shared semantic tokens, a residual head."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
