"""Using an encoder: places of any kind in, embeddings out, from one point to tables that do not fit in memory."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
