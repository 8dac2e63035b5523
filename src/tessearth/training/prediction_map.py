"""`predict_map`: what a fine-tuned model says at every cell of a box, as a GeoTIFF that any GIS opens.

Numbers: band 1 is the prediction, bands 2 and 3 the bounds of its interval. Classes: band 1 is the code, whose name is
in the band's metadata and, for QGIS and GDAL, in a file .aux.xml next to the map; band 2 is the probability.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError, OutputError, first_line
from tessearth.packages import require
from tessearth.sphere import WINDOW_SIDE, RasterGrid, build_grid, find_area
from tessearth.storage import (
    ArrayFile,
    Job,
    Place,
    check_free,
    checksum,
    keeping_what_is_finished,
    open_job,
    write_bytes,
)
from tessearth.training.finetuned import COVERAGE, HIGH, LOW, PREDICTION, PROBABILITY, FineTuned
from tessearth.version import __version__

FINISHED = "finished windows are kept; the same command goes on"
MAP_SUFFIXES = (".tif", ".tiff")
Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]
"""Called with the number of windows done and of all windows."""


class Drawn(NamedTuple):
    """A finished map."""

    rows: int
    columns: int
    bands: tuple[str, ...]


def predict_map(
    tuned: FineTuned,
    out: str | Path,
    resolution: float,
    *,
    bbox: Sequence[float] | None = None,
    region: str | None = None,
    land: bool = False,
    coverage: float = COVERAGE,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> Drawn:
    """Write a map of predictions in cells of `resolution` degrees.

    It covers `bbox` (west, south, east, north), a `region` by name, or the world. Cells outside the region's outline
    hold no value, which is NaN in every band; nor do, with `land`, cells off land (or south of 60 S). Unfinished work
    lies in a folder `out`.part; the same call resumes it and gives the same bytes.
    """
    path = Path(out)
    if path.suffix.lower() not in MAP_SUFFIXES:
        raise ConfigError(f"{out} is no map: name a file that ends in {' or '.join(MAP_SUFFIXES)}")
    rasterio = require("rasterio", extra="geo", what="a map of predictions")
    check_free(path, overwrite=overwrite)
    box, within = find_area(bbox, region)
    grid = build_grid(box, resolution, land=land, region=within)
    half = tuned.half_width_or_none(coverage)
    names = _band_names(tuned, half)
    if not path.absolute().parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}")
    folder = path.with_name(f"{path.name}.part")
    with open_job(folder, busy=OutputError(f"another process is making {path}; wait for it")) as job:
        job.begin(_plan(tuned, grid, half))
        job.chunks = _windows_file(folder / "windows.f4", grid, len(names))
        for number in job.missing(grid.num_windows):
            job.put(number, _window(tuned, grid, number, half))
            progress(len(job.entries), grid.num_windows)
        about = coverage if half is not None else None
        with _appearing(path, folder) as temporary, _errors_named(rasterio, path):
            with rasterio.open(temporary, "w", **_profile(rasterio, grid, len(names))) as file:
                _describe(file, tuned, names, about)
                _write_windows(file, grid, job)
            _add_overviews(rasterio, temporary, grid, nearest=bool(tuned.classes))
        _write_names(path, tuned.classes)
        job.remove()
    return Drawn(grid.rows, grid.columns, names)


def _write_windows(file: Any, grid: RasterGrid, job: Job) -> None:
    for number in range(grid.num_windows):
        rows, columns = grid.window_slices(number)
        bands = job.get(number).reshape(-1, rows.stop - rows.start, columns.stop - columns.start)
        file.write(bands, window=((rows.start, rows.stop), (columns.start, columns.stop)))


def _add_overviews(rasterio: Any, path: str, grid: RasterGrid, *, nearest: bool) -> None:
    """Coarser copies of the map inside of it, for viewers that are far away."""
    factors = [2**i for i in range(1, 9) if max(grid.rows, grid.columns) > WINDOW_SIDE * 2 ** (i - 1)]
    with rasterio.open(path, "r+") as file:
        kinds = rasterio.enums.Resampling
        file.build_overviews(factors, kinds.nearest if nearest else kinds.average)


def _plan(tuned: FineTuned, grid: RasterGrid, half: float | None) -> dict[str, Any]:
    """Everything that decides the numbers."""
    tensors = [*tuned.encoder.state_dict().values(), *tuned.head.state_dict().values()]
    content = b"".join(tensor.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors)
    region = grid.region.name if grid.region else None
    sides = [grid.west, grid.north, grid.rows, grid.columns, grid.resolution]
    return {"model": checksum(content), "half": half, "grid": sides, "land": grid.land, "region": region}


def _windows_file(path: Path, grid: RasterGrid, bands: int) -> ArrayFile:
    """Where the bands of every window lie until all are there."""
    slices = [grid.window_slices(number) for number in range(grid.num_windows)]
    cells = [(rows.stop - rows.start) * (columns.stop - columns.start) for rows, columns in slices]
    starts = 4 * bands * np.cumsum([0, *cells])
    with keeping_what_is_finished(path.parent), open(path, "ab") as file:
        file.truncate(int(starts[-1]))
    return ArrayFile(path, "<f4", lambda number: Place(int(starts[number]), (bands, cells[number])))


def _band_names(tuned: FineTuned, half: float | None) -> tuple[str, ...]:
    if tuned.kind == "classify":
        return (PREDICTION, PROBABILITY)
    return (PREDICTION,) if half is None else (PREDICTION, LOW, HIGH)


def _window(tuned: FineTuned, grid: RasterGrid, number: int, half: float | None) -> Floats:
    """The bands of one window, (bands, cells)."""
    places = grid.window(number)
    bands = np.full((len(_band_names(tuned, half)), len(places.wanted)), np.nan, dtype=np.float32)
    if places.wanted.any():
        values = tuned.values(places.latlon[places.wanted])
        if tuned.kind == "classify":
            bands[:, places.wanted] = values.argmax(-1), values.max(-1)
        else:
            bands[:, places.wanted] = values if half is None else (values, values - half, values + half)
    return bands


def _profile(rasterio: Any, grid: RasterGrid, bands: int) -> dict[str, Any]:
    return {
        "driver": "GTiff",
        "width": grid.columns,
        "height": grid.rows,
        "count": bands,
        "dtype": "float32",
        "nodata": np.nan,
        "crs": "EPSG:4326",
        "transform": rasterio.Affine(grid.resolution, 0, grid.west, 0, -grid.resolution, grid.north),
        "tiled": True,
        "blockxsize": WINDOW_SIDE,
        "blockysize": WINDOW_SIDE,
        "compress": "deflate",
        "predictor": 3,
        "bigtiff": "if_safer",
    }


def _describe(file: Any, tuned: FineTuned, names: Sequence[str], coverage: float | None) -> None:
    """The name of every band, the names of classes, and where the numbers come from."""
    facts = {"source": f"tessearth {__version__}", "metric": tuned.about["metric"], "score": tuned.about["finetuned"]}
    file.update_tags(**facts, **({} if coverage is None else {"coverage": coverage}))
    for band, name in enumerate(names, 1):
        file.set_band_description(band, name)
    if tuned.classes:
        file.update_tags(1, **{f"class_{code}": name for code, name in enumerate(tuned.classes)})


def _write_names(path: Path, classes: Sequence[str]) -> None:
    """The names of classes where GDAL and QGIS look for them; a map of numbers has no such file."""
    beside = path.with_name(f"{path.name}.aux.xml")
    if not classes:
        beside.unlink(missing_ok=True)
        return
    names = "".join(f"<Category>{escape(name)}</Category>" for name in classes)
    band = f'<PAMRasterBand band="1"><CategoryNames>{names}</CategoryNames></PAMRasterBand>'
    write_bytes(beside, f"<PAMDataset>{band}</PAMDataset>\n".encode())


@contextlib.contextmanager
def _appearing(path: Path, folder: Path) -> Iterator[str]:
    """The name of a temporary file in a folder, which gets its own name only when the block ends well."""
    temporary = os.path.join(folder, path.name)
    yield temporary
    os.replace(temporary, path)


@contextlib.contextmanager
def _errors_named(rasterio: Any, path: Path) -> Iterator[None]:
    """Errors of the raster library as one line."""
    try:
        yield
    except (rasterio.errors.RasterioError, OSError) as error:
        raise OutputError(f"cannot write {path}: {first_line(error)}; {FINISHED}") from error
