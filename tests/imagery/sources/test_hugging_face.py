import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tessearth.errors import DataError, TableError
from tessearth.imagery.sources import hugging_face_folder
from tests.imagery.sources.fabricate import LATLON, encode

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def table(numbers: range, **changes: object) -> pa.Table:
    cells = [{"bytes": encode(np.full((9, 9, 3), 10 * n, np.uint8)), "path": f"{n}.png"} for n in numbers]
    columns: dict[str, object] = {
        "image": pa.array(cells, IMAGE),
        "Latitude": LATLON[numbers.start : numbers.stop, 0],
        "Longitude": LATLON[numbers.start : numbers.stop, 1],
        "label": list(numbers),
        **changes,
    }
    return pa.table(columns)


def write_stream(path: Path, content: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=3)


def check_20(folder: Path, **settings: object) -> None:
    source = hugging_face_folder(folder, **settings)  # type: ignore[arg-type]
    np.testing.assert_array_equal(source.places, LATLON)
    tiles = source.tiles(LATLON[::-1].copy())
    np.testing.assert_allclose(tiles[:, 1, 4, 4], 10 * np.arange(20)[::-1] / 255, rtol=1e-6)


def test_a_folder_saved_to_disk_is_read(tmp_path: Path) -> None:
    write_stream(tmp_path / "data-00000-of-00002.arrow", table(range(8)))
    write_stream(tmp_path / "data-00001-of-00002.arrow", table(range(8, 20)))
    write_stream(tmp_path / "cache-1234.arrow", table(range(3)))
    (tmp_path / "dataset_info.json").write_text("{}")
    check_20(tmp_path)


def test_a_folder_from_the_hub_is_read(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part, numbers in enumerate((range(11), range(11, 20))):
        path = tmp_path / "data" / f"train-{part:05d}-of-00002.parquet"
        pa.parquet.write_table(table(numbers), path, row_group_size=4)
    pa.parquet.write_table(table(range(2)), tmp_path / "data" / "test-00000-of-00001.parquet")
    check_20(tmp_path, split="train")
    with pytest.raises(DataError, match=r"no \.arrow or \.parquet file of split 'rain'"):
        hugging_face_folder(tmp_path, split="rain")


def test_the_arrow_file_format_is_read_too(tmp_path: Path) -> None:
    with pa.OSFile(str(tmp_path / "all.arrow"), "wb") as file, pa.ipc.new_file(file, table(range(20)).schema) as writer:
        writer.write_table(table(range(20)))
    check_20(tmp_path)


def test_bytes_without_a_struct_and_pictures_beside_the_data_are_read(tmp_path: Path) -> None:
    plain = pa.array([encode(np.full((9, 9, 3), 10 * n, np.uint8)) for n in range(20)], pa.binary())
    (tmp_path / "plain").mkdir()
    pa.parquet.write_table(table(range(20), image=plain), tmp_path / "plain" / "a.parquet")
    check_20(tmp_path / "plain")
    (tmp_path / "beside").mkdir()
    for number in range(20):
        (tmp_path / "beside" / f"{number}.png").write_bytes(encode(np.full((9, 9, 3), 10 * number, np.uint8)))
    named = pa.array([{"bytes": None, "path": f"{n}.png"} for n in range(20)], IMAGE)
    pa.parquet.write_table(table(range(20), image=named), tmp_path / "beside" / "a.parquet")
    check_20(tmp_path / "beside")


def test_a_path_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    cells = [{"bytes": None, "path": "/etc/hostname"}] * 2
    pa.parquet.write_table(table(range(2), image=pa.array(cells, IMAGE)), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"names '/etc/hostname', which is not a file inside"):
        hugging_face_folder(tmp_path).tiles(LATLON[:2])


def test_empty_and_damaged_rows_are_named(tmp_path: Path) -> None:
    cells = [
        {"bytes": b"torn", "path": "0.png"},
        {"bytes": None, "path": None},
        *table(range(2, 4))["image"].to_pylist(),
    ]
    pa.parquet.write_table(table(range(4), image=pa.array(cells, IMAGE)), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"2 broken patches: row 0 of a\.parquet .*row 1 of a\.parquet"):
        hugging_face_folder(tmp_path).tiles(LATLON[:4])
    source = hugging_face_folder(tmp_path, check="read", broken="skip")
    assert len(source.broken) == 2
    np.testing.assert_array_equal(source.places, LATLON[2:4])


def test_a_dataset_that_needs_its_own_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loader.py").write_text("raise SystemExit('this must never run')")
    with pytest.raises(DataError, match="needs its own code to be read, which is never run"):
        hugging_face_folder(tmp_path)


def test_a_missing_or_ambiguous_image_column_is_named(tmp_path: Path) -> None:
    content = table(range(3))
    pa.parquet.write_table(content.append_column("mask", content["image"]), tmp_path / "a.parquet")
    with pytest.raises(TableError, match="columns of encoded pictures: image, mask"):
        hugging_face_folder(tmp_path)
    assert hugging_face_folder(tmp_path, image_column="mask").tiles(LATLON[:3]).shape == (3, 3, 9, 9)
    with pytest.raises(TableError, match="no image column label"):
        hugging_face_folder(tmp_path, image_column="label")


def test_missing_coordinates_and_damaged_files_are_named(tmp_path: Path) -> None:
    pa.parquet.write_table(table(range(3)).drop_columns(["Latitude"]), tmp_path / "a.parquet")
    with pytest.raises(TableError, match=r"a\.parquet: no column of image, Longitude, label reads as lat"):
        hugging_face_folder(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(DataError, match=r"cannot read .*a\.parquet"):
        hugging_face_folder(tmp_path)
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "b.arrow").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"cannot read .*b\.arrow"):
        hugging_face_folder(tmp_path)


def test_it_travels_to_other_processes(tmp_path: Path) -> None:
    write_stream(tmp_path / "data.arrow", table(range(20)))
    source = hugging_face_folder(tmp_path)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).tiles(LATLON), source.tiles(LATLON))
