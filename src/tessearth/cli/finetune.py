"""`tessearth finetune` and `tessearth predict`: learn a label of one's own on top of an encoder, and use it."""

import sys
import typing
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, ModelOption, warn_if_untrained
from tessearth.cli.progress import work_progress
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from tessearth.settings import Kind


def finetune(
    table: Annotated[
        str, typer.Argument(metavar="FILE:COLUMN[:classify|regress]", help="A csv or Parquet table and its label.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="RUN", help="The folder to make.")],
    model: ModelOption = DEFAULT_MODEL,
    frozen: Annotated[bool, typer.Option("--frozen", help="Leave the encoder as it is; only the head learns.")] = False,
    epochs: Annotated[int, typer.Option(help="How many times every row is seen.")] = 30,
    hidden: Annotated[int, typer.Option(help="Width of a hidden layer in the head; 0 is a linear head.")] = 0,
    batch_size: Annotated[int, typer.Option(help="Rows in a step.")] = 256,
    encoder_rate: Annotated[
        float, typer.Option(help="The encoder's learning rates, as a share of those in pretraining.")
    ] = 0.3,
    validation: Annotated[float, typer.Option(help="The share of places held out to choose the best epoch by.")] = 0.2,
    regional_validation: Annotated[
        float | None,
        typer.Option("--regional-validation", metavar="DEGREES", help="Hold out whole blocks of this side instead."),
    ] = None,
    balanced: Annotated[bool, typer.Option("--balanced", help="Rare classes count as much as common ones.")] = False,
    seed: Annotated[int, typer.Option(help="Of the split and of everything random.")] = 0,
    device: DeviceOption = None,
) -> None:
    """Learn a label: a small head on an encoder, and the encoder too unless --frozen.

    tessearth finetune yields.csv:yield --model earth --out runs/yield

    Ctrl-C ends early and keeps the best so far. `tessearth predict RUN FILE` uses the result.
    """
    from tessearth.training.finetune import finetune as learn

    path, column, kind = _parse(table)
    with work_progress("fine-tuning", "epochs") as advance:
        tuned = learn(
            model,
            path,
            column,
            kind=kind,
            out=out,
            device=device,
            progress=lambda done, total, score: advance(done, total, f"best {score:.4f}"),
            frozen=frozen,
            epochs=epochs,
            hidden_dim=hidden,
            batch_size=batch_size,
            encoder_rate=encoder_rate,
            validation=validation,
            block_degrees=regional_validation,
            class_weights="balanced" if balanced else "none",
            seed=seed,
        )
    about = tuned.about
    print(f"{out}: {about['training_rows']:,} rows to learn from, {about['validation_rows']:,} held out")
    print(f"held-out {about['metric']}: {about['frozen_ridge']:.4f} ridge on the frozen encoder")
    print(f"held-out {about['metric']}: {about['finetuned']:.4f} fine-tuned, after epoch {about['best_epoch']}")
    print(f"tessearth predict {out} FILE --out predictions.csv")
    warn_if_untrained(model)
    if about["interrupted"]:
        print(f"tessearth: stopped after epoch {about['epochs_done']}; the best so far is kept", file=sys.stderr)
        raise typer.Exit(130)


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder `tessearth finetune` made.")],
    table: Annotated[str, typer.Argument(metavar="FILE", help="csv or Parquet of places; - is standard input.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where the table goes: .csv or .parquet.")],
    lat: Annotated[str | None, typer.Option(help="Latitude column [default: by its usual name].")] = None,
    lon: Annotated[str | None, typer.Option(help="Longitude column [default: by its usual name].")] = None,
    device: DeviceOption = None,
) -> None:
    """Predict a label at every place of a table."""
    from tessearth.devices import find_device
    from tessearth.training.finetuned import load_finetuned, predict_table

    tuned = load_finetuned(run, find_device(device))
    with work_progress("predicting", "rows") as advance:
        rows = predict_table(tuned, table, out, lat=lat, lon=lon, progress=advance)
    print(f"{out}: {rows:,} rows")


def _parse(table: str) -> "tuple[str, str, Kind | None]":
    from tessearth.settings import Kind

    kinds = typing.get_args(Kind)
    path, column, *kind = table.rsplit(":", 2 if table.rpartition(":")[2] in kinds else 1) if ":" in table else ("", "")
    if not path or not column:
        raise ConfigError(f"{table!r} is not of the form FILE:COLUMN or FILE:COLUMN:classify (or :regress)")
    return path, column, typing.cast("Kind | None", kind[0] if kind else None)
