"""Maps of embeddings: cloud-optimised GeoTIFF, Zarr with CF coordinates, H3 cells as Parquet; resumable, any size."""

import functools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tessearth.bulk.geotiff import GeoTiffTarget
from tessearth.bulk.h3_cells import H3Cells, ParquetTarget
from tessearth.bulk.stored import Stored, StoredType, StoredWindow, check_stored_type, compute_window, fit_stored
from tessearth.bulk.zarr import ZarrTarget
from tessearth.embedding import Embedder, Precision
from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.packages import require
from tessearth.sphere import Layout, RasterGrid, build_grid, find_area
from tessearth.storage import (
    Job,
    Pool,
    check_free,
    checksum,
    keeping_what_is_finished,
    open_job,
    open_pool,
    usual_workers,
)
from tessearth.version import __version__

FORMS: dict[str, Any] = {".tif": GeoTiffTarget, ".tiff": GeoTiffTarget, ".zarr": ZarrTarget, ".parquet": ParquetTarget}
"""Formats by suffix. After `prepare` has made room in a job's folder, each takes windows (n, dims) as chunks of the
job, in any order; `finish` then makes the output appear under its name, with the facts as its metadata. `needs` are the
libraries it is written with, `types` those of its numbers (the first by default), and `room` is how many times the size
of its values the work takes on disk."""
DEFAULT_DIMS = 64
FORMAT_VERSION = 2
"""Of unfinished work: 2 seals every line of its journal."""

Progress = Callable[[int, int], None]
"""Called with the number of windows done and of all windows."""


class Written(NamedTuple):
    """A finished raster."""

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
    bbox: Sequence[float] | None = None,
    region: str | None = None,
    resolution: float | None = None,
    h3: int | None = None,
    dims: int | None = None,
    dtype: StoredType | None = None,
    land: bool = False,
    cluster: str | None = None,
    device: str | None = None,
    precision: Precision = "float32",
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> Written:
    """Embed the centre of every cell of a box and write the first `dims` dimensions at unit length.

    `dims` is 64 by default, or all of a narrower model.

    `out` ends in .tif or .zarr for a grid of `resolution` degrees, or in .parquet for the H3 cells of resolution `h3`.
    `bbox` is west, south, east, north; west of a larger number than east crosses the antimeridian. A `region` (a
    country by name or ISO code, a continent; see `sphere.find_region`) is the box around its outline. Cells outside it,
    and with `land` those off land (or south of 60 S), hold nodata, or are left out of a table.

    `dtype` is int8 for grids, read as number * scale + offset (`read_raster` does it), and float16 for tables, which
    hold no codes. A finished map is replaced only with `overwrite`. Unfinished work lies in a folder `out`.part; the
    same call resumes it and gives the same bytes. On a `cluster`
    (a Dask scheduler's address, or "local") the workers must find the model under the same name.
    """
    out = Path(out)
    form = _choose_form(out, resolution, h3)
    dtype = check_stored_type(dtype, form.types)
    box, within = find_area(bbox, region)
    layout: RasterGrid | H3Cells
    if h3 is not None:
        layout = H3Cells(bbox=box, resolution=h3, land=land, region=within)
    else:
        assert resolution is not None
        layout = build_grid(box, resolution, land=land, region=within)
    if cluster is not None and isinstance(model, Embedder):
        raise ConfigError("on a cluster the model must have a name or a path, which every worker can load")
    embedder = model if isinstance(model, Embedder) else Embedder(model, device=device, precision=precision)
    width = min(DEFAULT_DIMS, embedder.dim) if dims is None else dims
    if not 1 <= width <= embedder.dim:
        raise ConfigError(f"dims is {dims}; {embedder.name} has 1 to {embedder.dim}")
    _check_place(out, overwrite)
    room = int(layout.num_cells * width * (np.dtype(dtype).itemsize * form.room))
    check_room(out.parent.resolve(), room, f"{layout.num_cells:,} cells x {width} dims of {dtype}")
    plan = {
        "format_version": FORMAT_VERSION,
        "tessearth": __version__,
        "form": form.__name__,
        "bbox": list(box),
        "region": within.name if within else None,
        "resolution": resolution,
        "h3": h3,
        "land": land,
        "dims": width,
        "dtype": dtype,
        "model": embedder.fingerprint(),
        "windows": layout.num_windows,
    }
    return _write(_Raster(out, form, layout, embedder, plan), str(model), device, cluster, progress)


class _Raster(NamedTuple):
    """A raster to be written."""

    out: Path
    form: Any
    layout: RasterGrid | H3Cells
    embedder: Embedder
    plan: dict[str, Any]
    """Everything that decides the numbers, as plain values to compare with those of an interrupted run."""


