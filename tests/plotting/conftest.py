"""A tiny model, a run folder and an axis in the paper's style."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tessearth.plotting import new_figure, paper_style
from tests.plotting.fabricate import write_run


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with paper_style():
        yield


@pytest.fixture
def axis() -> Any:
    return new_figure()[1]


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_run(folder)
    return folder
