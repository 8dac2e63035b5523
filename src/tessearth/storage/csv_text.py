"""csv as people have it: any usual separator, encoding and compression; every record keeps the bytes it came in.

Records are cut apart here and not by pyarrow, so that the bytes of each can be copied and its number can be told.
"""

import codecs
import contextlib
import csv
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from tessearth.errors import TableError, TableWarning

SEPARATORS = (",", ";", "\t", "|")
BLOCK_BYTES = 2**22
LONGEST_RECORD = 2**20
"""Bytes; a small compressed file may hold gigabytes without an end of line."""
SAMPLED_RECORDS = 64
"""Records looked at to find the separator."""
BEYOND_BYTES = ("utf-16", "utf-32", "utf-7", "iso2022", "hz")
"""Encodings in which the byte of a quote or of a line end may be a part of another letter."""
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

    def cells(self, texts: Sequence[str]) -> bytes:
        """Cells with separators between them, in quotes where they need them."""
        text = io.StringIO()
        csv.writer(text, delimiter=self.separator, lineterminator="\r\n").writerow(texts)  # quotes what is in it
        return text.getvalue()[:-2].encode(self.encoding)


@dataclass(frozen=True, slots=True)
class Lines:
    """Records as they stand in the file without their line ends, cut out of the text only when they are asked for."""

    text: bytes
    bounds: npt.NDArray[np.int64]
    """(N, 2): where each begins and ends."""

    @classmethod
    def of(cls, records: Sequence[bytes]) -> "Lines":
        """Records that were cut already."""
        ends = np.cumsum([len(record) for record in records], dtype=np.int64)
        return cls(b"".join(records), np.stack((np.concatenate(([0], ends[:-1])), ends), axis=-1))

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, chosen: "slice | npt.NDArray[Any]") -> "Lines":
        return Lines(self.text, self.bounds[chosen])

    def cut(self) -> list[bytes]:
        """Each record."""
        return [self.text[start:end] for start, end in self.bounds.tolist()]


class CsvBlock(NamedTuple):
    """Some consecutive records."""

    rows: pa.RecordBatch
    """The columns asked for, as text."""
    lines: Lines
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
            row = -1
            for lines in _split(file, self.dialect.separator):
                records = lines if row >= 0 else lines[1:]
                if records:
                    yield self._parse(records, list(columns), max(row, 0))
                row += len(lines)

    def _parse(self, lines: Lines, columns: list[str], first_row: int) -> CsvBlock:
        ragged: dict[int, int] = {}

        def note(row: Any) -> str:
            ragged[row.number - 1] = row.actual_columns
            return "skip"

        text = lines.text[lines.bounds[0, 0] : lines.bounds[-1, 1]]
        try:
            if self.dialect.encoding != "utf-8":
                text = text.decode(self.dialect.encoding).encode()
            elif not text.isascii():
                text.decode()
        except UnicodeDecodeError:
            raise _not_encoded(self.dialect.encoding) from None
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
        if len(table) + len(ragged) != len(lines) or any(row >= len(lines) for row in ragged):
            raise TableError(self._out_of_place(lines, first_row))
        if ragged:
            table = _spread(table, len(lines), ragged)
        return CsvBlock(next(iter(table.to_batches()), pa.RecordBatch.from_pylist([], table.schema)), lines, ragged)

    def _out_of_place(self, lines: Lines, first_row: int) -> str:
        """Which record is cut apart by what stands in one of its cells."""
        where = f"one of the rows {first_row + 1} to {first_row + len(lines)}"
        for row, record in enumerate(lines.cut(), first_row + 1):
            text = io.StringIO(record.decode(self.dialect.encoding), newline="")
            if len(list(csv.reader(text, delimiter=self.dialect.separator))) != 1:
                where = f"row {row}"
                break
        return f"{where} has a quote, or the line end of an old Mac (\\r), inside of a cell without quotes around it"


