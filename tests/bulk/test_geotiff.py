"""The GeoTIFF that is written here, held against its layout, against GDAL's own, and against the means it promises."""

import struct
import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
import rasterio.shutil

from tessearth.bulk import geotiff as raster_cog
from tessearth.bulk.geotiff import WHOLE, GeoTiffTarget, overview_grids, window_means
from tessearth.bulk.stored import Stored
from tessearth.errors import DataError, OutputError
from tessearth.sphere.grids import RasterGrid
from tessearth.storage.files import keeping_what_is_finished
from tests.faults.harness import FULL, SmallDisk

Array = npt.NDArray[Any]
DTYPES = ("int8", "float16", "float32")
FACTS = {"title": "a <b> & 'c' \"d\"", "windows": 4}


def made_up(rows: int, columns: int, dims: int, dtype: Any, *, sea: float = 0.0) -> tuple[RasterGrid, Stored, Array]:
    """A grid of random numbers, (rows, columns, dims), with nodata in whole cells and in one whole window."""
    grid = RasterGrid(west=-20.0, north=60.0, resolution=0.05, rows=rows, columns=columns)
    scale = tuple(0.01 * (band + 1) for band in range(dims)) if dtype == "int8" else ()
    stored = Stored(dims=dims, dtype=dtype, scale=scale, offset=tuple(-value for value in scale))
    rng = np.random.default_rng(5)
    numbers = (rng.integers(-127, 128, (rows, columns, dims)) / (1 if dtype == "int8" else 100)).astype(dtype)
    if sea:
        numbers[rng.random((rows, columns)) < sea] = stored.nodata
        numbers[256:512, :256] = stored.nodata
    return grid, stored, numbers


def finish(folder: Path, grid: RasterGrid, stored: Stored, numbers: Array) -> Path:
    folder.mkdir(exist_ok=True)
    target = GeoTiffTarget(folder, grid, stored)
    target.prepare()
    for number in range(grid.num_windows):
        target.put(number, numbers[grid.window_slices(number)].reshape(-1, stored.dims))
    target.finish(folder / "map.tif", FACTS, lambda number: windows_read(target, number))
    return folder / "map.tif"


def windows_read(target: GeoTiffTarget, number: int) -> Array:
    numbers = target.get(number)
    assert numbers is not None
    return numbers


