"""Tiles lie where web maps expect them; every kind of model can be served."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tools.page_record import WEB, hash_sources, read_record

from tessearth import Embedder
from tessearth.errors import ConfigError, DataError, UnknownNameError
from tessearth.explorer.app import STATIC, check_built
from tessearth.explorer.limits import ServeSettings
from tessearth.explorer.pictures import CLASSES, check_tile, class_colours, grid_of, ramp, sample_world, stretch
from tessearth.explorer.session import Served
from tests.explorer.serving import Client, serving

# A server is asked about single places; that some look like radians is a line in its log, not a failure.
pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")


def test_tiles_cover_the_world_without_gaps() -> None:
    edges = np.array([0.0, 1.0])
    lat, lon = check_tile(0, 0, 0).axes(edges)
    np.testing.assert_allclose(lat, [85.0511287798, -85.0511287798])
    np.testing.assert_allclose(lon, [-180, 180])
    east = check_tile(3, 5, 2).axes(edges)[1]
    assert east[0] == check_tile(3, 4, 2).axes(edges)[1][1]
    south = check_tile(3, 5, 3).axes(edges)[0]
    assert south[0] == check_tile(3, 5, 2).axes(edges)[0][1]


@pytest.mark.parametrize("numbers", [(0, 1, 0), (-1, 0, 0), (2, 0, 4), (13, 0, 0), (3, -1, 0)])
def test_other_numbers_are_no_tile(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(UnknownNameError, match="there is no tile"):
        check_tile(*numbers)


def test_a_field_linear_in_the_coordinates_is_read_exactly() -> None:
    lat, lon = 89.5 - np.arange(180), -179.5 + np.arange(360)
    grid = grid_of(lat, lon).astype(np.float32)
    at_lat, at_lon = np.array([60.25, 0.0, -33.3]), np.array([-120.2, 0.0, 77.7])
    np.testing.assert_allclose(sample_world(grid, at_lat, at_lon), grid_of(at_lat, at_lon), atol=1e-4)


def test_longitudes_wrap_between_the_last_column_and_the_first() -> None:
    grid = np.cos(np.deg2rad(-179.5 + np.arange(360)))[None, :, None].repeat(180, 0)
    found = sample_world(grid, np.array([0.0]), np.array([180.0, -180.0, 179.9]))
    np.testing.assert_allclose(found[0, :, 0], [-1, -1, -1], atol=1e-3)


def test_a_lattice_is_stretched_from_edge_to_edge() -> None:
    at = np.linspace(0, 1, 5)
    found = stretch(grid_of(at, at))
    middle = (np.arange(256) + 0.5) / 256
    np.testing.assert_allclose(found, grid_of(middle, middle), atol=1e-6)


def test_scales_run_from_dark_to_light_and_classes_differ() -> None:
    from tessearth.explorer.pictures import HEAT, SCALE

    for stops in (SCALE, HEAT):
        light = ramp(stops) @ np.array([0.2126, 0.7152, 0.0722])
        assert (np.diff(light) > -0.5).all()
        assert light[-1] > light[0] + 120
    assert class_colours(3) == list(CLASSES[:3])
    assert len(set(class_colours(64))) == 64


def test_the_whole_earth_is_one_picture_of_its_base_tile(client: Client) -> None:
    found = client.ask("/earth.jpg")
    assert found.headers["content-type"] == "image/jpeg"
    assert len(found.body) < 300_000
    whole = Image.open(io.BytesIO(found.body)).convert("RGB")
    assert whole.size == (1024, 1024)
    tile = Image.open(io.BytesIO(client.ask("/tiles/earth/0/0/0.png").body)).convert("RGB")
    small = np.asarray(whole.resize((64, 64), Image.Resampling.BOX)).astype(float)
    apart = np.abs(small - np.asarray(tile.resize((64, 64), Image.Resampling.BOX)))
    assert apart.mean() < 6
    assert small.std() > 30


def test_an_encoder_without_sites_is_served_as_far_as_it_goes() -> None:
    with serving(Served(Embedder("sphereC"), ServeSettings())) as client:
        client.wait_until_ready()
        assert client.ask("/embed?lat=1&lon=20").status == 200
        assert [layer["name"] for layer in client.ask("/layers").json()] == ["embedding", "similarity", "prediction"]
        assert client.ask("/tiles/embedding/1/1/0.png").status == 200
        place = client.ask("/place?lat=48.86&lon=2.35").json()
        assert (place["country"], place["sites"], place["tokens"], place["support"]) == ("France", [], [], None)
        for path in (
            "/sites",
            "/cells",
            "/tokens",
            "/migration",
            "/tiles/sharpness/0/0/0.png",
            "/legend/token?token=0",
        ):
            assert client.ask(path).status == 404


def test_a_record_of_other_sites_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="follows 40 sites, and the model has"):
        Served(Embedder("earth-small"), ServeSettings(), trajectories=model.parent.parent / "trajectories.npz")
    with pytest.raises(ConfigError, match="has no sites"):
        Served(Embedder("direct"), ServeSettings(), trajectories=model.parent.parent / "trajectories.npz")


def test_a_page_that_is_not_built_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `make explorer`"):
        check_built(tmp_path)


def test_the_page_that_ships_is_built_from_these_sources() -> None:
    if not WEB.is_dir():
        pytest.skip("the page's sources are not here: this is not a checkout")
    check_built()
    assert read_record() == hash_sources(), "web/ has changed since the page was built: run `make explorer`"
    assert sum(file.stat().st_size for file in STATIC.rglob("*") if file.is_file()) < 2.5e6
