"""The page as a person uses it: looked at, clicked, typed into, carried to a phone."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tessearth import Embedder
from tessearth.explorer.app import STATIC
from tessearth.explorer.limits import ServeSettings
from tessearth.explorer.session import Served
from tests.browser.conftest import Visit
from tests.explorer.serving import Client, serving

PARIS = "#place=48.8566,2.3522&at=48.8566,2.3522&zoom=3"
LAYERS = ("none", "embedding", "sharpness", "token", "similarity")


def globe(page: Any) -> np.ndarray:
    """The pixels of the globe when it has come to rest."""
    until(page, "!document.body.hasAttribute('data-busy')")
    content = page.locator("#globe canvas").screenshot()
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)


def settled_globe(page: Any) -> np.ndarray:
    """The globe's pixels once they have stayed the same for a second: finer tiles come behind the first picture."""
    pixels, same = globe(page), 0
    for _ in range(100):
        page.wait_for_timeout(200)
        before, pixels = pixels, globe(page)
        same = same + 1 if difference(before, pixels) < 0.02 else 0
        if same == 5:
            return pixels
    raise AssertionError("the globe does not come to rest within twenty seconds")


def until(page: Any, holds: str) -> None:
    """Wait for an expression to hold; the page's own rules forbid it to evaluate text, so it is asked from outside."""
    for _ in range(1200):
        if page.evaluate(holds):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"{holds} does not hold after a minute")


def until_it_differs(page: Any, other: np.ndarray, least: float) -> np.ndarray:
    """The globe's pixels as soon as they are so far from others, on the mean."""
    for _ in range(150):
        pixels = globe(page)
        if difference(pixels, other) > least:
            return pixels
        page.wait_for_timeout(100)
    raise AssertionError(f"the globe differs by {difference(pixels, other):.3f}, not by {least}")


def until_it_equals(page: Any, other: np.ndarray, most: float) -> None:
    """Wait until the globe looks as it did."""
    for _ in range(150):
        left = difference(globe(page), other)
        if left < most:
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"the globe still differs by {left:.3f}")


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).mean())


def choose(page: Any, tab: str) -> None:
    page.get_by_role("tab", name=tab).click()


