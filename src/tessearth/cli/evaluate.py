"""`tessearth evaluate` scores embeddings task by task; `tessearth compare` says which differences count."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli import options
from tessearth.cli.options import work_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tessearth.evaluation import Results


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
        str,
        typer.Option(
            metavar="A,B,...",
            help="Task names or tables FILE:COLUMN[:classify|regress], with commas; 'embedded' and 'range' are groups.",
        ),
    ] = "embedded",
    splits: Annotated[
        str, typer.Option(metavar="A,B,...", help="random, random5, 2deg, 10deg, 20deg, few10, few100, few1000.")
    ] = "random,10deg",
    probes: Annotated[str, typer.Option(metavar="A,B,...", help="ridge, knn, mlp.")] = "ridge",
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="The folder of the published csv files of range/...")
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="FILE", help="Embedded labels prepared on another machine.")
    ] = None,
    references: Annotated[
        bool, typer.Option(help="Score what coordinates alone give: majority, inverse distance, untrained network.")
    ] = True,
    maps: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Labels of the models drawn on maps, or 'none' [default: the best]."),
    ] = None,
    device: options.Device = None,
    cache: options.Cache = True,
) -> None:
    """Score models on tasks, with whole regions held out and three references for comparison.

    tessearth evaluate --models untrained,sphereM+,harmonics --out report

    tessearth evaluate --models "mine:run0.safetensors|run1.safetensors" --tasks mine.csv:yield:regress --out report
    """
    from tessearth.evaluation import evaluate as run
    from tessearth.evaluation import split_names

    named = split_names(models)
    with work_progress("evaluating", "scores") as progress:
        results = run(
            named,
            split_names(tasks),
            split_names(splits),
            split_names(probes),
            out=out,
            references=references,
            data_dir=data_dir,
            benchmark=benchmark,
            device=device,
            cache=cache,
            maps=None if maps is None else [] if maps == "none" else split_names(maps),
            progress=progress,
        )
    _print_scores(results)
    for row in results.skipped:
        print(f"tessearth: skipped: {row.line()}", file=sys.stderr)
    for name in named:
        options.warn_if_untrained(name)
    print(f"{out}: results.json, report.md, report.html; {len(results.scores):,} scores in {results.seconds:,.0f} s")


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
