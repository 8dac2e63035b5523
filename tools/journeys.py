"""Traces what a user does: how many of our files and functions run, and how deep they call one another.

    python tools/journeys.py [TREE] [--files]

TREE is a checkout (default: this one). A function counts when it is called on the way; bodies of modules and what they
call while they are imported do not, and neither does a front's `__getattr__`. Depth is the longest chain of our own
functions, each called by the one before. `--files` also lists the files of each journey.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

RECIPE = """
[features]
pca = 8
[features.places]
where = "land"
count = 120
[[features.sources]]
kind = "blue-marble"
options = { size = 12, km_per_pixel = 7.4 }
encoder = "rcf"
encoder_options = { num_filters = 8 }
[encoder]
num_tokens = 4
output_dim = 16
hidden_dim = 16
[[encoder.tessellations]]
num_sites = 16
site_dim = 8
sharpness = 12.0
[sites]
start = "full"
[training]
steps = 4
batch_size = 32
evaluate_every = 2
checkpoint_every = 2
"""
PORT = 18737
PATIENCE_S = 120.0


class Tracer:
    """Notes every call of a function below a folder, in all threads, while it is switched on."""

    def __init__(self, package: Path) -> None:
        self.package, self.on, self.depth = f"{package}{os.sep}", False, 0
        self.functions: set[tuple[str, str]] = set()
        self.stacks = threading.local()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """A profile function; the stack holds the depth outside of the frame, or None below an import of ours."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.package):
            return
        stack: list[int | None] = self.stacks.__dict__.setdefault("stack", [0])
        if event == "return":
            if len(stack) > 1:  # a frame that began before the tracer did was never noted
                stack.pop()
            return
        imports = code.co_name == "<module>" or (
            code.co_name == "__getattr__" and code.co_filename.endswith(("__init__.py", "packages.py"))
        )
        above = stack[-1]
        stack.append(None if above is None or imports else above + self.on)
        if self.on and stack[-1] is not None and not imports:
            self.depth = max(self.depth, stack[-1])
            self.functions.add((code.co_filename.removeprefix(self.package), code.co_qualname))


def tessearth(*arguments: object) -> None:
    """The command line in this process."""
    from tessearth.cli.app import main

    sys.argv = ["tessearth", *map(str, arguments)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"tessearth {' '.join(map(str, arguments))} ended with {ended.code}") from None


def traced(tracer: Tracer, action: Callable[[], Any]) -> None:
    """Do something with the tracer switched on."""
    tracer.on = True
    try:
        action()
    finally:
        tracer.on = False


def embed(tracer: Tracer, folder: Path) -> None:
    """`Embedder("earth")`, one place and 5,000 places."""
    import numpy as np

    from tessearth import Embedder

    many = np.random.default_rng(0).uniform((-90, -180), (90, 180), (5000, 2))

    def journey() -> None:
        embedder = Embedder("earth", device="cpu")
        embedder(lat=48.86, lon=2.35)
        embedder(many)

    traced(tracer, journey)


