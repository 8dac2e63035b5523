import contextlib
import dataclasses
import pickle
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import Source
from tessearth.imagery.sources.pyramid import MERCATOR_LATITUDE, TileCache, TilePyramid
from tessearth.imagery.sources.tile_stores import Tile, UrlTiles
from tests.imagery.sources.fabricate import (
    LATLON,
    all_tiles,
    encode,
    harmonic_tile,
    pattern_tile,
    write_mbtiles,
    write_tile_folder,
)

EQUATOR_KM = 2 * np.pi * 6371.0088


def noise_tile(z: int, x: int, y: int) -> bytes:
    return encode(np.random.default_rng((z, x, y)).integers(0, 255, (256, 256, 3)).astype(np.uint8))


def plain_tile(z: int, x: int, y: int) -> bytes:
    """Every zoom its own gray."""
    return encode(np.full((256, 256, 3), 40 * (z + 1), dtype=np.uint8))


@pytest.fixture
def pyramid(tmp_path: Path) -> Path:
    tiles = [tile for zoom in range(4) for tile in all_tiles(zoom)]
    return write_mbtiles(tmp_path / "plain.mbtiles", tiles, plain_tile)


def test_it_is_a_source_of_float32_tiles_between_0_and_1(pyramid: Path) -> None:
    source = TilePyramid(pyramid, size=6, km_per_pixel=30)
    assert isinstance(source, Source)
    assert source.bands == ("red", "green", "blue")
    tiles = source.tiles(LATLON)
    assert tiles.shape == (20, 3, 6, 6)
    assert tiles.dtype == np.float32
    assert 0 < tiles.min() <= tiles.max() < 1
    assert source.tiles(np.empty((0, 2))).shape == (0, 3, 6, 6)


def test_the_zoom_follows_the_latitude_because_the_map_does(pyramid: Path) -> None:
    source = TilePyramid(pyramid, size=4, km_per_pixel=EQUATOR_KM / 256 / 4)  # zoom 2 at the equator
    places = np.array([[0.0, 0.0], [61.0, 0.0], [-61.0, 0.0], [76.0, 0.0]])
    zooms, oversampling = source.choose_zooms(places)
    np.testing.assert_array_equal(zooms, [2, 1, 1, 0])
    np.testing.assert_array_equal(oversampling, [1, 2, 2, 2])
    gray = source.tiles(places)[:, 0, 0, 0] * 255
    np.testing.assert_allclose(gray, [120, 80, 80, 40], atol=1e-3)


def test_a_zoom_can_be_given(pyramid: Path) -> None:
    tiles = TilePyramid(pyramid, size=4, km_per_pixel=500, zoom=3).tiles(LATLON)
    np.testing.assert_allclose(tiles * 255, 160, atol=1e-3)


def test_finer_pixels_are_averaged_not_skipped(tmp_path: Path) -> None:
    path = write_mbtiles(tmp_path / "noise.mbtiles", all_tiles(3), noise_tile)
    coarse = TilePyramid(path, size=16, km_per_pixel=EQUATOR_KM / 2048 * 8, zoom=3).tiles(np.array([[1.0, 1.0]]))
    fine = TilePyramid(path, size=16, km_per_pixel=EQUATOR_KM / 2048, zoom=3).tiles(np.array([[1.0, 1.0]]))
    assert coarse.std() < 0.25 * fine.std()


def test_a_missing_tile_is_cut_from_its_nearest_parent(tmp_path: Path) -> None:
    there = [tile for tile in all_tiles(3) if tile != (3, 4, 3)]
    whole = write_mbtiles(tmp_path / "whole.mbtiles", [*all_tiles(1), *all_tiles(3)], harmonic_tile)
    holed = write_mbtiles(tmp_path / "holed.mbtiles", [*all_tiles(1), *there], harmonic_tile)
    places = np.array([[20.0, 22.0], [35.0, 44.0], [1.0, 1.0], [20.0, 46.0]])  # in, at the borders of and beside 3/4/3
    expected, found = (TilePyramid(p, size=32, km_per_pixel=25, zoom=3, mode="L").tiles(places) for p in (whole, holed))
    assert np.abs(expected - found).max() > 0
    np.testing.assert_allclose(found, expected, atol=2.5 / 255)


def test_without_tile_and_parent_the_tile_is_named(tmp_path: Path) -> None:
    path = write_mbtiles(tmp_path / "hole.mbtiles", [tile for tile in all_tiles(2) if tile != (2, 2, 1)], plain_tile)
    with pytest.raises(DataError, match=r"hole\.mbtiles has neither tile 2/2/1 nor any parent"):
        TilePyramid(path, size=4, km_per_pixel=10).tiles(np.array([[20.0, 20.0]]))


@pytest.mark.parametrize("content", [b"", b"not a picture", pattern_tile(3, 4, 3)[:300]])
def test_a_corrupt_tile_is_named(tmp_path: Path, content: bytes) -> None:
    path = write_mbtiles(tmp_path / "bad.mbtiles", all_tiles(3), lambda z, x, y: content or b"\0")
    with pytest.raises(DataError, match=r"tile 3/4/3 of .*bad\.mbtiles"):
        TilePyramid(path, size=4, km_per_pixel=10).tiles(np.array([[20.0, 20.0]]))


