"""The report of an evaluation: the paper's tables, maps, breakdowns and all that was skipped, in Markdown and HTML."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tessearth.errors import MissingExtraError, OutputError
from tessearth.evaluation.maps import draw_maps
from tessearth.evaluation.metrics import NAMES
from tessearth.evaluation.results import Breakdown, Results, Row, ScoreTable, best_model, score_tables
from tessearth.evaluation.runner import Prediction
from tessearth.storage.files import write_bytes

Emphasis = Literal["", "best", "second", "beats", "note"]


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


def spoken_score(metric: str, mean: float | None, spread: float | None = None) -> str:
    """Accuracy in percent, R2 as it is: "77.8 ± 0.4", "0.946"."""
    if mean is None:
        return NOTHING
    factor, digits = (100, 1) if metric == "accuracy" else (1, 3)
    shown = round(mean * factor, digits) + 0.0  # a rounded -0.0 becomes 0.0
    return f"{shown:.{digits}f}" + ("" if spread is None else f" ± {spread * factor:.{digits}f}")


MARKDOWN: dict[Emphasis, str] = {"": "{}", "best": "**{}**", "second": "*{}*", "beats": f"{{}} {BEATS}", "note": "*{}*"}


def to_markdown(blocks: Sequence[Block], figures: str) -> str:
    """The report's text; its figures lie in the folder `figures` beside it."""
    return "\n\n".join(_markdown_block(block, figures) for block in blocks) + "\n"


def markdown_table(grid: Grid) -> str:
    """A table with bars; words and the first column to the left, numbers to the right."""
    lines = [grid.head, tuple("---" if grid.words or column == 0 else "---:" for column in range(len(grid.head)))]
    rows = [tuple(_markdown_entry(entry) for entry in row) for row in grid.rows]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in [*lines, *rows])


def _markdown_block(block: Block, figures: str) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Listing(items):
            return "\n".join(f"- {item}" for item in items)
        case Grid():
            return markdown_table(block)
        case Figure(name, caption, _):
            return f"![{caption}]({figures}/{name})"


def _markdown_entry(entry: Entry) -> str:
    return MARKDOWN[entry.emphasis].format(entry.text) if entry.text else ""


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #ffffff; --line: #d5d5d5; --soft: #f4f4f2; --quiet: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --line: #3a3d42; --soft: #1f2226; --quiet: #a0a0a0; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { background: var(--soft); } tbody th { font-weight: normal; }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top; }
.second, .note { font-style: italic; } .best { font-weight: bold; } .note, .beats sup { color: var(--quiet); }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; background: #ffffff; border-radius: 4px; }
figcaption { color: var(--quiet); }
"""
HTML: dict[Emphasis, str] = {
    "": "{}",
    "best": "<b>{}</b>",
    "second": "<i>{}</i>",
    "beats": f"{{}}<sup>{BEATS}</sup>",
    "note": "{}",
}


def to_html(blocks: Sequence[Block]) -> str:
    """The whole page."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    body = "\n".join(_html_block(block) for block in blocks)
    head += f"<style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _html_block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Listing(items):
            return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>"
        case Grid():
            return _table(block)
        case Figure(_, caption, png):
            said = html.escape(caption)
            source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            return f'<figure><img src="{source}" alt="{said}"><figcaption>{said}</figcaption></figure>'


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in grid.head)
    rows = "\n".join(f"<tr>{_row(row)}</tr>" for row in grid.rows)
    style = ' class="words"' if grid.words else ""
    table = f"<table{style}><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _row(row: Sequence[Entry]) -> str:
    first, *others = row
    return _html_entry(first, "th", ' scope="row"') + "".join(_html_entry(entry, "td") for entry in others)


def _html_entry(entry: Entry, tag: str, attribute: str = "") -> str:
    style = f' class="{entry.emphasis}"' if entry.emphasis else ""
    return f"<{tag}{attribute}{style}>{HTML[entry.emphasis].format(html.escape(entry.text))}</{tag}>"


MAPS = "maps"
EXTREMES = 5
"""How many of the best and of the worst classes are listed."""
FEWEST_ROWS = 10
"""Classes tested on fewer rows are not listed: a share of so few says little."""


def write_report(
    results: Results,
    folder: Path,
    predictions: Mapping[tuple[str, str, str], Prediction] | None = None,
    maps: Sequence[str] | None = None,
) -> None:
    """Write report.md, report.html and the maps beside them; `maps` are the models drawn, by default the best."""
    figures, note = _figures(results, predictions or {}, maps)
    blocks = build_report(results, figures, note)
    for figure in figures:
        _make_folder(folder / MAPS)
        write_bytes(folder / MAPS / figure.name, figure.png)
    write_bytes(folder / "report.md", to_markdown(blocks, MAPS).encode())
    write_bytes(folder / "report.html", to_html(blocks).encode())


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make {path}: {(error.strerror or str(error)).lower()}") from error


