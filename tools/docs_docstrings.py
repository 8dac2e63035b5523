"""Docstrings are plain text with formulas; for the API reference their angle brackets must not be taken for tags."""

import re
from typing import Any

import griffe


class PlainDocstrings(griffe.Extension):
    """Escapes < in docstrings where it is neither code nor indented."""

    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        """Called once for every object that is documented."""
        if not obj.is_alias and obj.docstring is not None:
            obj.docstring.value = "\n".join(map(escape, obj.docstring.value.splitlines()))


def escape(line: str) -> str:
    """A line with < written out, except inside backticks."""
    if line.startswith("    "):
        return line
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", line))
