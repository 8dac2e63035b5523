import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tessearth.errors import ConfigError, DataError, TableError
from tessearth.imagery.source import Source
from tessearth.imagery.sources import image_folder, sentinel2_patches
from tessearth.imagery.sources.patch_folders import ALL_BANDS, FILE_BANDS
from tests.imagery.sources.fabricate import LATLON, encode, sentinel2_bytes, write_s2_folder, write_s2_shards

pytest.importorskip("rasterio")

FEW = LATLON[:5]


@pytest.fixture
def s2(tmp_path: Path) -> Path:
    return write_s2_folder(tmp_path / "s2", FEW)


def write_images(folder: Path, latlon: np.ndarray, pixels: list[np.ndarray]) -> Path:  # type: ignore[type-arg]
    folder.mkdir(exist_ok=True)
    lines = ["file,lat,lon"]
    for number, ((lat, lon), picture) in enumerate(zip(latlon, pixels, strict=True)):
        (folder / f"{number}.png").write_bytes(encode(picture))
        lines.append(f"{number}.png,{lat},{lon}")
    (folder / "places.csv").write_text("\n".join(lines))
    return folder


def test_reflectance_comes_in_13_bands_with_an_empty_b10(s2: Path) -> None:
    source = sentinel2_patches(s2)
    assert isinstance(source, Source)
    assert source.bands == ALL_BANDS
    assert source.bands[10] == "B10"
    tiles = source.tiles(FEW)
    assert tiles.shape == (5, 13, 64, 64)
    assert np.isfinite(tiles).all()
    expected = (1000 * np.arange(1, 13) + 2) / 10_000  # of patch 2, whose ramp starts at 0
    np.testing.assert_allclose(np.delete(tiles[2, :, 0, 0], 10), expected, rtol=1e-6)
    assert not tiles[:, 10].any()


def test_bands_can_be_chosen_in_any_order(s2: Path) -> None:
    tiles = sentinel2_patches(s2, bands=("B04", "B03", "B02")).tiles(FEW)
    np.testing.assert_array_equal(tiles, sentinel2_patches(s2).tiles(FEW)[:, [3, 2, 1]])
    assert sentinel2_patches(s2, bands=FILE_BANDS).tiles(FEW).shape[1] == 12
    with pytest.raises(ConfigError, match="no band 'B99'"):
        sentinel2_patches(s2, bands=("B99",))


def test_the_offset_switch_takes_1000_off_and_stops_at_zero(s2: Path) -> None:
    plain, shifted = (sentinel2_patches(s2, offset=offset).tiles(FEW) for offset in (False, True))
    present = np.delete(np.arange(13), 10)
    np.testing.assert_allclose(shifted[:, present], np.maximum(plain[:, present] - 0.1, 0), atol=1e-6)
    assert shifted.min() == 0
    assert not shifted[:, 10].any()


def test_patches_are_cropped_to_their_middle(s2: Path) -> None:
    whole, middle = sentinel2_patches(s2).tiles(FEW), sentinel2_patches(s2, size=20).tiles(FEW)
    np.testing.assert_array_equal(middle, whole[:, :, 22:42, 22:42])
    with pytest.raises(DataError, match=r"patch_0\.tif is 64 x 64 pixels, smaller than the size 99"):
        sentinel2_patches(s2, size=99).tiles(FEW)


@pytest.mark.parametrize("numbered", [False, True])
def test_shards_read_as_the_folder_does(tmp_path: Path, s2: Path, numbered: bool) -> None:
    shards = sentinel2_patches(write_s2_shards(tmp_path / "shards", FEW, per_shard=2, numbered=numbered))
    np.testing.assert_array_equal(shards.tiles(FEW[::-1].copy()), sentinel2_patches(s2).tiles(FEW[::-1].copy()))
    np.testing.assert_array_equal(shards.places, FEW)
    assert len(shards.describe()["files"]) == 4


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_s2_shards(tmp_path / "shards", FEW, per_shard=2)
    (folder / "shard_00001.tar").unlink()
    with pytest.raises(DataError, match=r"shard shard_00001\.tar is missing from .*shards"):
        sentinel2_patches(folder)


