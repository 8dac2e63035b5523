"""`tessearth prior`: where species occur, fitted on embeddings of sightings, judged with image scores, and drawn."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, JsonOption, ModelOption, warn_if_untrained
from tessearth.cli.progress import Advance, work_progress
from tessearth.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tessearth.embedding.embedder import Embedder
    from tessearth.evaluation.geoprior import SavedPrior

app = typer.Typer(
    help="Learn where species occur, and help an image classifier with it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ROWS_AT_ONCE = 8192

PriorArgument = Annotated[str, typer.Argument(metavar="PRIOR", help="A file that `tessearth prior fit` wrote.")]
TableOption = Annotated[
    str,
    typer.Option(
        "--table", metavar="TABLE", help="csv or Parquet with lat, lon and a species column, or iNaturalist-2018's npz."
    ),
]
SpeciesColumn = Annotated[str, typer.Option("--column", help="The column of species names in a csv or Parquet table.")]
OtherModel = Annotated[
    str | None, typer.Option("--model", help="Where the model lies now [default: where it lay at the fit].")
]


@app.command("fit")
def fit(
    table: TableOption,
    out: Annotated[str, typer.Option("--out", metavar="PRIOR", help="The file to write, such as birds.safetensors.")],
    model: ModelOption = DEFAULT_MODEL,
    column: SpeciesColumn = "species",
    classes: Annotated[
        int | None, typer.Option(help="How many species an npz speaks of [default: up to its highest code].")
    ] = None,
    epochs: Annotated[int, typer.Option(help="Times every sighting is seen.")] = 50,
    batch_size: Annotated[int, typer.Option(help="Sightings a step.")] = 2048,
    learning_rate: Annotated[float, typer.Option(help="Of Adam.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of the order of the sightings.")] = 0,
    device: DeviceOption = None,
) -> None:
    """Fit P(species | place) to sightings by the iNaturalist-2018 protocol.

    tessearth prior fit --model earth --table inat2018_train.npz --out inat.safetensors
    """
    from tessearth.embedding.embedder import Embedder
    from tessearth.evaluation.geoprior import PriorSettings, fit_prior, read_sightings, save_prior

    settings = PriorSettings(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, seed=seed)
    sightings = read_sightings(table, column)
    known = sightings.known
    if not known.any():
        raise DataError(f"{table}: none of its {len(known)} sightings has a place")
    embedder = Embedder(model, device=device)
    with work_progress("embedding sightings") as advance:
        embeddings = _embed(embedder, sightings.latlon[known], advance)
    count = classes or len(sightings.names) or int(sightings.classes.max()) + 1
    losses: list[float] = []
    with work_progress("fitting", "epochs") as advance:

        def told(epoch: int, loss: float) -> None:
            losses.append(loss)
            advance(epoch, epochs, f"loss {loss:.4g}")

        codes = sightings.classes[known]
        prior = fit_prior(embeddings, codes, count, settings, device=embedder.device, on_epoch=told)
    save_prior(prior, out, names=sightings.names, model=model, fingerprint=embedder.fingerprint())
    left_out = f" ({int((~known).sum()):,} without a place left out)" if not known.all() else ""
    print(f"{out}: {count:,} species from {int(known.sum()):,} sightings{left_out}, loss {losses[-1]:.4g}")
    warn_if_untrained(model)


@app.command("evaluate")
def evaluate(
    prior: PriorArgument,
    table: TableOption,
    model: OtherModel = None,
    column: SpeciesColumn = "species",
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """How often the right species is among the best 1, 3, 5 and 10: by image, and by image and place.

    An npz with image scores (`prediction`) is judged both ways; a table without, by place alone.
    """
    from tessearth.evaluation.geoprior import evaluate_prior, has_scores, load_prior, read_sightings

    saved = load_prior(prior)
    sightings = read_sightings(table, column)
    with_images = has_scores(table)
    codes = saved.codes_of(sightings)
    judged = codes >= 0 if with_images else (codes >= 0) & sightings.known
    if not judged.any():
        raise DataError(f"{table}: none of its {len(codes)} sightings is of a species the prior knows, with a place")
    embedder = _embedder(saved, model, device)
    with work_progress("judging", "rows") as advance:
        blocks = _blocks(embedder, saved, table if with_images else None, sightings.latlon, codes, judged, advance)
        found = evaluate_prior(saved.prior, blocks)
    result: dict[str, Any] = {"rows": found.rows, "left_out": int((~judged).sum())}
    if with_images:
        result["image"] = {f"top{k}": share for k, share in found.image.items()}
    result["image_and_place" if with_images else "place"] = {f"top{k}": share for k, share in found.combined.items()}
    _print_result(result, as_json)


@app.command("map")
def draw(
    prior: PriorArgument,
    species: Annotated[
        str, typer.Option("--species", metavar="NAME", help="The species, by name, or by number in an npz.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A picture (.png) or a table of cells (.csv).")],
    step: Annotated[float, typer.Option("--step", metavar="DEGREES", help="The side of a cell.")] = 1.0,
    model: OtherModel = None,
    device: DeviceOption = None,
) -> None:
    """Draw where a species occurs, by the prior's score: higher is likelier, but sightings weigh 2048 in its fit."""
    from tessearth.evaluation.geoprior import load_prior
    from tessearth.plotting.places import check_map_path, world_grid, write_world_map

    check_map_path(out)
    saved = load_prior(prior)
    code = saved.code_of(species)
    grid = world_grid(step)
    embedder = _embedder(saved, model, device)
    with work_progress("embedding cells") as advance:
        embeddings = _embed(embedder, grid.reshape(-1, 2), advance)
    rows, columns = grid.shape[:2]
    values = saved.prior.of_class(code).probabilities(embeddings).reshape(rows, columns)
    write_world_map(out, values, name="score", title=f"{species}, by {saved.model or 'its model'}")
    print(f"{out}: {species} on {rows} x {columns} cells, at most {values.max():.3g}")


