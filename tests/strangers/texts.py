"""Tables of text as strangers write them: each a small specification of its bytes and of what must come back."""

import bz2
import csv
import gzip
import io
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

ROWS = 60
LAT = [round(-84 + 2.8 * i, 4) for i in range(ROWS)]
LON = [round(-179.5 + 5.95 * i, 4) for i in range(ROWS)]
LATLON = np.stack((LAT, LON), axis=-1)
Cells = dict[str, Sequence[Any]]


class Text(NamedTuple):
    """A csv."""

    name: str
    lines: list[bytes]
    """The header and the records as they stand in the file, without line ends."""
    reading: Mapping[str, Any] = MappingProxyType({})
    end: bytes = b"\n"
    separator: str = ","
    encoding: str = "utf-8"
    names: tuple[str, str] | None = ("lat", "lon")
    """The coordinates; None where they are carried as text."""
    wrap: Callable[[bytes], bytes] = bytes
    """Makes the file of its text."""
    is_copied: bool = True
    """Whether a csv comes back to the byte; text of two-byte letters comes back in UTF-8."""
    latlon: Any = LATLON
    label: str | None = "label"

    def content(self) -> bytes:
        return self.wrap(b"".join(line + self.end for line in self.lines))

    def rows(self) -> list[list[str]]:
        """All cells by Python's reader, the header first."""
        text = self.end.join(self.lines).decode(self.encoding).removeprefix("\ufeff")
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=self.separator))


def lines_of(cells: Cells, separator: str = ",", encoding: str = "utf-8", **quoting: Any) -> list[bytes]:
    rows = [list(cells), *zip(*cells.values(), strict=True)]
    found = []
    for row in rows:
        text = io.StringIO()
        csv.writer(text, delimiter=separator, lineterminator="\r\n", **quoting).writerow(row)
        found.append(text.getvalue()[:-2].encode(encoding))
    return found


def table(**more: Sequence[Any]) -> Cells:
    """Places with an identifier and a label, and more columns."""
    ids = [f"{i:05d}" for i in range(ROWS)]
    label = ["south" if lat < 0 else "north" for lat in LAT]
    return {"id": ids, **more, "lat": LAT, "lon": LON, "label": label}


def again(*values: Any) -> list[Any]:
    """Values over and over in all rows."""
    return [values[i % len(values)] for i in range(ROWS)]


def dms(degrees: float, letters: str) -> str:
    seconds = round(abs(degrees) * 36000) / 10
    return f"{int(seconds // 3600)}°{int(seconds % 3600 // 60):02d}'{seconds % 60:04.1f}\"{letters[int(degrees < 0)]}"


def seconds_of(degrees: Sequence[float]) -> list[float]:
    return [math.copysign(round(abs(one) * 36000) / 36000, one) for one in degrees]


def dialect(name: str, cells: Cells, separator: str = ",", encoding: str = "utf-8", **more: Any) -> Text:
    quoting = {key: more.pop(key) for key in ("quoting",) if key in more}
    lines = lines_of(cells, separator, encoding, **quoting)
    return Text(name, lines, separator=separator, encoding=encoding, **more)


NAMES = again("Zürich", "São Paulo", "O'Brien", "Łódź", "東京", "Москва")
WESTERN = again("Zürich", "São Paulo", "O'Brien", "Köln €5")
LATIN = again("Zürich", "São Paulo", "Malmö", "Ðe ÿ")
ODD = again(
    "a,b", 'he said "no"', "two\nlines", "semi;colon", "tab\there", "pipe|", " blanks ", "'single'", '"', "\r\n"
)
NA_WORDS = again("NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-", "#N/A", "", "?", "inf")
DATES = {
    f"date {i}": again(*some)
    for i, some in enumerate(
        (
            ("2024-02-29", "1999-12-31"),
            ("29/02/2024", "01/02/2003"),
            ("02/29/2024", "12/31/1999"),
            ("29.02.2024", "1.2.03"),
            ("20240229", "19991231"),
            ("2024-02-29T12:00:00Z", "2024-02-29T12:00:00+05:30"),
            ("2024-02-29 12:00:00", "2024-02-29 12:00:00.123456"),
            ("29-Feb-24", "Feb 29, 2024"),
            ("2024-W09-4", "2024-060"),
            ("1709208000", "1709208000.5"),
        )
    )
}
plain = lines_of(table())
bare = [b"id,note,lat,lon,label", *(b'%d,5" pipe,%r,%r,x' % (i, LAT[i], LON[i]) for i in range(ROWS))]
quoted_empty = [b"a,b,lat,lon", *(b'%s,"",%r,%r' % (b"" if i % 2 else b'""', LAT[i], LON[i]) for i in range(ROWS))]
blank = [line for pair in zip(plain, [b""] * len(plain), strict=True) for line in pair]
LONG = 6_000
long_lat = [round(-80 + 160 * i / LONG, 4) for i in range(LONG)]
long_lon = [round(-170 + 340 * i / LONG, 4) for i in range(LONG)]
changing = {
    "id": [f"{i:06d}" if i < LONG - 50 else f"R-{i}" for i in range(LONG)],
    "note": ["some words that fill the file. " * 25] * LONG,
    "lat": long_lat,
    "lon": long_lon,
}


