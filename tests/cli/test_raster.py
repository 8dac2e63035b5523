"""`tessearth raster` as a stranger would use it."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio
import xarray

from tessearth import Embedder
from tests.cli.conftest import Command


def test_a_box_becomes_a_geotiff(tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    outcome = tessearth("raster", "--model", model, "--bbox", "-10,35,30,60", "--resolution", 0.5, "--out", out)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{out}: 18 x 50 x 80 int8, off by at most 0.0")
    assert outcome.out.count("\n") == 1
    with rasterio.open(out) as source:
        ((*numbers,),) = source.sample([(2.25, 48.75)])
        values = np.array(numbers) * source.scales + source.offsets
        np.testing.assert_allclose(values, Embedder(model)((48.75, 2.25)), atol=max(source.scales) / 2 + 1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["map.tif"]


def test_the_whole_earth_is_the_default(tessearth: Command, model: Path, tmp_path: Path) -> None:
    arguments = ("--resolution", 10, "--dims", 4, "--dtype", "float32", "--land", "--out", tmp_path / "map.zarr")
    assert tessearth("raster", "--model", model, *arguments).status == 0
    with xarray.open_zarr(tmp_path / "map.zarr") as source:
        assert dict(source.sizes) == {"dim": 4, "lat": 18, "lon": 36}
        there = source["embedding"].sel(lat=45, lon=25).values
        assert source["embedding"].sel(lat=-75, lon=5).isnull().all()
    expected = Embedder(model)((45, 25))[:4]
    np.testing.assert_allclose(there, expected / np.linalg.norm(expected), atol=1e-6)


def test_a_region_is_taken_by_its_name(tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    for region, inside, outside in (("europe", (48.0, 11.0), (40.0, -10.0)), ("NZL", (-43.5, 171.5), (-42.0, 178.0))):
        options = ("--region", region, "--resolution", 1, "--dims", 2, "--overwrite", "--out", out)
        assert tessearth("raster", "--model", model, *options).status == 0
        with rasterio.open(out) as source:
            there, nowhere = (next(source.sample([place[::-1]]))[0] for place in (inside, outside))
            assert there != source.nodata
            assert nowhere == source.nodata


def test_nothing_is_overwritten_unasked(tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    options = ("--bbox", "0,0,10,10", "--resolution", 5, "--dims", 2, "--out", out)
    assert tessearth("raster", "--model", model, *options).status == 0
    before = out.read_bytes()
    again = tessearth("raster", "--model", model, *options, "--dtype", "float32")
    assert again.status == 2
    assert f"{out} exists already: add --overwrite to replace it" in again.err
    assert out.read_bytes() == before


def test_h3_cells_go_to_parquet(tessearth: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "cells.parquet"
    outcome = tessearth("raster", "--model", model, "--bbox", "170,-25,-170,-10", "--h3", 3, "--out", out)
    assert outcome.status == 0
    table = pd.read_parquet(out)
    assert table["lat"].between(-25, -10).all()
    assert (table["lon"].abs() > 170).all()


def test_random_weights_are_called_random(tessearth: Command, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    box = ("--bbox", "0,0,10,10", "--resolution", 5, "--dims", 2)
    outcome = tessearth("raster", *box, "--model", "untrained", "--out", out)
    assert outcome.status == 0
    assert "model 'untrained' has random weights" in outcome.err


WRONG = {
    "text in the box": (("--bbox", "west,0,1,1", "--resolution", "1", "--out", "m.tif"), "give WEST,SOUTH,EAST,NORTH"),
    "two places": (
        ("--bbox", "0,0,1,1", "--region", "europe", "--resolution", "1", "--out", "m.tif"),
        "--bbox and --region both say where",
    ),
    "unknown region": (("--region", "japam", "--resolution", "1", "--out", "m.tif"), "did you mean 'japan'?"),
    "upside down": (("--bbox", "0,60,10,35", "--resolution", "1", "--out", "m.tif"), "south (60) is not below north"),
    "no resolution": (("--out", "m.tif"), "m.tif is a grid: give --resolution DEGREES"),
    "no h3": (("--out", "m.parquet"), "m.parquet is a table of H3 cells: give --h3"),
    "suffix": (("--resolution", "1", "--out", "m.nc"), "the suffix of m.nc names no raster; use one of .tif, .tiff,"),
    "no out": (("--resolution", "1"), "--out"),
    "codes in a table": (("--h3", "3", "--dtype", "int8", "--out", "m.parquet"), "take float16 or float32"),
    "dims": (("--resolution", "1", "--dims", "9999", "--out", "m.tif"), "dims is 9999; earth has 1 to 1024"),
    "too fine": (("--resolution", "0.0001", "--out", "m.zarr"), "choose a coarser resolution, fewer --dims"),
    "unknown model": (("--resolution", "1", "--out", "m.tif", "--model", "untraned"), "did you mean 'untrained'?"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(
    tessearth: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = WRONG[wrong]
    outcome = tessearth("raster", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert list(tmp_path.iterdir()) == []
