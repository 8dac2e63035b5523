"""`tessearth evaluate`: what embeddings are worth, task by task; `tessearth compare`: which differences count."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from tessearth.cli.options import DEFAULT_MODEL, DeviceOption, warn_if_untrained
from tessearth.cli.progress import work_progress
from tessearth.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tessearth.evaluation.results import Results


def evaluate(
    models: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Models by name or path, with commas; LABEL:MODEL names one, 'LABEL:MODEL|MODEL' averages several.",
        ),
    ] = DEFAULT_MODEL,
    tasks: Annotated[
        str | None,
        typer.Option(help="Tasks, with commas; 'embedded' and 'range' stand for all of a kind [default: embedded]."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="FILE:COLUMN[:classify|regress]", help="A table of your own; repeatable."),
    ] = None,
    splits: Annotated[str, typer.Option(help="random, random5, 2deg, 10deg, 20deg, few10, few100, few1000.")] = (
        "random,10deg"
    ),
    probes: Annotated[str, typer.Option(help="ridge, knn, mlp.")] = "ridge",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Where results.json, report.md and report.html go.")
    ] = None,
    data_dir: Annotated[
        str | None, typer.Option("--data-dir", metavar="DIR", help="The published csv files of range/... .")
    ] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="FILE", help="Embedded labels prepared on another machine.")
    ] = None,
    references: Annotated[
        bool, typer.Option(help="Show what coordinates alone give: majority, inverse distance, untrained network.")
    ] = True,
    maps: Annotated[
        str | None, typer.Option(help="Labels of the models drawn on maps, or 'none' [default: the best].")
    ] = None,
    device: DeviceOption = None,
    cache: Annotated[bool, typer.Option(help="Keep embeddings on disk, and use those kept.")] = True,
    against: Annotated[
        str | None, typer.Option("--compare", metavar="RESULTS", help="Earlier results: which differences count?")
    ] = None,
) -> None:
    """Score models on tasks, with whole regions held out and three references beside them.

    tessearth evaluate --models untrained,sphereM+,harmonics --out report

    tessearth evaluate --models "mine:run0.safetensors|run1.safetensors" --task mine.csv:yield:regress --out report
    """
    from tessearth.evaluation.results import read_results
    from tessearth.evaluation.runner import evaluate as run
    from tessearth.evaluation.runner import split_names

    if out is None:
        raise ConfigError("say where the results go: --out DIR")
    earlier = None if against is None else read_results(against)
    named = split_names(models)
    with work_progress("evaluating", "scores") as progress:
        results = run(
            named,
            [*(split_names(tasks) if tasks else [] if own else ["embedded"]), *(own or [])],
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
        warn_if_untrained(name)
    if earlier is not None:
        _print_differences(earlier, results)
    print(f"{out}: results.json, report.md, report.html; {len(results.scores):,} scores in {results.seconds:,.0f} s")


def compare(
    first: Annotated[str, typer.Argument(metavar="RESULTS", help="results.json of an evaluation, or its folder.")],
    second: Annotated[str, typer.Argument(metavar="RESULTS", help="Another.")],
) -> None:
    """Say by how much the second results differ from the first, and whether that is more than their spread."""
    from tessearth.evaluation.results import read_results

    _print_differences(read_results(first), read_results(second))


def _print_scores(results: "Results") -> None:
    from tessearth.evaluation.report import BEATS, score_grid
    from tessearth.evaluation.results import score_tables

    marks = {"best": " *", "beats": f" {BEATS}"}
    for table in score_tables(results):
        grid = score_grid(table)
        body = [[entry.text + marks.get(entry.emphasis, "  ") for entry in row] for row in grid.rows]
        print(f"\n{table.split}, {table.probe}  (* best encoder, {BEATS} a reference that beats every encoder)")
        _print_table([grid.head, *body])
    print()


def _print_differences(first: "Results", second: "Results") -> None:
    from tessearth.evaluation.report import NOTHING, spoken_score
    from tessearth.evaluation.results import compare as find_differences

    rows = find_differences(first, second)
    head = ("model", "task", "split", "probe", "first", "second", "difference", "must exceed", "the second is")
    body = [
        (
            *(row.model, row.task, row.split, row.probe),
            *(spoken_score(row.metric, value) for value in (row.first, row.second, row.difference)),
            NOTHING if row.bound is None else spoken_score(row.metric, row.bound),
            row.verdict,
        )
        for row in rows
    ]
    _print_table([head, *body])
    counted = sum(row.verdict in ("higher", "lower") for row in rows)
    print(f"\n{counted} of {len(rows)} differences exceed the spread (95 %, paired by draw).")


def _print_table(lines: "Sequence[Sequence[str]]") -> None:
    """Columns as wide as their widest text, the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        first, *others = (
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())
