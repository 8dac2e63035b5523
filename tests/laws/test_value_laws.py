"""Settings and results are values: said by name, and never changed behind the back of what was made of them."""

import dataclasses
import importlib
import inspect
import pkgutil

import pytest


def values_of(package: str) -> list[type]:
    """Every dataclass that a package's modules define and compare by its fields: the others are objects, not values."""
    found = importlib.import_module(f"tessearth.{package}")
    modules = [
        importlib.import_module(f"{found.__name__}.{part.name}") for part in pkgutil.iter_modules(found.__path__)
    ]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
        if kind.__dataclass_params__.eq
    ]


@pytest.mark.parametrize("package", ["encoder", "training", "evaluation"])
def test_values_are_given_by_name_and_stay_as_they_are(package: str) -> None:
    kinds = values_of(package)
    assert kinds
    for kind in kinds:
        parameters = inspect.signature(kind).parameters.values()
        assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}, kind
        blank = object.__new__(kind)
        for name in (dataclasses.fields(kind)[0].name, "misspelt"):
            with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):  # TypeError: slots, before Python 3.12
                setattr(blank, name, 1)
        assert not hasattr(blank, "__dict__"), kind


@pytest.mark.parametrize("package", ["encoder", "training", "evaluation"])
def test_every_argument_can_be_said_by_name(package: str) -> None:
    found = importlib.import_module(f"tessearth.{package}")
    for part in pkgutil.iter_modules(found.__path__):
        module = importlib.import_module(f"{found.__name__}.{part.name}")
        functions = [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
        methods = [
            f
            for kind in vars(module).values()
            if inspect.isclass(kind) and kind.__module__ == module.__name__
            for f in vars(kind).values()
            if inspect.isfunction(f) and f.__code__.co_filename == module.__file__
        ]
        for function in functions + methods:
            kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
            assert inspect.Parameter.POSITIONAL_ONLY not in kinds, function