def encode(tracer: Tracer, folder: Path) -> None:
    """`tessearth encode` of a Parquet table of 2,000 rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    lat, lon = np.random.default_rng(0).uniform((-90, -180), (90, 180), (2000, 2)).T
    pq.write_table(pa.table({"id": np.arange(2000), "lat": lat, "lon": lon}), folder / "places.parquet")
    call = [sys.executable, "-m", "tessearth", "encode", "--help"]
    told = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    output = "--output" if "--output" in told else "--out"  # as older trees call it
    files = ("--input", folder / "places.parquet", output, folder / "out.parquet")
    traced(tracer, lambda: tessearth("encode", "--model", "earth-small", "--device", "cpu", *files))


def features(tracer: Tracer, folder: Path) -> None:
    """`tessearth features` of 120 places of Blue Marble."""
    (folder / "recipe.toml").write_text(RECIPE)
    traced(tracer, lambda: tessearth("features", folder / "recipe.toml", "--out", folder / "store", "--device", "cpu"))


def pretrain(tracer: Tracer, folder: Path) -> None:
    """`tessearth pretrain`, four steps from a finished store."""
    features(Tracer(tracer.package), folder)
    given = ("--store", folder / "store", "--out", folder / "run", "--device", "cpu")
    traced(tracer, lambda: tessearth("pretrain", folder / "recipe.toml", *given))


def place(tracer: Tracer, folder: Path) -> None:
    """One `/place` of a server that has answered for another place before."""

    def ask(path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def click() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                if ask("/health")["status"] == "ok":
                    break
            except OSError:
                time.sleep(0.2)
        for lat, lon in ((10.5, 20.5), (11.5, 21.5)):
            ask(f"/place?lat={lat}&lon={lon}")
        time.sleep(1)
        traced(tracer, lambda: ask("/place?lat=48.86&lon=2.35"))
        finish(tracer, folder)

    threading.Thread(target=click, daemon=True).start()
    tessearth("serve", "--model", "earth-small", "--port", PORT, "--device", "cpu")


def evaluate(tracer: Tracer, folder: Path) -> None:
    """`tessearth.evaluate` of one model on one task, without references, into a folder."""
    import tessearth

    def journey() -> None:
        tessearth.evaluate(
            "earth-small", ["elevation"], ["10deg"], references=False, device="cpu", out=folder / "report"
        )

    traced(tracer, journey)


JOURNEYS = {job.__name__: job for job in (embed, encode, features, pretrain, place, evaluate)}
WANTED = {"embed": 22, "encode": 25, "features": 25, "pretrain": 28, "place": 15, "evaluate": 40}


class Trace(NamedTuple):
    """What one journey ran."""

    functions: list[list[str]]
    """File and name of each."""
    depth: int

    def files(self) -> list[str]:
        """The files that at least one function of was called."""
        return sorted({file for file, _ in self.functions})


def finish(tracer: Tracer, folder: Path) -> None:
    """Write what was traced, and end the process: a server would go on."""
    (folder / "trace.json").write_text(json.dumps(Trace(sorted(map(list, tracer.functions)), tracer.depth)))
    os._exit(0)


def trace_here(name: str, folder: Path) -> None:
    """One journey in this process."""
    import tessearth as package

    tracer = Tracer(Path(package.__file__).parent)
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    JOURNEYS[name](tracer, folder)
    finish(tracer, folder)


def cache(folder: str) -> str:
    """A cache that holds the prepared labels of the user's cache and no embeddings."""
    usual = Path(os.environ.get("TESSEARTH_CACHE", Path.home() / ".cache" / "tessearth"))
    own = Path(folder) / "cache"
    own.mkdir()
    for name in ("labels", "land"):
        (own / name).symlink_to(usual / name)
    return str(own)


def trace(tree: Path, name: str) -> Trace:
    """One journey of a tree, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, __file__, "--trace", name, folder]
        own = {"PYTHONPATH": str(tree.resolve() / "src"), "OMP_NUM_THREADS": "1", "TESSEARTH_CACHE": cache(folder)}
        done = subprocess.run(call, env={**os.environ, **own}, capture_output=True, text=True, check=False)
        written = Path(folder) / "trace.json"
        if not written.exists():
            raise SystemExit(f"{name}: {done.stderr}")
        return Trace(*json.loads(written.read_text()))


def main() -> None:
    """Print the table, or trace one journey for it."""
    if sys.argv[1:2] == ["--trace"]:
        trace_here(sys.argv[2], Path(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--files", action="store_true", help="list the files too")
    chosen = parser.parse_args()
    traces = {name: trace(chosen.tree, name) for name in JOURNEYS}
    print("| journey | files | wanted | functions | depth |\n|---|---:|---:|---:|---:|")
    for name, found in traces.items():
        told = (JOURNEYS[name].__doc__ or "").rstrip(".")
        print(f"| {told} | {len(found.files())} | {WANTED[name]} | {len(found.functions)} | {found.depth} |")
    for name, found in traces.items() if chosen.files else ():
        print(f"\n{name}")
        for file in found.files():
            print(f"  {file}: {', '.join(function for path, function in found.functions if path == file)}")


if __name__ == "__main__":
    main()
