"""`tessearth finetune` and `tessearth predict`: learn a label on top of an encoder, and use it."""

import sys
import typing
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli import options
from tessearth.cli.options import work_progress
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from tessearth.settings import Kind


def finetune(
    table: Annotated[
        str, typer.Argument(metavar="FILE:COLUMN[:classify|regress]", help="A csv or Parquet table and its label.")
    ],
    out: options.Out,
    model: options.Model = options.DEFAULT_MODEL,
    frozen: Annotated[bool, typer.Option("--frozen", help="Leave the encoder as it is; only the head learns.")] = False,
    epochs: options.Epochs = 30,
    changes: options.Set = None,
    device: options.Device = None,
) -> None:
    """Learn a label: a small head on an encoder, and the encoder too unless --frozen.

    tessearth finetune yields.csv:yield --model earth --out runs/yield

    tessearth finetune yields.csv:yield --set hidden_dim=64 --set block_degrees=10 --out runs/yield

    --set takes hidden_dim (0 is a linear head), batch_size, head_learning_rate, encoder_rate (a share of the rates in
    pretraining), weight_decay, validation (the share of places held out to choose the best epoch by), block_degrees
    (hold out whole blocks of this side), class_weights=balanced and seed.

    Ctrl-C ends early and keeps the best so far. `tessearth predict RUN --input FILE` uses the result.
    """
    from tessearth.settings import read_value
    from tessearth.training import finetune as learn

    path, column, kind = _parse(table)
    settings = {name: read_value(text) for name, text in options.split_settings(changes).items()}
    with work_progress("fine-tuning", "epochs") as advance:
        tuned = learn(
            model,
            path,
            column,
            kind=kind,
            out=out,
            device=device,
            progress=lambda done, total, score: advance(done, total, f"best {score:.4f}"),
            **({"frozen": frozen, "epochs": epochs} | settings),
        )
    about = tuned.about
    print(f"{out}: {about['training_rows']:,} rows to learn from, {about['validation_rows']:,} held out")
    print(f"held-out {about['metric']}: {about['frozen_ridge']:.4f} ridge on the frozen encoder")
    print(f"held-out {about['metric']}: {about['finetuned']:.4f} fine-tuned, after epoch {about['best_epoch']}")
    print(f"tessearth predict {out} --input FILE --out predictions.csv")
    options.warn_if_untrained(model)
    if about["interrupted"]:
        print(f"tessearth: stopped after epoch {about['epochs_done']}; the best so far is kept", file=sys.stderr)
        raise typer.Exit(130)


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A folder that `tessearth finetune` made.")],
    table: options.Input,
    out: options.Out,
    lat: options.Lat = None,
    lon: options.Lon = None,
    device: options.Device = None,
) -> None:
    """Predict a label at every place of a table, into .csv or .parquet.

    tessearth predict runs/yield --input fields.csv --out predicted.csv
    """
    from tessearth.devices import find_device
    from tessearth.storage import Reading
    from tessearth.training import load_finetuned, predict_table

    tuned = load_finetuned(run, find_device(device))
    with work_progress("predicting", "rows") as advance:
        rows = predict_table(tuned, table, out, reading=Reading(lat=lat, lon=lon), progress=advance)
    print(f"{out}: {rows:,} rows")


def _parse(table: str) -> "tuple[str, str, Kind | None]":
    from tessearth.settings import Kind

    kinds = typing.get_args(Kind)
    path, column, *kind = table.rsplit(":", 2 if table.rpartition(":")[2] in kinds else 1) if ":" in table else ("", "")
    if not path or not column:
        raise ConfigError(f"{table!r} is not of the form FILE:COLUMN or FILE:COLUMN:classify (or :regress)")
    return path, column, typing.cast("Kind | None", kind[0] if kind else None)