class _Mark:
    def __init__(self, mark: bytes) -> None:
        self._mark = mark

    def __call__(self, content: bytes) -> bytes:
        return self._mark + content


def _as(encoding: str) -> Callable[[bytes], bytes]:
    return lambda content: content.decode().encode(encoding)


def _zst(content: bytes) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as out:
        out.write(content)
    return bytes(stream.getvalue())


def ids(name: str, *values: str) -> Text:
    return dialect(f"ids: {name}", table(code=again(*values)))


def pair(name: str, coordinates: str, texts: Sequence[str], latlon: Any = LATLON) -> Text:
    cells = {"id": [f"{i:04d}" for i in range(ROWS)], "place": texts, "label": again("a", "b")}
    return dialect(name, cells, reading={"lat": "place", "coordinates": coordinates}, names=None, latlon=latlon)


comma = {"lat": [str(x).replace(".", ",") for x in LAT], "lon": [str(x).replace(".", ",") for x in LON]}
in_dms = {"lat": [dms(x, "NS") for x in LAT], "lon": [dms(x, "EW") for x in LON]}
DMS = np.stack((seconds_of(LAT), seconds_of(LON)), axis=-1)

TEXTS = [
    dialect("commas", table(name=NAMES)),
    dialect("semicolons", table(name=NAMES), ";"),
    dialect("tabs", table(name=NAMES), "\t"),
    dialect("pipes", table(name=NAMES), "|"),
    dialect("a separator by name", table(name=NAMES), "^", reading={"separator": "^"}),
    dialect("semicolons with many commas", table(name=again("a, b, c", "d, e, f")), ";"),
    dialect("UTF-8 with a mark", table(name=NAMES), wrap=_Mark(b"\xef\xbb\xbf")),
    dialect("cp1252, guessed", table(name=WESTERN), encoding="cp1252"),
    dialect("latin-1 by name", table(name=LATIN), encoding="latin-1", reading={"encoding": "latin-1"}),
    dialect("latin-1 with semicolons", table(name=LATIN), ";", "cp1252"),
    dialect("utf-16", table(name=NAMES), wrap=_as("utf-16"), is_copied=False),
    dialect("utf-16 with tabs", table(name=[*NAMES[:-1], "\r\n"]), "\t", wrap=_as("utf-16"), is_copied=False),
    dialect("utf-16-be by name", table(name=NAMES), wrap=_as("utf-16-be"), is_copied=False,
            reading={"encoding": "utf-16-be"}),
    dialect("shift-jis by name", table(name=again("東京", "大阪", "ソ表|")), encoding="shift-jis",
            reading={"encoding": "shift-jis"}),
    dialect("utf-8-sig by name", table(name=NAMES), reading={"encoding": "utf-8-sig"}, wrap=_Mark(b"\xef\xbb\xbf")),
    dialect("line ends of Windows", table(name=[*ODD[:-1], "x"]), end=b"\r\n"),
    dialect("line ends of old Macs", table(name=NAMES), end=b"\r", is_copied=False),
    Text("line ends converted twice", plain, end=b"\r\r\n", is_copied=False),
    dialect("everything in quotes", table(name=NAMES), quoting=csv.QUOTE_ALL),
    dialect("odd cells", table(name=ODD)),
    dialect("odd cells with tabs", table(name=ODD), "\t"),
    Text("quotes inside of fields", bare, label="label"),
    Text("empty and quoted empty cells", quoted_empty, label=None),
    Text("blank lines", blank),
    Text("no line end at the end", plain, wrap=lambda content: content[:-1]),
    Text("many line ends at the end", plain, wrap=lambda content: content + b"\n\r\n\n"),
    Text("Windows line ends in places", plain, wrap=lambda content: content.replace(b"south\n", b"south\r\n")),
    ids("leading zeros", "01001", "00501", "0"),
    ids("plus signs", "+15551234", "+44", "-7"),
    ids("twenty digits", "12345678901234567890", "12345678901234567891"),
    ids("hexadecimal", "0x1F", "0x00", "1e5", "1E400"),
    ids("trailing zeros", "1.50", "1.500", "1."),
    ids("words that are numbers", "Infinity", "nan", "1_000", "١٢٣"),
    ids("thousands", "1,234", "1 234", "1'234"),
    dialect("dates in ten styles", table(**DATES)),
    dialect("booleans", table(yes=again("TRUE", "False", "t", "yes", "0", "1", "NO"))),
    dialect("words for nothing", table(nothing=NA_WORDS)),
    dialect("a column that changes its type late", changing,
            latlon=np.stack((long_lat, long_lon), axis=-1), label=None),
    dialect("columns called like ours", table(row=again(1), places=again(2), embeddings=again("x"), problem=again(3),
            lines=again(4), lat_1=again(5), predictions=again(6), fid=again("k", "l"))),
    dialect("a header of brackets", {"[id]": again("01"), "{a}": again(1), **table()}),
    dialect("a header like a mark of NetCDF", {"CDF": again("01"), **table()}),
    dialect("very wide", table(**{f"c{i}": again(i, f"{i:04d}") for i in range(900)})),
    dialect("one row", {"id": ["007"], "lat": [48.85], "lon": [2.35]}, latlon=np.array([[48.85, 2.35]]), label=None),
    dialect("unicode in the header", table(**{"größe": again("1,5"), "名前": again("東"), "a b": again(1)})),
    Text("a header in capitals", lines_of({k.upper(): v for k, v in table(name=NAMES).items()}),
         names=("LAT", "LON"), label="LABEL"),
    Text("blanks around the header", [plain[0].replace(b",", b", "), *plain[1:]], names=(" lat", " lon"),
         label=" label"),
    Text("blanks around the cells", [plain[0], *(line.replace(b",", b" , ") for line in plain[1:])]),
    Text("empty columns of a spreadsheet", [line + b",," for line in plain]),
    Text("an unnamed first column", [b"," + plain[0], *(b"%d," % i + line for i, line in enumerate(plain[1:]))]),
    dialect("decimal commas", {**table(), **comma}, ";", reading={"coordinates": "comma"}, names=None),
    dialect("degrees, minutes, seconds", {**table(), **in_dms}, reading={"coordinates": "dms"}, names=None,
            latlon=DMS),
    dialect("columns by name", {"Breite": LAT, "Länge": LON, "label": again("a", "b")},
            reading={"lat": "Breite", "lon": "Länge"}, names=("Breite", "Länge")),
    dialect("names that mean something else", {"x": again(1), "y": again(2), **table()}),
    pair("pairs, latitude first", "lat,lon", [f"{a}, {o}" for a, o in LATLON]),
    pair("pairs, longitude first", "lon,lat", [f"({o} {a})" for a, o in LATLON]),
    pair("well-known text", "lon,lat", [f"POINT ({o} {a})" for a, o in LATLON]),
    pair("pairs of degrees and minutes", "lat,lon", [f"{dms(a, 'NS')} {dms(o, 'EW')}" for a, o in LATLON], DMS),
    Text("one column of pairs", [b"place", *(b"%r %r" % (a, o) for a, o in zip(LAT, LON, strict=True))], names=None,
         reading={"lat": "place", "coordinates": "lat,lon"}, label=None),
    dialect("longitudes to 360", {**table(), "lon": [o % 360 for o in LON]}),
    dialect("numbers with an exponent", {**table(), "lat": [f"{a:.6e}" for a in LAT], "lon": [f"{o:+}" for o in LON]}),
    dialect("gzip", table(name=NAMES), wrap=gzip.compress),
    dialect("gzip in two members", table(name=NAMES),
            wrap=lambda text: gzip.compress(text[:300]) + gzip.compress(text[300:])),
    dialect("bzip2", table(name=NAMES), wrap=bz2.compress),
    dialect("Zstandard", table(name=ODD), wrap=_zst),
]  # fmt: skip
