"""csv as people have it: any usual separator, encoding and compression; every record keeps the bytes it came in.

Records are cut apart here and not by pyarrow, so that the bytes of each can be copied and its number can be told.
"""

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from tessearth.errors import TableError

SEPARATORS = (",", ";", "\t", "|")
BLOCK_BYTES = 2**22
LONGEST_RECORD = 2**20
"""Bytes; a small compressed file may hold gigabytes without an end of line."""
SAMPLED_RECORDS = 64
"""Records looked at to find the separator."""
WIDE = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Encodings whose line ends are more than one byte, by the mark they begin with."""
FALLBACK = "cp1252"
"""What Western programs on Windows write; text that is not UTF-8 is most often this."""

Opened = Callable[[], contextlib.AbstractContextManager[IO[bytes]]]
"""Opens the same decompressed bytes from their beginning."""


class Dialect(NamedTuple):
    """How the text of a file is written."""

    separator: str
    encoding: str
    line_end: bytes
    is_guess: bool = False
    """Whether the encoding was guessed."""

    def cells(self, texts: Sequence[str]) -> bytes:
        """Cells with separators between them, in quotes where they need them."""
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="").writerow(texts)
        return text.getvalue().encode(self.encoding)


class CsvBlock(NamedTuple):
    """Some consecutive records."""

    rows: pa.RecordBatch
    """The columns asked for, as text."""
    lines: list[bytes]
    """Each record as it stands in the file, without its line end."""
    ragged: dict[int, int]
    """The number of fields of records that have not as many as the header; their cells read as empty."""


class CsvFile(NamedTuple):
    """A csv file whose dialect is known."""

    names: list[str]
    header: bytes
    """The first line as it stands in the file, without its line end."""
    dialect: Dialect
    opened: Opened

    def blocks(self, columns: Sequence[str]) -> Iterator[CsvBlock]:
        """All records behind the header, from the beginning of the file."""
        with self.opened() as file:
            for number, lines in enumerate(_split(file, self.dialect.separator)):
                records = lines if number else lines[1:]
                if records:
                    yield self._parse(records, list(columns))

    def _parse(self, lines: list[bytes], columns: list[str]) -> CsvBlock:
        ragged: dict[int, int] = {}

        def note(row: Any) -> str:
            ragged[row.number - 1] = row.actual_columns
            return "skip"

        text = b"\n".join(lines) + b"\n"
        if self.dialect.encoding not in ("utf-8", "utf-8-sig", "ascii"):
            text = text.decode(self.dialect.encoding).encode()
        table = pa.csv.read_csv(
            pa.py_buffer(text),
            read_options=pa.csv.ReadOptions(column_names=self.names, use_threads=False, block_size=len(text) + 1),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.dialect.separator, newlines_in_values=b'"' in text, invalid_row_handler=note
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.string()), include_columns=columns, strings_can_be_null=False
            ),
        ).combine_chunks()
        if ragged:
            table = _spread(table, len(lines), ragged)
        if len(table) != len(lines):
            raise TableError(f"{len(lines)} records were found and {len(table)} were read: quotes are out of order")
        return CsvBlock(next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], table.schema)), lines, ragged)


def open_csv(opened: Opened, separator: str | None = None, encoding: str | None = None) -> CsvFile:
    """Find the dialect of a file in its first megabytes; a separator or an encoding that is given is not looked for."""
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise TableError(f"the separator is {separator!r}; it must be one character such as ; or a tab")
    with opened() as file:
        head = file.read(BLOCK_BYTES)
    if not head:
        raise TableError("the file is empty")
    found = encoding or _find_encoding(head)
    is_guess = encoding is None and found == FALLBACK
    try:
        is_wide = len("\n".encode(found)) != 1
    except LookupError:
        raise TableError(f"there is no encoding {found!r}; common ones are utf-8, cp1252, latin-1, shift-jis") from None
    has_feeds = b"\n" in head
    if is_wide or not has_feeds:
        opened, found = _transcoded(opened, found), "utf-8"
        with opened() as file:
            head = file.read(BLOCK_BYTES)
    line_end = b"\r\n" if b"\r\n" in head else b"\n"
    try:
        sample = head[: head.rfind(b"\n") + 1 or None].decode(found)
    except UnicodeDecodeError:
        raise TableError(f"the text is not {found}; name its encoding with --encoding") from None
    dialect = Dialect(separator or _find_separator(sample), found, line_end, is_guess)
    with opened() as file:
        header = next(_split(file, dialect.separator), [b""])[0]
    text = header.decode(found).removeprefix("\ufeff")
    try:
        names = next(csv.reader([text], delimiter=dialect.separator), [])
    except csv.Error:
        raise TableError("the first line is no header of a csv") from None
    return CsvFile(names, header, dialect, opened)


def _find_encoding(head: bytes) -> str:
    """By the mark at the beginning, or UTF-8 where the bytes allow it."""
    for mark, name in WIDE.items():
        if head.startswith(mark):
            return name
    if b"\0" in head:
        raise TableError("neither text nor a table format that can be read")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at the end
    except UnicodeDecodeError:
        return FALLBACK
    return "utf-8"


def _find_separator(sample: str) -> str:
    """The separator that cuts most of the first records into the same number of fields, more than one."""
    best, most = SEPARATORS[0], (0, 0)
    for separator in SEPARATORS:
        with contextlib.suppress(csv.Error):
            rows = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
            counts = [len(row) for row, _ in zip((row for row in rows if row), range(SAMPLED_RECORDS), strict=False)]
            alike = sum(count == counts[0] for count in counts) if counts and counts[0] > 1 else 0
            if (alike, counts[0] if counts else 0) > most and alike:
                best, most = separator, (alike, counts[0])
    return best


@contextlib.contextmanager
def _transcoding(opened: Opened, encoding: str) -> Iterator[IO[bytes]]:
    with opened() as file:
        yield _Transcoded(io.TextIOWrapper(file, encoding=encoding, newline=None))  # type: ignore[misc]


def _transcoded(opened: Opened, encoding: str) -> Opened:
    """The same text in UTF-8 with line feeds: for encodings of wide characters and lines that end otherwise."""
    return lambda: _transcoding(opened, encoding)


class _Transcoded:
    """Text read as UTF-8 bytes."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def read(self, size: int) -> bytes:
        """Up to `size` characters."""
        return self._text.read(size).encode()


