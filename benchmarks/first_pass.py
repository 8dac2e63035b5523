"""A long csv with a bad row at its end: how soon `tessearth encode` refuses it, against the time embedding takes.

    python benchmarks/first_pass.py [--rows 10000000] [--model earth-small] [--workers 2] [--out FOLDER]

Three runs of the command: refused because of the last row; the same table mended, killed after a third of the time that
a tenth of it predicts and then resumed. Memory is the largest resident set of the command and its workers.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

AT_ONCE = 500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--model", default="earth-small")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--out", help="where the tables are written [default: a temporary folder]")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.out) as folder:
        path = Path(folder) / "places.csv"
        write_rows(path, chosen.rows)
        good = path.stat().st_size
        with open(path, "ab") as file:
            file.write(b"last,x,100\n")
        refused = Run(path, chosen)
        refused.wait()
        print(f"{chosen.rows:,} rows, {good / 1e6:,.0f} MB; refused after {refused.seconds:.1f} s: {refused.said}")
        os.truncate(path, good)
        killed = Run(path, chosen)
        killed.kill_after_chunks(chosen.rows // 16_384 // 3)
        resumed = Run(path, chosen)
        resumed.wait()
        whole = killed.seconds + resumed.seconds
        print(f"killed after {killed.seconds:.1f} s, resumed and done in {resumed.seconds:.1f} s: {resumed.said}")
        print(f"the first pass takes {refused.seconds / whole:.1%} of both")
        print(f"memory: refused {refused.memory:,.0f} MB, encoding {max(killed.memory, resumed.memory):,.0f} MB")


def write_rows(path: Path, rows: int) -> None:
    generator = np.random.default_rng(0)
    with open(path, "wb") as file:
        file.write(b"id,name,lat,lon\n")
        for start in range(0, rows, AT_ONCE):
            lat, lon = generator.uniform((-85, -180), (85, 180), (min(AT_ONCE, rows - start), 2)).T
            lines = (
                f"{start + i:08d},place {start + i},{a:.5f},{o:.5f}\n"
                for i, (a, o) in enumerate(zip(lat, lon, strict=True))
            )
            file.write("".join(lines).encode())


class Run:
    """One command, with the memory of its whole group of processes."""

    def __init__(self, path: Path, chosen: argparse.Namespace) -> None:
        files = ["--input", path.name, "--out", "out.npy", "--dtype", "float16"]
        self.folder, self.memory, self.begin = path.parent, 0.0, time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tessearth", "encode", *files, "--model", chosen.model, "--workers", chosen.workers],
            cwd=path.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._watch, daemon=True).start()

    def wait(self) -> None:
        self.said = self.process.communicate()[0].strip()
        self.seconds = time.monotonic() - self.begin

    def kill_after_chunks(self, chunks: int) -> None:
        journal = self.folder / "out.npy.parts" / "journal.jsonl"
        while self.process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"chunk") < chunks):
            time.sleep(0.1)
        os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def _watch(self) -> None:
        while self.process.poll() is None:
            self.memory = max(self.memory, group_memory(self.process.pid))
            time.sleep(0.2)


def group_memory(group: int) -> float:
    """Resident megabytes of every process of a group, shared pages counted once each (proportional set size)."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if os.getpgid(int(folder.name)) == group:
                    lines = (folder / "smaps_rollup").read_text().splitlines()
                    total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except (OSError, StopIteration):
                continue
    return total / 1024


if __name__ == "__main__":
    main()