def means_of(numbers: Array, factor: int, nodata: float, dtype: str) -> Array:
    """The mean of every square of cells that have a value, one square after another."""
    rows, columns, dims = numbers.shape
    means = np.full((-(-rows // factor), -(-columns // factor), dims), nodata)
    for row, column in np.ndindex(means.shape[:2]):
        cells = numbers[row * factor :, column * factor :][:factor, :factor].reshape(-1, dims).astype(np.float64)
        there = cells[~np.isnan(cells[:, 0]) & (cells[:, 0] != nodata)]
        if len(there):
            means[row, column] = np.rint(there.mean(0)) if dtype == "int8" else there.mean(0)
    return means.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_read_is_what_was_put_and_overviews_are_means_of_the_cells_that_have_a_value(
    tmp_path: Path, dtype: str
) -> None:
    grid, stored, numbers = made_up(530, 270, 3, dtype, sea=0.4)
    out = finish(tmp_path, grid, stored, numbers)
    with rasterio.open(out) as source:
        np.testing.assert_array_equal(source.read().transpose(1, 2, 0), numbers)
        assert source.overviews(1) == source.overviews(3) == [2, 4]
    for level, factor in enumerate((2, 4)):
        with rasterio.open(out, overview_level=level) as source:
            expected = means_of(numbers, factor, stored.nodata, dtype)
            # Sums of floats in another order differ in the last digit.
            atol = {"int8": 0, "float16": 2**-10, "float32": 1e-6}[dtype]
            np.testing.assert_allclose(source.read().transpose(1, 2, 0), expected, atol=atol, rtol=0)
            assert tuple(source.bounds)[::3] == pytest.approx((-20.0, 60.0))
            assert np.array_equal(source.dataset_mask() > 0, ~np.isnan(expected[..., 0]) & (expected[..., 0] != -128))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [1, 4])
def test_a_reader_sees_what_it_would_see_in_gdals_own_file(tmp_path: Path, dtype: str, dims: int) -> None:
    grid, stored, numbers = made_up(300, 520, dims, dtype)
    out, theirs = finish(tmp_path, grid, stored, numbers), tmp_path / "gdal.tif"
    by_gdal(theirs, grid, stored, numbers)
    with rasterio.open(out) as ours, rasterio.open(theirs) as gdal:
        assert str(ours.profile) == str(gdal.profile)  # as text, in which nodata that is NaN is like itself
        assert ours.bounds == gdal.bounds
        assert ours.crs == gdal.crs
        assert (ours.scales, ours.offsets, ours.descriptions) == (gdal.scales, gdal.offsets, gdal.descriptions)
        assert ours.tags() == {key: value for key, value in gdal.tags().items() if not key.startswith("OVR_")}
        assert ours.tags(ns="IMAGE_STRUCTURE") == {
            key: value for key, value in gdal.tags(ns="IMAGE_STRUCTURE").items() if key != "OVERVIEW_RESAMPLING"
        }
        assert ours.tags(1, ns="IMAGE_STRUCTURE") == gdal.tags(1, ns="IMAGE_STRUCTURE")
        assert (ours.overviews(1), ours.colorinterp, ours.mask_flag_enums) == (
            gdal.overviews(1),
            gdal.colorinterp,
            gdal.mask_flag_enums,
        )
        np.testing.assert_array_equal(ours.read(), gdal.read())


def by_gdal(path: Path, grid: RasterGrid, stored: Stored, numbers: Array) -> None:
    """The same map by GDAL's own writer of cloud-optimised GeoTIFF."""
    wide = numbers.astype("int8" if stored.dtype == "int8" else "float32").transpose(2, 0, 1)
    profile = {"driver": "GTiff", "width": grid.columns, "height": grid.rows, "count": stored.dims, "dtype": wide.dtype}
    place = rasterio.Affine(grid.resolution, 0.0, grid.west, 0.0, -grid.resolution, grid.north)
    plain = path.with_suffix(".plain.tif")
    with rasterio.open(plain, "w", crs="EPSG:4326", transform=place, nodata=stored.nodata, **profile) as file:
        file.update_tags(**FACTS)
        file.descriptions = [f"dim_{band:03d}" for band in range(stored.dims)]
        if stored.scale:
            file.scales, file.offsets = stored.scale, stored.offset
        file.write(wide)
    options = {"compress": "DEFLATE", "predictor": "YES", "blocksize": 256, "overview_resampling": "AVERAGE"}
    nbits = {"nbits": 16} if stored.dtype == "float16" else {}
    rasterio.shutil.copy(str(plain), str(path), driver="COG", **options, **nbits)


class Directory(NamedTuple):
    """What a directory of a TIFF says, and the bytes it and its values lie in."""

    values: dict[int, tuple[Any, ...]]
    begin: int
    end: int


LETTERS = {2: "s", 3: "H", 4: "I", 12: "d", 16: "Q"}


def directories(content: bytes) -> list[Directory]:
    """Every directory of a TIFF or BigTIFF of little-endian numbers, in the order of the chain."""
    big = content[:4] == b"II+\0"
    word, count = ("Q", "Q") if big else ("I", "H")
    room = struct.calcsize(word)
    (at,) = struct.unpack_from(f"<{word}", content, 8 if big else 4)
    found = []
    while at:
        values, end = {}, at
        (fields,) = struct.unpack_from(f"<{count}", content, at)
        entry = at + struct.calcsize(count)
        for _ in range(fields):
            tag, kind, length = struct.unpack_from(f"<HH{word}", content, entry)
            form = f"<{length}{LETTERS[kind]}"
            place = entry + 4 + room
            if struct.calcsize(form) > room:
                (place,) = struct.unpack_from(f"<{word}", content, place)
            values[tag] = struct.unpack_from(form, content, place)
            end = max(end, place + struct.calcsize(form))
            entry += 4 + 2 * room
        assert list(values) == sorted(values), "TIFF wants the fields of a directory in order"
        found.append(Directory(values, at, end))
        (at,) = struct.unpack_from(f"<{word}", content, entry)
    return found


@pytest.mark.parametrize("most", [2**32, 0])
def test_directories_come_first_and_tiles_follow_from_the_smallest_overview_each_in_its_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(raster_cog, "CLASSIC_BYTES", most)
    grid, stored, numbers = made_up(700, 1100, 2, "int8")
    content = finish(tmp_path, grid, stored, numbers).read_bytes()
    assert content[:4] == (b"II*\0" if most else b"II+\0")
    found = directories(content)
    assert [item.values[256] + item.values[257] for item in found] == [(1100, 700), (550, 350), (275, 175), (138, 88)]
    assert [item.values.get(254, (0,)) for item in found] == [(0,), (1,), (1,), (1,)]
    assert [item.begin for item in found] == sorted(item.begin for item in found)
    frames = [frame for item in reversed(found) for frame in zip(item.values[324], item.values[325], strict=True)]
    assert max(item.end for item in found) <= frames[0][0] - 4
    end = frames[0][0] - 4
    for offset, size in frames:
        assert offset == end + 4, "tiles lie one behind the other"
        assert struct.unpack_from("<I", content, offset - 4) == (size,)
        assert content[offset + size : offset + size + 4] == content[offset + size - 4 : offset + size]
        end = offset + size + 4
    assert end == len(content)
    with rasterio.open(tmp_path / "map.tif") as source:
        assert source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        np.testing.assert_array_equal(source.read().transpose(1, 2, 0), numbers)


def test_overviews_end_where_a_tile_holds_them_or_a_window_is_one_cell() -> None:
    sizes = {(256, 256): 0, (257, 10): 1, (3600, 7200): 5, (1, 65_536): 8, (180_000, 360_000): 8}
    for (rows, columns), count in sizes.items():
        grid = RasterGrid(west=0.0, north=0.0, resolution=0.001, rows=rows, columns=columns)
        assert len(overview_grids(grid)) == count


def test_means_of_a_whole_window_do_not_overflow() -> None:
    stored = Stored(dims=2, dtype="int8", scale=(1.0, 1.0), offset=(0.0, 0.0))
    levels = list(window_means(np.full((256, 256, 2), -127, np.int8), stored, 8))
    assert [means.shape for means in levels] == [(256 >> level, 256 >> level, 2) for level in range(1, 9)]
    assert all((means == -127).all() for means in levels)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_room_asked_for_is_enough_for_numbers_that_cannot_be_packed(tmp_path: Path, dtype: str) -> None:
    grid, stored, numbers = made_up(600, 900, 4, dtype)
    rng = np.random.default_rng(1)
    numbers = (rng.integers(-127, 128, numbers.shape) if dtype == "int8" else rng.random(numbers.shape)).astype(dtype)
    finish(tmp_path, grid, stored, numbers)
    taken = sum(path.stat().st_size for path in tmp_path.iterdir())
    asked = GeoTiffTarget.room * numbers.nbytes
    assert 0.75 * asked < taken < 1.01 * asked


def test_finishing_takes_no_more_memory_for_a_larger_map(tmp_path: Path) -> None:
    peaks = {}
    for rows in (512, 2048):
        grid, stored, numbers = made_up(rows, 512, 4, "int8")
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        finish(tmp_path / str(rows), grid, stored, numbers)
        peaks[rows] = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
    assert peaks[2048] < 1.1 * peaks[512]


def test_a_disk_that_fills_up_at_the_end_leaves_no_output_and_with_room_it_is_finished(tmp_path: Path) -> None:
    grid, stored, numbers = made_up(512, 512, 4, "int8")  # a megabyte not to be packed, a third more at the end
    with SmallDisk(tmp_path / "disk", 1300) as disk:
        folder = disk.path / "map.tif.part"
        with pytest.raises(OutputError, match=FULL) as caught, keeping_what_is_finished(folder):
            finish(folder, grid, stored, numbers)
        assert "finished work is kept; run the same command again to resume" in str(caught.value)
        assert not (folder / "map.tif").exists()
        disk.grow()
        again = finish(folder, grid, stored, numbers).read_bytes()
    assert again == finish(tmp_path / "roomy", grid, stored, numbers).read_bytes()


def test_a_finish_that_breaks_off_leaves_no_output_and_comes_to_the_same_bytes_the_next_time(tmp_path: Path) -> None:
    grid, stored, numbers = made_up(600, 600, 2, "int8")
    expected = finish(tmp_path / "whole", grid, stored, numbers).read_bytes()
    target, reads = GeoTiffTarget(tmp_path / "whole", grid, stored), []

    def damaged_in_the_second_round(number: int) -> Array:
        reads.append(number)
        if len(reads) == grid.num_windows + 4:
            raise DataError("window 3 is damaged")
        return windows_read(target, number)

    out = tmp_path / "again.tif"
    with pytest.raises(DataError, match="damaged"):
        target.finish(out, FACTS, damaged_in_the_second_round)
    assert (tmp_path / "whole" / WHOLE).stat().st_size > 0
    assert not out.exists()
    target.finish(out, FACTS, lambda number: windows_read(target, number))
    assert out.read_bytes() == expected
