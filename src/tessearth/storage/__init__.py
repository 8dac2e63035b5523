"""Files, sealed records, resumable jobs, worker pools and tables: engines that know no model."""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
