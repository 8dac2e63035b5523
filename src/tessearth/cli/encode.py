"""`tessearth encode`: one place on the command line, or a table of them."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, JsonOption, ModelOption, warn_if_untrained
from tessearth.cli.progress import work_progress
from tessearth.errors import ConfigError, CoordinateError

if TYPE_CHECKING:
    from tessearth.inference.embedder import Embedder
    from tessearth.inference.tables import PointTable

MINUS = "\N{MINUS SIGN}"


class EncodeCommand(typer.core.TyperCommand):
    """Lets a southern latitude or western longitude be typed as it is, though it begins like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hide the hyphen of negative numbers from the option parser behind a typographic minus."""
        return super().parse_args(ctx, [re.sub(r"^-(?=\.?\d)", MINUS, argument) for argument in args])


def encode(
    lat: Annotated[str | None, typer.Argument(metavar="LAT", help="Latitude in degrees.")] = None,
    lon: Annotated[str | None, typer.Argument(metavar="LON", help="Longitude in degrees.")] = None,
    table: Annotated[
        str | None, typer.Option("--input", help="csv, Parquet or GeoParquet of places; - is standard input.")
    ] = None,
    lat_column: Annotated[
        str | None, typer.Option("--lat", help="Latitude column [default: by its usual name].")
    ] = None,
    lon_column: Annotated[
        str | None, typer.Option("--lon", help="Longitude column [default: by its usual name].")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="Where embeddings go: .npy, .npz, .parquet or .jsonl; - is standard output.")
    ] = None,
    output_format: Annotated[
        str | None, typer.Option("--format", help="npy, npz, parquet or jsonl [default: by the output's suffix].")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Columns that travel into Parquet, with commas; 'none' for none [default: all].")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = None,
    precision: Annotated[str, typer.Option(help="float32, float64, bfloat16 or float16.")] = "float32",
    as_json: JsonOption = False,
) -> None:
    """Turn places into embeddings.

    tessearth encode 48.8566 2.3522

    tessearth encode --input points.csv --lat lat --lon lon --output embeddings.parquet
    """
    if (table is None) == (lat is None):
        raise ConfigError("give either LAT LON or --input FILE (and not both); see tessearth encode --help")
    if table is None:
        latlon = number(lat, "LAT"), number(lon, "LON")
        _refuse_with_point(output=output, format=output_format, keep=keep, lat=lat_column, lon=lon_column)
        _encode_point(latlon, lambda: _load(model, device, precision), model, as_json)
        warn_if_untrained(model)
        return
    if output is None:
        raise ConfigError("say where the embeddings go: --output FILE (or - for standard output)")
    kind = "jsonl" if as_json and output_format is None else output_format
    _encode_table(table, (lat_column, lon_column), output, kind, keep, lambda: _load(model, device, precision))
    warn_if_untrained(model)


def _load(model: str, device: str | None, precision: str) -> "Embedder":
    from tessearth.inference.embedder import Embedder

    return Embedder(model, device=device, precision=precision)  # type: ignore[arg-type] # it names the choices itself


def number(text: str | None, name: str) -> float:
    """Degrees as they were typed, the sign as the option parser left it."""
    if text is None:
        raise ConfigError(f"{name} is missing: give both LAT and LON in degrees")
    try:
        return float(text.replace(MINUS, "-"))
    except ValueError:
        raise CoordinateError(f"{name} is {text!r}, not a number of degrees") from None


def _refuse_with_point(**options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} goes with --input FILE, not with LAT LON")


def _encode_point(latlon: tuple[float, float], load: "Callable[[], Embedder]", model: str, as_json: bool) -> None:
    """Print one embedding: the numbers on one line, or an object that also says how well sites cover the place."""
    from tessearth.coordinates import as_latlon
    from tessearth.inference.outputs import short_floats

    place = as_latlon(latlon)
    embedder = load()
    numbers = short_floats(embedder.embed(place))
    if not as_json:
        print(*numbers)
        return
    answer = {"lat": latlon[0], "lon": latlon[1], "model": model, "embedding": numbers}
    if embedder.has_sites:
        support = embedder.support(place)
        answer["support"] = {"entropy": float(support.entropy), "distance_deg": float(support.distance)}
    print(json.dumps(answer))


def _encode_table(
    path: str,
    columns: tuple[str | None, str | None],
    output: str,
    chosen: str | None,
    keep: str | None,
    load: "Callable[[], Embedder]",
) -> None:
    from tessearth.inference.outputs import open_writer, output_format
    from tessearth.inference.tables import open_points

    kind = output_format(output, chosen)
    kept = None if keep is None else [] if keep == "none" else keep.split(",")
    with open_points(path, lat=columns[0], lon=columns[1], keep=kept) as points:
        first = next(points.batches)  # most mistakes show here, before the model is loaded
        embedder = load()
        with (
            open_writer(output, kind, points.schema, embedder.dim) as writer,
            work_progress(Path(points.name).name) as advance,
        ):
            done = 0
            advance(done, points.total_rows)
            for batch in itertools.chain([first], points.batches):
                writer.write(batch, embedder.embed(batch.latlon).astype("float32", copy=False))
                done += len(batch.latlon)
                advance(done, _estimated_total(points, done))


def _estimated_total(points: "PointTable", done: int) -> int | None:
    """How many rows there will be; a csv does not say, but the share of its bytes read so far does."""
    share = points.share_read()
    return round(done / share) if share else points.total_rows