def _embedder(saved: "SavedPrior", model: str | None, device: str | None) -> "Embedder":
    """The embedder a prior was fitted with; another one's embeddings would mean nothing to it."""
    from tessearth.embedding.embedder import Embedder

    name = model or saved.model
    if not name:
        raise ConfigError("the prior does not say which model it was fitted with: name it with --model")
    embedder = Embedder(name, device=device)
    if saved.fingerprint and embedder.fingerprint() != saved.fingerprint:
        raise DataError(f"the prior was fitted to other embeddings than {name} gives; fit it again, or name its model")
    return embedder


def _embed(embedder: "Embedder", latlon: "npt.NDArray[np.float64]", advance: Advance) -> "npt.NDArray[np.float32]":
    import numpy as np

    embeddings = np.empty((len(latlon), embedder.dim), dtype=np.float32)
    for start in range(0, len(latlon), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        embeddings[some] = embedder.embed(latlon[some])
        advance(min(start + ROWS_AT_ONCE, len(latlon)), len(latlon))
    return embeddings


def _blocks(
    embedder: "Embedder",
    saved: "SavedPrior",
    scores: str | None,
    latlon: "npt.NDArray[np.float64]",
    codes: "npt.NDArray[np.int64]",
    judged: "npt.NDArray[np.bool_]",
    advance: Advance,
) -> "Iterator[tuple[Any, Any, Any]]":
    """Embeddings (NaN without a place), image scores and codes of the rows to judge, some at a time."""
    import numpy as np

    from tessearth.evaluation.geoprior import SCORES_AT_ONCE, read_scores

    species = len(saved.prior.bias)
    step = max(1, SCORES_AT_ONCE // species)
    no_images = (
        np.ones((min(step, len(codes) - start), species), np.float32) / species for start in range(0, len(codes), step)
    )
    done = 0
    for block in no_images if scores is None else read_scores(scores):
        rows = np.arange(done, done + len(block))
        done += len(block)
        if done > len(codes):
            break
        rows, kept = rows[judged[rows]], judged[rows]
        places = np.full((len(rows), embedder.dim), np.nan, dtype=np.float32)
        known = np.isfinite(latlon[rows]).all(1)
        places[known] = embedder.embed(latlon[rows[known]])
        yield places, block[kept], codes[rows]
        advance(done, len(codes))
    if done != len(codes):
        raise DataError(f"there are image scores for {done} rows and {len(codes)} sightings: they do not go together")


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['rows']:,} rows" + (f", {result['left_out']:,} left out" if result["left_out"] else ""))
    for name, shares in result.items():
        if isinstance(shares, dict):
            line = "   ".join(f"top-{k.removeprefix('top')} {share:6.1%}" for k, share in shares.items())
            print(f"{name.replace('_', ' '):<16} {line}")