def test_a_corrupt_tile_in_a_folder_is_named(tmp_path: Path) -> None:
    folder = write_tile_folder(tmp_path / "tiles", all_tiles(1), plain_tile)
    (folder / "1" / "1" / "0.png").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"tile 1/1/0 of .*tiles"):
        TilePyramid(folder, size=4, km_per_pixel=10).tiles(np.array([[20.0, 20.0]]))


def test_tiles_of_another_size_are_named_with_their_size(tmp_path: Path) -> None:
    big = encode(np.zeros((512, 512, 3), np.uint8))
    path = write_mbtiles(tmp_path / "big.mbtiles", all_tiles(0), lambda z, x, y: big)
    with pytest.raises(DataError, match="is 512 x 512 pixels, not 256 x 256"):
        TilePyramid(path, size=4, km_per_pixel=100).tiles(LATLON)
    assert TilePyramid(path, size=4, km_per_pixel=100, tile_pixels=512).tiles(LATLON).shape == (20, 3, 4, 4)


def test_beyond_the_map_its_last_row_is_shown(tmp_path: Path) -> None:
    def rows(z: int, x: int, y: int) -> bytes:
        return encode(np.repeat(np.arange(256, dtype=np.uint8)[:, None], 256, axis=1))

    path = write_mbtiles(tmp_path / "rows.mbtiles", all_tiles(0), rows)
    source = TilePyramid(path, size=3, km_per_pixel=20, mode="L")
    levels = source.tiles(np.array([[89.0, 10.0], [90.0, 0.0], [-89.0, 10.0]]))[:, 0, 1, 1] * 255
    np.testing.assert_allclose(levels, [0, 0, 255], atol=1e-3)
    assert pytest.approx(85.0511, abs=1e-4) == MERCATOR_LATITUDE


def test_the_cache_keeps_within_its_bytes_and_changes_nothing(tmp_path: Path) -> None:
    path = write_mbtiles(tmp_path / "noise.mbtiles", all_tiles(3), noise_tile)
    small = TilePyramid(path, size=8, km_per_pixel=20, zoom=3, cache_mb=1)
    large = TilePyramid(path, size=8, km_per_pixel=20, zoom=3)
    np.testing.assert_array_equal(small.tiles(LATLON), large.tiles(LATLON))
    assert 0 < small._cache.nbytes <= 2**20 < large._cache.nbytes


def test_the_least_recently_used_tile_is_forgotten_first() -> None:
    pixels = np.zeros((1, 10, 10), np.uint8)
    cache = TileCache(250)
    cache.put_many({Tile(0, 0, 0): pixels, Tile(1, 0, 0): pixels})
    cache.get_many([Tile(0, 0, 0)])
    cache.put_many({Tile(1, 1, 1): pixels})
    assert set(cache.get_many([Tile(0, 0, 0), Tile(1, 0, 0), Tile(1, 1, 1)])) == {Tile(0, 0, 0), Tile(1, 1, 1)}


def test_it_travels_to_other_processes_and_threads(tmp_path: Path) -> None:
    path = write_mbtiles(tmp_path / "noise.mbtiles", all_tiles(2), noise_tile)
    source = TilePyramid(path, size=8, km_per_pixel=20)
    tiles = source.tiles(LATLON)
    cargo = pickle.dumps(source)
    assert len(cargo) < 2000
    np.testing.assert_array_equal(pickle.loads(cargo).tiles(LATLON), tiles)
    fresh = TilePyramid(path, size=8, km_per_pixel=20)
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(np.concatenate(list(pool.map(fresh.tiles, np.split(LATLON, 5)))), tiles)


def test_its_record_names_the_store(pyramid: Path, tmp_path: Path) -> None:
    record = TilePyramid(pyramid, size=4, km_per_pixel=10).describe()
    assert record["files"][0]["name"] == "plain.mbtiles"
    assert record["zooms"] == [0, 3]
    folder = write_tile_folder(tmp_path / "tiles", all_tiles(1), plain_tile)
    before = TilePyramid(folder, size=4, km_per_pixel=10).describe()["sha256_of_listing"]
    (folder / "1" / "0" / "0.png").write_bytes(b"shorter")
    assert TilePyramid(folder, size=4, km_per_pixel=10).describe()["sha256_of_listing"] != before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("delete from tiles", "holds no tiles"),
        ("update metadata set value = 'pbf'", "holds vector tiles"),
        ("drop table tiles", "as MBTiles: no such table: tiles"),
    ],
)
def test_a_file_without_pictures_is_refused(pyramid: Path, spoil: str, message: str) -> None:
    with contextlib.closing(sqlite3.connect(pyramid)) as connection, connection:
        connection.execute(spoil)
    with pytest.raises(DataError, match=message):
        TilePyramid(pyramid, size=4, km_per_pixel=10)


