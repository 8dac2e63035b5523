"""Where the encoded tiles of a Web Mercator pyramid lie: an MBTiles file, a folder, or a server the user names.

Tiles are numbered z/x/y with y growing southward (XYZ). Each store reads many tiles in one call, in the order they are
listed and None for a tile that is not there; it opens what it needs for that call alone, so it can move freely between
threads and processes.
"""

import contextlib
import hashlib
import http.client
import itertools
import os
import re
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import fingerprint
from tessearth.version import __version__

DEEPEST_ZOOM = 24
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
NOT_THERE = {404, 410}
"""A server's status codes for a tile it does not have; another is 204, which has no content."""
WORTH_RETRYING = {408, 429, 500, 502, 503, 504}
MOST_BYTES = 16 * 2**20
"""Of one tile, from a server or a file."""
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
MOST_STEPS = 200_000_000
"""Of SQLite's machine for one query, some seconds: finding a tile by an index takes a few dozen."""
CONNECTIONS = 8
"""To one server at a time."""
DEADLINE = 3.0
"""How many times the server's timeout a tile may take; one that trickles in is requested again."""


class Tile(NamedTuple):
    """A tile's number; y grows southward."""

    z: int
    x: int
    y: int

    def __str__(self) -> str:
        return f"{self.z}/{self.x}/{self.y}"

    def parent(self) -> "Tile":
        """The tile that covers this one at the zoom above."""
        return Tile(self.z - 1, self.x >> 1, self.y >> 1)

    def flipped(self) -> "Tile":
        """The same tile in TMS order, where rows grow northward."""
        return Tile(self.z, self.x, 2**self.z - 1 - self.y)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """What the stores of encoded tiles have in common."""

    location: str
    zooms: range
    """From the coarsest to the finest zoom there is."""
    tms: bool = False
    """Whether rows are counted from the south."""

    @property
    def name(self) -> str:
        """What to call the store in messages: a path, or a URL without secrets."""
        return self.location


def open_tiles(location: str | Path, *, max_zoom: int | None = None, tms: bool = False) -> "TileStore":
    """Tell an .mbtiles file, a folder {z}/{x}/{y}.png and a URL template apart and open it."""
    text = str(location)
    if re.match(r"[a-z]+://", text, re.IGNORECASE):
        return UrlTiles.of(text, max_zoom=max_zoom, tms=tms)
    path = Path(location)
    if os.path.exists(path):  # unlike the path's own test, it knows names that are too long
        if path.is_file():
            return MBTiles.of(path, max_zoom=max_zoom)
        if path.is_dir():
            return FolderTiles.of(path, max_zoom=max_zoom, tms=tms)
    raise DataError(f"there are no tiles at {location}: give an .mbtiles file, a folder of z/x/y.png or a URL template")


@dataclass(frozen=True, slots=True)
class MBTiles(_Tiles):
    """Tiles in a SQLite file by the MBTiles specification, which counts rows from the south."""

    @classmethod
    def of(cls, path: Path, *, max_zoom: int | None = None) -> "MBTiles":
        """Open a file and find its zooms."""
        with _connect(path) as connection:
            # Each on its own, so that an index answers it.
            query = "select (select min(zoom_level) from tiles), (select max(zoom_level) from tiles)"
            lowest, highest = _first_row(connection, query) or (None, None)
            kind = _first_row(connection, "select value from metadata where name = 'format'")
        if lowest is None:
            raise DataError(f"{path} holds no tiles")
        if not (isinstance(lowest, int) and isinstance(highest, int)):
            raise DataError(f"{path} has zoom levels from {lowest!r} to {highest!r}, not whole numbers")
        if kind is not None and kind[0] in {"pbf", "mvt"}:
            raise DataError(f"{path} holds vector tiles ({kind[0]}), not pictures")
        return cls(str(path), _zoom_range(lowest, highest, max_zoom), tms=True)

    def read_many(self, tiles: Sequence[Tile]) -> list[bytes | None]:
        """The encoded tiles in this order, None for those that are not there."""
        query = "select tile_data from tiles where zoom_level = ? and tile_column = ? and tile_row = ?"
        with _connect(Path(self.location)) as connection:
            found = [_first_row(connection, query, tile.flipped()) for tile in tiles]
        return [self._content(row[0], tile) if row else None for row, tile in zip(found, tiles, strict=True)]

    def describe(self) -> dict[str, Any]:
        """The file's record."""
        return {"store": "mbtiles", "files": [fingerprint(Path(self.location))]}

    def has_many(self, tiles: Sequence[Tile]) -> list[bool]:
        """Which of the tiles are there."""
        query = "select 1 from tiles where zoom_level = ? and tile_column = ? and tile_row = ?"
        with _connect(Path(self.location)) as connection:
            return [_first_row(connection, query, tile.flipped()) is not None for tile in tiles]

    def corners(self, zoom: int) -> tuple[Tile, Tile]:
        """The north-western and the south-eastern corner of the tiles of a zoom."""
        columns = "min(tile_column), max(tile_row), max(tile_column), min(tile_row)"
        query = f"select {columns} from tiles where zoom_level = ?"
        with _connect(Path(self.location)) as connection:
            left, top, right, bottom = _first_row(connection, query, (zoom,)) or (None,) * 4
        if not all(isinstance(number, int) for number in (left, top, right, bottom)):
            raise DataError(f"{self.location} has no tiles at zoom {zoom}")
        return Tile(zoom, left, top).flipped(), Tile(zoom, right, bottom).flipped()

    def _content(self, content: object, tile: Tile) -> bytes | None:
        if isinstance(content, str):
            return content.encode("utf-8", "replace") or None
        if content is not None and not isinstance(content, bytes):
            raise DataError(f"tile {tile} of {self.name} is a {type(content).__name__}, not a picture")
        return content or None


