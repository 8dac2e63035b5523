"""Whole tables and rasters of embeddings, resumable and in bounded memory."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
