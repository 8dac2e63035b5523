"""Maps of embeddings: cloud-optimised GeoTIFF, Zarr with CF coordinates, H3 cells as Parquet; resumable, any size."""

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from tessearth.bulk.geotiff import GeoTiffTarget
from tessearth.bulk.h3_cells import H3Cells, ParquetTarget, build_h3_cells, count_h3_cells
from tessearth.bulk.stored import Array, Stored, StoredType, StoredWindow, check_stored_type, compute_window, fit_stored
from tessearth.bulk.zarr import ZarrTarget
from tessearth.embedding import Embedder, Precision
from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.sphere import GLOBE, Box, Layout, RasterGrid, build_grid, check_box
from tessearth.storage import Job, Pool, checksum, keeping_what_is_finished, open_job, open_pool, usual_workers
from tessearth.version import __version__

FORMS: dict[str, Any] = {".tif": GeoTiffTarget, ".tiff": GeoTiffTarget, ".zarr": ZarrTarget, ".parquet": ParquetTarget}
DEFAULT_DIMS = 64
FORMAT_VERSION = 2
"""Of unfinished work: 2 seals every line of its journal."""

Progress = Callable[[int, int], None]
"""Called with the number of windows done and of all windows."""


class Target(Protocol):
    """A raster of one format that is being written: windows as chunks of a job, in any order, then one last step."""

    one_scale: bool
    """Whether the format knows a single scale and offset for all dimensions."""

    @staticmethod
    def check_installed() -> None:
        """Raise when a library the format needs is missing, before anything is begun."""

    @staticmethod
    def bytes_per_value(dtype: str) -> float:
        """The most room a value of a type takes on disk while the output is made."""

    def prepare(self) -> None:
        """Make room in the folder; what is there already stays."""

    def put(self, number: int, content: Array) -> None:
        """Write a window, (n, dims), so that it survives the end of the process."""

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk; None when it cannot be read."""

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Make the output appear under its name, with the facts as its metadata.

        `intact` reads a window back and compares its checksum.
        """


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

    Unfinished work lies in a folder `out`.part; the same call resumes it and gives the same bytes. On a `cluster`
    (a Dask scheduler's address, or "local") the workers must find the model under the same name.
    """
    out = Path(out)
    form = _check_form(out, resolution, h3)
    check_stored_type(dtype)
    cells = Cells(check_box(bbox), resolution, h3, land)
    form.check_installed()
    num_cells = cells.count()
    if cluster is not None and isinstance(model, Embedder):
        raise ConfigError("on a cluster the model must have a name or a path, which every worker can load")
    embedder = model if isinstance(model, Embedder) else Embedder(model, device=device, precision=precision)
    width = _check_dims(dims, embedder)
    _check_place(out)
    amount = f"{num_cells:,} cells x {width} dims of {dtype}"
    check_room(out.parent.resolve(), int(num_cells * width * form.bytes_per_value(dtype)), amount)
    layout = cells.layout()
    folder = out.with_name(f"{out.name}.part")
    busy = DataError(f"another process is making {out}; wait for it, or name another --out")
    with open_job(folder, busy=busy) as job:
        plan = _plan(form, cells, layout, width, dtype, embedder)
        stored = _begin(job, plan, embedder, layout, form.one_scale)
        job.chunks = target = form(folder, layout, stored)
        with keeping_what_is_finished(folder):
            target.prepare()
        work = WindowWork(
            model=_name_for_workers(str(model)),
            fingerprint=embedder.fingerprint(),
            device=device,
            precision=embedder.precision,
            threads=torch.get_num_threads(),
            layout=layout,
            stored=stored,
        )
        with _open_workers(cluster, work, embedder) as (pool, compute):
            _fill(job, layout.num_windows, pool, compute, progress)
        facts = _journal_facts(job)
        with keeping_what_is_finished(folder):
            target.finish(out, {**_facts(plan, embedder), **facts}, job.get)
        job.remove()
    shape = (layout.rows, layout.columns) if isinstance(layout, RasterGrid) else (layout.num_cells,)
    return Written(out, (width, *shape), stored, facts["largest_error"], facts["clipped_values"], _size(out))


@dataclass(frozen=True, slots=True)
class Cells:
    """Which cells are embedded: those of a grid, or H3 cells of a resolution."""

    box: Box
    resolution: float | None
    h3: int | None
    land: bool

    def count(self) -> int:
        """How many cells there will be, before any of them is listed."""
        if self.h3 is not None:
            return count_h3_cells(self.box, self.h3)
        assert self.resolution is not None
        return build_grid(self.box, self.resolution).num_cells

    def layout(self) -> RasterGrid | H3Cells:
        """The cells, divided into windows."""
        if self.h3 is not None:
            return build_h3_cells(self.box, self.h3, land=self.land)
        assert self.resolution is not None
        return build_grid(self.box, self.resolution, land=self.land)


def _check_form(out: Path, resolution: float | None, h3: int | None) -> Any:
    """The format that a suffix names, after checking that the options describe cells of its kind."""
    suffix = out.suffix.lower()
    if suffix not in FORMS:
        raise ConfigError(f"the suffix of {out} names no raster; use one of {', '.join(FORMS)}")
    table = FORMS[suffix] is ParquetTarget
    if table and (h3 is None or resolution is not None):
        raise ConfigError(f"{out} is a table of H3 cells: give --h3 RESOLUTION (0 to 15) and no --resolution")
    if not table and (resolution is None or h3 is not None):
        raise ConfigError(f"{out} is a grid: give --resolution DEGREES and no --h3 (H3 cells go to .parquet)")
    return FORMS[suffix]


def _check_dims(dims: int | None, embedder: Embedder) -> int:
    if dims is None:
        return min(DEFAULT_DIMS, embedder.dim)
    if not 1 <= dims <= embedder.dim:
        raise ConfigError(f"dims is {dims}; {embedder.name} has 1 to {embedder.dim}")
    return dims


def _check_place(out: Path) -> None:
    """Refuse a missing folder, and a name that something else than a raster of the same form has."""
    if not out.parent.resolve().is_dir():
        raise OutputError(f"cannot write {out}: there is no folder {out.parent}")
    is_store = out.is_dir() and (out / "zarr.json").is_file()
    if out.is_dir() and not (is_store and out.suffix.lower() == ".zarr"):
        raise OutputError(f"{out} is a folder and no Zarr store; name another --out, or remove it first")
    if out.is_file() and out.suffix.lower() == ".zarr":
        raise OutputError(f"{out} is a file, where a Zarr store is a folder; name another --out, or remove it first")


def check_room(folder: Path, size: int, what: str) -> None:
    """Refuse work whose result does not fit on the disk, before it is begun."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutputError(
            f"{what} take {size / 1e9:,.1f} GB on the way and {free / 1e9:,.1f} GB are free in {folder}; choose a "
            f"coarser resolution, fewer --dims, a smaller --bbox or --dtype int8"
        )


