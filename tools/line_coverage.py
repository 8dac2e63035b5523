"""Which lines of src/tessearth do the tests reach? The whole suite, slow ones too, with every process it starts.

    make coverage                                      everything, benchmarks/results/coverage.md, most of an hour
    .venv/bin/python tools/line_coverage.py tests/cli  some tests, a table on the terminal

Processes that tests start (commands, servers, workers of xdist, Dask and torch) are measured as well: coverage hands
its settings ([tool.coverage] of pyproject.toml) on through the environment. One that is killed outright leaves nothing.
What a line costs to watch makes everything slower, so a test of a time limit may fail here and pass in `make test`;
those that fail are named on the page.
"""

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "coverage"
PAGE = ROOT / "benchmarks" / "results" / "coverage.md"
SUITES = {
    "the suite of `make test`": ("-n", "2", "-m", "not slow"),
    "the slow suites and all faults": ("-n", "2", "--dist", "loadfile", "-m", "slow"),
}
LOWEST = 12
NOTES = {
    "src/tessearth/embedding/fast/triton_kernels.py": "the Triton kernels, which only a GPU runs: "
    "tests/embedding/test_kernels.py "
    "has their tests, skipped where there is none",
}
"""What a reader should know of a file's missing lines; they are counted like any others."""


class Suite(NamedTuple):
    """How one run of pytest ended."""

    name: str
    seconds: float
    last: str
    """pytest's last line."""
    failed: tuple[str, ...]


class Lines(NamedTuple):
    """How many lines there are, and are reached."""

    reached: int
    all: int

    def __str__(self) -> str:
        share = 100 * self.reached / self.all if self.all else 100.0
        return f"{self.reached:,} | {self.all:,} | {share:.1f} %"


def run(name: str, arguments: Sequence[str]) -> Suite:
    """One run of pytest under coverage, its words shown as they come."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-rfE", *arguments]
    said: list[str] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line.rstrip())
    failed = tuple(line.partition(" ")[2].split(" - ")[0] for line in said if line.startswith(("FAILED ", "ERROR ")))
    return Suite(name, time.monotonic() - begun, next((line for line in reversed(said) if line), ""), failed)


def combine() -> dict[str, dict[str, Any]]:
    """What all processes found, by file."""
    for arguments in (
        ["combine", "-q"],
        ["json", "-q", "-o", str(WORK / "found.json")],
        ["html", "-q", "-d", str(WORK / "html")],
    ):
        subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=True)
    files: dict[str, dict[str, Any]] = json.loads((WORK / "found.json").read_text())["files"]
    return files


def count(files: dict[str, dict[str, Any]]) -> dict[str, Lines]:
    """Lines by package: the folder below src/tessearth, or "tessearth" for the modules there."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, file in files.items():
        parts = Path(path).parts[2:]
        for package in (parts[0] if len(parts) > 1 else "tessearth", ""):
            sums[package][0] += file["summary"]["covered_lines"]
            sums[package][1] += file["summary"]["num_statements"]
    return {package: Lines(*numbers) for package, numbers in sorted(sums.items())}


def table(files: dict[str, dict[str, Any]]) -> list[str]:
    """The packages, all of them last, then the files with most lines missing."""
    found = count(files)
    lines = ["| package | reached | lines | share |", "|---|---:|---:|---:|"]
    lines += [f"| {package} | {numbers} |" for package, numbers in found.items() if package]
    lines += [f"| **all** | {found['']} |", "", "Most lines missing:", ""]
    worst = sorted(files.items(), key=lambda pair: -pair[1]["summary"]["missing_lines"])[:LOWEST]
    for path, file in worst:
        about = f": {NOTES[path]}" if path in NOTES else ""
        lines.append(f"- `{path}` {file['summary']['missing_lines']} of {file['summary']['num_statements']}{about}")
    return lines


def page(suites: Sequence[Suite], files: dict[str, dict[str, Any]]) -> str:
    """benchmarks/results/coverage.md."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = ["# Line coverage", "", f"`make coverage` on {today}, Python {platform.python_version()}, no GPU.", ""]
    lines += [f"- {suite.name}: {suite.last.strip('= ')}" for suite in suites]
    failed = [name for suite in suites for name in suite.failed]
    lines += ["", *(f"Failed while being watched: `{name}`" for name in failed), *([""] if failed else [])]
    return "\n".join([*lines, *table(files)]) + "\n"


def main() -> None:
    """Run, add up, tell; what is given goes to pytest."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    wanted = {"these tests": tuple(sys.argv[1:])} if sys.argv[1:] else SUITES
    suites = [run(name, arguments) for name, arguments in wanted.items()]
    files = combine()
    print("\n".join(table(files)))
    if wanted is SUITES:
        PAGE.write_text(page(suites, files), "utf-8")
    sys.exit(any(suite.failed for suite in suites))


if __name__ == "__main__":
    main()
