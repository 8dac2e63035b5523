"""What can go wrong, each kind also the builtin a caller would expect to catch.

The command line prints any of these as one line and exits with 2; anything else is a bug and keeps its traceback.
"""


class TessearthError(Exception):
    """The parent of every error this package raises on purpose."""


class CoordinateError(TessearthError, ValueError):
    """Coordinates that cannot be places: out of range, not finite, not numbers, of the wrong shape."""


class ConfigError(TessearthError, ValueError):
    """A configuration that describes no model, or an option outside its choices."""


class WeightsError(TessearthError, ValueError):
    """A weights file that is damaged, unsafe, of another format, or of another shape than its configuration says."""


class UnknownNameError(TessearthError, LookupError):
    """A name (model, source, encoder, task) that nothing is registered under."""


class TableError(TessearthError, ValueError):
    """A table of points that cannot be read: empty, without the columns named, or with text where numbers belong."""


class DataError(TessearthError, ValueError):
    """Imagery, labels or stored features that are damaged, missing a part, or not what their description says."""


class OutputError(TessearthError, OSError):
    """A result that could not be written; nothing half-written is left behind."""


class MissingExtraError(TessearthError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part that is not installed: pip install 'tessearth[{extra}]'")


class CoordinateWarning(UserWarning):
    """Coordinates that are valid degrees but look like a mistake, such as radians."""
