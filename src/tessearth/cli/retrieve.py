"""`tessearth retrieve`: databases of image features, embeddings completed by them, and places like a place."""

import json
from typing import Annotated

import typer

from tessearth.cli.encode import EncodeCommand, number
from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, JsonOption, ModelOption, warn_if_untrained
from tessearth.cli.progress import work_progress
from tessearth.errors import ConfigError

app = typer.Typer(
    help="Complete embeddings by the image features of places like them, and find such places.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", metavar="DB.npz", help="Places to compare with [default: land, 88 km apart]."),
]


@app.command("build")
def build(
    store: Annotated[str, typer.Option("--store", metavar="STORE", help="The feature store whose places are kept.")],
    model: ModelOption = DEFAULT_MODEL,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DB.npz", help="The file to write [default: where MODEL+range finds it]."),
    ] = None,
    keys: Annotated[
        str,
        typer.Option(
            "--keys", metavar="location|image", help="Find rows by the embedding of their place or of their image."
        ),
    ] = "location",
    values: Annotated[
        str | None,
        typer.Option(
            metavar="features|components", help="What is read off a row [default: components where the store has them]."
        ),
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Take the store's validation places too.")] = False,
    device: DeviceOption = None,
) -> None:
    """Make a database from a feature store.

    tessearth retrieve build --model runs/earth/best --store stores/earth --out earth.npz
    """
    from tessearth.embedding.embedder import Embedder
    from tessearth.embedding.retrieval import build_database, save_database
    from tessearth.imagery.store import FeatureStore
    from tessearth.zoo.names import default_database, parse_name

    if parse_name(model).mode is not None:
        raise ConfigError(f"{model} reads a database already; name the model alone")
    target = out or str(default_database(model))
    opened = FeatureStore(store, verify=True)
    embedder = Embedder(model, device=device)
    with work_progress("embedding places") as advance:
        database = build_database(
            embedder,
            opened,
            keys=keys,  # type: ignore[arg-type] # it names the choices itself
            values=values,  # type: ignore[arg-type]
            held_out=held_out,
            progress=advance,
        )
    save_database(database, target)
    shape = f"{len(database.latlon):,} places, keys {database.keys.shape[1]} wide, values {database.values.shape[1]}"
    suffix = f"+range={target}" if out else "+range"
    print(f"{target}: {shape}; use it with --model {model}{suffix}")
    warn_if_untrained(model)


@app.command("similar", cls=EncodeCommand)
def similar(
    lat: Annotated[str, typer.Argument(metavar="LAT", help="Latitude in degrees.")],
    lon: Annotated[str, typer.Argument(metavar="LON", help="Longitude in degrees.")],
    model: ModelOption = DEFAULT_MODEL,
    database: DatabaseOption = None,
    count: Annotated[int, typer.Option(help="How many places to name.")] = 10,
    apart: Annotated[
        float, typer.Option("--apart", metavar="KM", help="Skip places nearer than this to one named.")
    ] = 0.0,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the places most like one, by their embeddings.

    tessearth retrieve similar 48.8566 2.3522 --apart 1000
    """
    from tessearth.embedding.embedder import Embedder
    from tessearth.embedding.retrieval import land_places, most_alike, read_database
    from tessearth.sphere.coordinates import as_latlon
    from tessearth.zoo.names import find_database, parse_name

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
    warn_if_untrained(model)


def _print_places(rows: list[tuple[float, ...]], as_json: bool) -> None:
    names = ("lat", "lon", "similarity", "distance_km")
    if as_json:
        print(json.dumps([dict(zip(names, map(float, row), strict=True)) for row in rows]))
        return
    print(f"{'lat':>10}{'lon':>11}{'similarity':>12}{'km away':>9}")
    for lat, lon, similarity, distance in rows:
        print(f"{lat:10.4f}{lon:11.4f}{similarity:12.4f}{distance:9.0f}")
