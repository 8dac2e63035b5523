"""A process that has imported everything and started no thread, and forks itself for every work that is to be killed.

A test's own process may not be forked for that: libraries that ran in it have threads, which a fork loses, and locks,
which it keeps. One request a line: work, folder, moment of the kill (null for none); one status a line comes back.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

TRAINING = ("torch._dynamo", "torch.utils.tensorboard")
LATER = {
    "pretrain": TRAINING,
    "finetune": TRAINING,
    "features": ("PIL.Image",),
    "raster tif": ("rasterio.shutil",),
    "raster zarr": ("zarr", "pyproj"),
    "raster parquet": ("h3",),
}
"""What works import when they come to it; here once, for all children."""


class Forker:
    """The same, seen from a test."""

    def __init__(self, given: tuple[Path, ...]) -> None:
        command = [sys.executable, "-m", "tests.faults.forker", *map(str, given)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __enter__(self) -> "Forker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.communicate()

    def do(self, work: str, folder: Path, moment: int | None = None) -> int:
        """Do a work in a process of its own, killed at a moment: 0, a status, or minus a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([work, str(folder), moment]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def serve() -> None:
    import torch

    from tests.faults.harness import in_child, kill_at
    from tests.faults.works import WORKS, Given

    torch.set_num_threads(1)
    given = Given(*map(Path, sys.argv[1:]))
    for line in sys.stdin:
        name, folder, moment = json.loads(line)
        work = WORKS[name]
        for module in LATER.get(name, ()):
            importlib.import_module(module)
        if moment is None:
            status = in_child(lambda: work.run(given, Path(folder), lambda: None))  # noqa: B023
        else:
            status = kill_at(moment, lambda tick: work.run(given, Path(folder), tick))  # noqa: B023
        print(status, flush=True)


if __name__ == "__main__":
    serve()