def test_what_is_no_pyramid_is_refused(tmp_path: Path, pyramid: Path) -> None:
    (tmp_path / "text.mbtiles").write_text("no database")
    (tmp_path / "empty").mkdir()
    for location, message in [
        (tmp_path / "text.mbtiles", "as MBTiles: file is not a database"),
        (tmp_path / "empty", "holds no tiles"),
        (tmp_path / "nowhere", "there are no tiles at"),
    ]:
        with pytest.raises(DataError, match=message):
            TilePyramid(location, size=4, km_per_pixel=10)
    with pytest.raises(ConfigError, match=r"zoom 9 is not in .* zooms 0 to 3"):
        TilePyramid(pyramid, size=4, km_per_pixel=10, zoom=9)


@pytest.mark.parametrize(
    ("template", "max_zoom", "message"),
    [
        ("ftp://host/{z}/{x}/{y}.png", 3, "http or https only"),
        ("file:///etc/{z}/{x}/{y}", 3, "http or https only"),
        ("https://host/{z}/{x}.png", 3, "needs {z}, {x} and {y}"),
        ("https://host/{z}/{x}/{y}/{s}.png", 3, "nothing else in braces"),
        ("https://host/{z}/{x}/{y}.png", None, "give max_zoom"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, max_zoom: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TilePyramid(template, size=4, km_per_pixel=10, max_zoom=max_zoom)


class Server:
    """A tile server on this machine that counts what it is asked and can be told to fail."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answers: dict[str, list[int | str]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.template = f"http://127.0.0.1:{self.http.server_port}/{{z}}/{{x}}/{{y}}.png?token=hidden"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.split("?")[0]
        self.asked[path] += 1
        told = self.answers.get(path)
        code = told.pop(0) if told else 200
        if isinstance(code, str):
            request.send_response(302)
            request.send_header("Location", code)
            request.end_headers()
            return
        z, x, y = (int(part) for part in path.removesuffix(".png").strip("/").split("/"))
        request.send_response(404 if z > 2 else code)
        request.end_headers()
        if z <= 2 and code == 200:
            request.wfile.write(harmonic_tile(z, x, y))


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


def impatient(source: TilePyramid) -> TilePyramid:
    assert isinstance(source.store, UrlTiles)
    source.store = dataclasses.replace(source.store, wait_s=0.001, timeout_s=5.0)
    return source


def test_a_server_is_read_as_a_file_is(server: Server, tmp_path: Path) -> None:
    path = write_mbtiles(tmp_path / "same.mbtiles", [*all_tiles(0), *all_tiles(1), *all_tiles(2)], harmonic_tile)
    from_file = TilePyramid(path, size=8, km_per_pixel=20, mode="L")
    from_server = TilePyramid(server.template, size=8, km_per_pixel=20, mode="L", max_zoom=2)
    np.testing.assert_array_equal(from_server.tiles(LATLON), from_file.tiles(LATLON))
    assert max(server.asked.values()) == 1


def test_a_tile_the_server_does_not_have_comes_from_its_parent_and_is_asked_for_once(server: Server) -> None:
    source = TilePyramid(server.template, size=8, km_per_pixel=10, mode="L", max_zoom=3)
    place = np.array([[20.0, 20.0]])
    tiles = source.tiles(place)
    assert server.asked == {"/3/4/3.png": 1, "/2/2/1.png": 1}
    np.testing.assert_array_equal(source.tiles(place), tiles)
    assert server.asked.total() == 2


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.answers["/2/2/1.png"] = [503, 429, 200]
    source = impatient(TilePyramid(server.template, size=8, km_per_pixel=30, mode="L", max_zoom=2))
    assert source.tiles(np.array([[20.0, 20.0]])).shape == (1, 1, 8, 8)
    assert server.asked["/2/2/1.png"] == 3


def test_a_server_that_refuses_is_named_without_its_secrets(server: Server) -> None:
    server.answers["/2/2/1.png"] = [403]
    source = impatient(TilePyramid(server.template, size=8, km_per_pixel=30, mode="L", max_zoom=2))
    with pytest.raises(DataError, match=r"tile 2/2/1 of http://127.* did not come: .*403") as caught:
        source.tiles(np.array([[20.0, 20.0]]))
    assert "hidden" not in str(caught.value) + str(source.describe())
    assert server.asked.total() == 1


@pytest.mark.parametrize("address", ["", "ftp://127.0.0.1:9/tile.png", "data:image/png;base64,AAAA"])
def test_a_server_cannot_lead_to_a_local_file_or_off_the_web(server: Server, tmp_path: Path, address: str) -> None:
    (tmp_path / "private.png").write_bytes(harmonic_tile(0, 0, 0))
    server.answers["/2/2/1.png"] = [address or (tmp_path / "private.png").as_uri()] * 9
    source = impatient(TilePyramid(server.template, size=8, km_per_pixel=30, mode="L", max_zoom=2))
    with pytest.raises(DataError, match="did not come"):
        source.tiles(np.array([[20.0, 20.0]]))


def test_a_dead_server_is_named() -> None:
    source = impatient(TilePyramid("http://127.0.0.1:9/{z}/{x}/{y}.png", size=8, km_per_pixel=30, max_zoom=2))
    with pytest.raises(DataError, match="did not come"):
        source.tiles(np.array([[20.0, 20.0]]))