def _write(raster: _Raster, model: str, device: str | None, cluster: str | None, progress: Progress) -> Written:
    """Embed the windows that are missing, and make the output of all of them."""
    out, _, layout, embedder, plan = raster
    folder = _part(out)
    busy = DataError(f"another process is making {out}; wait for it, or name another --out")
    with open_job(folder, busy=busy) as job:
        stored = _begin(job, raster)
        job.chunks = target = raster.form(folder, layout, stored)
        with keeping_what_is_finished(folder):
            target.prepare()
        compute = functools.partial(compute_window, embedder, layout, stored)
        pool = open_pool("here")
        if cluster is not None:
            threads = torch.get_num_threads()
            name = str(Path(model).resolve()) if Path(model).exists() else model  # workers may run in other folders
            opening = name, device, embedder.precision, embedder.fingerprint()
            compute = functools.partial(_compute, opening, threads, layout, stored)
            pool = open_pool("dask", usual_workers(max(1, (os.cpu_count() or 1) // threads)), cluster=cluster)
        with pool as workers:
            _fill(job, layout.num_windows, workers, compute, progress)
        facts = _facts(job, raster)
        with keeping_what_is_finished(folder):
            target.finish(out, facts, job.get)
        job.remove()
    shape = (layout.rows, layout.columns) if isinstance(layout, RasterGrid) else (layout.num_cells,)
    size = sum(file.stat().st_size for file in (out, *out.rglob("*")) if file.is_file())
    return Written(out, (plan["dims"], *shape), stored, facts["largest_error"], facts["clipped_values"], size)


def _choose_form(out: Path, resolution: float | None, h3: int | None) -> Any:
    """The format that a suffix names, where the options describe such cells."""
    suffix = out.suffix.lower()
    if suffix not in FORMS:
        raise ConfigError(f"the suffix of {out} names no raster; use one of {', '.join(FORMS)}")
    form = FORMS[suffix]
    if form is ParquetTarget and (h3 is None or resolution is not None):
        raise ConfigError(f"{out} is a table of H3 cells: give --h3 RESOLUTION (0 to 15) and no --resolution")
    if form is not ParquetTarget and (resolution is None or h3 is not None):
        raise ConfigError(f"{out} is a grid: give --resolution DEGREES and no --h3 (H3 cells go to .parquet)")
    for module in form.needs:
        require(module, extra="geo", what=form.what)
    return form


def _part(out: Path) -> Path:
    """The folder of unfinished work."""
    return out.with_name(f"{out.name}.part")


def _check_place(out: Path, overwrite: bool) -> None:
    """Refuse a missing folder, a name that something else than a raster of the same form has, and a finished raster.

    Work that resumes was allowed to replace what is there when it began.
    """
    if not out.parent.resolve().is_dir():
        raise OutputError(f"cannot write {out}: there is no folder {out.parent}")
    store = out.suffix.lower() == ".zarr"
    if out.is_dir() and not (store and (out / "zarr.json").is_file()):
        raise OutputError(f"{out} is a folder and no Zarr store; name another --out, or remove it first")
    if out.is_file() and store:
        raise OutputError(f"{out} is a file, where a Zarr store is a folder; name another --out, or remove it first")
    if not _part(out).is_dir():
        check_free(out / "zarr.json" if out.is_dir() else out, overwrite=overwrite)


def check_room(folder: Path, size: int, what: str) -> None:
    """Refuse work whose result does not fit on the disk, before it is begun."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutputError(
            f"{what} take {size / 1e9:,.1f} GB on the way and {free / 1e9:,.1f} GB are free in {folder}; choose a "
            f"coarser resolution, fewer --dims, a smaller --bbox or a narrower --dtype"
        )


def _begin(job: Job, raster: _Raster) -> Stored:
    """How numbers are stored: chosen when the work begins, kept when it resumes."""
    dims, dtype = raster.plan["dims"], raster.plan["dtype"]

    def fit() -> dict[str, Any]:
        fitted = fit_stored(raster.embedder, raster.layout, dims, dtype, one_scale=raster.form.one_scale)
        return {"scale": fitted.scale, "offset": fitted.offset}

    fitted = job.begin(raster.plan, fit)
    return Stored(dims=dims, dtype=dtype, scale=tuple(fitted["scale"]), offset=tuple(fitted["offset"]))


def _fill(job: Job, num_windows: int, pool: Pool, compute: Callable[[int], StoredWindow], progress: Progress) -> None:
    """Write every window that is not yet on disk, in the order they become ready."""
    missing = job.missing(num_windows)
    progress(num_windows - len(missing), num_windows)
    for number, window in pool.run(compute, ((number, number) for number in missing), ordered=False):
        job.put(number, window.numbers, largest_error=window.largest_error, clipped=window.clipped)
        progress(len(job.entries), num_windows)


def _compute(opening: tuple[Any, ...], threads: int, layout: Layout, stored: Stored, number: int) -> StoredWindow:
    """A window by a worker of a cluster, by as many threads as the caller has: sums depend on how many share them."""
    torch.set_num_threads(threads)
    return compute_window(_open_embedder(*opening), layout, stored, number)


@functools.lru_cache(maxsize=1)
def _open_embedder(model: str, device: str | None, precision: Precision, fingerprint: str) -> Embedder:
    """The caller's embedder on this worker, loaded once."""
    embedder = Embedder(model, device=device, precision=precision)
    if embedder.fingerprint() != fingerprint:
        raise DataError(f"a worker reads other weights under {model} than the caller; give all of them the same file")
    return embedder


def _facts(job: Job, raster: _Raster) -> dict[str, Any]:
    """The metadata of the output in addition to its coordinates."""
    entries = [job.entries[number] for number in sorted(job.entries)]
    return {
        "title": "location embeddings",
        "source": f"tessearth {__version__}, model {Path(raster.embedder.name).name}",
        "model_fingerprint": raster.plan["model"],
        "embedding_width": raster.embedder.dim,
        "stored_dims": f"the first {raster.plan['dims']}, at unit length",
        "region": raster.plan["region"] or "",
        "stored_type": raster.plan["dtype"],
        "land_only": str(raster.plan["land"]).lower(),
        "largest_error": max((entry.notes["largest_error"] for entry in entries), default=0.0),
        "clipped_values": sum(entry.notes["clipped"] for entry in entries),
        "windows_sha256": checksum("".join(entry.sha256 for entry in entries).encode()),
    }
