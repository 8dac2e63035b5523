"""`tessearth raster`: a map of embeddings as GeoTIFF, Zarr or H3 table."""

from typing import Annotated, Any

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import work_progress
from tessearth.errors import ConfigError


@commands.takes("workers", "device", "precision", "month")
def raster(
    out: options.Out,
    bbox: Annotated[
        str | None,
        typer.Option(
            "--bbox",
            metavar="WEST,SOUTH,EAST,NORTH",
            help="A box in degrees; west above east crosses the antimeridian [default: the world].",
        ),
    ] = None,
    region: options.Region = None,
    resolution: options.OptionalResolution = None,
    h3: Annotated[int | None, typer.Option("--h3", metavar="RES", help="Resolution of H3 cells, 0 to 15.")] = None,
    dims: options.Dims = None,
    dtype: options.Dtype = None,
    land: Annotated[bool, typer.Option("--land", help="Only cells on land north of 60 S; elsewhere nodata.")] = False,
    model: options.Model = options.DEFAULT_MODEL,
    overwrite: options.Overwrite = False,
    settings: Any = None,
) -> None:
    """Write a map of embeddings as GeoTIFF (.tif), Zarr (.zarr) or H3 cells (.parquet).

    tessearth raster --region kenya --resolution 0.05 --out kenya.tif

    tessearth raster --bbox -10,35,30,60 --resolution 0.1 --dims 16 --out europe.tif

    tessearth raster --resolution 0.25 --dtype float16 --land --out earth.zarr

    tessearth raster --bbox 170,-50,-170,-30 --h3 6 --out islands.parquet

    Maps hold 64 numbers a cell unless --dims says otherwise (all of a narrower model), as int8 codes that carry their
    scale and offset (tessearth.read_raster decodes them); H3 tables hold float16. Cells outside the outline of a
    --region have no value. After an interruption the same command resumes and gives the same bytes.

    --set, and options of the same names, take workers (local, or tcp://host:8786), device, precision and month
    (1 to 12, of models that know seasons).
    """
    if bbox is not None and region is not None:
        raise ConfigError("--bbox and --region both say where: give one of them")
    sides = None if bbox is None else _sides(bbox)
    processes, cluster = commands.split_workers(settings.get("workers"))
    if processes not in (None, 1):
        raise ConfigError("a map is computed in this process or on a Dask cluster: give --workers local or an address")
    from tessearth.bulk import write_raster

    with work_progress("embedding", "windows") as advance:
        written = write_raster(
            commands.in_month(model, settings),
            out,
            bbox=sides,
            region=region,
            resolution=resolution,
            h3=h3,
            dims=dims,
            dtype=dtype,  # type: ignore[arg-type] # write_raster checks it
            land=land,
            cluster=cluster,
            device=settings.get("device"),
            precision=settings.get("precision", "float32"),
            overwrite=overwrite,
            progress=advance,
        )
    shape, kind = " x ".join(f"{side:,}" for side in written.shape), written.stored.dtype
    clipped = f" ({written.clipped:,} values clipped)" if written.clipped else ""
    print(f"{out}: {shape} {kind}, off by at most {written.largest_error:.2g}{clipped}, {written.bytes / 1e6:,.1f} MB")
    commands.warn_if_untrained(model)


def _sides(bbox: str) -> list[float]:
    """West, south, east, north."""
    try:
        return [float(side) for side in bbox.split(",")]
    except ValueError:
        raise ConfigError(f"bbox is {bbox!r}; give WEST,SOUTH,EAST,NORTH in degrees such as -10,35,30,60") from None
