"""Training an encoder on stored image features: recipe in, run folder out."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