@contextlib.contextmanager
def _connect(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file to read only: its views may be any SQL."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("pragma trusted_schema = off")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
            # Views are part of the format; one that calls itself may never end.
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
            )
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            yield connection
    except (sqlite3.Error, UnicodeDecodeError, MemoryError) as error:
        reason = "a view in it asks for endless work, or it has no index" if str(error) == "interrupted" else error
        raise DataError(f"cannot read {path} as MBTiles: {reason}") from error


def _first_row(connection: sqlite3.Connection, query: str, values: Sequence[int] = ()) -> tuple[Any, ...] | None:
    """The first row of a query, ended after `MOST_STEPS`; time spent waiting for a disk does not count."""
    steps_at_once, rounds = 100_000, itertools.count(1)
    connection.set_progress_handler(lambda: next(rounds) * steps_at_once > MOST_STEPS, steps_at_once)
    row: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    return row


@dataclass(frozen=True, slots=True)
class FolderTiles(_Tiles):
    """Tiles as files {z}/{x}/{y} with the suffix of a picture."""

    suffixes: tuple[str, ...] = PICTURE_SUFFIXES

    @classmethod
    def of(cls, folder: Path, *, max_zoom: int | None = None, tms: bool = False) -> "FolderTiles":
        """Open a folder and find its zooms and the suffixes of its coarsest tiles."""
        zooms = sorted(int(entry.name) for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal())
        for zoom in zooms:
            found = {
                path.suffix for path in (folder / str(zoom)).glob("*/*") if path.suffix.lower() in PICTURE_SUFFIXES
            }
            if found:
                return cls(str(folder), _zoom_range(zoom, zooms[-1], max_zoom), tms, tuple(sorted(found)))
        raise DataError(f"{folder} holds no tiles: expected files such as 0/0/0.png in it")

    def read_many(self, tiles: Sequence[Tile]) -> list[bytes | None]:
        """The encoded tiles in this order, None for those that are not there."""
        return [self._read(tile) for tile in tiles]

    def has_many(self, tiles: Sequence[Tile]) -> list[bool]:
        """Which of the tiles are there."""
        return [any(path.is_file() for path in self._paths(tile)) for tile in tiles]

    def corners(self, zoom: int) -> tuple[Tile, Tile]:
        """The north-western and the south-eastern corner of the tiles of a zoom."""
        paths = [path for path in Path(self.location, str(zoom)).glob("*/*") if path.suffix in self.suffixes]
        numbers = [(int(path.parent.name), int(path.stem)) for path in paths if path.stem.isdecimal()]
        if not numbers:
            raise DataError(f"{self.location} has no tiles at zoom {zoom}")
        (left, right), (low, high) = ((min(axis), max(axis)) for axis in zip(*numbers, strict=True))
        if self.tms:
            return Tile(zoom, left, high).flipped(), Tile(zoom, right, low).flipped()
        return Tile(zoom, left, low), Tile(zoom, right, high)

    def _paths(self, tile: Tile) -> Iterator[Path]:
        z, x, y = tile.flipped() if self.tms else tile
        return (Path(self.location, str(z), str(x), f"{y}{suffix}") for suffix in self.suffixes)

    def _read(self, tile: Tile) -> bytes | None:
        for path in self._paths(tile):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return path.read_bytes()
        return None

    def describe(self) -> dict[str, Any]:
        """The folder's record: a hash of all names and sizes, for hashing all tiles would cost as much as reading."""
        folder = Path(self.location)
        paths = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
        listing = sorted(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}" for path in paths)
        digest = hashlib.sha256("\n".join(listing).encode()).hexdigest()
        return {"store": "folder", "name": folder.name, "files": len(listing), "sha256_of_listing": digest}