def test_a_shard_that_is_no_tar_is_named(tmp_path: Path) -> None:
    folder = write_s2_shards(tmp_path / "shards", FEW, per_shard=2)
    (folder / "shard_00001.tar").write_bytes(b"no tar" * 1000)
    with pytest.raises(DataError, match=r"cannot read .*shard_00001\.tar as an uncompressed tar"):
        sentinel2_patches(folder)


def test_a_link_inside_a_shard_is_never_followed(tmp_path: Path) -> None:
    folder = write_s2_shards(tmp_path / "shards", FEW[:2], per_shard=1)
    with tarfile.open(folder / "shard_00001.tar", "w") as archive:
        link = tarfile.TarInfo("images/patch_1.tif")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    with pytest.raises(DataError, match=r"1 broken patch: patch_1\.tif \(missing\)"):
        sentinel2_patches(folder)


def test_broken_downloads_are_all_named_or_left_out(s2: Path) -> None:
    (s2 / "images" / "patch_1.tif").write_bytes(b"short")
    (s2 / "images" / "patch_3.tif").unlink()
    with pytest.raises(DataError, match=r"2 broken patches: patch_1\.tif \(only 5 bytes\), patch_3\.tif \(missing\)"):
        sentinel2_patches(s2)
    source = sentinel2_patches(s2, broken="skip")
    assert [patch.name for patch in source.broken] == ["patch_1.tif", "patch_3.tif"]
    np.testing.assert_array_equal(source.places, FEW[[0, 2, 4]])
    assert len(source.tiles(source.places)) == 3
    with pytest.raises(DataError, match=r"no patch of sentinel2-patches lies at lat 35\.6762, lon 139\.6503"):
        source.tiles(FEW)


def test_unreadable_files_of_good_size_are_found_by_reading(s2: Path) -> None:
    for number in (0, 4):
        (s2 / "images" / f"patch_{number}.tif").write_bytes(bytes(20_000))
    with pytest.raises(DataError, match=r"2 broken patches: patch_0\.tif .*patch_4\.tif"):
        sentinel2_patches(s2).tiles(FEW)
    with pytest.raises(DataError, match=r"2 broken patches: patch_0\.tif .*patch_4\.tif"):
        sentinel2_patches(s2, check="read")
    source = sentinel2_patches(s2, check="read", broken="skip")
    assert [patch.name for patch in source.broken] == ["patch_0.tif", "patch_4.tif"]
    assert np.isfinite(source.tiles(source.places)).all()


def test_a_wrong_band_count_is_named(tmp_path: Path) -> None:
    contents = [sentinel2_bytes(0), sentinel2_bytes(1, bands=13)]
    folder = write_s2_folder(tmp_path / "s2", FEW[:2], contents)
    with pytest.raises(DataError, match=r"patch_1\.tif has 13 bands, not the 12 of S2-100K"):
        sentinel2_patches(folder).tiles(FEW[:2])


def test_two_files_for_one_place_are_both_named(tmp_path: Path) -> None:
    places = np.concatenate((FEW, FEW[1:2]))
    with pytest.raises(
        DataError, match=r"patch_1\.tif and patch_5\.tif both claim the place lat 35\.6762, lon 139\.6503"
    ):
        sentinel2_patches(write_s2_folder(tmp_path / "s2", places))


def test_a_place_is_found_to_a_millionth_of_a_degree_and_no_further(s2: Path) -> None:
    source = sentinel2_patches(s2)
    np.testing.assert_array_equal(source.find(FEW + 4e-7), np.arange(5))
    np.testing.assert_array_equal(source.find(FEW + [0, 360] * (FEW[:, 1:] < 0)), np.arange(5))
    with pytest.raises(DataError, match="no patch"):
        source.find(FEW + 1e-5)