def open_csv(opened: Opened, separator: str | None = None, encoding: str | None = None) -> CsvFile:
    """Find the dialect of a file in its first megabytes; a separator or an encoding that is given is not looked for."""
    if separator is not None and (len(separator) != 1 or not separator.isascii() or separator in '"\r\n'):
        raise TableError(f"the separator is {separator!r}; it must be one plain character such as ; or a tab")
    head = _head_of(opened)
    if not head:
        raise TableError("the file is empty")
    found = encoding or _find_encoding(head)
    try:
        found = {"utf-8-sig": "utf-8", "ascii": "utf-8"}.get(name := codecs.lookup(found).name, name)
    except LookupError:
        raise TableError(f"there is no encoding {found!r}; common ones are utf-8, cp1252, latin-1, shift-jis") from None
    if encoding is None and found == FALLBACK:
        words = f"the text is not UTF-8 and is read as {found}; --encoding names another (Python: encoding=)"
        warnings.warn(words, TableWarning, stacklevel=2)
    with _decoding(found):
        if found.startswith(BEYOND_BYTES):
            opened, found = _transcoded(opened, found, ""), "utf-8"
            head = _head_of(opened)
        if (b"\n" not in head and b"\r" in head) or head.partition(b"\n")[0].endswith(b"\r\r"):
            opened, found = _transcoded(opened, found, None), "utf-8"
            head = _head_of(opened)
        sample = head[: head.rfind(b"\n") + 1 or None].decode(found)
    dialect = Dialect(separator or _find_separator(sample), found, b"\r\n" if b"\r\n" in head else b"\n")
    with opened() as file:
        first = next(_split(file, dialect.separator), None)
    if first is None:
        raise TableError("the file is empty")
    header = first[:1].cut()[0]
    try:
        names = next(csv.reader([header.decode(found).removeprefix("\ufeff")], delimiter=dialect.separator), [])
    except csv.Error:
        raise TableError("the first line is no header of a csv") from None
    if names.count("") > 1:  # a spreadsheet's empty columns
        names = [name or f"column {number}" for number, name in enumerate(names, 1)]
    return CsvFile(names, header, dialect, opened)


def _head_of(opened: Opened) -> bytes:
    with opened() as file:
        return file.read(BLOCK_BYTES)


@contextlib.contextmanager
def _decoding(encoding: str) -> Iterator[None]:
    try:
        yield
    except UnicodeError:
        raise _not_encoded(encoding) from None


def _not_encoded(encoding: str) -> TableError:
    words = f"not all of the text is {encoding}: name its encoding, such as cp1252 (latin-1 reads any bytes)"
    return TableError(words, encoding="latin-1")


def _find_encoding(head: bytes) -> str:
    """By the mark at the beginning, or UTF-8 where the bytes allow it."""
    for mark, name in WIDE.items():
        if head.startswith(mark):
            return name
    for start, name in enumerate(("utf-16-be", "utf-16-le")):
        if head[start::2].count(0) > len(head) // 4:
            raise TableError("this looks like text in UTF-16", encoding=name)
    if b"\0" in head:
        raise TableError("neither text nor a table format that can be read")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at the end
    except UnicodeDecodeError:
        if not head.decode("utf-8", "ignore").isascii():
            raise _not_encoded("utf-8") from None
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


def _transcoded(opened: Opened, encoding: str, newline: str | None) -> Opened:
    """The same text in UTF-8; with None for `newline`, lines end with line feeds."""

    @contextlib.contextmanager
    def transcoding() -> Iterator[IO[bytes]]:
        with opened() as file:
            yield _Transcoded(io.TextIOWrapper(file, encoding=encoding, newline=newline))  # type: ignore[misc]

    return transcoding