@dataclass(frozen=True, slots=True)
class UrlTiles(_Tiles):
    """Tiles from a server, by a template with {z}, {x} and {y}; only ever one that the user gave."""

    timeout_s: float = 20.0
    attempts: int = 4
    wait_s: float = 0.5
    """Pause before the second attempt; it doubles for each further one."""

    @classmethod
    def of(cls, template: str, *, max_zoom: int | None = None, tms: bool = False) -> "UrlTiles":
        """Check a template; how deep a server goes cannot be asked, so `max_zoom` must be given."""
        if not template.lower().startswith(("http://", "https://")):
            raise ConfigError(f"tiles are read over http or https only, not from {_public(template)}")
        if set(re.findall("{[zxy]}|[{}]", template)) != {"{x}", "{y}", "{z}"}:
            raise ConfigError(
                f"a tile URL needs {{z}}, {{x}} and {{y}} and nothing else in braces: {_public(template)}"
            )
        if max_zoom is None:
            raise ConfigError(f"give max_zoom, the deepest zoom that {_public(template)} has")
        return cls(template, _zoom_range(0, max_zoom, max_zoom), tms)

    @property
    def name(self) -> str:
        """The template without what might be secret: user, password and query."""
        return _public(self.location)

    def read_many(self, tiles: Sequence[Tile]) -> list[bytes | None]:
        """The encoded tiles in this order, several fetched at a time, None for those that are not there."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            return list(pool.map(self._read, tiles))

    def _read(self, tile: Tile) -> bytes | None:
        """One encoded tile, asked for again when the connection breaks or the server is busy."""
        z, x, y = tile.flipped() if self.tms else tile
        url = self.location.replace("{z}", str(z)).replace("{x}", str(x)).replace("{y}", str(y))
        problem: Exception | None = None
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(self.wait_s * 2 ** (attempt - 1))
            try:
                return _fetch(url, self.timeout_s)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in NOT_THERE:
                    return None
                problem = error
                if error.code not in WORTH_RETRYING:
                    break
            except (OSError, http.client.HTTPException) as error:
                problem = error
        raise DataError(f"tile {tile} of {self.name} did not come: {problem}") from problem

    def has_many(self, tiles: Sequence[Tile]) -> list[bool]:
        """Nobody knows."""
        raise ConfigError(f"{self.name} does not say which tiles it has: set places.where to another value")

    def corners(self, zoom: int) -> tuple[Tile, Tile]:
        """The whole world, as far as anybody knows."""
        self.has_many(())
        return Tile(zoom, 0, 0), Tile(zoom, 2**zoom - 1, 2**zoom - 1)

    def describe(self) -> dict[str, Any]:
        """The server's record."""
        return {"store": "url", "template": self.name}


TileStore = MBTiles | FolderTiles | UrlTiles


def _fetch(url: str, timeout_s: float) -> bytes | None:
    """The body of an answer, None for an empty one; one that was cut short is no answer."""
    request, content = urllib.request.Request(url, headers={"User-Agent": f"tessearth/{__version__}"}), b""
    with urllib.request.build_opener(_NoFtp).open(request, timeout=timeout_s) as answer:
        deadline = time.monotonic() + DEADLINE * timeout_s
        while len(content) <= MOST_BYTES and (more := answer.read1(2**16)):
            content += more
            if time.monotonic() > deadline:
                raise TimeoutError("it came too slowly")
        promised = answer.headers.get("Content-Length", "")
    if len(content) > MOST_BYTES:
        raise DataError(f"{_public(url)} is larger than {MOST_BYTES // 2**20} MB; that is no tile")
    if promised.isdecimal() and len(content) < int(promised):
        raise http.client.IncompleteRead(content, int(promised) - len(content))
    return content or None


class _NoFtp(urllib.request.FTPHandler):
    """Refuses what is not of the web and a server may still lead to; urllib itself follows no link to a local file."""

    def ftp_open(self, req: urllib.request.Request) -> NoReturn:
        raise urllib.error.URLError("it leads to an address that is not of the web")


def _public(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", re.split("[?#]", url, maxsplit=1)[0])


def _zoom_range(lowest: int, highest: int, wanted: int | None) -> range:
    deepest = highest if wanted is None else min(highest, wanted)
    if not 0 <= lowest <= deepest <= DEEPEST_ZOOM:
        raise ConfigError(f"zooms {lowest} to {deepest} are no pyramid; they must lie between 0 and {DEEPEST_ZOOM}")
    return range(lowest, deepest + 1)
