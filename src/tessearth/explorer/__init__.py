"""A model behind HTTP: embeddings, similar places, map tiles, probes on labels that are sent, and a page with a globe.

`build_app(served)` is the application, `run_server` serves it; only the command line imports from here.
"""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
