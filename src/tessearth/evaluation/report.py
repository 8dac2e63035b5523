"""The report of an evaluation: the paper's tables, maps, breakdowns and all that was skipped, in Markdown and HTML."""

import base64
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tessearth.errors import MissingExtraError
from tessearth.evaluation.results import Breakdown, ContinentTable, Results, Row, ScoreTable, best_model, score_tables
from tessearth.evaluation.runner import NAMES, Prediction, Predictions
from tessearth.packages import require
from tessearth.storage import errors_of_writing, write_bytes

Emphasis = Literal["", "best", "second", "beats", "note"]
TEMPLATES = Path(__file__).parent / "templates"


class Heading(NamedTuple):
    """The title (level 1), or that of a section (2) or a part (3)."""

    level: int
    text: str


class Paragraph(NamedTuple):
    """Plain text."""

    text: str


class Listing(NamedTuple):
    """Lines of plain text, one below the other."""

    items: tuple[str, ...]


class Entry(NamedTuple):
    """What stands in a table."""

    text: str
    emphasis: Emphasis = ""


class Grid(NamedTuple):
    """A table: the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    words: bool = False
    """Whether its columns hold words rather than numbers."""


class Figure(NamedTuple):
    """A picture."""

    name: str
    """Of its file, such as "10deg-koppen.png"."""
    caption: str
    png: bytes


Block = Heading | Paragraph | Listing | Grid | Figure

BEATS = "†"
"""Follows the score of a reference that beats every encoder."""
NOTHING = "-"


def format_score(metric: str, mean: float | None, spread: float | None = None) -> str:
    """Accuracy in percent, R2 as it is: "77.8 ± 0.4", "0.946"."""
    if mean is None:
        return NOTHING
    factor, digits = (100, 1) if metric == "accuracy" else (1, 3)
    shown = round(mean * factor, digits) + 0.0  # a rounded -0.0 becomes 0.0
    return f"{shown:.{digits}f}" + ("" if spread is None else f" ± {spread * factor:.{digits}f}")


def to_markdown(blocks: Sequence[Block], figures: str = "") -> str:
    """The report's text; its pictures lie in the folder `figures` next to it."""
    return _render("report.md", blocks, figures=figures)


def to_html(blocks: Sequence[Block]) -> str:
    """The whole page, its pictures inside."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    return _render("report.html", blocks, title=title, style=page_style())


def page_style() -> str:
    """The style sheet of the page."""
    return (TEMPLATES / "report.css").read_text("utf-8")


def _render(template: str, blocks: Sequence[Block], **values: str) -> str:
    named = [(type(block).__name__.lower(), block) for block in blocks]
    return str(_environment().get_template(template).render(blocks=named, beats=BEATS, **values))


@functools.cache
def _environment() -> Any:
    jinja2 = require("jinja2", extra="eval", what="a report")
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=jinja2.select_autoescape(["html"]),
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters["base64"] = lambda content: base64.b64encode(content).decode()
    found.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
    return found


MAPS = "maps"
MAPS_CM, MAPS_DPI = 24.0, 170
EXTREMES = 5
"""How many of the best and of the worst classes are listed."""
FEWEST_ROWS = 10
"""Classes tested on fewer rows are not listed: their share of right answers is mostly chance."""


def write_report(
    results: Results,
    folder: Path,
    predictions: Predictions | None = None,
    maps: Sequence[str] | None = None,
) -> None:
    """Write report.md, report.html and the maps next to them; `maps` are the models drawn, by default the best."""
    figures, note = _figures(results, predictions or {}, maps)
    blocks = build_report(results, figures, note)
    for figure in figures:
        with errors_of_writing(folder / MAPS):
            (folder / MAPS).mkdir(exist_ok=True)
        write_bytes(folder / MAPS / figure.name, figure.png)
    write_bytes(folder / "report.md", to_markdown(blocks, MAPS).encode())
    write_bytes(folder / "report.html", to_html(blocks).encode())


def build_report(results: Results, figures: Sequence[Figure] = (), figure_note: str = "") -> list[Block]:
    """The report's parts, from the title down."""
    best = best_model(results)
    skipped: list[Block] = [Heading(2, "Skipped"), Listing(tuple(row.line() for row in results.skipped))]
    maps: list[Block] = [Heading(2, "Maps"), Paragraph(figure_note)] if figure_note else []
    return [
        Heading(1, "Location encoders compared"),
        Paragraph(_provenance(results)),
        *_score_blocks(results),
        *(skipped if results.skipped else []),
        *maps,
        *figures,
        *(_class_blocks(results, best) if best else []),
        *(_continent_blocks(results, best) if best else []),
        *_task_blocks(results),
        *_model_blocks(results),
    ]


