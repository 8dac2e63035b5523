"""The command's entry: subcommands, and how errors and warnings reach the terminal."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from tessearth.cli import (
    bench,
    encode,
    evaluate,
    explore,
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
)
from tessearth.errors import CoordinateWarning, TessearthError, is_out_of_memory
from tessearth.version import __version__

app = typer.Typer(
    name="tessearth",
    help="Location encoders: turn a latitude and longitude into an embedding that knows what is there.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("encode", cls=encode.EncodeCommand)(encode.encode)
app.command("export")(export.export)
app.command("features")(features.features)
app.command("pretrain")(pretrain.pretrain)
app.command("finetune")(finetune.finetune)
app.command("predict")(finetune.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(evaluate.compare)
app.command("plot")(plot.plot)
app.command("raster")(raster.raster)
app.command("info")(info.info)
app.command("bench")(bench.bench)
app.command("serve")(serve.serve)
app.command("explore")(explore.explore)
app.add_typer(retrieve.app, name="retrieve")
app.add_typer(prior.app, name="prior")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tessearth {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command; what the user can mend is one line on standard error and exit status 2."""
    warnings.showwarning = _warn_once()
    warnings.simplefilter("always", CoordinateWarning)
    try:
        status = app(standalone_mode=False)
    except TessearthError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (KeyboardInterrupt, typer.Abort):
        _fail(
            "interrupted; nothing was left half-written, and what can go on goes on with the same command", status=130
        )
    except Exception as error:
        if is_out_of_memory(error):
            _fail("there is not enough memory for this here; what was finished is kept, and nothing is half-written")
        # Whichever parser typer brings along, its usage errors can say themselves in one line.
        if not hasattr(error, "format_message"):
            raise
        _fail(_usage_line(error))
    sys.exit(status if isinstance(status, int) else 0)


def _usage_line(error: Any) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context else message


def _fail(message: str, status: int = 2) -> NoReturn:
    print(f"tessearth: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _warn_once() -> Callable[..., None]:
    """Shows a warning as one line, each only once however many batches raise it."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        line = " ".join(str(message).split())
        if line not in shown:
            shown.add(line)
            print(f"tessearth: warning: {line}", file=sys.stderr)

    return show
