"""Tables in memory are read as files are: the same places, the same targets, the same refusals."""

from typing import Any

import geopandas
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest

from tessearth.errors import TableError
from tessearth.sphere import is_frame
from tessearth.storage import Reading, open_points, read_labelled

FRAME = pd.DataFrame(
    {"lat": [1.5, 2.5, -3.0], "lon": [10.0, 20.0, 200.0], "id": ["01", "2", None], "mixed": [1, "b", 2.5]},
    index=[7, 8, 9],
)


def frames() -> dict[str, Any]:
    places = pa.Table.from_pandas(FRAME[["lat", "lon"]], preserve_index=False)
    arrow = places.append_column("id", [["01", "2", None]]).append_column("mixed", [["1", "b", "2.5"]])
    return {
        "pandas": FRAME,
        "pyarrow": arrow,
        "polars": polars.from_arrow(arrow),
        "lazy": polars.from_arrow(arrow).lazy(),  # type: ignore[union-attr]
        "columns": arrow.to_pydict(),
    }


@pytest.mark.parametrize("name", list(frames()))
def test_every_kind_of_frame_has_the_same_rows(name: str) -> None:
    frame = frames()[name]
    assert is_frame(frame)
    with open_points(frame) as points:
        (batch,) = points.batches
    np.testing.assert_array_equal(batch.latlon, FRAME[["lat", "lon"]].to_numpy())
    assert batch.rows.column("id").to_pylist() == ["01", "2", None]
    assert batch.rows.column("mixed").to_pylist() == ["1", "b", "2.5"]
    labelled = read_labelled(frame, "id")
    assert (labelled.kind, labelled.target.tolist(), labelled.dropped) == ("regress", [1.0, 2.0], 1)


def test_a_geometry_comes_before_columns_and_is_brought_to_degrees() -> None:
    places = geopandas.points_from_xy(FRAME.lat, FRAME.lat * 2, crs=4326).to_crs(3857)
    frame = geopandas.GeoDataFrame(FRAME[["lat", "lon", "id"]], geometry=places)
    frame.loc[8, "geometry"] = None
    with open_points(frame, Reading(on_bad="null")) as points:
        (batch,) = points.batches
    assert not is_frame(frame.geometry)
    np.testing.assert_allclose(batch.latlon, [[3.0, 1.5], [np.nan, np.nan], [-6.0, -3.0]])
    assert points.bad_rows == 1


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.zeros((3, 2)), "a ndarray is no table: give a file or a frame with named columns"),
        (3, "a int is no table"),
        ({"lat": [1.0], "lon": [2.0, 3.0]}, "is no table of columns"),
        ({"lat": [1.0, np.nan], "lon": [2.0, 3.0]}, "the dict: row 2"),
        ({"breadth": [1.0], "lon": [2.0]}, "the dict: no column of breadth, lon reads as lat"),
        ({"lat": [], "lon": []}, "the dict: the table holds no rows"),
    ],
)
def test_what_cannot_be_read_is_one_line(table: Any, words: str) -> None:
    with pytest.raises(TableError, match=words) as told, open_points(table) as points:
        list(points.batches)
    assert "\n" not in str(told.value)