def score_grid(table: ScoreTable) -> Grid:
    """A table of scores as entries: encoders, then references below a line of their own."""
    head = ("", *(f"{column.title} ({_unit(column.metric)})" for column in table.columns))
    encoders = [_score_row(table, row) for row in table.rows if not row.reference]
    references = [_score_row(table, row) for row in table.rows if row.reference]
    line = (Entry("references", "note"), *(Entry("") for _ in table.columns))
    return Grid(head, (*encoders, *([line, *references] if references else [])))


def _score_row(table: ScoreTable, row: Row) -> tuple[Entry, ...]:
    label = f"{row.label} ({row.members} members)" if row.members > 1 else row.label
    entries = [
        Entry(format_score(column.metric, cell and cell.mean, cell.spread if cell else None), mark)
        for column, cell, mark in zip(table.columns, row.cells, row.marks, strict=True)
    ]
    return (Entry(label), *entries)


def _score_blocks(results: Results) -> list[Block]:
    tables = score_tables(results)
    probes = len({table.probe for table in tables}) > 1
    blocks: list[Block] = []
    for table in tables:
        blocks.append(Heading(2, f"Split {table.split}" + (f", probe {table.probe}" if probes else "")))
        blocks.append(score_grid(table))
        if beaten := _beaten(table):
            blocks.append(Paragraph(f"{BEATS} A reference beats every encoder: {', '.join(beaten)}."))
    return [*blocks, Paragraph(_reading(results))]


def _beaten(table: ScoreTable) -> list[str]:
    """The columns in which a reference comes first, and which."""
    first = [[row.label for row in table.rows if row.marks[i] == "beats"] for i in range(len(table.columns))]
    return [f"{column.title} ({', '.join(names)})" for column, names in zip(table.columns, first, strict=True) if names]


def _reading(results: Results) -> str:
    several = any(len(model.members) > 1 for model in results.models)
    members = ", and over members for a model that has several" if several else ""
    return (
        "Accuracy in percent, R2 as it is; larger is better. The best encoder of a column is bold, the second italic; "
        "references do not compete, and say what coordinates alone give. A spread (±) is the standard deviation over "
        f"the draws of a split{members}; a score without one is a single draw."
    )


def _provenance(results: Results) -> str:
    versions = ", ".join(f"{name} {results.versions[name]}" for name in ("tessearth", "python", "torch", "numpy"))
    spent = f"{results.seconds:,.0f} s on {results.device}, {results.versions.get('threads', '?')} threads"
    return f"{results.created} (UTC); {versions}; {spent}. Probes: {', '.join(results.arguments.get('probes', []))}."


def _class_blocks(results: Results, model: str) -> list[Block]:
    blocks: list[Block] = []
    for row in results.breakdowns:
        if row.model == model and row.classes is not None and (grid := class_grid(row)):
            blocks += [Heading(3, f"{row.task}, {row.draw}"), grid]
    if not blocks:
        return []
    about = f"{model}, the first draw of each split: the classes found most and least often"
    return [Heading(2, "Class by class"), Paragraph(f"{about}, of those with {FEWEST_ROWS} rows or more."), *blocks]


def class_grid(row: Breakdown) -> Grid | None:
    """The best and the worst classes of one draw by recall; None when no class has rows enough."""
    if row.classes is None:
        return None
    table = zip(row.classes.names, row.classes.rows, row.classes.recall, row.classes.precision, strict=True)
    ranked = sorted((entry for entry in table if entry[1] >= FEWEST_ROWS), key=lambda entry: -(entry[2] or 0.0))
    rows = [
        (Entry(name), Entry(f"{count:,}"), *(Entry(format_score("accuracy", value)) for value in shares))
        for name, count, *shares in ranked
    ]
    left_out = len(rows) - 2 * EXTREMES
    if left_out > 0:
        rows[EXTREMES:-EXTREMES] = [(Entry(f"{left_out} more", "note"), *(Entry("") for _ in range(3)))]
    return Grid(("class", "rows tested", "recall (%)", "precision (%)"), tuple(rows)) if rows else None


