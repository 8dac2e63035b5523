"""How a subcommand runs: its settings, its progress, and how errors and warnings reach the terminal."""

import functools
import inspect
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Protocol

import typer
import typer.core

from tessearth.cli.options import BadRows, Coordinates, Geometry, Lat, Lon, Set
from tessearth.errors import ConfigError, CoordinateWarning, TessearthError, is_out_of_memory
from tessearth.settings import did_you_mean
from tessearth.version import __version__

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tessearth.embedding import Embedder

MINUS = "\N{MINUS SIGN}"
CHUNK = 8192
"""Places embedded between two updates of the bar."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tessearth {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Read the options that stand before a subcommand."""


def run(app: typer.Typer) -> NoReturn:
    """Run the command line; an error that the user can correct is one line on standard error and exit status 2."""
    warnings.showwarning = _warn_once()
    warnings.simplefilter("always", CoordinateWarning)
    try:
        status = app(standalone_mode=False, prog_name="tessearth")
    except TessearthError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except (KeyboardInterrupt, CommandInterruptedError, typer.Abort) as error:
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


class CommandInterruptedError(Exception):
    """Ctrl-C on its way out: typer takes a KeyboardInterrupt for a status without words."""


class Commands(typer.core.TyperGroup):
    """The subcommands, listed with their whole first sentence."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand, and let an interruption out."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise CommandInterruptedError(str(error)) from None

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A subcommand, with the whole first sentence of its help for lists."""
        found = super().get_command(ctx, cmd_name)
        if found is not None and found.help:
            found.short_help = found.help.strip().partition("\n")[0]
        return found


READING = {"lat": "lat", "lon": "lon", "geometry": "geometry", "coordinates": "coordinates"}
READING |= {"sep": "separator", "encoding": "encoding"}
"""What says how a table is read: options or settings of commands, and the fields of `storage.Reading` that they are."""
_READERS: dict[str, tuple[Any, str | None]] = {
    "lat": (Lat, None),
    "lon": (Lon, None),
    "geometry": (Geometry, "point"),
    "coordinates": (Coordinates, "degrees"),
    "bad_rows": (BadRows, "error"),
}
Command = Callable[..., None]


def in_month(model: str, settings: Mapping[str, str]) -> str:
    """The model's name with the month that was asked for, which comes before its retrieval."""
    month = settings.get("month")
    if month is None:
        return model
    base, plus, retrieval = model.partition("+range")
    return f"{base}+month={month}{plus}{retrieval}"


