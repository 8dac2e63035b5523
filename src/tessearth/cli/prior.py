"""`tessearth prior`: where species occur, fitted on embeddings of sightings, scored with image scores, and drawn."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import embed_with_progress, work_progress
from tessearth.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tessearth.embedding import Embedder
    from tessearth.evaluation import SavedPrior

app = typer.Typer(
    cls=commands.Commands,
    help="Learn where species occur, and improve an image classifier with it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

PriorArgument = Annotated[str, typer.Argument(metavar="PRIOR", help="A file that `tessearth prior fit` wrote.")]
SpeciesColumn = Annotated[str, typer.Option("--column", help="The column of species names in a csv or Parquet table.")]


LEARNING = ("epochs", "batch_size", "learning_rate", "positive_weight", "seed")


@commands.takes(*LEARNING, "classes", "device", reads=("lat", "lon", "geometry", "coordinates"))
def fit(
    table: options.Input,
    out: options.Out,
    model: options.Model = options.DEFAULT_MODEL,
    column: SpeciesColumn = "species",
    reading: Any = None,
    overwrite: options.Overwrite = False,
    settings: Any = None,
) -> None:
    """Fit P(species | place) to sightings by the iNaturalist-2018 protocol.

    tessearth prior fit --input birds.csv --lat decimalLatitude --lon decimalLongitude --out birds.safetensors

    tessearth prior fit --model earth --input inat2018_train.npz --out inat.safetensors

    Sightings are a table with a species column, or iNaturalist-2018's npz. --set, and options of the same names, take
    epochs, batch_size, learning_rate, positive_weight (of the species seen, against each of the others), seed, classes
    (the number of species of an npz, when not its highest code plus one), device, and sep and encoding of a csv.
    """
    from tessearth.embedding import Embedder
    from tessearth.evaluation import PriorSettings, fit_prior, read_sightings, save_prior
    from tessearth.settings import from_plain, read_value
    from tessearth.storage import Reading, check_free

    learning = from_plain(PriorSettings, {name: read_value(settings[name]) for name in LEARNING if name in settings})
    check_free(out, overwrite=overwrite)
    sightings = read_sightings(table, column, Reading(**reading))
    known = sightings.known
    if not known.any():
        raise DataError(f"{table}: none of its {len(known)} sightings has a place")
    embedder = Embedder(model, device=settings.get("device"))
    embeddings = embed_with_progress(embedder, sightings.latlon[known], "embedding sightings")
    count = _read_count(settings.get("classes")) or len(sightings.names) or int(sightings.classes.max()) + 1
    losses: list[float] = []
    with work_progress("fitting", "epochs") as advance:

        def on_epoch(epoch: int, loss: float) -> None:
            losses.append(loss)
            advance(epoch, learning.epochs, f"loss {loss:.4g}")

        codes = sightings.classes[known]
        prior = fit_prior(embeddings, codes, count, learning, device=embedder.device, on_epoch=on_epoch)
    save_prior(prior, out, names=sightings.names, model=model, fingerprint=embedder.fingerprint())
    missing = int((~known).sum()) + sightings.dropped
    left_out = f" ({missing:,} without a place{' or a species' * bool(sightings.dropped)} left out)" if missing else ""
    print(f"{out}: {count:,} species from {int(known.sum()):,} sightings{left_out}, loss {losses[-1]:.4g}")
    commands.warn_if_untrained(model)


def _read_count(text: str | None) -> int | None:
    if text is not None and not text.isdecimal():
        raise ConfigError(f"classes is {text!r}; it must be a number of species")
    return None if text is None else int(text)


@commands.takes("device", reads=("lat", "lon", "geometry", "coordinates"))
def evaluate(
    prior: PriorArgument,
    table: options.Input,
    model: options.OptionalModel = None,
    column: SpeciesColumn = "species",
    reading: Any = None,
    as_json: options.Json = False,
    settings: Any = None,
) -> None:
    """Score a prior: how often the right species is among the best 1, 3, 5 and 10, by image, and by image and place.

    tessearth prior evaluate birds.safetensors --input others.csv

    An npz with image scores (`prediction`) is scored both ways; any other table by place alone. Without --model, the
    model is opened where it was at the fit. --set, and options of the same names, take device, and sep and encoding of
    a csv.
    """
    from tessearth.evaluation import load_prior, read_sightings, score_sightings
    from tessearth.storage import Reading

    saved = load_prior(prior)
    sightings = read_sightings(table, column, Reading(**reading))
    embedder = _embedder(saved, model, settings.get("device"))
    with work_progress("scoring", "rows") as advance:
        found = score_sightings(saved, sightings, embedder, advance)
    left_out = len(sightings.classes) - found.rows + sightings.dropped
    result: dict[str, Any] = {"rows": found.rows, "left_out": left_out}
    if sightings.has_scores:
        result["image"] = {f"top{k}": share for k, share in found.image.items()}
    both = "image_and_place" if sightings.has_scores else "place"
    result[both] = {f"top{k}": share for k, share in found.combined.items()}
    _print_result(result, as_json)


def draw(
    prior: PriorArgument,
    species: Annotated[
        str, typer.Option("--species", metavar="NAME", help="The species, by name, or by number in an npz.")
    ],
    out: options.Out,
    resolution: options.Resolution = 1.0,
    model: options.OptionalModel = None,
    overwrite: options.Overwrite = False,
    device: options.Device = None,
) -> None:
    """Draw where a species occurs, as a picture (.png) or a table of cells (.csv).

    tessearth prior map birds.safetensors --species "snowy owl" --out owl.png

    Values are the prior's scores: higher is likelier, but they are no probabilities, since the fit weighs sightings
    by 2048.
    """
    from tessearth.evaluation import load_prior
    from tessearth.plotting import MAP_SUFFIXES, check_figure_path, write_world_map
    from tessearth.sphere import world_grid
    from tessearth.storage import check_free

    check_figure_path(out, MAP_SUFFIXES)
    check_free(out, overwrite=overwrite)
    saved = load_prior(prior)
    code = saved.code_of(species)
    grid = world_grid(resolution)
    embeddings = embed_with_progress(_embedder(saved, model, device), grid.reshape(-1, 2), "embedding cells")
    rows, columns = grid.shape[:2]
    values = saved.prior.of_class(code).probabilities(embeddings).reshape(rows, columns)
    write_world_map(out, values, name="score", title=f"{species}, by {saved.model or 'its model'}")
    print(f"{out}: {species} on {rows} x {columns} cells, at most {values.max():.3g}")


def _embedder(saved: "SavedPrior", model: str | None, device: str | None) -> "Embedder":
    """The embedder that a prior was fitted with."""
    from tessearth.embedding import Embedder

    name = model or saved.model
    if not name:
        raise ConfigError("the prior does not say which model it was fitted with: name it with --model")
    embedder = Embedder(name, device=device)
    if saved.fingerprint and embedder.fingerprint() != saved.fingerprint:
        raise DataError(f"the prior was fitted to other embeddings than {name} gives; fit it again, or name its model")
    return embedder


def _print_result(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['rows']:,} rows" + (f", {result['left_out']:,} left out" if result["left_out"] else ""))
    for name, shares in result.items():
        if isinstance(shares, dict):
            line = "   ".join(f"top-{k.removeprefix('top')} {share:6.1%}" for k, share in shares.items())
            print(f"{name.replace('_', ' '):<16} {line}")


for name, command in {"fit": fit, "evaluate": evaluate, "map": draw}.items():
    commands.add(app, name, command)
