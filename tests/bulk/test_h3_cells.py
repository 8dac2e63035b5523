"""H3 cells of a box, against every cell of the Earth looked at one by one; and the table made of them."""

import json
from pathlib import Path
from typing import Any

import h3
import h3.api.numpy_int as h3_numbers
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from tessearth import Embedder
from tessearth.bulk.h3_cells import H3Cells
from tessearth.bulk.rasters import write_raster
from tessearth.errors import ConfigError, OutputError
from tessearth.sphere import find_region
from tessearth.sphere.grids import check_box
from tessearth.sphere.land import is_inhabited_land
from tests.conftest import tiny_encoder

BOXES = [
    (-180, -90, 180, 90),
    (-10, 35, 30, 60),
    (170, -25, -170, -10),
    (-180, 85, 180, 90),
    (-60, -90, 40, -80),
    (100, 88, 101, 89.5),
    (0, 0, 0.5, 0.5),
    (179.5, 50, -179.9, 50.7),
    (200, 10, 230, 20),
]

Places = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def every_cell() -> tuple[npt.NDArray[np.uint64], Places]:
    cells = np.concatenate([h3_numbers.cell_to_children(int(cell), 4) for cell in h3_numbers.get_res0_cells()])
    assert len(cells) == h3.get_num_cells(4)
    return np.sort(cells), np.array([h3_numbers.cell_to_latlng(int(cell)) for cell in np.sort(cells)])


@pytest.mark.parametrize("box", BOXES)
def test_the_cells_of_a_box_are_those_whose_centre_lies_in_it(box: Any, every_cell: Any) -> None:
    cells, latlon = every_cell
    west, south, east, north = box
    turned = (latlon[:, 1] - west) % 360
    inside = (latlon[:, 0] >= south) & (latlon[:, 0] < north) & (turned < ((east - west) % 360 or 360))
    layout = H3Cells(bbox=check_box(box), resolution=4)
    found = [layout.cells(number)[0] for number in range(layout.num_windows)]
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), cells[inside])


@pytest.mark.parametrize("box", BOXES[1:])
def test_descending_finer_loses_no_cell(box: Any) -> None:
    """Random places in the box, and those along its edges, are in cells that the layout lists."""
    checked = check_box(box)
    layout = H3Cells(bbox=checked, resolution=7 if (checked.north - checked.south) < 2 else 5)
    parents = set(layout.parents)
    level = max(0, layout.resolution - 5)
    rng = np.random.default_rng(3)
    lat = rng.uniform(checked.south, checked.north, 2000)
    lon = rng.uniform(checked.west, checked.east, 2000)
    lon[:200] = checked.west + 1e-9
    lat[200:400] = checked.south + 1e-9
    for place in zip(lat, (lon + 180) % 360 - 180, strict=True):
        cell = h3_numbers.latlng_to_cell(*place, layout.resolution)
        centre = h3_numbers.cell_to_latlng(cell)
        if (
            checked.south <= centre[0] < checked.north
            and (centre[1] - checked.west) % 360 < checked.east - checked.west
        ):
            assert h3_numbers.cell_to_parent(cell, level) in parents


def test_cells_are_counted_before_they_are_listed() -> None:
    layout = H3Cells(bbox=check_box((-10, 35, 30, 60)), resolution=4)
    listed = sum(len(layout.cells(number)[0]) for number in range(layout.num_windows))
    assert layout.num_cells == pytest.approx(listed, rel=0.2)


@pytest.mark.parametrize("dtype", ["float32", "float16", None])
def test_the_table_holds_the_embedding_of_every_centre(tmp_path: Path, dtype: Any) -> None:
    embedder = Embedder(tiny_encoder(dtype=torch.float32), device="cpu")
    out = tmp_path / "cells.parquet"
    written = write_raster(embedder, out, bbox=(170, -25, -170, -10), h3=3, dims=6, dtype=dtype)
    table = pd.read_parquet(out)
    assert list(table.columns) == ["h3", "h3_index", "lat", "lon", "embedding"]
    assert str(table["h3_index"].dtype) == "uint64"
    assert [h3.str_to_int(name) for name in table["h3"]] == table["h3_index"].tolist()
    assert table["h3_index"].is_monotonic_increasing
    np.testing.assert_allclose(table[["lat", "lon"]], [h3.cell_to_latlng(name) for name in table["h3"]], atol=1e-12)
    assert json.loads(pq.read_schema(out).metadata[b"tessearth"])["stored_type"] == (dtype or "float16")
    values = np.stack(table["embedding"].to_list())
    assert values.dtype == (dtype or "float16")
    expected = embedder.embed(table[["lat", "lon"]].to_numpy())[:, :6]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert written.largest_error < 0.001
    np.testing.assert_allclose(values, expected, atol=written.largest_error + 1e-6, rtol=0)
    assert pq.read_schema(out).field("embedding").type.list_size == 6


def test_a_table_of_land_leaves_the_sea_out(tmp_path: Path) -> None:
    embedder = Embedder(tiny_encoder(dtype=torch.float32), device="cpu")
    for land in (False, True):
        write_raster(embedder, tmp_path / f"{land}.parquet", bbox=(0, 35, 25, 50), h3=3, dims=2, land=land)
    every, some = (pd.read_parquet(tmp_path / f"{land}.parquet") for land in (False, True))
    on_land = is_inhabited_land(every[["lat", "lon"]].to_numpy())
    assert every["h3"][on_land].tolist() == some["h3"].tolist()
    assert 0 < len(some) < len(every)


def test_a_table_of_a_region_has_the_cells_within_its_outline(tmp_path: Path) -> None:
    embedder = Embedder(tiny_encoder(dtype=torch.float32), device="cpu")
    region = find_region("fiji")
    write_raster(embedder, tmp_path / "box.parquet", bbox=region.box, h3=5, dims=2)
    write_raster(embedder, tmp_path / "region.parquet", region="Fiji", h3=5, dims=2)
    every, some = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("box", "region"))
    inside = region.contains(every[["lat", "lon"]].to_numpy())
    assert every["h3"][inside].tolist() == some["h3"].tolist()
    assert len(set(np.sign(some["lon"]))) == 2  # either side of the antimeridian
    layout = H3Cells(bbox=region.box, resolution=5, region=region)
    assert layout.num_cells == pytest.approx(len(some), rel=0.3)


def test_codes_are_refused_in_a_table(tmp_path: Path) -> None:
    embedder = Embedder(tiny_encoder(dtype=torch.float32), device="cpu")
    with pytest.raises(ConfigError, match="codes that readers of H3 tables would take for values: take float16 or"):
        write_raster(embedder, tmp_path / "cells.parquet", bbox=(0, 0, 10, 10), h3=3, dtype="int8")
    assert list(tmp_path.iterdir()) == []


def test_bad_resolutions_are_one_line(tmp_path: Path) -> None:
    embedder = Embedder(tiny_encoder(dtype=torch.float32), device="cpu")
    for options, words in (
        ({"h3": 16}, "h3 is 16; H3 resolutions go from 0"),
        ({}, "is a table of H3 cells: give --h3 RESOLUTION"),
        ({"h3": 3, "resolution": 1.0}, "no --resolution"),
        ({"h3": 15}, r"cells x 18 dims of float16 take .* GB"),
    ):
        with pytest.raises((ConfigError, OutputError), match=words):
            write_raster(embedder, tmp_path / "cells.parquet", **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
