"""`predict_map`: what a fine-tuned model says at every cell of a box, as a GeoTIFF that any GIS opens.

Numbers: band 1 is the prediction, bands 2 and 3 the bounds of its interval. Classes: band 1 is the code, whose name is
in the band's metadata and, for QGIS and GDAL, in a file .aux.xml next to the map; band 2 is the probability.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, OutputError, first_line
from tessearth.packages import require
from tessearth.sphere import GLOBE, WINDOW_SIDE, RasterGrid, build_grid, check_box, find_region
from tessearth.storage import check_free, write_bytes
from tessearth.training.finetuned import COVERAGE, HIGH, LOW, PREDICTION, PROBABILITY, FineTuned
from tessearth.version import __version__

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
    hold no value, which is NaN in every band; nor do, with `land`, cells off land (or south of 60 S).
    """
    path = Path(out)
    if path.suffix.lower() not in MAP_SUFFIXES:
        raise ConfigError(f"{out} is no map: name a file that ends in {' or '.join(MAP_SUFFIXES)}")
    rasterio = require("rasterio", extra="geo", what="a map of predictions")
    check_free(path, overwrite=overwrite)
    grid = _lay_out(bbox, region, resolution, land)
    half = tuned.half_width_or_none(coverage)
    names = _band_names(tuned, half)
    with _appearing(path) as temporary, _errors_named(rasterio, path):
        with rasterio.open(temporary, "w", **_profile(rasterio, grid, len(names))) as file:
            _describe(file, tuned, names, coverage if half is not None else None)
            for number in range(grid.num_windows):
                rows, columns = grid.window_slices(number)
                shape = (len(names), rows.stop - rows.start, columns.stop - columns.start)
                file.write(_window(tuned, grid, number, half).reshape(shape), window=(_span(rows), _span(columns)))
                progress(number + 1, grid.num_windows)
        factors = [2**i for i in range(1, 9) if max(grid.rows, grid.columns) > WINDOW_SIDE * 2 ** (i - 1)]
        with rasterio.open(temporary, "r+") as file:
            kinds = rasterio.enums.Resampling
            file.build_overviews(factors, kinds.nearest if tuned.classes else kinds.average)
    _write_names(path, tuned.classes)
    return Drawn(grid.rows, grid.columns, names)


def _lay_out(bbox: Sequence[float] | None, region: str | None, resolution: float, land: bool) -> RasterGrid:
    """The cells of a box, of a region, or of the world."""
    if bbox is not None and region is not None:
        raise ConfigError("bbox and region both say where: give one of them")
    if region is None or region == "world":
        return build_grid(GLOBE if bbox is None else check_box(bbox), resolution, land=land)
    found = find_region(region)
    return build_grid(found.box, resolution, land=land, region=found)


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


def _span(cells: slice) -> tuple[int, int]:
    return cells.start, cells.stop


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[str]:
    """The name of a temporary file in the same folder, which gets its own name only when the block ends well."""
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}")
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        temporary = os.path.join(folder, path.name)
        yield temporary
        os.replace(temporary, path)


@contextlib.contextmanager
def _errors_named(rasterio: Any, path: Path) -> Iterator[None]:
    """Errors of the raster library as one line."""
    try:
        yield
    except (rasterio.errors.RasterioError, OSError) as error:
        raise OutputError(f"cannot write {path}: {first_line(error)}; no partial file was left") from error
