"""Encoders by name: shipped models, baselines, published weights and saved files."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
