"""Laws of the arithmetic under the sources: tangent pixels, bilinear blending, averaging down."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessearth.imagery.sources.sampling import (
    average_blocks,
    blend,
    find_corners,
    load_global,
    place_chunks,
    reduced_size,
    tangent_latlon,
)
from tests.imagery.sources.fabricate import Array, tangent_grid, to_xyz


@given(
    lat=st.floats(-90, 90),
    lon=st.floats(-180, 180),
    size=st.integers(1, 8),
    km_per_pixel=st.floats(0.001, 300),
)
def test_tangent_degrees_are_the_directions_of_the_tangent_grid(
    lat: float, lon: float, size: int, km_per_pixel: float
) -> None:
    latlon = np.array([[lat, lon]])
    ours = to_xyz(np.stack(tangent_latlon(latlon, size, km_per_pixel), axis=-1))
    np.testing.assert_allclose(ours, tangent_grid(torch.from_numpy(latlon), size, km_per_pixel).numpy(), atol=1e-14)


def test_tangent_longitudes_run_on_across_the_antimeridian() -> None:
    _, lon = tangent_latlon(np.array([[10.0, 179.99]]), 9, 5.0)
    assert lon.max() > 180
    assert np.ptp(lon) < 1


@given(count=st.integers(0, 300), points=st.integers(1, 50_000))
def test_chunks_cover_every_place_once(count: int, points: int) -> None:
    numbers = [number for chunk in place_chunks(count, points) for number in range(count)[chunk]]
    assert numbers == list(range(count))


def test_blending_is_exact_for_bilinear_functions() -> None:
    rows, columns = np.meshgrid(np.arange(6.0), np.arange(7.0), indexing="ij")
    planes = np.stack((3 * rows + columns, rows * columns)).reshape(2, -1)
    random = np.random.default_rng(0)
    row, column = random.uniform(0, 4.99, 50), random.uniform(0, 5.99, 50)
    values = blend(planes, find_corners(row, column, 7))
    np.testing.assert_allclose(values, np.stack((3 * row + column, row * column)), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.float32, np.float64])
def test_blending_at_a_pixel_centre_gives_the_pixel(dtype: type) -> None:
    planes = np.arange(12).astype(dtype).reshape(1, 12)
    values = blend(planes, find_corners(np.array([1.0]), np.array([2.0]), 4))
    assert values.dtype == np.float32
    assert values[0, 0] == 6


def test_a_gap_is_bridged_by_its_neighbours_until_it_holds_more_than_half() -> None:
    planes = np.array([[5.0, np.nan, 5.0, np.nan]], dtype=np.float32)  # the right column is missing
    near = blend(planes, find_corners(np.array([0.5]), np.array([0.25]), 2), gaps=True)
    far = blend(planes, find_corners(np.array([0.5]), np.array([0.75]), 2), gaps=True)
    assert near[0, 0] == pytest.approx(5)
    assert np.isnan(far[0, 0])


def rows_of(pixels: Array):  # type: ignore[no-untyped-def]
    return lambda start, stop: pixels[start:stop]


def test_averaging_down_is_the_exact_mean_of_whole_blocks() -> None:
    pixels = np.random.default_rng(0).random((12, 24, 2))
    km_per_pixel = np.pi * 6371.0088 / 4  # a third of the rows
    padded = load_global(rows_of(pixels), 12, 24, km_per_pixel)
    assert padded.shape == (2, 4 + 2, 8 + 2)
    blocks = pixels.reshape(4, 3, 8, 3, 2).mean(axis=(1, 3))
    # The rows next to the equator are the least smoothed along longitude: by one over the cosine of 22.5 degrees.
    assert np.abs(padded[:, 2, 1:-1] - blocks[1].T).max() < 0.08
    np.testing.assert_allclose(padded[:, 1:-1, 1:-1].mean(axis=2), blocks.mean(axis=1).T, rtol=1e-6)


def test_averaging_down_by_a_fraction_keeps_means_and_constants() -> None:
    pixels = np.full((100, 200, 1), 7.25)
    padded = load_global(rows_of(pixels), 100, 200, 310.0)
    assert padded.shape[1] - 2 == reduced_size(100, np.pi * 6371.0088, 310.0) == 65
    np.testing.assert_allclose(padded, 7.25, rtol=1e-6)


def test_a_raster_coarser_than_the_tiles_is_left_alone_off_the_poles() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 120, 3)).astype(np.uint8)
    padded = load_global(rows_of(pixels), 60, 120, 50.0)
    assert padded.dtype == np.uint8
    np.testing.assert_array_equal(padded[:, 6:-6, 1:-1], pixels[5:-5].transpose(2, 0, 1))


def test_the_frame_holds_the_neighbours_across_antimeridian_and_poles() -> None:
    pixels = np.arange(6 * 8, dtype=np.float64).reshape(6, 8, 1)
    padded = load_global(rows_of(pixels), 6, 8, 1.0)[0]
    np.testing.assert_array_equal(padded[1:-1, 0], pixels[:, -1, 0])
    np.testing.assert_array_equal(padded[1:-1, -1], pixels[:, 0, 0])
    np.testing.assert_array_equal(padded[0, 1:-1], np.roll(pixels[0, :, 0], 4))
    np.testing.assert_array_equal(padded[-1, 1:-1], np.roll(pixels[-1, :, 0], 4))


def test_an_odd_number_of_columns_meets_between_two_over_the_pole() -> None:
    padded = load_global(rows_of(np.array([[[0.0], [10.0], [20.0]], [[0.0], [0.0], [0.0]]])), 2, 3, 1.0)[0]
    np.testing.assert_allclose(padded[0, 1:-1], [15, 10, 5])


def test_gaps_do_not_spread_when_a_raster_is_averaged() -> None:
    pixels = np.full((40, 80, 1), 3.0)
    pixels[10, 20] = np.nan
    padded = load_global(rows_of(pixels), 40, 80, 1500.0)
    np.testing.assert_allclose(padded, 3.0)


def test_average_blocks_undoes_oversampling() -> None:
    tiles = np.arange(2 * 4 * 4, dtype=np.float32).reshape(1, 2, 4, 4)
    expected = tiles.reshape(1, 2, 2, 2, 2, 2).mean(axis=(3, 5))
    np.testing.assert_array_equal(average_blocks(tiles, 2), expected)
    assert average_blocks(tiles, 1) is tiles
