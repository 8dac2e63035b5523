"""The demo's page: every word goes to the terminal at once and, at the end, into index.html with the figures."""

import html
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tessearth.errors import OutputError
from tessearth.evaluation.report import page_style
from tessearth.plotting import paper_style, save_figure
from tessearth.storage.files import write_bytes

MARK = '<meta name="generator" content="tessearth demo">'
"""Tells a page of an earlier demo, which may be replaced, from any other."""
OWN_STYLE = """
body { max-width: 60rem; } p { max-width: 46rem; } figure img { display: block; max-width: 100%; }
.took { color: var(--quiet); font-weight: normal; font-size: 1rem; }
pre { background: var(--soft); padding: 0.8rem 1rem; overflow-x: auto; }
"""


class Page:
    """Collects the parts of the demo: headings, paragraphs, tables, figures."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "index.html"
        self.parts, self.body = 0, list[str]()
        if self.path.exists():
            if MARK not in self.path.read_text("utf-8", errors="replace"):
                raise OutputError(f"{self.path} was not written by the demo; move it away, or choose another --out")
            self.path.unlink()  # an old page must not stand over new figures
        (folder / "figures").mkdir(exist_ok=True)

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """A numbered part, with the seconds it took."""
        self.parts += 1
        title, at, start = f"{self.parts}. {title}", len(self.body), time.perf_counter()
        print(f"\n{title}\n{'-' * len(title)}")
        yield
        took = f"{time.perf_counter() - start:.0f} s"
        print(f"\n  ({took})", flush=True)
        self.body.insert(at, f'<h2>{html.escape(title)} <span class="took">{took}</span></h2>')

    def say(self, text: str) -> None:
        """A paragraph."""
        print(f"\n{textwrap.fill(text, 100, initial_indent='  ', subsequent_indent='  ')}", flush=True)
        self.body.append(f"<p>{html.escape(text)}</p>")

    def code(self, lines: Sequence[str]) -> None:
        """Commands to type."""
        print("\n" + "\n".join(f"    {line}" for line in lines))
        self.body.append(f"<pre>{html.escape(chr(10).join(lines))}</pre>")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table whose first row names the columns."""
        lines = [head, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        print()
        for line in lines:
            print(f"    {'   '.join(map(str.ljust, line, widths)).rstrip()}")
        first, *others = ("".join(f"<td>{html.escape(text)}</td>" for text in line) for line in lines)
        body = "\n".join(f"<tr>{cells}</tr>" for cells in others)
        first = first.replace("td>", "th>")
        self.body.append(f'<div class="wide"><table class="words"><tr>{first}</tr>\n{body}</table></div>')

    def figure(self, name: str, draw: Callable[[], Any], caption: str) -> None:
        """A figure and the sentence below it."""
        path = f"figures/{name}.png"
        with paper_style():
            save_figure(draw(), self.folder / path, 200)
        print(f"\n  figure {self.folder / path}\n    {caption}", flush=True)
        text = html.escape(caption)
        self.body.append(f'<figure><img src="{path}" alt="{text}"><figcaption>{text}</figcaption></figure>')

    def link(self, path: str, text: str) -> None:
        """A file of the demo's folder."""
        print(f"\n  {text}: {self.folder / path}")
        self.body.append(f'<p>{html.escape(text)}: <a href="{html.escape(path)}">{html.escape(path)}</a></p>')

    def write(self, title: str) -> None:
        """Write the page in one step."""
        head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{MARK}'
        head += f"<title>{html.escape(title)}</title><style>{page_style()}{OWN_STYLE}</style>"
        body = "\n".join([f"<h1>{html.escape(title)}</h1>", *self.body])
        page = f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'
        write_bytes(self.path, page.encode())