class _Transcoded:
    """Text read as UTF-8 bytes."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def read(self, size: int) -> bytes:
        """Up to `size` characters."""
        return self._text.read(size).encode()


def _split(file: IO[bytes], separator: str) -> Iterator[Lines]:
    """The records of a file, the header first, a few megabytes at a time, without blank lines."""
    rest, row = b"", 0
    while True:
        more = file.read(BLOCK_BYTES)
        text = rest + more
        ends = _line_ends(text, separator)
        if not more and not (len(ends) and ends[-1] == len(text) - 1):
            ends = np.append(ends, len(text))
        starts = np.append(0, ends + 1)
        rest, starts = text[starts[-1] :], starts[:-1]
        codes = np.frombuffer(text, np.uint8)
        stops = ends - ((ends > starts) & (codes[ends - 1] == ord("\r"))) if len(codes) else ends
        filled = stops > starts
        lines = Lines(text, np.stack((starts, stops), axis=-1)[filled])
        too_long = np.flatnonzero(np.diff(lines.bounds) > LONGEST_RECORD)
        if len(too_long) or len(rest) > LONGEST_RECORD:
            raise TableError(_too_long(row + int(too_long[0] if len(too_long) else len(lines))))
        if not more and len(lines) and _is_open(lines[-1:].cut()[0], separator):
            raise TableError(_too_long(row + len(lines) - 1))
        row += len(lines)
        if len(lines):
            yield lines if filled[:-1].all() else join_lines(lines.cut())
        if not more:
            return


def _too_long(row: int) -> str:
    name = f"row {row}" if row else "the header"
    return f"{name} begins a quote that is never closed, or has more than {LONGEST_RECORD:,} characters: this is no csv"


def _is_open(record: bytes, separator: str) -> bool:
    """Whether a quote in a record is never closed."""
    try:
        list(csv.reader(io.StringIO(record.decode("latin-1"), newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        return "unexpected end" in str(error)
    return False


def _line_ends(text: bytes, separator: str) -> npt.NDArray[np.int64]:
    """Where records end: at line feeds with an even number of quotes before them, where no quote is out of place."""
    codes = np.frombuffer(text, np.uint8)
    ends, quotes = np.flatnonzero(codes == ord("\n")), np.flatnonzero(codes == ord('"'))
    begins, closes = np.zeros(256, bool), np.zeros(256, bool)
    begins[list(b'\n"' + separator.encode())] = closes[list(b'\r\n"' + separator.encode())] = True
    opening, closing = quotes[::2], quotes[1::2]
    opening, closing = opening[opening > 0], closing[closing < len(codes) - 1]
    if begins[codes[opening - 1]].all() and closes[codes[closing + 1]].all():
        return ends[np.searchsorted(quotes, ends) % 2 == 0] if len(quotes) else ends
    matches = _record_pattern(separator).finditer(text)
    return np.array([match.end() - 1 for match in matches if match["end"]], np.int64)


def join_lines(cut: Sequence[bytes]) -> Lines:
    """Lines with nothing between them but their line ends."""
    starts = np.cumsum([0, *(len(line) + 1 for line in cut)])
    return Lines(b"\n".join(cut), np.stack((starts[:-1], starts[1:] - 1), axis=-1))


def cut_records(text: bytes, separator: str) -> list[bytes]:
    """The records of some text without their line ends."""
    return [record for lines in _split(io.BytesIO(text), separator) for record in lines.cut()]


def _record_pattern(separator: str) -> re.Pattern[bytes]:
    """A record with its line end: a quote counts at the beginning of a field only, and holds line ends and separators.

    All repetitions are possessive: no input makes the search go back.
    """
    cut = re.escape(separator.encode())
    field = rb'(?:"(?:[^"]|"")*+"?+)?+[^\n' + cut + rb"]*+"
    return re.compile(field + rb"(?:" + cut + field + rb")*+(?P<end>\n|\Z)")


def _spread(table: pa.Table, rows: int, without: dict[int, int]) -> pa.Table:
    """A table with empty cells where rows were left out."""
    left_out = np.zeros(rows, bool)
    left_out[list(without)] = True
    if not len(table):
        return pa.table({name: pa.repeat("", rows) for name in table.column_names}, schema=table.schema)
    taken = table.take(pa.array(np.cumsum(~left_out) - 1, pa.int64(), mask=left_out))
    return pa.table([column.fill_null("") for column in taken.columns], schema=table.schema)
