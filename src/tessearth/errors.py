"""Errors, each kind also the builtin that a caller would expect to catch.

The command line prints any of these as one line and exits with 2; anything else is a bug and keeps its traceback.
"""

MOST_CHARACTERS = 1000
"""Of a message, which may quote names and values of any length from a damaged file."""


class TessearthError(Exception):
    """The parent of every error this package raises on purpose: one printable line."""

    def __str__(self) -> str:
        """The text without characters that would break a line, a terminal or a log."""
        words = super().__str__()
        if not words.isprintable():
            words = " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())
        if len(words) > MOST_CHARACTERS:
            words = f"{words[: MOST_CHARACTERS - 300]} ... {words[-295:]}"
        return words


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

    def __init__(self, words: str, **changes: str) -> None:
        """`changes` are fields of `storage.Reading` with which the table may be read."""
        super().__init__(words)
        self.changes = changes


class DataError(TessearthError, ValueError):
    """Imagery, labels or stored features that are damaged, missing a part, or not what their description says."""


class OutputError(TessearthError, OSError):
    """A result that could not be written; no partial file is left."""


class MissingExtraError(TessearthError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part that is not installed: pip install 'tessearth[{extra}]'")
        self._given = what, extra

    def __reduce__(self) -> tuple[type["MissingExtraError"], tuple[str, str]]:
        """Made again from what it was made from in the process it is sent to."""
        return MissingExtraError, self._given


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means too little memory, which numpy, torch and GPUs report differently."""
    reported = isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    return reported or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "out of memory")


class CoordinateWarning(UserWarning):
    """Coordinates that are valid degrees but look like a mistake, such as radians."""


class TableWarning(UserWarning):
    """A guess about how a table is written, which its reader may know better."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
