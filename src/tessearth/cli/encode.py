"""`tessearth encode`: one place on the command line, or a table of them."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.core

from tessearth.cli import options
from tessearth.cli.options import work_progress
from tessearth.errors import ConfigError, CoordinateError

if TYPE_CHECKING:
    from tessearth.bulk import Runtime

MINUS = "\N{MINUS SIGN}"


class EncodeCommand(typer.core.TyperCommand):
    """Lets negative degrees be typed as they are, although they begin like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace the hyphen of negative numbers by a typographic minus before options are parsed."""
        return super().parse_args(ctx, [re.sub(r"^-(?=\.?\d)", MINUS, argument) for argument in args])


class Choice(NamedTuple):
    """A model and its runtime."""

    model: str
    device: str | None
    precision: str
    runtime: "Runtime"

    def open(self) -> Any:
        """An Embedder, or an OnnxEmbedder, which needs no torch."""
        if self.runtime == "onnx":
            from tessearth.embedding import OnnxEmbedder

            return OnnxEmbedder(self.model)
        from tessearth.embedding import Embedder

        return Embedder(self.model, device=self.device, precision=self.precision)  # type: ignore[arg-type]


def encode(
    lat: Annotated[str | None, typer.Argument(metavar="LAT", help="Latitude in degrees.")] = None,
    lon: Annotated[str | None, typer.Argument(metavar="LON", help="Longitude in degrees.")] = None,
    table: options.OptionalInput = None,
    lat_column: options.Lat = None,
    lon_column: options.Lon = None,
    out: options.OptionalOut = None,
    form: Annotated[
        str | None, typer.Option("--format", help="npy, npz, parquet or jsonl [default: by the suffix of --out].")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(help="Columns to copy into Parquet, with commas; 'none' for none [default: all].")
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = None,
    precision: options.Precision = "float32",
    dtype: options.Dtype = "float32",
    workers: options.Workers = None,
    as_json: options.Json = False,
) -> None:
    """Turn places into embeddings.

    tessearth encode 48.8566 2.3522

    tessearth encode --input points.csv --out embeddings.parquet

    A table's embeddings go to .npy, .npz, .parquet or .jsonl, or with --out - to standard output. A long table is
    encoded in chunks, kept in a folder next to the output until it is complete: after an interruption, the same
    command resumes.
    """
    choice = _choose(model, device, precision)
    if (table is None) == (lat is None):
        raise ConfigError("give either LAT LON or --input FILE (and not both); see tessearth encode --help")
    if table is None:
        latlon = number(lat, "LAT"), number(lon, "LON")
        _refuse_with_place(out=out, format=form, keep=keep, lat=lat_column, lon=lon_column, workers=workers)
        _encode_place(latlon, choice, as_json)
    elif out is None:
        raise ConfigError("say where the embeddings go: --out FILE (or - for standard output)")
    else:
        from tessearth.bulk import ModelChoice, TableJob, check_width, encode_table, output_format

        job = TableJob(
            source=table,
            output=out,
            format=output_format(out, "jsonl" if as_json and form is None else form),
            choice=ModelChoice(**choice._asdict()),
            lat=lat_column,
            lon=lon_column,
            keep=None if keep is None else [] if keep == "none" else keep.split(","),
            width=check_width(dtype),
        )
        processes, cluster = options.split_workers(workers)
        with work_progress("standard input" if table == "-" else Path(table).name) as advance:
            encode_table(job, workers=processes, cluster=cluster, progress=advance)
    if choice.runtime == "torch":
        options.warn_if_untrained(model)


def _choose(model: str, device: str | None, precision: str) -> Choice:
    """The model and its runtime: onnxruntime for an .onnx file, else torch."""
    if not model.lower().endswith(".onnx"):
        return Choice(model, device, precision, "torch")
    if precision != "float32" or device not in (None, "cpu"):
        raise ConfigError("an ONNX file runs in float32 on the CPU: leave out --precision and --device")
    return Choice(model, None, precision, "onnx")


def number(text: str | None, name: str) -> float:
    """Degrees as typed, with the sign that EncodeCommand replaced."""
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


def _encode_place(latlon: tuple[float, float], choice: Choice, as_json: bool) -> None:
    """Print one embedding: the numbers on one line, or an object that also says how well sites cover the place."""
    from tessearth.sphere import as_latlon

    place = as_latlon(latlon)
    if choice.runtime == "torch":
        import torch

        torch.set_num_threads(1)  # starting others takes longer than one place's arithmetic
    embedder = choice.open()
    numbers = [float(str(value)) for value in embedder.embed(place)]  # no more digits than its precision has
    if not as_json:
        print(*numbers)
        return
    answer = {"lat": latlon[0], "lon": latlon[1], "model": choice.model, "embedding": numbers}
    if embedder.has_sites:
        support = embedder.support(place)
        answer["support"] = {"entropy": float(support.entropy), "distance_deg": float(support.distance)}
    print(json.dumps(answer))
