"""What the subcommands' options are called: one name, type and help text each."""

from typing import Annotated

import typer

from tessearth.zoo import DEFAULT_MODEL

_MODEL = typer.Option(
    "--model",
    metavar="NAME|PATH|HUB-ID",
    help="A name that `tessearth info` lists, a file or folder, a hub id; +range=DB.npz after any of them.",
)
_OUT = typer.Option("--out", metavar="PATH", help="The file or folder to write.")
_INPUT = typer.Option(
    "--input", metavar="TABLE", help="A table of places (csv, Parquet, GeoPackage, Excel ...); - is standard input."
)
_STORE = typer.Option("--store", metavar="STORE", help="A feature store, made by `tessearth features`.")

Model = Annotated[str, _MODEL]
OptionalModel = Annotated[str | None, _MODEL]
Out = Annotated[str, _OUT]
OptionalOut = Annotated[str | None, _OUT]
Input = Annotated[str, _INPUT]
OptionalInput = Annotated[str | None, _INPUT]
Among = Annotated[str | None, typer.Option("--input", "--in", metavar=_INPUT.metavar, help=_INPUT.help)]
"""The same, for a command that looks for something in the table."""
Store = Annotated[str, _STORE]
OptionalStore = Annotated[str | None, _STORE]
Lat = Annotated[
    str | None, typer.Option("--lat", metavar="COLUMN", help="Latitude column [default: by its usual name].")
]
Lon = Annotated[
    str | None, typer.Option("--lon", metavar="COLUMN", help="Longitude column [default: by its usual name].")
]
Geometry = Annotated[
    str, typer.Option("--geometry", metavar="KIND", help="Of lines and polygons: a point inside, centroid, or mean.")
]
Coordinates = Annotated[
    str,
    typer.Option(
        "--coordinates", metavar="FORM", help="degrees, comma (48,85), dms (48°51'N), lat,lon, lon,lat or wkt."
    ),
]
BadRows = Annotated[
    str,
    typer.Option(
        "--bad-rows", metavar="DO", help="Rows without a place: error, skip, or null; skip=FILE.csv also lists them."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there already.")]
Dims = Annotated[
    int | None,
    typer.Option("--dims", metavar="N", help="Keep the first N numbers, at unit length [default: all; 64 in a map]."),
]
Target = Annotated[
    str | None, typer.Option("--target", metavar="COLUMN", help="The column of a table that is learned.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N [default: a GPU when there is one].")]
Precision = Annotated[
    str, typer.Option("--precision", help="Arithmetic of the model: float32, float64, bfloat16 or float16.")
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Type of a map's numbers: int8, float16 or float32 [default: int8; H3: float16]."),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N|local|ADDRESS",
        help="Share the work: N processes, or a Dask cluster (local, or an address such as tcp://host:8786).",
    ),
]
Region = Annotated[
    str | None, typer.Option("--region", metavar="NAME", help="A country by name or ISO code, a continent, or world.")
]
Resolution = Annotated[float, typer.Option("--resolution", metavar="DEGREES", help="The side of a grid cell.")]
OptionalResolution = Annotated[
    float | None, typer.Option("--resolution", metavar="DEGREES", help="The side of a grid cell.")
]
Cache = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep computed results on disk and reuse them.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Change one setting; repeatable.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a shipped recipe such as smoke.")
]

__all__ = ["DEFAULT_MODEL"]
