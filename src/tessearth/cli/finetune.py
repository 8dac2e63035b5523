"""`tessearth finetune` and `tessearth predict`: learn a label on top of an encoder, and use it."""

import typing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import work_progress
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from tessearth.settings import Kind
    from tessearth.training import FineTuned

LEARNING = (
    *("epochs", "hidden_dim", "batch_size", "head_learning_rate", "encoder_rate", "weight_decay", "validation"),
    *("block_degrees", "class_weights", "seed"),
)
"""Settings of the training that are options as well."""


@commands.takes("device", *LEARNING, reads=("lat", "lon", "coordinates"))
def finetune(
    out: options.Out,
    named: Annotated[
        str | None,
        typer.Argument(metavar="FILE:COLUMN", help="A short form of --input FILE --target COLUMN."),
    ] = None,
    table: options.OptionalInput = None,
    target: options.Target = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", metavar="KIND", help="classify or regress [default: regress where all are numbers]."),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    reading: Any = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="Leave the encoder as it is; only the head learns.")] = False,
    overwrite: options.Overwrite = False,
    settings: Any = None,
) -> None:
    """Learn a label: a small head on an encoder, and the encoder too unless --frozen.

    tessearth finetune --input yields.csv --target yield --out runs/yield

    tessearth finetune --input dirty.csv --target yield --bad-rows skip=bad.csv --sep ";" --out runs/yield

    tessearth finetune --input yields.csv --target yield --hidden-dim 64 --block-degrees 10 --out runs/yield

    --set, and options of the same names, take epochs, hidden_dim (0 is a linear head), batch_size, head_learning_rate,
    encoder_rate (a share of the rates in pretraining), weight_decay, validation (the share of places held out to choose
    the best epoch and to measure intervals), block_degrees (hold out whole blocks of this side),
    class_weights=balanced, seed, device, geometry (point, centroid or mean of lines and polygons), and sep and encoding
    of a csv.

    Ctrl-C ends early and keeps the best so far. The result draws maps (tessearth predict RUN --region kenya
    --resolution 0.05 --out map.tif), fills tables (--input FILE --out predicted.csv), and is a model (--model RUN).
    """
    from tessearth.settings import read_value
    from tessearth.training import finetune as learn

    path, column, chosen = _choose(named, table, target, kind)
    learning = {name: read_value(settings[name]) for name in LEARNING if name in settings}
    with work_progress("fine-tuning", "epochs") as advance:
        tuned = learn(
            model,
            path,
            column,
            kind=chosen,
            out=out,
            overwrite=overwrite,
            device=settings.get("device"),
            progress=lambda done, total, score: advance(done, total, f"best {score:.4f}"),
            frozen=frozen,
            **reading,
            **learning,
        )
    _print_result(tuned, out)
    commands.warn_if_untrained(model)
    if tuned.about["interrupted"]:
        raise KeyboardInterrupt(
            f"stopped after epoch {tuned.about['epochs_done']}; the best so far is kept in {out} and can be used; "
            f"with --overwrite the same command begins again"
        )


def _print_result(tuned: "FineTuned", out: str) -> None:
    """How many rows there were, how good the model is, and what can be done with it."""
    about = tuned.about
    dropped = f"; {about['dropped_rows']:,} without a target or a place left out" if about["dropped_rows"] else ""
    print(f"{out}: {about['training_rows']:,} rows to learn from, {about['validation_rows']:,} held out{dropped}")
    print(f"held-out {about['metric']}: {about['frozen_ridge']:.4f} ridge on the frozen encoder")
    print(f"held-out {about['metric']}: {about['finetuned']:.4f} fine-tuned, after epoch {about['best_epoch']}")
    half = tuned.half_width_or_none(0.9)
    if half is not None:
        advice = (
            "" if "blocks" in about["held_out"] else "; --block-degrees 10 measures them for regions without labels"
        )
        print(f"90 % intervals: +-{half:.4g}, measured on held-out {about['held_out']}{advice}")
    print(f"tessearth predict {out} --input FILE --out predicted.csv")
    print(f"tessearth predict {out} --region kenya --resolution 0.05 --out map.tif")


