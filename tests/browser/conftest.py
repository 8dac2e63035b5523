"""A real browser on a real server; skipped, saying so, where there is none."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tessearth import Embedder
from tessearth.explorer.app import STATIC
from tessearth.explorer.limits import ServeSettings
from tessearth.explorer.session import Served
from tests.explorer.conftest import model
from tests.explorer.serving import Client, serving

__all__ = ["model"]

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SOFTWARE_RENDERING = (
    "--no-sandbox",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist",
)
PATIENCE_MS = 60_000


class Trouble(NamedTuple):
    """What went wrong while a page was open."""

    errors: list[str]
    """Console errors and exceptions."""
    failed: list[str]
    """Requests that failed or were refused."""
    external: list[str]
    """Requests to anywhere but the server."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no browser: the page is not tested here (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=list(SOFTWARE_RENDERING))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def client(model: Path) -> Iterator[Client]:
    if not (STATIC / "index.html").is_file():
        pytest.skip("the page is not built: run `make explorer`")
    with serving(Served(Embedder(model, device="cpu"), ServeSettings(rate=0)), page=STATIC) as client:
        client.wait_until_ready()
        yield client


GO = """state => new Promise(done => {
  document.getElementById("toast").hidden = true;  // what a test before had to hear
  if (location.hash === state) return done();
  addEventListener("hashchange", () => done(), {once: true});
  location.hash = state;
})"""


class Visit:
    """A browser's window; what goes wrong in it is remembered."""

    def __init__(self, browser: Any, client: Client, *, width: int = 860, height: int = 560) -> None:
        self.client = client
        self.trouble = Trouble([], [], [])
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            reduced_motion="reduce",
            accept_downloads=True,
            has_touch=width < 700,
        )
        self.page = self._new_page()

    def open(self, state: str = "#") -> Any:
        """The page at a state: loaded the first time, after that led there by its address, as by a link."""
        if self.page.url == "about:blank":
            self.page.goto(f"{self.client.url}{state}")
            self.page.wait_for_selector("body[data-loaded]")
        else:
            self.page.evaluate(GO, state)
        return self.page

    def _new_page(self) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: message.type == "error" and self.trouble.errors.append(message.text))
        page.on("pageerror", lambda error: self.trouble.errors.append(str(error)))
        page.on("requestfailed", self._note_failure)
        page.on("response", lambda r: r.status >= 400 and self.trouble.failed.append(f"{r.status} {r.url}"))
        page.on("request", lambda request: self._note_external(request.url))
        return page

    def _note_failure(self, request: Any) -> None:
        if "ERR_ABORTED" not in (request.failure or ""):  # a tile that is no longer wanted is called off
            self.trouble.failed.append(f"{request.failure} {request.url}")

    def _note_external(self, url: str) -> None:
        if not url.startswith((self.client.url, "blob:", "data:")):
            self.trouble.external.append(url)


@pytest.fixture(scope="session")
def window(browser: Any, client: Client) -> Iterator[Visit]:
    """One window for most tests: to load the page takes longer than to use it."""
    window = Visit(browser, client)
    yield window
    window.context.close()


@pytest.fixture
def visit(window: Visit) -> Iterator[Visit]:
    """Every test ends with the question whether anything went wrong."""
    yield window
    trouble = Trouble(*(list(part) for part in window.trouble))
    for part in window.trouble:
        part.clear()
    assert trouble == ([], [], [])


@pytest.fixture
def new_window(browser: Any, client: Client) -> Iterator[Any]:
    """Makes a window of a test's own, where nothing was loaded before."""
    opened: list[Visit] = []

    def make(**size: int) -> Visit:
        opened.append(Visit(browser, client, **size))
        return opened[-1]

    yield make
    for one in opened:
        one.context.close()
        assert one.trouble == ([], [], [])
