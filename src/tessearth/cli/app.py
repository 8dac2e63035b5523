"""The command line: which subcommands there are."""

import functools

import typer

from tessearth.cli import (
    bench,
    commands,
    encode,
    evaluate,
    export,
    features,
    finetune,
    info,
    plot,
    pretrain,
    prior,
    raster,
    retrieve,
    serve,
    similar,
)

app = typer.Typer(
    name="tessearth",
    cls=commands.Commands,
    help="Location encoders: turn a latitude and longitude into an embedding that knows what is there.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.callback()(commands.root)
for command in (
    encode.encode,
    raster.raster,
    similar.similar,
    export.export,
    features.features,
    pretrain.pretrain,
    finetune.finetune,
    finetune.predict,
    evaluate.evaluate,
    evaluate.compare,
    plot.plot,
    info.info,
    bench.bench,
    serve.serve,
    serve.explore,
):
    commands.add(app, command.__name__, command)
app.add_typer(retrieve.app, name="retrieve")
app.add_typer(prior.app, name="prior")

main = functools.partial(commands.run, app)
"""What `tessearth` runs."""
