"""The command's entry: its subcommands, and how errors and warnings reach the terminal."""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from tessearth.cli import (
    bench,
    encode,
    evaluate,
    export,
    features,
    finetune,
    info,
    options,
    plot,
    pretrain,
    prior,
    raster,
    retrieve,
    serve,
    similar,
)
from tessearth.errors import CoordinateWarning, TessearthError, is_out_of_memory
from tessearth.version import __version__

app = typer.Typer(
    name="tessearth",
    cls=options.Commands,
    help="Location encoders: turn a latitude and longitude into an embedding that knows what is there.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
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
    options.add(app, command.__name__, command)
app.add_typer(retrieve.app, name="retrieve")
app.add_typer(prior.app, name="prior")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tessearth {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command; an error that the user can correct is one line on standard error and exit status 2."""
    warnings.showwarning = _warn_once()
    warnings.simplefilter("always", CoordinateWarning)
    try:
        status = app(standalone_mode=False, prog_name="tessearth")
    except TessearthError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (KeyboardInterrupt, options.CommandInterruptedError, typer.Abort) as error:
        _fail(f"interrupted; {str(error) or 'no partial files were left'}", status=130)
    except Exception as error:
        if is_out_of_memory(error):
            _fail("out of memory; finished work is kept and no partial files were left")
        if not hasattr(error, "format_message"):  # usage errors of the option parser have one
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(0)
        message, context = error.format_message().strip().rstrip("."), getattr(error, "ctx", None)
        _fail(f"{message}; see {context.command_path} --help" if context else message)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int = 2) -> NoReturn:
    print(f"tessearth: error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _warn_once() -> Callable[..., None]:
    """A `warnings.showwarning` that prints each message as one line, once."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        line = " ".join(str(message).split())
        if line not in shown:
            shown.add(line)
            print(f"tessearth: warning: {line}", file=sys.stderr)

    return show