@commands.takes("device", "coverage", "bbox", reads=("lat", "lon", "geometry", "coordinates"))
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder that `tessearth finetune` made.")],
    out: options.Out,
    table: options.OptionalInput = None,
    reading: Any = None,
    region: options.Region = None,
    resolution: options.OptionalResolution = None,
    land: Annotated[bool, typer.Option("--land", help="Only cells on land north of 60 S; elsewhere nodata.")] = False,
    overwrite: options.Overwrite = False,
    settings: Any = None,
) -> None:
    """Predict a label at every place of a table, or at every cell of a map (.tif).

    tessearth predict runs/yield --input fields.csv --out predicted.csv

    tessearth predict runs/yield --region kenya --resolution 0.05 --land --out map.tif

    tessearth predict runs/yield --bbox 33,-5,42,5 --resolution 0.01 --coverage 0.8 --out map.tif

    Numbers come with the bounds of an interval that holds 90 % of held-out places (columns low and high, bands 2 and
    3), classes with their probability (a column, or band 2 of a map whose band 1 is the code).

    --set, and options of the same names, take coverage (of the intervals), bbox (WEST,SOUTH,EAST,NORTH), device, and
    sep and encoding of a csv.
    """
    from tessearth.settings import find_device
    from tessearth.storage import Reading
    from tessearth.training import load_finetuned, predict_table

    coverage = _read_share(settings.get("coverage", "0.9"))
    bbox = settings.get("bbox")
    is_map = table is None
    if is_map and region is None and bbox is None and resolution is None:
        raise ConfigError("say where: --input TABLE, or --region NAME --resolution DEGREES for a map")
    if not is_map and (region, bbox, resolution, land) != (None, None, None, False):
        raise ConfigError("--region, --bbox, --resolution and --land are for a map, --input for a table: give one")
    tuned = load_finetuned(run, find_device(settings.get("device")))
    common: dict[str, Any] = {"coverage": coverage, "overwrite": overwrite}
    if is_map:
        _draw(tuned, out, region, bbox, resolution, land=land, **common)
        return
    with work_progress("predicting", "rows") as advance:
        done = predict_table(tuned, str(table), out, reading=Reading(**reading), progress=advance, **common)
    what = "left out" if reading.get("on_bad") == "skip" else "have no prediction"
    bad = f"; {done.without_place:,} without a usable place {what}" if done.without_place else ""
    print(f"{out}: {done.rows:,} rows{bad}")


def _draw(
    tuned: "FineTuned", out: str, region: str | None, bbox: str | None, resolution: float | None, **given: Any
) -> None:
    """Write a map and say what its bands are."""
    from tessearth.training import predict_map

    if resolution is None:
        raise ConfigError("say how fine the map is: --resolution DEGREES, such as 0.05")
    sides = None if bbox is None else _read_sides(bbox)
    with work_progress("predicting", "windows") as advance:
        drawn = predict_map(tuned, out, resolution, bbox=sides, region=region, progress=advance, **given)
    bounds = f" ({given['coverage']:.0%})" if "high" in drawn.bands else ""
    print(f"{out}: {drawn.rows:,} x {drawn.columns:,} cells; bands {', '.join(drawn.bands)}{bounds}")


def _read_sides(text: str) -> list[float]:
    """West, south, east, north."""
    try:
        return [float(side) for side in text.split(",")]
    except ValueError:
        raise ConfigError(f"bbox is {text!r}; give WEST,SOUTH,EAST,NORTH in degrees such as 33,-5,42,5") from None


def _read_share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"coverage is {text!r}; it must be a share between 0 and 1, such as 0.9") from None


def _choose(
    named: str | None, table: str | None, target: str | None, kind: str | None
) -> "tuple[str, str, Kind | None]":
    """The file, its column and the kind, from the options or from their short form."""
    from tessearth.settings import Kind
    from tessearth.storage import column_names

    kinds = typing.get_args(Kind)
    if kind not in (None, *kinds):
        raise ConfigError(f"--kind is {kind!r}; it must be one of {', '.join(kinds)}")
    path = table or named
    if path is None or (table is not None and named is not None):
        raise ConfigError("say once what is learned: --input FILE --target COLUMN")
    if target is not None:
        return path, target, typing.cast("Kind | None", kind)
    if table is not None:
        columns = ", ".join(column_names(table)) if table != "-" else "its columns"
        raise ConfigError(f"which column is learned? Add --target, one of {columns}")
    path, column, *said = path.rsplit(":", 2 if path.rpartition(":")[2] in kinds else 1) if ":" in path else ("", "")
    if not path or not column:
        raise ConfigError(f"{named!r} is not of the form FILE:COLUMN; give --input FILE --target COLUMN")
    return path, column, typing.cast("Kind | None", said[0] if said else kind)