def _continent_blocks(results: Results, model: str) -> list[Block]:
    """For every split a table of tasks and continents, of the tasks tested on more than one."""
    tables = [(row, row.continents) for row in results.breakdowns if row.model == model and row.continents]
    tables = [(row, table) for row, table in tables if len(table.names) > 1]
    if not tables:
        return []
    about = f"{model}, the first draw of each split; R2 is against each continent's own mean. A country is on one"
    blocks: list[Block] = [
        Heading(2, "Continent by continent"),
        Paragraph(f"{about} continent, as GeoNames has it. Rows tested in brackets."),
    ]
    for split in dict.fromkeys(row.split for row, _ in tables):
        shown = [(row, table) for row, table in tables if row.split == split]
        blocks += [Heading(3, f"Split {split}"), _continent_grid(results, shown)]
    return blocks


def _continent_grid(results: Results, tables: Sequence[tuple[Breakdown, ContinentTable]]) -> Grid:
    names = tuple(name for name in NAMES if any(name in table.names for _, table in tables))
    rows = []
    for row, table in tables:
        metric, columns = results.task(row.task).metric, zip(table.names, table.scores, table.rows, strict=True)
        said = {name: f"{format_score(metric, value)} ({count:,})" for name, value, count in columns}
        entries = (Entry(said.get(name, NOTHING)) for name in names)
        rows.append((Entry(f"{row.task} ({_unit(metric)})"), *entries))
    return Grid(("", *names), tuple(rows))


def _task_blocks(results: Results) -> list[Block]:
    rows = tuple(
        (
            Entry(card.name),
            Entry({"classify": "class", "regress": "number"}[card.kind]),
            Entry(f"{card.rows:,}"),
            Entry(f"{card.classes:,}" if card.classes else NOTHING),
            Entry("; ".join((*([str(card.about["unit"])] if "unit" in card.about else []), *card.notes))),
        )
        for card in results.tasks
    )
    return [Heading(2, "Tasks"), Grid(("task", "kind", "rows", "classes", "notes"), rows, words=True)]


def _model_blocks(results: Results) -> list[Block]:
    rows = tuple(
        (
            Entry(model.label),
            Entry(member.name),
            Entry(str(member.dim) if member.dim else NOTHING),
            Entry(member.fingerprint[:12] or NOTHING),
            Entry(f"{member.embedding_seconds:.1f} ({member.embeddings or 'made'})" if member.dim else NOTHING),
            Entry(f"{member.probing_seconds:.1f}"),
        )
        for model in results.models
        for member in model.members
    )
    head = ("model", "member", "width", "fingerprint", "embedding (s)", "probing (s)")
    return [Heading(2, "Models"), Grid(head, rows, words=True)]


def _figures(results: Results, predictions: Predictions, maps: Sequence[str] | None) -> tuple[list[Figure], str]:
    """Maps of the models named, and a line about them; without matplotlib the line says what is missing."""
    best = best_model(results)
    wanted = list(maps) if maps is not None else [best] if best else []
    chosen = {key: value for key, value in predictions.items() if key[0] in wanted}
    last = {(key[0], key[1]): key for key in chosen}  # the last split named is the one that is drawn
    try:
        figures = [_figure(label, task, chosen[key]) for (label, task), key in last.items()]
    except MissingExtraError as error:
        return [], f"There are none: {error}."
    about = "Rows tested on in the first draw of the last split: the truth, what was predicted, and the difference."
    rank = f" {best} has the best mean rank over all tables." if maps is None and best else ""
    return figures, f"{about}{rank}" if figures else ""


def _figure(label: str, task: str, prediction: Prediction) -> Figure:
    metric = "accuracy" if prediction.task.kind == "classify" else "R2"
    score = format_score(metric, prediction.score)
    caption = f"{task}, {label}, {prediction.draw}: {f'{score} % right' if metric == 'accuracy' else f'R2 {score}'}"
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.") for part in (label, task, prediction.draw))
    return Figure(f"{name}.png", caption, draw_maps(prediction, caption))


def draw_maps(prediction: Prediction, title: str) -> bytes:
    """A PNG of three maps: the truth, the prediction and the difference."""
    from tessearth.plotting import Predicted, draw_predictions, figure_bytes, paper_style, view_around

    task = prediction.task
    told = Predicted(
        latlon=task.latlon[prediction.rows],
        truth=task.target[prediction.rows],
        said={"prediction": prediction.values},
        unit=task.unit,
        classes=task.classes if task.kind == "classify" else None,
    )
    with paper_style():
        figure = draw_predictions(told, view_around(told.latlon), width_cm=MAPS_CM, columns=3, difference=True)
        figure.suptitle(title)
        return figure_bytes(figure, dpi=MAPS_DPI)


def _unit(metric: str) -> str:
    return "%" if metric == "accuracy" else metric
