"""The page that `make explorer` builds: where it lies, whether it is there, and what it was built from."""

import hashlib
import json
from pathlib import Path

from tessearth.errors import ConfigError

STATIC = Path(__file__).parent / "static"
RECORD = "build.json"
SOURCE_FILES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Nothing is loaded from anywhere else; MapLibre writes styles into its elements and reads pictures from blobs."""


def is_built(folder: Path = STATIC) -> bool:
    """Whether there is a page to serve."""
    return (folder / "index.html").is_file()


def check_built(folder: Path = STATIC) -> Path:
    """The page's folder, or what to do when it is not there."""
    if not is_built(folder):
        raise ConfigError("the explorer's page is not built: run `make explorer` (needs Node 20), or `tessearth serve`")
    return folder


def hash_sources(web: Path) -> str:
    """SHA-256 over the names and contents of everything the page is built from."""
    files = (
        [web / name for name in SOURCE_FILES] + sorted((web / "src").rglob("*")) + sorted((web / "public").rglob("*"))
    )
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(f"{file.relative_to(web).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def write_record(web: Path, folder: Path = STATIC) -> None:
    """Note beside the page what it was built from."""
    (folder / RECORD).write_text(json.dumps({"sources_sha256": hash_sources(web)}) + "\n")


def read_record(folder: Path = STATIC) -> str:
    """The hash of the sources the page was built from."""
    return str(json.loads((folder / RECORD).read_text())["sources_sha256"])
