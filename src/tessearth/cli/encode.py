"""`tessearth encode`: one place on the command line, or a table of them."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import MINUS, work_progress
from tessearth.errors import ConfigError, CoordinateError

if TYPE_CHECKING:
    from tessearth.bulk import ModelChoice

SHOWN_NUMBERS = 6
KM_PER_DEGREE = 111.195
"""Of a great circle."""


@commands.takes(
    *("keep", "format", "dtype", "precision", "device", "workers", "month", "date"),
    reads=("lat", "lon", "geometry", "coordinates"),
    degrees=True,
)
def encode(
    lat: Annotated[str | None, typer.Argument(metavar="LAT", help="Latitude in degrees.")] = None,
    lon: Annotated[str | None, typer.Argument(metavar="LON", help="Longitude in degrees.")] = None,
    table: options.OptionalInput = None,
    out: options.OptionalOut = None,
    model: options.Model = options.DEFAULT_MODEL,
    reading: Any = None,
    dims: options.Dims = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    settings: Any = None,
) -> None:
    """Turn places into embeddings.

    tessearth encode 48.8566 2.3522

    tessearth encode --input points.csv --out embeddings.parquet

    tessearth encode --input parks.gpkg --geometry mean --out parks-embedded.gpkg

    tessearth encode --input old.csv --coordinates comma --bad-rows skip=bad.csv --sep ";" --out new.csv

    A table is csv, Parquet, GeoPackage, GeoJSON, Shapefile, FlatGeobuf, Excel, Feather or JSON lines; - is standard
    input. Its columns and the embeddings go into .parquet, .csv, .gpkg, .geojson, .fgb, .arrow, .jsonl or .xlsx, the
    embeddings alone into .npy or .npz. After an interruption of a long table the same command resumes.

    --set, and options of the same names, take sep and encoding of a csv, keep (columns with commas, or none), format
    (of --out -), dtype (float32, float16), precision, device, workers (a number, local, or tcp://host:8786), and, of
    models that know seasons, month (1 to 12) or date (the column of dates).
    """
    if "month" in settings and "date" in settings:
        raise ConfigError("the season was given twice: leave out --month or --date")
    choice = choose(commands.in_month(model, settings), settings, dims)
    if (table is None) == (lat is None):
        raise ConfigError("give either LAT LON or --input FILE (and not both); see tessearth encode --help")
    if table is None:
        latlon = number(lat, "LAT"), number(lon, "LON")
        _refuse_with_place(out=out, **reading, **settings | {"device": None, "precision": None, "month": None})
        _encode_place(latlon, choice, as_json)
    elif out is None:
        raise ConfigError("say where the embeddings go: --out FILE (or - for standard output)")
    else:
        _encode_table(table, out, choice, reading, settings, overwrite, as_json)
    if choice.runtime == "torch":
        commands.warn_if_untrained(model)


def _encode_table(
    table: str, out: str, choice: "ModelChoice", reading: Any, settings: dict[str, str], overwrite: bool, as_json: bool
) -> None:
    """Encode a table and say what was written."""
    from tessearth.bulk import TableJob, check_width, encode_table, output_format
    from tessearth.storage import Reading

    keep = settings.get("keep")
    job = TableJob(
        source=table,
        output=out,
        format=output_format(out, settings.get("format", "jsonl" if as_json else None)),
        choice=choice,
        reading=Reading(**reading, date=settings.get("date")),
        keep=None if keep is None else [] if keep == "none" else keep.split(","),
        width=check_width(settings.get("dtype", "float32")),
        overwrite=overwrite,
    )
    processes, cluster = commands.split_workers(settings.get("workers"))
    begin = time.monotonic()
    with work_progress("standard input" if table == "-" else Path(table).name) as advance:
        done = encode_table(job, workers=processes, cluster=cluster, progress=advance)
    without = f", {done.without_place:,} without a place" if done.without_place else ""
    seconds = time.monotonic() - begin
    line = f"{out}: {done.rows:,} rows{without}, {done.dim:,} numbers each ({job.width}), {seconds:,.1f} s"
    print(line, file=sys.stderr if out == "-" else sys.stdout)


def choose(model: str, settings: dict[str, str], dims: int | None) -> "ModelChoice":
    """The model and its runtime: onnxruntime for an .onnx file, else torch."""
    from tessearth.bulk import ModelChoice

    device, precision = settings.get("device"), settings.get("precision", "float32")
    if not model.lower().endswith(".onnx"):
        return ModelChoice(model=model, device=device, precision=precision, dims=dims)
    if precision != "float32" or device not in (None, "cpu"):
        raise ConfigError("an ONNX file runs in float32 on the CPU: leave out --precision and --device")
    return ModelChoice(model=model, runtime="onnx", dims=dims)


def number(text: str | None, name: str) -> float:
    """Degrees as typed, with the sign that the command replaced."""
    if text is None:
        raise ConfigError(f"{name} is missing: give both LAT and LON in degrees")
    try:
        return float(text.replace(MINUS, "-"))
    except ValueError:
        raise CoordinateError(f"{name} is {text!r}, not a number of degrees") from None


def _refuse_with_place(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} goes with --input FILE, not with LAT LON")


def _encode_place(latlon: tuple[float, float], choice: "ModelChoice", as_json: bool) -> None:
    """Print one embedding: the numbers on one line, or an object that also says how well sites cover the place."""
    from tessearth.sphere import as_latlon

    place = as_latlon(latlon)
    if choice.runtime == "torch":
        import torch

        torch.set_num_threads(1)  # starting others takes longer than one place's arithmetic
    embedder = choice.open()
    embedding = embedder.embed(place)
    numbers = [float(str(value)) for value in embedding]  # no more digits than its precision has
    if not as_json:
        some = " ".join(f"{value:.4f}" for value in numbers[:SHOWN_NUMBERS])
        print(f"{latlon[0]:g}, {latlon[1]:g}: {len(numbers):,} numbers from {choice.model}")
        print(f"{some} ... (--json prints all)" if len(numbers) > SHOWN_NUMBERS else some)
        if embedder.has_sites:
            print(f"nearest site {float(embedder.support(place).distance) * KM_PER_DEGREE:,.0f} km away")
        return
    answer = {"lat": latlon[0], "lon": latlon[1], "model": choice.model, "embedding": numbers}
    if embedder.has_sites:
        support = embedder.support(place)
        answer["support"] = {"entropy": float(support.entropy), "distance_deg": float(support.distance)}
    print(json.dumps(answer))
