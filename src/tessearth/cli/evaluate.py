"""`tessearth evaluate` scores embeddings task by task; `tessearth compare` says which differences count."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessearth.cli import commands, options
from tessearth.cli.commands import work_progress
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tessearth.evaluation import Results


@commands.takes("kind", "data_dir", "benchmark", "maps", "device", reads=())
def evaluate(
    out: options.Out,
    models: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Models by name or path, with commas; LABEL:MODEL names one, 'LABEL:MODEL|MODEL' averages several.",
        ),
    ] = options.DEFAULT_MODEL,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            help="Task names or tables FILE:COLUMN[:classify|regress], with commas; 'embedded' and 'range' are groups.",
        ),
    ] = None,
    table: options.OptionalInput = None,
    target: options.Target = None,
    reading: Any = None,
    splits: Annotated[
        str, typer.Option(metavar="A,B,...", help="random, random5, 2deg, 10deg, 20deg, few10, few100, few1000.")
    ] = "random,10deg",
    probes: Annotated[str, typer.Option(metavar="A,B,...", help="ridge, knn, mlp.")] = "ridge",
    references: Annotated[
        bool, typer.Option(help="Score what coordinates alone give: majority, inverse distance, untrained network.")
    ] = True,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Leave out unknown names and what cannot be loaded.")
    ] = False,
    cache: options.Cache = True,
    settings: Any = None,
) -> None:
    """Score models on tasks, with whole regions held out and three references for comparison.

    tessearth evaluate --models untrained,sphereM+,harmonics --out report

    tessearth evaluate --models earth,runs/mine --input mine.csv --target yield,zone --bad-rows skip --out report

    tessearth evaluate --models "mine:run0.safetensors|run1.safetensors" --tasks mine.csv:yield:regress --out report

    Without --tasks and --input these are the embedded tasks. An unknown name, or a model that cannot be loaded, is an
    error before any work, unless --skip-unknown.

    --set, and options of the same names, take lat, lon, geometry, coordinates, sep and encoding (of tables), kind (of
    --target: classify or regress), data_dir (the folder of the published csv files of range/...), benchmark (a file of
    embedded labels prepared on another machine), maps (labels of the models drawn, or none) and device.
    """
    from tessearth.evaluation import evaluate as run
    from tessearth.evaluation import split_names

    named, maps = split_names(models), settings.get("maps")
    with work_progress("evaluating", "scores") as progress:
        results = run(
            named,
            _tasks(tasks, table, target, settings.get("kind"), reading),
            split_names(splits),
            split_names(probes),
            out=out,
            skip_unknown=skip_unknown,
            references=references,
            data_dir=settings.get("data_dir"),
            benchmark=settings.get("benchmark"),
            device=settings.get("device"),
            cache=cache,
            maps=None if maps is None else [] if maps == "none" else split_names(maps),
            progress=progress,
            **reading,
        )
    _print_scores(results)
    for task in results.tasks:
        if "column" in task.about:
            for note in task.notes:
                print(f"{task.name}: {note}")
    for row in results.skipped:
        print(f"tessearth: skipped: {row.line()}", file=sys.stderr)
    for name in named:
        commands.warn_if_untrained(name)
    print(f"{out}: results.json, report.md, report.html; {len(results.scores):,} scores in {results.seconds:,.0f} s")


def _tasks(names: str | None, table: str | None, target: str | None, kind: str | None, reading: Any) -> list[Any]:
    """The tasks named and those of a user's table; the embedded ones where there are neither."""
    from tessearth.evaluation import read_tasks, split_names
    from tessearth.storage import Reading

    if (table is None) != (target is None):
        raise ConfigError("--input FILE and --target COLUMN (with commas: several) go together")
    if kind not in (None, "classify", "regress"):
        raise ConfigError(f"kind is {kind!r}; it must be classify or regress")
    own = [] if table is None or target is None else read_tasks(table, split_names(target), kind, Reading(**reading))  # type: ignore[arg-type]
    listed = split_names(names) if names is not None else [] if own else ["embedded"]
    return [*listed, *own]


def compare(
    first: Annotated[str, typer.Argument(metavar="RESULTS", help="results.json of an evaluation, or its folder.")],
    second: Annotated[str, typer.Argument(metavar="RESULTS", help="Another.")],
) -> None:
    """Print the differences between two evaluations, and whether each exceeds the spread.

    tessearth compare report-before report-after
    """
    from tessearth.evaluation import NOTHING, format_score, read_results
    from tessearth.evaluation import compare as find_differences

    rows = find_differences(read_results(first), read_results(second))
    head = ("model", "task", "split", "probe", "first", "second", "difference", "must exceed", "the second is")
    body = [
        (
            *(row.model, row.task, row.split, row.probe),
            *(format_score(row.metric, value) for value in (row.first, row.second, row.difference)),
            NOTHING if row.bound is None else format_score(row.metric, row.bound),
            row.verdict,
        )
        for row in rows
    ]
    _print_table([head, *body])
    counted = sum(row.verdict in ("higher", "lower") for row in rows)
    print(f"\n{counted} of {len(rows)} differences exceed the spread (95 %, paired by draw).")


def _print_scores(results: "Results") -> None:
    from tessearth.evaluation import BEATS, score_grid, score_tables

    marks = {"best": " *", "beats": f" {BEATS}"}
    for table in score_tables(results):
        grid = score_grid(table)
        body = [[entry.text + marks.get(entry.emphasis, "  ") for entry in row] for row in grid.rows]
        print(f"\n{table.split}, {table.probe}  (* best encoder, {BEATS} a reference that beats every encoder)")
        _print_table([grid.head, *body])
    print()


def _print_table(lines: "Sequence[Sequence[str]]") -> None:
    """Columns as wide as their widest text, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        aligned = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        print("  ".join(aligned).rstrip())
