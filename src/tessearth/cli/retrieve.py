"""`tessearth retrieve`: databases of image features."""

from typing import Annotated

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import work_progress
from tessearth.errors import ConfigError

app = typer.Typer(
    cls=commands.Commands,
    help="Extend embeddings with the image features of similar places (RANGE).",
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
    commands.warn_if_untrained(model)
