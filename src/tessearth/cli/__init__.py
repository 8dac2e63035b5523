"""The `tessearth` command: one file per subcommand, heavy imports inside them, so that --help answers at once."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
