"""`tessearth raster`: a map of embeddings as GeoTIFF, Zarr or H3 table."""

from typing import Annotated

import typer

from tessearth.cli import options
from tessearth.cli.options import work_progress
from tessearth.errors import ConfigError


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
    dims: Annotated[
        int | None, typer.Option(help="Keep the first N dimensions [default: 64, or all of a narrower model].")
    ] = None,
    dtype: options.Dtype = "int8",
    land: Annotated[bool, typer.Option("--land", help="Only cells on land north of 60 S; elsewhere nodata.")] = False,
    workers: options.Workers = None,
    model: options.Model = options.DEFAULT_MODEL,
    device: options.Device = None,
    precision: options.Precision = "float32",
) -> None:
    """Write a map of embeddings as GeoTIFF (.tif), Zarr (.zarr) or H3 cells (.parquet).

    After an interruption the same command resumes and gives the same bytes. int8 maps carry their scale and offset.

    tessearth raster --bbox -10,35,30,60 --resolution 0.1 --out europe.tif

    tessearth raster --resolution 0.25 --dtype float16 --land --out earth.zarr

    tessearth raster --bbox 170,-50,-170,-30 --h3 6 --out islands.parquet

    tessearth raster --region japan --resolution 0.05 --land --out japan.tif
    """
    sides = _sides(bbox, region)
    processes, cluster = options.split_workers(workers)
    if processes not in (None, 1):
        raise ConfigError("a map is computed in this process or on a Dask cluster: give --workers local or an address")
    from tessearth.bulk import write_raster

    with work_progress("embedding", "windows") as advance:
        written = write_raster(
            model,
            out,
            bbox=sides,
            resolution=resolution,
            h3=h3,
            dims=dims,
            dtype=dtype,  # type: ignore[arg-type] # write_raster checks it
            land=land,
            cluster=cluster,
            device=device,
            precision=precision,  # type: ignore[arg-type]
            progress=advance,
        )
    shape = " x ".join(f"{side:,}" for side in written.shape)
    clipped = f" ({written.clipped:,} values clipped)" if written.clipped else ""
    print(f"{out}: {shape} {dtype}, off by at most {written.largest_error:.2g}{clipped}, {written.bytes / 1e6:,.1f} MB")
    options.warn_if_untrained(model)


def _sides(bbox: str | None, region: str | None) -> list[float]:
    """West, south, east, north."""
    if bbox is not None and region is not None:
        raise ConfigError("--bbox and --region both say where: give one of them")
    if region is not None and region != "world":
        from tessearth.plotting import find_region

        box = find_region(region)
        return [_wrap(box.west), box.south, _wrap(box.east), box.north]
    if bbox is None:
        return [-180.0, -90.0, 180.0, 90.0]
    try:
        return [float(side) for side in bbox.split(",")]
    except ValueError:
        raise ConfigError(f"bbox is {bbox!r}; give WEST,SOUTH,EAST,NORTH in degrees such as -10,35,30,60") from None


def _wrap(lon: float) -> float:
    """A longitude within -180 and 180, both included."""
    return lon if -180 <= lon <= 180 else (lon + 180) % 360 - 180
