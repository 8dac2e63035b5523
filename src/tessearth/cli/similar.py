"""`tessearth similar`: the places most similar to one, over land or in a table."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import work_progress
from tessearth.cli.encode import choose, number
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from tessearth.embedding import Alike, Query
    from tessearth.storage import PointBatch, PointTable

WIDEST_CELL = 24


@commands.takes("keep", "device", "precision", "dims", "database", reads=("lat", "lon"), degrees=True)
def similar(
    place: Annotated[str, typer.Argument(metavar="PLACE|LAT", help="A town or country, or a latitude in degrees.")],
    lon: Annotated[str | None, typer.Argument(metavar="LON", help="Longitude in degrees.")] = None,
    table: options.Among = None,
    out: options.OptionalOut = None,
    model: options.Model = options.DEFAULT_MODEL,
    reading: Any = None,
    unlike: Annotated[
        tuple[str, str] | None, typer.Option("--not", metavar="LAT LON", help="Without what is like this place too.")
    ] = None,
    apart: Annotated[
        str, typer.Option("--apart", metavar="DISTANCE", help="Least distance between any two places, as 500km.")
    ] = "0km",
    count: Annotated[int, typer.Option("--count", help="Places to list.")] = 10,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    settings: Any = None,
) -> None:
    """List the places most similar to one, by their embeddings.

    tessearth similar Nairobi --apart 500km

    tessearth similar 48.8566 2.3522 --not 51.5074 -0.1278

    tessearth similar Kenya --in mine.parquet --out alike.csv --count 100

    It compares with land, 88 km apart, or with the places of a table, whose columns are printed or written to --out in
    any format of a table, with similarity (a cosine), distance_km and near (the nearest town, where the labels are
    installed). A name that several towns have is refused with a list of them: say "Springfield, IL".

    --set, and options of the same names, take sep and encoding of a csv, geometry (point, centroid, mean), coordinates,
    keep (columns with commas), device, precision, dims, and database (DB.npz of tessearth retrieve build).
    """
    from tessearth.embedding import choose_alike, make_query, read_km, read_place
    from tessearth.storage import check_free

    if out is not None:
        _check_table(out)
        check_free(out, overwrite=overwrite)
    if count < 1:
        raise ConfigError(f"count is {count}; it must be at least 1")
    apart_km = read_km(apart)
    where = (place,) if lon is None else (number(place, "LAT"), number(lon, "LON"))
    found = read_place(*where)
    avoided = None if unlike is None else (number(unlike[0], "--not"), number(unlike[1], "--not"))
    base, database = _names(model, settings.get("database"), table)
    dims = settings.get("dims", "")
    if dims and not dims.isdecimal():
        raise ConfigError(f"--dims is {dims!r}, not a number")
    choice = choose(base, settings, int(dims) if dims else None)
    embedder = choice.open()
    query = make_query(embedder, found, avoided)
    with _open(table, database, settings.get("keep"), reading) as candidates:
        batches = list(candidates.points.batches)
        similarity, latlon = _compare(query, choice, embedder, batches, candidates.keys)
        chosen = choose_alike(similarity, query.place, latlon, count, apart_km)
        results = _take(candidates.points, batches, chosen)
        if out is not None:
            _write(out, candidates.points, results)
        else:
            _print(query, candidates.points, results, as_json)
    if choice.runtime == "torch":
        commands.warn_if_untrained(model)


class Candidates(NamedTuple):
    """Places to compare with, and their embeddings where they are known."""

    points: "PointTable"
    keys: "npt.NDArray[np.float32] | None" = None


class Results(NamedTuple):
    """The rows that were found, the most similar first, and what is said about them."""

    batch: "PointBatch"
    added: "pa.RecordBatch"


def _names(model: str, database: str | None, table: str | None) -> tuple[str, str | None]:
    """The model without its database, and the database to compare with."""
    from tessearth.zoo import find_database, parse_name

    named = parse_name(model)
    if table is not None:
        if database is not None or named.mode is not None:
            raise ConfigError("give either --input or a database, not both")
        return named.base, None
    return named.base, database if database is not None or named.mode is None else str(find_database(named))


@contextmanager
def _open(table: str | None, database: str | None, keep: str | None, reading: dict[str, Any]) -> Iterator[Candidates]:
    """The places of a table, of a database, or of land."""
    from tessearth.embedding import land_places, read_database
    from tessearth.storage import Reading, open_points

    if table is not None:
        with open_points(table, Reading(**reading), keep=keep and keep.split(",")) as points:
            yield Candidates(points)
    elif database is not None:
        known = read_database(database)
        yield Candidates(_as_table(known.latlon), known.keys)
    else:
        yield Candidates(_as_table(land_places()))


def _as_table(latlon: "npt.NDArray[np.float64]") -> "PointTable":
    """Places as a table of their coordinates."""
    import pyarrow as pa

    from tessearth.sphere import Places
    from tessearth.storage import PointBatch, PointTable

    rows = pa.RecordBatch.from_arrays([pa.array(latlon[:, 0]), pa.array(latlon[:, 1])], names=["lat", "lon"])
    return PointTable("land", rows.schema, iter([PointBatch(rows, Places(latlon))]), len(latlon))


def _compare(
    query: "Query", choice: Any, embedder: Any, batches: "list[PointBatch]", keys: "npt.NDArray[np.float32] | None"
) -> "tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]":
    """The similarity (N,) of all places and their degrees (N, 2); NaN for rows without a place."""
    import numpy as np

    from tessearth.embedding import cosines

    latlon = np.concatenate([batch.latlon for batch in batches])
    if keys is not None:
        if keys.shape[1] != len(query.vector):
            wide = f"keys are {keys.shape[1]} wide, {choice.model} gives {len(query.vector)}"
            raise ConfigError(f"the database's {wide}: another model's")
        return cosines(query.vector, keys), latlon
    parts, done = [], 0
    with work_progress("comparing") as advance:
        for batch in batches:
            embeddings = choice.embed_places(embedder, batch.places)
            parts.append(cosines(query.vector, embeddings))
            done += len(batch.latlon)
            advance(done, len(latlon))
    return np.concatenate(parts), latlon


def _take(points: "PointTable", batches: "list[PointBatch]", chosen: "Alike") -> Results:
    """The rows that were chosen, in their order, with similarity, distance and the nearest town."""
    import numpy as np
    import pyarrow as pa

    from tessearth.embedding import name_places
    from tessearth.sphere import Places
    from tessearth.storage import Lines, PointBatch

    latlon = np.concatenate([batch.latlon for batch in batches])[chosen.row]
    rows = pa.Table.from_batches([batch.rows for batch in batches]).take(pa.array(chosen.row)).combine_chunks()
    lines = None
    if points.csv is not None:
        every = [line for batch in batches if batch.lines is not None for line in batch.lines.cut()]
        lines = Lines.of([every[row] for row in chosen.row])
    added = {"similarity": chosen.similarity.astype(np.float64), "distance_km": chosen.distance_km}
    near = name_places(latlon)
    columns = {name: pa.array(values) for name, values in added.items()}
    if near is not None:
        columns["near"] = pa.array(near, pa.string())
    return Results(PointBatch(rows.to_batches()[0], Places(latlon), lines), pa.RecordBatch.from_pydict(columns))


def _check_table(out: str) -> None:
    from tessearth.bulk import ARRAYS_ONLY, output_format

    if output_format(out) in ARRAYS_ONLY:
        raise ConfigError(f"{out} holds arrays, not a table: write .csv, .parquet or .gpkg")


def _write(out: str, points: "PointTable", results: Results) -> None:
    """Write the rows that were found, in any format of a table."""
    from tessearth.bulk import open_writer, output_format

    kind, count = output_format(out), len(results.batch.latlon)
    with open_writer(out, kind, points._replace(total_rows=count), results.added.schema) as writer:
        writer.write(results.batch, results.added)
    print(f"{out}: {count:,} rows")


def _print(query: "Query", points: "PointTable", results: Results, as_json: bool) -> None:
    """Print the rows that were found, as columns or as JSON."""
    import pyarrow as pa

    places = [{"lat": float(lat), "lon": float(lon)} for lat, lon in results.batch.latlon]
    shown = [field.name for field in points.schema if not pa.types.is_nested(field.type) and not _is_bytes(field.type)]
    cells = results.batch.rows.select(shown).to_pylist()
    where = places if points.geometry is not None else [{} for _ in places]
    rows = [{**place, **row, **more} for place, row, more in zip(where, cells, results.added.to_pylist(), strict=True)]
    if as_json:
        print(json.dumps(rows, default=str))
        return
    if query.name is not None:
        print(f"{query.name}: {query.place[0]:.4f} {query.place[1]:.4f}")
    table = [list(rows[0]), *([_cell(name, value) for name, value in row.items()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _cell(name: str, value: object) -> str:
    """A value as it is printed."""
    if name == "distance_km":
        return f"{value:,.0f}"
    text = "" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
    return text if len(text) <= WIDEST_CELL or name == "near" else f"{text[: WIDEST_CELL - 1]}…"
