"""One fabricated store for the whole folder."""

from pathlib import Path

import pytest

from tests.training.fabricate import fabricate_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "store"
    fabricate_store(path)
    return path
