"""Every name that benchmarks, examples and tools import from the package is there."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples", "tools") for path in (ROOT / folder).rglob("*.py"))


def imported_names(path: Path) -> set[tuple[str, str]]:
    """(module, name) of every import from the package."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    return {(str(node.module), one.name) for node in nodes for one in node.names if "tessearth" in str(node.module)}


def is_there(module: str, name: str) -> bool:
    """Whether a module has a name, or a submodule of that name."""
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ImportError:
        return False


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_import_names_that_exist(path: Path) -> None:
    assert [pair for pair in sorted(imported_names(path)) if not is_there(*pair)] == []
