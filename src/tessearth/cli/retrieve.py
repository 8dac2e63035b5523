"""`tessearth retrieve`: databases of image features, and the places most similar to a place."""

import json
from typing import Annotated

import typer

from tessearth.cli import options
from tessearth.cli.encode import number
from tessearth.cli.options import work_progress
from tessearth.errors import ConfigError

app = typer.Typer(
    cls=options.Commands,
    help="Extend embeddings with the image features of similar places (RANGE), and find similar places.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("build")
def build(
    store: options.Store,
    model: options.Model = options.DEFAULT_MODEL,
    out: options.OptionalOut = None,
    keys: Annotated[
        str,
        typer.Option(
            "--keys", metavar="location|image", help="Find rows by the embedding of their place or of their image."
        ),
    ] = "location",
    values: Annotated[
        str | None,
        typer.Option(
            metavar="features|components", help="The values of a row [default: components where the store has them]."
        ),
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Take the store's validation places too.")] = False,
    device: options.Device = None,
) -> None:
    """Make a database from a feature store; without --out it goes where MODEL+range finds it.

    tessearth retrieve build --model runs/earth/best --store stores/earth --out earth.npz
    """
    from tessearth.embedding import Embedder, build_database, save_database
    from tessearth.imagery import FeatureStore
    from tessearth.zoo import default_database, parse_name

    if parse_name(model).mode is not None:
        raise ConfigError(f"{model} reads a database already; name the model alone")
    target = out or str(default_database(model))
    opened = FeatureStore(store, verify=True)
    embedder = Embedder(model, device=device)
    with work_progress("embedding places") as advance:
        database = build_database(
            embedder,
            opened,
            keys=keys,  # type: ignore[arg-type] # build_database checks it
            values=values,  # type: ignore[arg-type]
            held_out=held_out,
            progress=advance,
        )
    save_database(database, target)
    shape = f"{len(database.latlon):,} places, keys {database.keys.shape[1]} wide, values {database.values.shape[1]}"
    suffix = f"+range={target}" if out else "+range"
    print(f"{target}: {shape}; use it with --model {model}{suffix}")
    options.warn_if_untrained(model)


@app.command("similar", cls=options.with_settings(degrees=True))
def similar(
    lat: Annotated[str, typer.Argument(metavar="LAT", help="Latitude in degrees.")],
    lon: Annotated[str, typer.Argument(metavar="LON", help="Longitude in degrees.")],
    model: options.Model = options.DEFAULT_MODEL,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="DB.npz", help="Places to compare with [default: land, 88 km apart]."),
    ] = None,
    count: Annotated[int, typer.Option(help="Places to list.")] = 10,
    apart: Annotated[
        float, typer.Option("--apart", metavar="KM", help="Least distance between any two of the places.")
    ] = 0.0,
    device: options.Device = None,
    as_json: options.Json = False,
) -> None:
    """List the places most similar to one, by their embeddings.

    tessearth retrieve similar 48.8566 2.3522 --apart 1000
    """
    from tessearth.embedding import Embedder, land_places, most_alike, read_database
    from tessearth.sphere import as_latlon
    from tessearth.zoo import find_database, parse_name

    place = as_latlon((number(lat, "LAT"), number(lon, "LON")))
    named = parse_name(model)
    path = database if database is not None or named.mode is None else find_database(named)
    known = None if path is None else read_database(path)
    embedder = Embedder(named.base, device=device)
    latlon = land_places() if known is None else known.latlon
    keys = embedder.embed(latlon) if known is None else known.keys
    if keys.shape[1] != embedder.dim:
        raise ConfigError(f"{path}: keys are {keys.shape[1]} wide, {named.base} gives {embedder.dim}: another model's")
    found = most_alike(embedder.embed(place), place, keys, latlon, count, apart)
    _print_places([(*latlon[row], *found_row) for row, *found_row in zip(*found, strict=True)], as_json)
    options.warn_if_untrained(model)


def _print_places(rows: list[tuple[float, ...]], as_json: bool) -> None:
    names = ("lat", "lon", "similarity", "distance_km")
    if as_json:
        print(json.dumps([dict(zip(names, map(float, row), strict=True)) for row in rows]))
        return
    print(f"{'lat':>10}{'lon':>11}{'similarity':>12}{'km away':>9}")
    for lat, lon, similarity, distance in rows:
        print(f"{lat:10.4f}{lon:11.4f}{similarity:12.4f}{distance:9.0f}")
