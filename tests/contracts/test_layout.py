"""CONTRIBUTING's picture of the layout is true: its rooms are the folders, its order is that of `make check`."""

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "tessearth"


def picture() -> list[list[str]]:
    """The rooms of each line, from what users touch down to the base."""
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## How the code is laid out")[1]
    block = re.search(r"```\n(.*?)```", section, flags=re.DOTALL)
    assert block is not None
    return [re.split(r", *", re.split(r"  +", line)[0]) for line in block[1].splitlines()]


def layers() -> list[list[str]]:
    """import-linter's layers, from the top; a module next to the rooms counts as `base`."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    names = [[name.strip().removeprefix("tessearth.") for name in re.split("[:|]", layer)] for layer in found]
    return [[name if (PACKAGE / name).is_dir() else "base" for name in layer] for layer in names]


def test_the_picture_has_every_room_once() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    shown = [room for line in picture() for room in line]
    assert sorted(shown) == sorted({*rooms, "base"})


def test_the_order_of_the_picture_is_the_order_of_imports() -> None:
    enforced = [sorted(set(layer)) for layer in layers()]
    without_repeats = [layer for i, layer in enumerate(enforced) if i == 0 or layer != enforced[i - 1]]
    assert [sorted(line) for line in picture()] == without_repeats


def test_every_module_next_to_the_rooms_is_named_and_enforced() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    (told,) = re.findall(r"^base .*: (.*)$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), flags=re.MULTILINE)
    enforced = re.findall(
        r"tessearth\.(\w+)", (ROOT / "pyproject.toml").read_text("utf-8").split("[tool.importlinter]")[1]
    )
    assert set(told.split(", ")) == modules
    assert modules <= set(enforced)


@pytest.mark.parametrize("front", sorted(PACKAGE.rglob("__init__.pyi")), ids=lambda path: path.parent.name)
def test_every_name_of_a_front_is_there_and_is_no_module(front: Path) -> None:
    package = importlib.import_module(".".join(front.parent.relative_to(PACKAGE.parent).parts))
    assert re.findall(r"as (\w+)$", front.read_text("utf-8"), flags=re.MULTILINE)
    for name in package.__all__:
        assert not isinstance(getattr(package, name), ModuleType), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_every_room_is_entered_by_its_front() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    protected = {contract["protected_modules"][0] for contract in contracts if contract["type"] == "protected"}
    assert protected == {f"tessearth.{path.parent.name}.*" for path in PACKAGE.glob("*/__init__.py")}
