"""How the demo speaks: every word goes to the terminal at once and, at the end, onto the page demo/index.html."""

import html
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tessearth.cli.progress import Advance, work_progress
from tessearth.errors import OutputError
from tessearth.evaluation.report import STYLE
from tessearth.plotting import paper_style, save_figure
from tessearth.storage.files import write_bytes

PAGE, FIGURES = "index.html", "figures"
MARK = '<meta name="generator" content="tessearth demo">'
"""How a page that an earlier demo wrote is known from one that somebody else put there."""
OWN_STYLE = """
body { max-width: 60rem; } p { max-width: 46rem; } figure img { display: block; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 0 1.5rem; }
.took { color: var(--quiet); font-weight: normal; font-size: 1rem; } code { background: var(--soft); padding: 0 0.2em; }
pre { background: var(--soft); padding: 0.8rem 1rem; overflow-x: auto; }
"""
DPI = 200
TERMINAL_COLUMNS = 100


class Took(NamedTuple):
    """A part of the demo and its time."""

    title: str
    seconds: float
    processor: float
    """Seconds of processor time, all threads together."""


class Page:
    """Tells a newcomer what happens, in the terminal and on a page that links to its figures."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.took = folder, list[Took]()
        self._body: list[str] = []

    def begin(self) -> None:
        """Start over: the page of an earlier demo goes first, so that it never stands over figures of a later one."""
        page = self.folder / PAGE
        if page.exists():
            if MARK not in page.read_text("utf-8", errors="replace"):
                raise OutputError(f"{page} was not written by the demo; move it away, or choose another --out")
            page.unlink()
        (self.folder / FIGURES).mkdir(exist_ok=True)

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """A numbered part, with the time it took."""
        title, place = f"{len(self.took) + 1}. {title}", len(self._body)
        print(f"\n{title}\n{'-' * len(title)}")
        begun, used = time.perf_counter(), time.process_time()
        yield
        took = Took(title, time.perf_counter() - begun, time.process_time() - used)
        self.took.append(took)
        print(f"\n  ({took.seconds:.0f} s, {took.processor:.0f} s of processor time)", flush=True)
        self._body.insert(place, f'<h2>{html.escape(title)} <span class="took">{took.seconds:.0f} s</span></h2>')

    def say(self, text: str) -> None:
        """A paragraph."""
        print(f"\n{textwrap.fill(text, TERMINAL_COLUMNS, initial_indent='  ', subsequent_indent='  ')}", flush=True)
        self._body.append(f"<p>{html.escape(text)}</p>")

    def code(self, lines: Sequence[str]) -> None:
        """Commands to type."""
        print("\n" + "\n".join(f"      {line}" for line in lines))
        self._body.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> None:
        """A table whose first column names the row; the others hold numbers, or words."""
        lines = [head, *rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        print()
        for line in lines:
            cells = [
                text.ljust(w) if words or not i else text.rjust(w)
                for i, (text, w) in enumerate(zip(line, widths, strict=True))
            ]
            print(f"    {'   '.join(cells).rstrip()}")
        first = "".join(f"<th>{html.escape(text)}</th>" for text in head)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>\n" for row in rows)
        style = ' class="words"' if words else ""
        self._body.append(
            f'<div class="wide"><table{style}><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def figures(self, *drawn: tuple[str, Callable[[], Any], str]) -> None:
        """Figures beside each other, where there is room: the file's name, what draws it, and a line about it."""
        shown = [self._figure(*one) for one in drawn]
        self._body.append(shown[0] if len(shown) == 1 else f'<div class="pair">{"".join(shown)}</div>')

    def link(self, path: str, text: str) -> None:
        """A file beside the page."""
        print(f"\n  {text}: {self.folder / path}")
        self._body.append(f'<p>{html.escape(text)}: <a href="{html.escape(path)}">{html.escape(path)}</a></p>')

    def write(self, title: str) -> Path:
        """The page, whole or not at all."""
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{MARK}'
        head += f"<title>{html.escape(title)}</title><style>{STYLE}{OWN_STYLE}</style>"
        body = "\n".join(self._body)
        page = (
            f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n<h1>{html.escape(title)}</h1>\n{body}\n'
        )
        write_bytes(self.folder / PAGE, f"{page}</body>\n</html>\n".encode())
        return self.folder / PAGE

    def _figure(self, name: str, draw: Callable[[], Any], caption: str) -> str:
        path = f"{FIGURES}/{name}.png"
        with paper_style():
            save_figure(draw(), self.folder / path, DPI)
        print(f"\n  figure {self.folder / path}\n    {caption}", flush=True)
        said = html.escape(caption)
        return f'<figure><a href="{path}"><img src="{path}" alt="{said}"></a><figcaption>{said}</figcaption></figure>'


@contextmanager
def progress(label: str, unit: str) -> Iterator[Advance]:
    """A bar on a terminal; in a pipe a line for every fifth of the work."""
    told = {0}
    with work_progress(f"  {label}", unit) as bar:

        def advance(done: int, total: int | None, note: str = "") -> None:
            bar(done, total, note)
            fifth = 5 * done // total if total else 0
            if fifth not in told and not _on_terminal():
                told.add(fifth)
                print(f"  {label}: {done:,} of {total:,} {unit} {note}".rstrip(), flush=True)

        yield advance


def _on_terminal() -> bool:
    import sys

    return sys.stderr.isatty()
