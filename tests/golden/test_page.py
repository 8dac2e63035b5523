"""The page: a csv given to it comes back as the golden embeddings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.conftest import MODEL, Golden

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytest.importorskip("uvicorn", reason="the server's packages are not installed: tessearth[serve]")

from tessearth import Embedder
from tessearth.explorer.app import STATIC
from tessearth.explorer.limits import ServeSettings
from tessearth.explorer.session import Served
from tests.browser.conftest import Visit, browser
from tests.explorer.serving import Client, serving

__all__ = ["browser"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    if not (STATIC / "index.html").is_file():
        pytest.skip("the page is not built: run `make explorer`")
    with serving(Served(Embedder(MODEL, device="cpu"), ServeSettings(rate=0)), page=STATIC) as client:
        yield client


def test_the_page_agrees(golden: Golden, browser: Any, client: Client, tmp_path: Path) -> None:
    source = tmp_path / "golden.csv"
    source.write_text("lat,lon\n" + "".join(f"{lat!r},{lon!r}\n" for lat, lon in golden.latlon.tolist()))
    page = Visit(browser, client).open("#layer=none&tab=data")
    page.locator("#file").set_input_files(source)
    page.locator("#rows", has_text=f"{len(golden.latlon)} places").wait_for()
    with page.expect_download() as waiting:
        page.locator("#download").click()
    golden.check(np.load(waiting.value.path(), allow_pickle=False))