def takes(*names: str, reads: Sequence[str] | None = None, degrees: bool = False) -> Callable[[Command], Command]:
    """A command whose `--set` takes some names, each of them an option as well; it is called with them as `settings`.

    A command that reads a table says what of `READING` are options of its own; the rest are settings. It is called with
    the fields of `storage.Reading` that were given as `reading`. With `degrees`, negative numbers can be arguments.
    """
    own = () if reads is None else (*reads, "bad_rows")
    known = (*names, *(name for name in READING if reads is not None and name not in reads))

    def decorate(command: Command) -> Command:
        instead = {
            "settings": [_parameter("changes", Set, None)],
            "reading": [_parameter(f"{name}_of_table", *_READERS[name]) for name in own],
        }
        parameters = inspect.signature(command).parameters.values()
        expanded = [new for one in parameters for new in instead.get(one.name, [one.replace(kind=one.KEYWORD_ONLY)])]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            settings = take_settings(given.pop("changes", None), *known)
            if reads is not None:
                told = {name: given.pop(f"{name}_of_table", None) for name in own}
                told = {name: value for name, value in told.items() if value not in (None, _READERS[name][1])}
                given["reading"] = _fields(told | {name: settings.pop(name) for name in READING if name in settings})
            command(settings=settings, **given)

        run.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in expanded}
        run.command_class = _with_settings(known, degrees)  # type: ignore[attr-defined]
        return run

    return decorate


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _fields(told: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a `Reading`, by the options and settings that were given."""
    fields: dict[str, Any] = {READING[name]: value for name, value in told.items() if name in READING}
    if "separator" in fields:
        fields["separator"] = fields["separator"].replace("\\t", "\t")
    if "bad_rows" in told:
        fields["on_bad"], _, bad_file = told["bad_rows"].partition("=")
        fields["bad_file"] = bad_file or None
    return fields


def add(app: typer.Typer, name: str, command: Command) -> None:
    """Add a command to the command line."""
    app.command(name, cls=getattr(command, "command_class", None))(command)


def _with_settings(names: Sequence[str], degrees: bool) -> type[typer.core.TyperCommand]:
    class SettingsCommand(typer.core.TyperCommand):
        settings = names

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            """Rewrite `--name value` as `--set name=value`, and the hyphen of negative degrees as a minus sign."""
            rest, rewritten = iter(args), []
            for argument in rest:
                name, equals, value = argument.removeprefix("--").partition("=")
                if argument.startswith("--") and name.replace("-", "_") in names:
                    value = value if equals else next(rest, "")
                    rewritten += ["--set", f"{name.replace('-', '_')}={value}"]
                else:
                    rewritten.append(re.sub(r"^-(?=\.?\d)", MINUS, argument) if degrees else argument)
            return super().parse_args(ctx, rewritten)

    return SettingsCommand


def take_settings(texts: Sequence[str] | None, *names: str) -> dict[str, str]:
    """The settings of `--set`, of which only some names are known."""
    settings = split_settings(texts)
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting {name!r}{did_you_mean(name, names)}")
    return settings


def split_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """The texts of `--set`, each NAME=VALUE, as a mapping."""
    pairs = [text.partition("=") for text in texts or ()]
    for name, equals, value in pairs:
        if not name.strip() or not equals:
            raise ConfigError(f"--set {name}{equals}{value} is not of the form NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


def split_workers(text: str | None) -> tuple[int | None, str | None]:
    """`--workers` as a number of processes and a Dask cluster, of which at most one is given."""
    if text is None or not text.lstrip("-").isdecimal():
        return None, text
    return int(text), None


def warn_if_untrained(model: str) -> None:
    """Warn that random weights carry no information about places."""
    from tessearth.zoo import is_untrained

    if is_untrained(model):
        print(f"tessearth: warning: model {model!r} has random weights; use it to try things out only", file=sys.stderr)


class Advance(Protocol):
    """Receives the amount done, the total (None while it is unknown) and a short note."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Update the bar."""


@contextmanager
def work_progress(label: str, unit: str = "places") -> Iterator[Advance]:
    """A bar that appears with its first update and stops when all is done.

    Speed counts from the first update, so that work done before an interruption does not inflate it.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(label, total=None, note="", speed="")
    start: list[tuple[float, int]] = []

    def advance(done: int, total: int | None, note: str = "") -> None:
        if not start:
            start.append((time.monotonic(), done))
            bar.start()
        since, before = start[0]
        speed = (done - before) / max(time.monotonic() - since, 1e-3)
        shown = f"{speed:,.{0 if speed >= 10 else 1}f} {unit}/s" if done > before else ""
        bar.update(task, completed=done, total=total, note=note, speed=shown)
        if done == total:
            bar.stop()

    try:
        yield advance
    finally:
        bar.stop()


def embed_with_progress(embedder: "Embedder", latlon: "npt.NDArray[Any]", label: str) -> "npt.NDArray[np.float32]":
    """Embeddings (N, D) of places (N, 2), with a bar."""
    import numpy as np

    embeddings = np.empty((len(latlon), embedder.dim), dtype=np.float32)
    with work_progress(label) as advance:
        for start in range(0, len(latlon), CHUNK):
            stop = min(start + CHUNK, len(latlon))
            embeddings[start:stop] = embedder.embed(latlon[start:stop])
            advance(stop, len(latlon))
    return embeddings
