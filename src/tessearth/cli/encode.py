"""`tessearth encode`: one place on the command line, or a table of them."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import typer.core

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, JsonOption, ModelOption, warn_if_untrained
from tessearth.cli.progress import work_progress
from tessearth.errors import ConfigError, CoordinateError

if TYPE_CHECKING:
    from tessearth.bulk.cluster import Runtime
    from tessearth.embedding.embedder import Embedder
    from tessearth.embedding.onnx import OnnxEmbedder

MINUS = "\N{MINUS SIGN}"


class EncodeCommand(typer.core.TyperCommand):
    """Lets a southern latitude or western longitude be typed as it is, though it begins like an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hide the hyphen of negative numbers from the option parser behind a typographic minus."""
        return super().parse_args(ctx, [re.sub(r"^-(?=\.?\d)", MINUS, argument) for argument in args])


class Choice(NamedTuple):
    """Which model, and how it runs."""

    model: str
    device: str | None
    precision: str
    runtime: "Runtime"

    def load(self) -> "Embedder | OnnxEmbedder":
        """The model, opened; torch is imported only where it runs it."""
        if self.runtime == "onnx":
            from tessearth.embedding.onnx import OnnxEmbedder

            return OnnxEmbedder(self.model)
        from tessearth.embedding.embedder import Embedder

        return Embedder(self.model, device=self.device, precision=self.precision)  # type: ignore[arg-type]


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
    runtime: Annotated[
        str | None, typer.Option(help="torch, or onnx for a file of `tessearth export` [default: by the model's name].")
    ] = None,
    dtype: Annotated[str, typer.Option(help="How a table's embeddings are stored: float32 or float16.")] = "float32",
    workers: Annotated[
        int | None, typer.Option(help="Processes that share a long table [default: one a core, up to four].")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="tcp://...|local", help="Encode a table on a Dask cluster.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn places into embeddings.

    tessearth encode 48.8566 2.3522

    tessearth encode --input points.csv --lat lat --lon lon --output embeddings.parquet

    A long table is encoded in parts, kept in a folder beside the output until it is complete: interrupted in any way,
    the same command goes on where it was.
    """
    choice = _choose(model, device, precision, runtime)
    if (table is None) == (lat is None):
        raise ConfigError("give either LAT LON or --input FILE (and not both); see tessearth encode --help")
    if table is None:
        latlon = number(lat, "LAT"), number(lon, "LON")
        _refuse_with_point(output=output, format=output_format, keep=keep, lat=lat_column, lon=lon_column)
        _refuse_with_point(workers=workers, cluster=cluster)
        _encode_point(latlon, choice, as_json)
    elif output is None:
        raise ConfigError("say where the embeddings go: --output FILE (or - for standard output)")
    else:
        kind = "jsonl" if as_json and output_format is None else output_format
        _encode_table(table, (lat_column, lon_column), output, kind, keep, dtype, choice, workers, cluster)
    if choice.runtime == "torch":
        warn_if_untrained(model)


def _choose(model: str, device: str | None, precision: str, runtime: str | None) -> Choice:
    """The model and what runs it; an ONNX file names its runtime itself."""
    if runtime not in (None, "torch", "onnx"):
        raise ConfigError(f"runtime is {runtime!r}; it must be torch or onnx")
    is_onnx = model.lower().endswith(".onnx")
    if runtime == "torch" and is_onnx:
        raise ConfigError(f"{model} is run by onnxruntime: leave out --runtime torch")
    if not is_onnx and runtime != "onnx":
        return Choice(model, device, precision, "torch")
    if not is_onnx and not Path(model).is_file():
        raise ConfigError(
            f"--runtime onnx runs a file: tessearth export {model} --out FILE.onnx makes it, then --model FILE.onnx"
        )
    if precision != "float32" or device not in (None, "cpu"):
        raise ConfigError("an ONNX file runs in float32 on the CPU: leave out --precision and --device")
    return Choice(model, None, precision, "onnx")


def number(text: str | None, name: str) -> float:
    """Degrees as they were typed, the sign as the option parser left it."""
    if text is None:
        raise ConfigError(f"{name} is missing: give both LAT and LON in degrees")
    try:
        return float(text.replace(MINUS, "-"))
    except ValueError:
        raise CoordinateError(f"{name} is {text!r}, not a number of degrees") from None


def _refuse_with_point(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} goes with --input FILE, not with LAT LON")


def _encode_point(latlon: tuple[float, float], choice: Choice, as_json: bool) -> None:
    """Print one embedding: the numbers on one line, or an object that also says how well sites cover the place."""
    from tessearth.sphere.coordinates import as_latlon

    place = as_latlon(latlon)
    if choice.runtime == "torch":
        import torch

        torch.set_num_threads(1)  # starting others takes longer than one place's arithmetic
    embedder = choice.load()
    numbers = [float(str(value)) for value in embedder.embed(place)]  # no more digits than its precision has
    if not as_json:
        print(*numbers)
        return
    answer = {"lat": latlon[0], "lon": latlon[1], "model": choice.model, "embedding": numbers}
    if embedder.has_sites:
        support = embedder.support(place)  # type: ignore[union-attr] # what has sites is an Embedder
        answer["support"] = {"entropy": float(support.entropy), "distance_deg": float(support.distance)}
    print(json.dumps(answer))


def _encode_table(
    path: str,
    columns: tuple[str | None, str | None],
    output: str,
    chosen: str | None,
    keep: str | None,
    dtype: str,
    choice: Choice,
    workers: int | None,
    cluster: str | None,
) -> None:
    """A long table, or one that workers were asked for, in parts that survive an interruption; any other in one go."""
    from tessearth.bulk.cluster import ModelChoice
    from tessearth.bulk.outputs import check_width, output_format
    from tessearth.bulk.tables import TableJob, encode_in_one_go, encode_table, is_large

    job = TableJob(
        source=path,
        output=output,
        format=output_format(output, chosen),
        choice=ModelChoice(**choice._asdict()),
        lat=columns[0],
        lon=columns[1],
        keep=None if keep is None else [] if keep == "none" else keep.split(","),
        width=check_width(dtype),
    )
    with work_progress("standard input" if path == "-" else Path(path).name) as advance:
        if workers is not None or cluster is not None or is_large(job):
            encode_table(job, workers=workers, cluster=cluster, progress=advance)
        else:
            encode_in_one_go(job, choice.load, progress=advance)