def test_the_page_loads_light_and_draws_the_earth(new_window: Any) -> None:
    page = new_window().open("#layer=none")
    pixels = globe(page)
    height, width, _ = pixels.shape
    middle, corner = pixels[height // 3 : height // 2, width // 3 : width // 2], pixels[5:25, 5:25]
    assert middle.std() > 10
    assert corner.std((0, 1)).max() < 3
    assert difference(middle.mean((0, 1)), corner.mean((0, 1))) > 30
    moved = page.evaluate("performance.getEntriesByType('resource').map(e => [e.name, e.startTime, e.transferSize])")
    assert 500_000 < sum(size for _, _, size in moved) < 5_000_000
    drawn = page.evaluate("performance.getEntriesByName('globe')[0].startTime")
    first = [name.removeprefix(page.url.split("#")[0]) for name, start, _ in moved if start < drawn]
    assert "earth.jpg" in first
    assert not [name for name in first if name.startswith(("tiles", "outlines"))]  # these may come when it is seen


def test_files_of_the_page_are_kept_and_nothing_else_is_given(client: Client) -> None:
    name = next(path.name for path in (STATIC / "assets").iterdir() if path.suffix == ".js")
    found = client.ask(f"/assets/{name}")
    assert found.body == (STATIC / "assets" / name).read_bytes()
    assert found.headers["content-type"].startswith("text/javascript")
    assert "immutable" in found.headers["cache-control"]
    for other in ("/assets/none.js", "/assets/..%2findex.html", "/assets/../../page.py", "/assets/"):
        assert client.ask(other).status == 404


def test_a_click_on_paris_reads_france_and_finds_places_alike(visit: Visit) -> None:
    page = visit.open("#layer=none&at=48.8566,2.3522&zoom=4")
    box = page.locator("#globe canvas").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#alike li")
    assert page.locator("#country").inner_text() == "France"
    assert "Cfb" in page.locator("#climate").inner_text()
    assert page.locator("#alike li").count() == 10
    assert page.locator("#alike .tag.same").count() >= 1
    assert page.locator("#place-tokens li").count() == 5
    assert page.locator("#near-sites tbody tr").count() == 5
    assert page.locator("#support").inner_text().endswith("%")
    until(page, "location.hash.includes('place=48.8')")


def test_every_layer_paints_its_own_picture_and_legend(visit: Visit) -> None:
    page = visit.open(f"{PARIS}&tab=map&layer=none")
    bare = settled_globe(page)
    titles = set()
    for layer in LAYERS[1:]:
        page.locator(f"#layer-{layer}").check()
        until_it_differs(page, bare, 3)
        titles.add(page.locator("#legend h2").inner_text())
    assert len(titles) == len(LAYERS) - 1
    page.locator("#layer-none").check()
    until_it_equals(page, bare, 2.5)  # every layer differed by more


def test_sites_cells_and_borders_lie_over_the_map(visit: Visit) -> None:
    page = visit.open("#layer=none&over=&tab=map&at=30,10&zoom=2")
    bare = settled_globe(page)
    for overlay in ("borders", "sites", "cells"):
        page.locator(f"#over-{overlay}").check()
        until_it_differs(page, bare, 0.3)
        page.locator(f"#over-{overlay}").uncheck()
        until_it_equals(page, bare, 0.3)


def test_the_slider_moves_the_sites(visit: Visit) -> None:
    page = visit.open("#layer=none&over=migration&at=30,10&zoom=2")
    page.wait_for_selector("#step")
    assert page.locator("#step-words").inner_text() == "step 30"
    last = settled_globe(page)
    page.locator("#step").focus()
    page.keyboard.press("Home")
    assert page.locator("#step-words").inner_text() == "step 0"
    until_it_differs(page, last, 0.05)
    page.locator("#play").click()
    until(page, "document.querySelector('#step-words').textContent === 'step 30'")
    until_it_equals(page, last, 0.05)


def test_tokens_are_picked_and_shown_with_their_places(visit: Visit) -> None:
    page = visit.open("#tab=tokens&layer=embedding")
    page.wait_for_selector("#token-places img")
    page.select_option("#token", index=2)
    until(page, "location.hash.includes('layer=token')")
    page.wait_for_selector("#legend h2:has-text('Token')")
    assert page.locator("#token-places li").count() == 6
    until(page, "[...document.querySelectorAll('#token-places img')].every(image => image.naturalWidth === 96)")


def test_two_places_are_compared(visit: Visit) -> None:
    page = visit.open(PARIS)
    page.get_by_role("button", name="Compare with a second place").click()
    page.get_by_label("Latitude, longitude").fill("50, 15")
    page.get_by_role("button", name="Go").click()
    page.wait_for_selector("#likeness")
    assert -1 <= float(page.locator("#likeness").inner_text()) <= 1
    assert page.get_by_role("img", name="Place B").count() == 1


def test_places_alike_go_with_the_place_they_belong_to(visit: Visit) -> None:
    page = visit.open("#layer=none&over=&at=48.8566,2.3522&zoom=2")
    bare = globe(page)
    visit.open("#layer=none&over=&at=48.8566,2.3522&zoom=2&place=48.8566,2.3522")
    page.wait_for_selector("#alike li")
    until_it_differs(page, bare, 0.02)
    visit.open("#layer=none&over=&at=48.8566,2.3522&zoom=2")
    until_it_equals(page, bare, 0.005)


def table(path: Path, rows: int = 120) -> Path:
    rng = np.random.default_rng(0)
    lat, lon = rng.uniform(-55, 65, rows), rng.uniform(-170, 170, rows)
    kinds = np.where(np.abs(lat) < 25, "warm, wet", "cold")
    lines = [f'{a:.4f},{b:.4f},{a / 2 + 3:.3f},"{kind}"' for a, b, kind in zip(lat, lon, kinds, strict=True)]
    path.write_text("lat,lon,height,kind\n" + "\n".join(lines) + "\n")
    return path


def test_a_csv_becomes_points_a_map_and_a_file(visit: Visit, model: Path, tmp_path: Path) -> None:
    page = visit.open("#layer=none&tab=data")
    bare = globe(page)
    source = table(tmp_path / "stations.csv")
    page.locator("#file").set_input_files(source)
    page.locator("#rows", has_text="120 places").wait_for()
    until_it_differs(page, bare, 0.1)
    page.locator("#fit").click()
    page.wait_for_selector("#scores")
    assert re.search(r"R² -?\d\.\d+ \(3 folds\)", page.locator("#scores").inner_text())
    page.wait_for_selector("#legend h2:has-text('height')")
    page.select_option("#column", index=1)
    page.locator("#fit").click()
    page.wait_for_selector("#legend .classes li")
    assert page.locator("#legend .classes li").all_inner_texts() == ["cold", "warm, wet"]
    with page.expect_download() as waiting:
        page.locator("#download").click()
    assert waiting.value.suggested_filename == "stations.embeddings.npy"
    saved = np.load(waiting.value.path())
    places = np.loadtxt(source, delimiter=",", skiprows=1, usecols=(0, 1))
    np.testing.assert_allclose(saved, Embedder(model, device="cpu")(places), atol=1e-6)


def test_a_file_dropped_on_the_globe_is_read(visit: Visit) -> None:
    page = visit.open("#layer=none")
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["latitude;longitude\\n48.9;2.4\\n10;20\\n"], "two.csv"));
          const event = new DragEvent("drop", {dataTransfer: transfer, bubbles: true});
          document.querySelector("#globe").dispatchEvent(event);
        }"""
    )
    page.locator("#rows", has_text="two.csv: 2 places").wait_for()


def test_rows_without_a_place_are_refused_left_out_or_kept_as_empty(visit: Visit, model: Path, tmp_path: Path) -> None:
    page = visit.open("#layer=none&tab=data")
    rows = table(tmp_path / "gaps.csv").read_text().splitlines()
    rows[3:3] = [",5,1,cold", "95,100,2,cold", "x,3,4,cold"]
    (tmp_path / "gaps.csv").write_text("\n".join(rows) + "\n")
    page.locator("#file").set_input_files(tmp_path / "gaps.csv")
    page.locator("#csv-trouble", has_text="3 of 123 rows have no place: row 3, column lat is empty; row 4").wait_for()
    page.select_option("#bad", "skip")
    page.locator("#rows", has_text="120 rows, 3 without a place left out").wait_for()
    page.select_option("#bad", "null")
    page.locator("#rows", has_text="123 rows, 3 without a place kept as empty").wait_for()
    page.locator("#fit").click()
    page.locator("#scores h3", has_text="from 120 places, 3 rows without one").wait_for()
    with page.expect_download() as waiting:
        page.locator("#download").click()
    saved = np.load(waiting.value.path())
    assert np.isnan(saved[2:5]).all()
    assert np.isfinite(np.delete(saved, [2, 3, 4], axis=0)).all()
    assert len(saved) == 123
    page.select_option("#bad", "error")  # the window is shared
    page.locator("#csv-trouble", has_text="3 of 123 rows").wait_for()


BAD_TABLES = {
    "no coordinates": ("a,b\n1,2\n", "no column of a, b reads as lat"),
    "empty": ("", "bad.csv is empty"),
    "header only": ("lat,lon\n", "bad.csv is empty"),
    "text": ("lat,lon\nnorth,2\n", "row 1, column lat is 'north', not a number of degrees"),
    "gap": ("lat,lon\n1,2\n,5\n", "row 2, column lat is empty"),
    "swapped": ("lat,lon\n139.7,35.7\n", "swap the two"),
    "binary": ("\x00\x01\x02", "is not a csv"),
}


def test_a_bad_csv_shows_one_clear_message(visit: Visit, tmp_path: Path) -> None:
    page = visit.open("#layer=none&tab=data")
    for content, words in BAD_TABLES.values():
        (tmp_path / "bad.csv").write_text(content)
        page.locator("#file").set_input_files(tmp_path / "bad.csv")
        page.locator("#csv-trouble", has_text=words).wait_for()
        assert page.get_by_role("alert").count() == 1


def test_a_phone_shows_everything_without_scrolling_sideways(new_window: Any) -> None:
    page = new_window(width=360, height=740).open(PARIS)
    page.wait_for_selector("#alike li")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate(
        "[...document.querySelectorAll('#panel *')].every(e => e.getBoundingClientRect().right <= 361)"
    )
    box = page.locator("#globe canvas").bounding_box()
    assert box["height"] > 300
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
    until(page, "!location.hash.includes('place=48.8566,2.3522')")
    page.get_by_role("button", name="Fold the panel").click()
    until(page, "document.querySelector('#globe canvas').clientHeight > 500")
    for tab in ("Map", "Tokens", "Your data"):
        page.get_by_role("button", name="Fold the panel").click()
        choose(page, tab)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.get_by_role("button", name="Fold the panel").click()


TO_THE_TOP = """() => {
  const first = document.createElement("a");
  first.tabIndex = -1;
  document.body.prepend(first);
  first.focus();
  first.remove();  // from here the next Tab goes on, wherever the test before had left off
}"""


def test_the_keyboard_alone_is_enough(visit: Visit) -> None:
    page = visit.open("#layer=none&at=20,10&zoom=2")
    page.evaluate(TO_THE_TOP)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip the globe"
    page.locator("#globe canvas").focus()
    page.keyboard.press("ArrowRight")
    until(page, "!location.hash.includes('at=20,10&')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#country")
    page.locator("#tab-place").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-map"
    assert page.locator("#panel-map").is_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "layer"
    page.keyboard.press("ArrowDown")
    until(page, "!location.hash.includes('layer=none')")
    assert page.evaluate("document.activeElement.id") == "layer-embedding"
    page.locator("#tab-map").focus()
    page.keyboard.press("ArrowLeft")
    page.locator("#coordinates").focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("-1.29, 36.82")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#country')?.textContent === 'Kenya'")


def test_what_is_no_place_is_said(visit: Visit) -> None:
    page = visit.open("#layer=none")
    page.get_by_label("Latitude, longitude").fill("95, north")
    page.keyboard.press("Enter")
    page.wait_for_selector("#toast:not([hidden])")
    assert "95, north is not a latitude and a longitude" in page.locator("#toast").inner_text()


def test_a_link_shows_the_same_to_somebody_else(visit: Visit) -> None:
    page = visit.open(f"{PARIS}&tab=map&layer=none")
    page.locator("#layer-token").check()
    page.locator("#over-sites").check()
    page.locator("#flat").check()
    until(page, "location.hash.includes('flat=1')")
    address = page.evaluate("location.hash")
    other = visit.open("#theme=dark&at=-20,130&zoom=1")
    assert not other.locator("#flat").is_checked()
    seen = globe(other)
    other = visit.open(address)
    until_it_differs(other, seen, 3)
    assert other.locator("#layer-token").is_checked()
    assert other.locator("#over-sites").is_checked()
    assert other.locator("#flat").is_checked()
    assert other.locator("#panel-map").is_visible()
    assert other.get_by_role("img", name="Place A").count() == 1


@pytest.mark.parametrize(
    "hostile", ["#layer=<script>&zoom=NaN&place=a,b&over=%00&token=-5", "#at=999,999&opacity=7&tab=x"]
)
def test_an_address_that_makes_no_sense_is_ignored(visit: Visit, hostile: str) -> None:
    page = visit.open(hostile)
    assert page.locator("#panel-place").is_visible()


def test_dark_follows_the_system_and_the_choice(visit: Visit) -> None:
    page = visit.open("#layer=none&tab=map")
    page.emulate_media(color_scheme="dark")

    def light() -> float:
        colour = page.evaluate("getComputedStyle(document.querySelector('#panel')).backgroundColor")
        return float(np.mean([int(part) for part in re.findall(r"\d+", colour)[:3]]))

    assert light() < 60
    page.select_option("#theme", "light")
    assert light() > 200
    page.emulate_media(color_scheme="light")
    page.select_option("#theme", "dark")
    assert light() < 60


NAMELESS = """() => [...document.querySelectorAll('button, input, select, a, img, canvas, meter')].filter(e => {
  const label = e.getAttribute('aria-label') || e.textContent.trim() || e.getAttribute('alt') || e.title
    || (e.labels && e.labels.length && e.labels[0].textContent.trim());
  return !label && !(e.tagName === 'IMG' && e.getAttribute('alt') === '' && e.closest('[aria-label]'));
}).map(e => e.outerHTML)"""


def test_everything_that_can_be_used_has_a_name(visit: Visit) -> None:
    page = visit.open(f"{PARIS}&over=migration")
    page.wait_for_selector("#alike li")
    page.wait_for_selector("#step")
    for tab in ("Map", "Tokens", "Your data", "Place"):
        choose(page, tab)
        page.wait_for_selector({"Tokens": "#token-places img", "Map": "#layer-none"}.get(tab, "#panel"))
        assert page.evaluate(NAMELESS) == []
    assert page.evaluate("document.documentElement.lang") == "en"


def test_a_server_with_a_key_asks_for_it_once(browser: Any, model: Path) -> None:
    served = Served(Embedder(model, device="cpu"), ServeSettings(rate=0, api_key="open sesame"))
    with serving(served, page=STATIC) as client:
        page = browser.new_page()
        asked: list[str] = []

        def answer(dialog: Any) -> None:
            asked.append(dialog.message)
            dialog.accept("open sesame")

        page.on("dialog", answer)
        page.goto(f"{client.url}#layer=none&place=48.86,2.35")
        page.wait_for_selector("#country")
        assert page.locator("#country").inner_text() == "France"
        assert len(asked) == 1
        page.close()