def _plan(form: Any, cells: Cells, layout: Layout, dims: int, dtype: str, embedder: Embedder) -> dict[str, Any]:
    """Everything that decides the numbers, as plain values to compare with those of an interrupted run."""
    return {
        "format_version": FORMAT_VERSION,
        "tessearth": __version__,
        "form": form.__name__,
        "bbox": list(cells.box),
        "resolution": cells.resolution,
        "h3": cells.h3,
        "land": cells.land,
        "dims": dims,
        "dtype": dtype,
        "model": embedder.fingerprint(),
        "windows": layout.num_windows,
    }


def _begin(job: Job, plan: dict[str, Any], embedder: Embedder, layout: Layout, one_scale: bool) -> Stored:
    """How numbers are stored: chosen when the work begins, kept when it resumes."""

    def fit() -> dict[str, Any]:
        fitted = fit_stored(embedder, layout, plan["dims"], plan["dtype"], one_scale=one_scale)
        return {"scale": fitted.scale, "offset": fitted.offset}

    fitted = job.begin(plan, fit)
    return Stored(dims=plan["dims"], dtype=plan["dtype"], scale=tuple(fitted["scale"]), offset=tuple(fitted["offset"]))


def _fill(job: Job, num_windows: int, pool: Pool, compute: Callable[[int], StoredWindow], progress: Progress) -> None:
    """Write every window that is not yet on disk, in the order they become ready."""
    missing = job.missing(num_windows)
    progress(num_windows - len(missing), num_windows)
    for number, window in pool.run(compute, ((number, number) for number in missing), ordered=False):
        job.put(number, window.numbers, largest_error=window.largest_error, clipped=window.clipped)
        progress(len(job.entries), num_windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWork:
    """Everything a worker needs in addition to the number of a window."""

    model: str
    fingerprint: str
    device: str | None
    precision: Precision
    threads: int
    """As many as the caller's: sums depend on how many threads share them."""
    layout: Layout
    stored: Stored


def _name_for_workers(model: str) -> str:
    """A model's name as workers understand it too: paths from the root, other names as they are."""
    return str(Path(model).resolve()) if Path(model).exists() else model


@contextlib.contextmanager
def _open_workers(
    cluster: str | None, work: WindowWork, embedder: Embedder
) -> Iterator[tuple[Pool, Callable[[int], StoredWindow]]]:
    """Open this process or a Dask cluster: workers compute and share no disk, the caller alone writes."""
    if cluster is None:
        with open_pool("here") as pool:
            yield pool, lambda number: compute_window(embedder, work.layout, work.stored, number)
        return
    with open_pool("dask", usual_workers(max(1, (os.cpu_count() or 1) // work.threads)), cluster=cluster) as pool:
        yield pool, functools.partial(_compute, work)


def _compute(work: WindowWork, number: int) -> StoredWindow:
    torch.set_num_threads(work.threads)
    embedder = _open_embedder(work.model, work.device, work.precision, work.fingerprint)
    return compute_window(embedder, work.layout, work.stored, number)


@functools.lru_cache(maxsize=1)
def _open_embedder(model: str, device: str | None, precision: Precision, fingerprint: str) -> Embedder:
    """The caller's embedder on this worker, loaded once."""
    embedder = Embedder(model, device=device, precision=precision)
    if embedder.fingerprint() != fingerprint:
        raise DataError(f"a worker reads other weights under {model} than the caller; give all of them the same file")
    return embedder


def _journal_facts(job: Job) -> dict[str, Any]:
    """Facts about the values of all windows."""
    entries = [job.entries[number] for number in sorted(job.entries)]
    return {
        "largest_error": max((entry.notes["largest_error"] for entry in entries), default=0.0),
        "clipped_values": sum(entry.notes["clipped"] for entry in entries),
        "windows_sha256": checksum("".join(entry.sha256 for entry in entries).encode()),
    }


def _facts(plan: dict[str, Any], embedder: Embedder) -> dict[str, Any]:
    """The metadata of the output in addition to its coordinates."""
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