def test_a_place_asked_for_twice_is_read_twice(s2: Path) -> None:
    tiles = sentinel2_patches(s2).tiles(FEW[[3, 0, 3]])
    np.testing.assert_array_equal(tiles[0], tiles[2])
    assert (tiles[0] != tiles[1]).any()


def test_no_places_give_no_tiles(s2: Path) -> None:
    assert sentinel2_patches(s2).tiles(np.empty((0, 2))).shape[0] == 0


def test_a_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither index\.csv nor metadata\.parquet"):
        sentinel2_patches(tmp_path)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("fn,lon\npatch_0.tif,1\n", TableError, r"index\.csv: there is no column 'lat'"),
        ("fn,lon,lat\npatch_0.tif,2,north\n", TableError, "row 1: column 'lat' holds 'north', not a number"),
        ("fn,lon,lat\npatch_0.tif,2,99\n", TableError, r"index\.csv: row 1 is .99, 2.: not"),
        ("fn,lon,lat\npatch_0.tif,2,\n", TableError, "row 1: column 'lat' is empty"),
        ("fn,lon,lat\n../../secret.tif,20,10\n", DataError, "row 0 of .*index.csv names '../../secret.tif'"),
    ],
)
def test_an_index_that_cannot_be_is_refused(s2: Path, text: str, error: type[Exception], message: str) -> None:
    (s2 / "index.csv").write_text(text)
    with pytest.raises(error, match=message):
        sentinel2_patches(s2)


def test_it_travels_to_other_processes(s2: Path) -> None:
    source = sentinel2_patches(s2, size=8)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).tiles(FEW), source.tiles(FEW))


def test_its_record_says_how_it_was_read(s2: Path) -> None:
    record = sentinel2_patches(s2, offset=True, size=32).describe()
    assert (record["kind"], record["patches"], record["offset"], record["size"]) == ("sentinel2-patches", 5, True, 32)
    assert record["files"][0]["name"] == "index.csv"


def test_pictures_with_a_parquet_table_and_columns_of_any_name(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images", FEW, [np.full((9, 9, 3), 50 * n, np.uint8) for n in range(5)])
    table = {"what": [f"{number}.png" for number in range(5)], "north": FEW[:, 0], "east": FEW[:, 1]}
    pa.parquet.write_table(pa.table(table), tmp_path / "table.parquet")
    columns = {"file_column": "what", "lat_column": "north", "lon_column": "east"}
    tiles = image_folder(folder, tmp_path / "table.parquet", **columns).tiles(FEW)  # type: ignore[arg-type]
    np.testing.assert_allclose(tiles[:, 0, 0, 0], 50 * np.arange(5) / 255, rtol=1e-6)
    with pytest.raises(
        TableError, match=r"table\.parquet: no column of what, north, east reads as lat: name the lat column"
    ):
        image_folder(folder, tmp_path / "table.parquet")


def test_gray_pictures_among_colours_are_read_as_colours(tmp_path: Path) -> None:
    pictures = [np.full((9, 9, 3), 7, np.uint8), np.full((9, 9), 9, np.uint8)]
    folder = write_images(tmp_path / "images", FEW[:2], pictures)
    tiles = image_folder(folder, "places.csv").tiles(FEW[:2])
    np.testing.assert_allclose(tiles[1] * 255, 9, rtol=1e-6)
    assert image_folder(folder, "places.csv", bands=("gray",)).tiles(FEW[:2]).shape == (2, 1, 9, 9)


def test_pictures_of_several_sizes_need_one(tmp_path: Path) -> None:
    pictures = [np.zeros((9, 9, 3), np.uint8), np.zeros((9, 12, 3), np.uint8)]
    folder = write_images(tmp_path / "images", FEW[:2], pictures)
    with pytest.raises(DataError, match=r"1\.png is 12 x 9 pixels, others 9 x 9; give a size"):
        image_folder(folder, "places.csv").tiles(FEW[:2])
    assert image_folder(folder, "places.csv", size=8).tiles(FEW[:2]).shape == (2, 3, 8, 8)
