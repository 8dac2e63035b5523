"""Fronts of our own packages, and data and optional libraries of installed ones, named when missing."""

import functools
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tessearth.errors import MissingExtraError

if TYPE_CHECKING:
    import torch


def require(module: str, *, extra: str, what: str) -> ModuleType:
    """Import an optional library; an error says which extra installs it and what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(what, extra) from error


def package_file(module: str, name: str, *, extra: str, what: str) -> Path:
    """The path of a data file inside an installed package, without running the package's code.

    Several data packages load everything when imported (one of them 930 MB), so they are only ever looked up.
    """
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise MissingExtraError(what, extra)


def has_kernels(device: "torch.device") -> bool:
    """Whether kernels run there: where Triton is, which comes with CUDA builds of PyTorch, on a GPU or interpreted.

    Without them the plain paths are taken.
    """
    wanted = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return wanted and importlib.util.find_spec("triton") is not None


def package_version(distribution: str) -> str:
    """The installed version of a distribution, or "unknown" for one that runs from source."""
    import importlib.metadata  # slow to import, and only reports ask

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


@functools.lru_cache(maxsize=64)
def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, read in blocks; remembered, because package data does not change while a program runs."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_front(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose `__init__.pyi` lists its public names.

    The list, `from tessearth.room.module import Name as Name`, is what type checkers read; a name brings its module in
    when it is first used.
    """
    listing = (pkgutil.get_data(package, "__init__.pyi") or b"").decode()
    homes = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", listing, re.MULTILINE)}

    def __getattr__(name: str) -> object:  # noqa: N807
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    names = sorted(homes)
    return __getattr__, lambda: names, names