def build_report(results: Results, figures: Sequence[Figure] = (), figure_note: str = "") -> list[Block]:
    """The report's parts, from the title down."""
    best = best_model(results)
    maps: list[Block] = [Heading(2, "Maps"), Paragraph(figure_note)] if figure_note else []
    return [
        Heading(1, "Location encoders compared"),
        Paragraph(_provenance(results)),
        *_score_blocks(results),
        *_skipped_blocks(results),
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
        Entry(spoken_score(column.metric, cell and cell.mean, cell.spread if cell else None), mark)
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
    return [
        f"{column.title} ({', '.join(row.label for row in table.rows if row.marks[number] == 'beats')})"
        for number, column in enumerate(table.columns)
        if any(row.marks[number] == "beats" for row in table.rows)
    ]


def _reading(results: Results) -> str:
    several = any(len(model.members) > 1 for model in results.models)
    return (
        "Accuracy in percent, R2 as it is; larger is better. The best encoder of a column is bold, the second italic; "
        "references do not compete, and say what coordinates alone give. A spread (±) is the standard deviation over "
        "the draws of a split"
        + (", and over members for a model that has several" if several else "")
        + "; a score without one is a single draw."
    )


def _provenance(results: Results) -> str:
    versions = ", ".join(f"{name} {results.versions[name]}" for name in ("tessearth", "python", "torch", "numpy"))
    spent = f"{results.seconds:,.0f} s on {results.device}, {results.versions.get('threads', '?')} threads"
    return f"{results.created} (UTC); {versions}; {spent}. Probes: {', '.join(results.arguments.get('probes', []))}."


def _skipped_blocks(results: Results) -> list[Block]:
    if not results.skipped:
        return []
    return [Heading(2, "Skipped"), Listing(tuple(row.line() for row in results.skipped))]


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
    table = list(zip(*(getattr(row.classes, name) for name in ("names", "rows", "recall", "precision")), strict=True))
    ranked = sorted((entry for entry in table if entry[1] >= FEWEST_ROWS), key=lambda entry: -(entry[2] or 0.0))
    if not ranked:
        return None
    shown = ranked if len(ranked) <= 2 * EXTREMES else [*ranked[:EXTREMES], None, *ranked[-EXTREMES:]]
    left_out = len(ranked) - 2 * EXTREMES
    rows = [
        (Entry(f"{left_out} more", "note"), *(Entry("") for _ in range(3)))
        if entry is None
        else (
            Entry(entry[0]),
            Entry(f"{entry[1]:,}"),
            *(Entry(spoken_score("accuracy", value)) for value in entry[2:]),
        )
        for entry in shown
    ]
    return Grid(("class", "rows tested", "recall (%)", "precision (%)"), tuple(rows))


def _continent_blocks(results: Results, model: str) -> list[Block]:
    """For every split a table of tasks and continents, of the tasks tested on more than one."""
    rows = [row for row in results.breakdowns if row.model == model and row.continents is not None]
    rows = [row for row in rows if row.continents and len(row.continents.names) > 1]
    if not rows:
        return []
    about = f"{model}, the first draw of each split; R2 is against each continent's own mean. A country is on one"
    blocks: list[Block] = [
        Heading(2, "Continent by continent"),
        Paragraph(f"{about} continent, as GeoNames has it. Rows tested in brackets."),
    ]
    for split in dict.fromkeys(row.split for row in rows):
        blocks += [Heading(3, f"Split {split}"), _continent_grid(results, [row for row in rows if row.split == split])]
    return blocks


def _continent_grid(results: Results, rows: Sequence[Breakdown]) -> Grid:
    tested = {name for row in rows if row.continents for name in row.continents.names}
    names = tuple(name for name in NAMES if name in tested)
    body = []
    for row in rows:
        metric, table = results.task(row.task).metric, row.continents
        parts = {} if table is None else dict(zip(table.names, zip(table.scores, table.rows, strict=True), strict=True))
        entries = [
            Entry(f"{spoken_score(metric, parts[name][0])} ({parts[name][1]:,})" if name in parts else NOTHING)
            for name in names
        ]
        body.append((Entry(f"{row.task} ({_unit(metric)})"), *entries))
    return Grid(("", *names), tuple(body))


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


def _figures(
    results: Results, predictions: Mapping[tuple[str, str, str], Prediction], maps: Sequence[str] | None
) -> tuple[list[Figure], str]:
    """Maps of the models asked for, and a line about them; without matplotlib the line says what is missing."""
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
    said = spoken_score(metric, prediction.score)
    caption = f"{task}, {label}, {prediction.draw}: {f'{said} % right' if metric == 'accuracy' else f'R2 {said}'}"
    name = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_.") for part in (label, task, prediction.draw))
    return Figure(f"{name}.png", caption, draw_maps(prediction, caption))


def _unit(metric: str) -> str:
    return "%" if metric == "accuracy" else metric
