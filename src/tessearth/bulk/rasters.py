"""Maps of embeddings: cloud-optimised GeoTIFF, Zarr with CF coordinates, H3 cells as Parquet; resumable, any size."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tessearth.bulk.geotiff import GeoTiffTarget
from tessearth.bulk.h3_cells import H3Cells, build_h3_cells, count_h3_cells
from tessearth.bulk.raster_cluster import WindowWork, absolute_name, cluster_windows
from tessearth.bulk.raster_job import Journal, Progress, begin, check_room, fill, part_folder
from tessearth.bulk.raster_parquet import ParquetTarget
from tessearth.bulk.raster_values import Stored, StoredType, check_stored_type, compute_window, fit_stored
from tessearth.bulk.zarr import ZarrTarget
from tessearth.embedding.embedder import Embedder, Precision
from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.sphere.grids import GLOBE, Box, Layout, RasterGrid, build_grid, check_box
from tessearth.storage.files import keeping_what_is_finished, locked_folder
from tessearth.version import __version__

FORMS: dict[str, Any] = {".tif": GeoTiffTarget, ".tiff": GeoTiffTarget, ".zarr": ZarrTarget, ".parquet": ParquetTarget}
DEFAULT_DIMS = 64
FORMAT_VERSION = 1


class Written(NamedTuple):
    """What was made."""

    path: Path
    shape: tuple[int, ...]
    """(dims, rows, columns) of a raster; (dims, about how many cells) of an H3 table."""
    stored: Stored
    largest_error: float
    """The largest difference between an embedding and what is read back, over every value written."""
    clipped: int
    """Values outside the range that was chosen from a sample; the largest error counts them."""
    bytes: int


def write_raster(
    model: str | os.PathLike[str] | Embedder,
    out: str | os.PathLike[str],
    *,
    bbox: Sequence[float] = GLOBE,
    resolution: float | None = None,
    h3: int | None = None,
    dims: int | None = None,
    dtype: StoredType = "int8",
    land: bool = False,
    cluster: str | None = None,
    device: str | None = None,
    precision: Precision = "float32",
    progress: Progress = lambda done, total: None,
) -> Written:
    """Embed the centre of every cell of a box and write the first `dims` dimensions (64, or all of a narrower model).

    `out` ends in .tif or .zarr for a grid of `resolution` degrees, or in .parquet for the H3 cells of resolution `h3`.
    `bbox` is west, south, east, north; west of a larger number than east crosses the antimeridian. With `land`, cells
    off land (or south of 60 S) hold nodata, or are left out of a table. int8 is read as number * scale + offset.

    Unfinished work lies in a folder `out`.part; the same call goes on with it and gives the same bytes. On a `cluster`
    (a Dask scheduler's address, or "local") the workers must find the model under the same name.
    """
    out = Path(out)
    form = _check_form(out, resolution, h3)
    check_stored_type(dtype)
    box = check_box(bbox)
    form.check_installed()
    num_cells = _count_cells(box, resolution, h3)
    if cluster is not None and isinstance(model, Embedder):
        raise ConfigError("on a cluster the model must have a name or a path, which every worker can load")
    embedder = model if isinstance(model, Embedder) else Embedder(model, device=device, precision=precision)
    width = _check_dims(dims, embedder)
    _check_place(out)
    cells = f"{num_cells:,} cells x {width} dims of {dtype}"
    check_room(out.parent.resolve(), int(num_cells * width * form.bytes_per_value(dtype)), cells)
    layout = _layout(box, resolution, h3, land)
    folder = part_folder(out)
    with locked_folder(folder, busy=DataError(f"another process is making {out}; wait for it, or name another --out")):
        plan = _plan(form, layout, box, resolution, h3, land, width, dtype, embedder)
        stored = _stored(folder, plan, embedder, layout, form.one_scale)
        target = form(folder, layout, stored)
        with keeping_what_is_finished(folder):
            target.prepare()
        journal = Journal(folder)
        compute = _plain(embedder, layout, stored)
        if cluster is not None:
            compute = _clustered(cluster, str(model), device, embedder, layout, stored)
        fill(target, journal, layout.num_windows, compute, progress)
        with keeping_what_is_finished(folder):
            told = {**_facts(plan, embedder), **journal.facts()}
            target.finish(out, told, lambda number: journal.read_intact(target, number))
        shutil.rmtree(folder, ignore_errors=True)
    facts = journal.facts()
    shape = (layout.rows, layout.columns) if isinstance(layout, RasterGrid) else (layout.num_cells,)
    return Written(out, (width, *shape), stored, facts["largest_error"], facts["clipped_values"], _size(out))


def _check_form(out: Path, resolution: float | None, h3: int | None) -> Any:
    """The format a suffix names, after checking that cells of its kind were asked for."""
    suffix = out.suffix.lower()
    if suffix not in FORMS:
        raise ConfigError(f"the suffix of {out} names no raster; use one of {', '.join(FORMS)}")
    table = FORMS[suffix] is ParquetTarget
    if table and (h3 is None or resolution is not None):
        raise ConfigError(f"{out} is a table of H3 cells: give --h3 RESOLUTION (0 to 15) and no --resolution")
    if not table and (resolution is None or h3 is not None):
        raise ConfigError(f"{out} is a grid: give --resolution DEGREES and no --h3 (H3 cells go to .parquet)")
    return FORMS[suffix]


def _count_cells(box: Box, resolution: float | None, h3: int | None) -> int:
    """How many cells there will be, known before any of them is listed."""
    if h3 is not None:
        return count_h3_cells(box, h3)
    assert resolution is not None
    return build_grid(box, resolution).num_cells


def _layout(box: Box, resolution: float | None, h3: int | None, land: bool) -> RasterGrid | H3Cells:
    if h3 is not None:
        return build_h3_cells(box, h3, land=land)
    assert resolution is not None
    return build_grid(box, resolution, land=land)


def _check_dims(dims: int | None, embedder: Embedder) -> int:
    if dims is None:
        return min(DEFAULT_DIMS, embedder.dim)
    if not 1 <= dims <= embedder.dim:
        raise ConfigError(f"dims is {dims}; {embedder.name} has 1 to {embedder.dim}")
    return dims


def _check_place(out: Path) -> None:
    """A folder to write in, and nothing under the name that is not a raster of the same form."""
    if not out.parent.resolve().is_dir():
        raise OutputError(f"cannot write {out}: there is no folder {out.parent}")
    is_store = out.is_dir() and (out / "zarr.json").is_file()
    if out.is_dir() and not (is_store and out.suffix.lower() == ".zarr"):
        raise OutputError(f"{out} is a folder and no Zarr store; name another --out, or remove it first")
    if out.is_file() and out.suffix.lower() == ".zarr":
        raise OutputError(f"{out} is a file, where a Zarr store is a folder; name another --out, or remove it first")


def _plan(
    form: Any,
    layout: Layout,
    box: Box,
    resolution: float | None,
    h3: int | None,
    land: bool,
    dims: int,
    dtype: str,
    embedder: Embedder,
) -> dict[str, Any]:
    """Everything that decides the numbers, as plain values to compare with those of an interrupted run."""
    return {
        "format_version": FORMAT_VERSION,
        "tessearth": __version__,
        "form": form.__name__,
        "bbox": list(box),
        "resolution": resolution,
        "h3": h3,
        "land": land,
        "dims": dims,
        "dtype": dtype,
        "model": embedder.fingerprint(),
        "windows": layout.num_windows,
    }


def _stored(folder: Path, plan: dict[str, Any], embedder: Embedder, layout: Layout, one_scale: bool) -> Stored:
    """How numbers are stored: chosen when the work begins, kept when it goes on."""

    def fit() -> dict[str, Any]:
        fitted = fit_stored(embedder, layout, plan["dims"], plan["dtype"], one_scale=one_scale)
        return {"scale": fitted.scale, "offset": fitted.offset}

    fitted = begin(folder, plan, fit)
    return Stored(dims=plan["dims"], dtype=plan["dtype"], scale=tuple(fitted["scale"]), offset=tuple(fitted["offset"]))


def _plain(embedder: Embedder, layout: Layout, stored: Stored) -> Callable[[list[int]], Iterator[tuple[int, Any]]]:
    return lambda numbers: ((number, compute_window(embedder, layout, stored, number)) for number in numbers)


def _clustered(
    address: str, model: str, device: str | None, embedder: Embedder, layout: Layout, stored: Stored
) -> Callable[[list[int]], Iterator[tuple[int, Any]]]:
    work = WindowWork(
        model=absolute_name(model),
        fingerprint=embedder.fingerprint(),
        device=device,
        precision=embedder.precision,
        threads=torch.get_num_threads(),
        layout=layout,
        stored=stored,
    )
    return lambda numbers: cluster_windows(address, work, numbers)


def _facts(plan: dict[str, Any], embedder: Embedder) -> dict[str, Any]:
    """What the output says of itself beside its coordinates."""
    return {
        "title": "location embeddings",
        "source": f"tessearth {__version__}, model {Path(embedder.name).name}",
        "model_fingerprint": plan["model"],
        "embedding_width": embedder.dim,
        "stored_dims": f"the first {plan['dims']}",
        "stored_type": plan["dtype"],
        "land_only": str(plan["land"]).lower(),
    }


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
