"""The surfaces that take input from outside, each with valid inputs to damage and a way to be given one."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from tessearth.errors import TessearthError


class Prepared(NamedTuple):
    """A surface ready to be given inputs."""

    seeds: Sequence[bytes]
    """Valid inputs, written by our own writers."""
    run: Callable[[bytes], None]
    """Hands one input to the library as a user would."""
    accepted: type[Exception] = TessearthError
    """How an input may be refused."""


class Surface(NamedTuple):
    """Something that takes input from outside."""

    name: str
    prepare: Callable[[Path], Prepared]
    """Makes seeds and what is needed to run; may write in the folder given."""
    mutate: Callable[[Random, Sequence[bytes]], bytes]


def each(*calls: Callable[[], object]) -> None:
    """Make every call; when all are refused, the input is."""
    refusals: list[TessearthError] = []
    for call in calls:
        try:
            call()
        except TessearthError as error:
            if "\n" in str(error):
                raise
            refusals.append(error)
    if len(refusals) == len(calls):
        raise refusals[0]


NAMES = ("coordinates", "tables", "recipes", "weights", "mbtiles", "geotiff", "http")


def load_surface(name: str) -> Surface:
    """A surface by name; what it needs is imported when it is prepared."""
    module = importlib.import_module(f"tests.fuzz.surfaces.{name}_surface")
    surface: Surface = module.SURFACE
    return surface
