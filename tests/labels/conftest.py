"""Labels are prepared anew for every run of these tests, so that no test reads what older code left in the cache."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessearth.labels import LabelTable, load_benchmark


@pytest.fixture(scope="package", autouse=True)
def prepared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache that starts without labels; parallel workers share it and may all be preparing at once."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    root = shared / "label-cache"
    root.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESSEARTH_CACHE", str(root))
        yield root


@pytest.fixture(scope="package")
def benchmark(prepared_cache: Path) -> dict[str, LabelTable]:
    return load_benchmark()