def _split(file: IO[bytes], separator: str) -> Iterator[list[bytes]]:
    """The records of a file, the header first, a few megabytes at a time, without line ends and blank lines."""
    record = _record_pattern(separator)
    rest = b""
    while True:
        more = file.read(BLOCK_BYTES)
        text = rest + more
        if b'"' not in text:
            end = text.rfind(b"\n") + 1 if more else len(text)
            lines, rest = text[:end].split(b"\n"), text[end:]
            if more or not lines[-1]:
                lines.pop()
        else:
            matches = [match for match in record.finditer(text) if not more or match["end"]]
            lines = [match["record"] for match in matches]
            rest = text[matches[-1].end() :] if matches else text
        if len(rest) > LONGEST_RECORD or any(len(line) > LONGEST_RECORD for line in lines):
            raise TableError(
                f"a line has more than {LONGEST_RECORD} characters: this is no csv, or a quote in it is never closed"
            )
        kept = [line for line in (line.removesuffix(b"\r") for line in lines) if line]
        if kept:
            yield kept
        if not more:
            return


def cut_records(text: bytes, separator: str) -> list[bytes]:
    """The records of some text without their line ends."""
    return [record for records in _split(io.BytesIO(text), separator) for record in records]


def _record_pattern(separator: str) -> re.Pattern[bytes]:
    """A record with its line end: a quote counts at the beginning of a field only, and holds line ends and separators.

    All repetitions are possessive: no input makes the search go back.
    """
    cut = re.escape(separator.encode())
    field = rb'(?:"(?:[^"]|"")*+"?+)?+[^\n' + cut + rb"]*+"
    return re.compile(rb"(?P<record>" + field + rb"(?:" + cut + field + rb")*+)(?P<end>\n|\Z)")


def _spread(table: pa.Table, rows: int, without: dict[int, int]) -> pa.Table:
    """A table with empty cells where rows were left out."""
    place, index = 0, []
    for row in range(rows):
        index.append(None if row in without else place)
        place += row not in without
    taken = (
        table.take(pa.array(index, pa.int64()))
        if len(table)
        else pa.table({name: pa.nulls(rows, pa.string()) for name in table.column_names})
    )
    return pa.table([column.fill_null("") for column in taken.columns], schema=table.schema)
