"""What the explorer's page was built from: `make explorer` notes it, and a test compares it with web/.

python3 tools/page_record.py    writes the hash of web/ next to the built page
"""

import hashlib
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
WEB, RECORD = ROOT / "web", ROOT / "src/tessearth/explorer/static/build.json"
SOURCE_FILES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")


def hash_sources() -> str:
    """SHA-256 over the names and contents of everything the page is built from."""
    files = (
        [WEB / name for name in SOURCE_FILES] + sorted((WEB / "src").rglob("*")) + sorted((WEB / "public").rglob("*"))
    )
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(f"{file.relative_to(WEB).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def read_record() -> str:
    """The hash of the sources the page was built from."""
    return str(json.loads(RECORD.read_text())["sources_sha256"])


if __name__ == "__main__":
    RECORD.write_text(json.dumps({"sources_sha256": hash_sources()}) + "\n")
