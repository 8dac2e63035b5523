"""How many small faults in the code do the tests notice? A sample of mutants, judged by the tests of their package.

    make mutation [SAMPLE=40] [SEED=4]
    .venv/bin/python tools/mutation.py [--packages encoder ...] [--sample 40] [--seed 4] [--out FILE]

Mutants are cosmic-ray's (operators, numbers, comparisons, conditions, loops, decorators); those that touch only
annotations, and those that Python itself warns of, are left out. The source tree is never written to: a mutant lives in
a tree of links beside it, which processes that tests start find first as well. Each is judged in a fork of one process
that has the heavy libraries loaded, so that it costs its tests and no more: only test files that reach the mutated
function (or that start processes, where that is not seen), those first that name the module, and of those the quick
ones. A mutant is killed when a test fails, or when one takes much longer than without it.

tools/mutation_notes.toml holds a word on survivors that were looked at; those that change nothing a caller could see
("equivalent") count as survived in the score, which is also given without them.
"""

import argparse
import ast
import contextlib
import datetime
import difflib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NOTES = ROOT / "tools" / "mutation_notes.toml"
PACKAGES = {
    "encoder": ("tests/encoder", "tests/laws", "tests/reference"),
    "objective": (
        "tests/training",
        "tests/training/test_parts.py",
        "tests/training/test_prefixes.py",
        "tests/laws/test_value_laws.py",
    ),
    "evaluation": ("tests/evaluation", "tests/laws/test_value_laws.py"),
}
HEAVY = ("numpy", "torch", "torch._dynamo", "pytest", "hypothesis", "scipy.sparse", "pandas", "pyarrow.parquet")
PROCESSES = ("subprocess", "run_processes")
"""Words of tests that start processes, whose lines are not seen."""
PATIENCE, SPARE_SECONDS, LONGEST = 5, 30, 900
"""A test hangs when it takes so many times as long as usual and so many seconds more, of its own processor's time so
that a busy machine does not count; or so many seconds by the clock, when it only waits."""


class Mutant(NamedTuple):
    """One change to one file."""

    package: str
    path: Path
    operator: str
    line: int
    before: str
    after: str
    source: str

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def module(self) -> str:
        """Its file's name when imported."""
        return ".".join(self.path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


class Verdict(NamedTuple):
    """How a mutant fared."""

    survived: bool
    seconds: float
    by: str
    """The first test that failed, or why there is none."""


class Usual(NamedTuple):
    """What a package's tests do without any mutant."""

    times: dict[str, float]
    """How long each takes."""
    reached: dict[str, dict[int, list[str]]]
    """The test files that reach each line of each source file; "" is what their import reaches."""

    def tests(self, mutant: Mutant) -> list[str]:
        """The test files that can notice a mutant; all of its package's where it is not within a function."""
        every = sorted({name.partition("::")[0] for name in self.times})
        lines = function_at(mutant.path.read_text("utf-8"), mutant.line)
        found = {file for line in lines for file in self.reached.get(str(mutant.path), {}).get(line, ())}
        if not lines or "" in found:
            return every
        return [file for file in every if file in found or any(word in (ROOT / file).read_text() for word in PROCESSES)]


class Order:
    """A pytest plugin: the tests nearest to a module first, the quick before the slow; it notes how long each takes.

    A test that hangs ends the whole process. `cover` is told whose tests run.
    """

    def __init__(self, module: str, usual: Usual | None, cover: Callable[[str], None]) -> None:
        self.module, self.cover = module, cover
        self.known = usual.times if usual else {}
        self.times: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Set the alarm."""
        self.cover(nodeid.partition("::")[0])
        if self.known:
            set_alarm(PATIENCE * self.known.get(nodeid, 0.0) + SPARE_SECONDS)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Whole files at a time, for what tests of one file share is made once."""
        files: defaultdict[Path, float] = defaultdict(float)
        for item in items:
            files[item.path] += self.known.get(item.nodeid, 0.0)
        near = {path: self.module in path.read_text("utf-8") for path in files}
        items.sort(key=lambda i: (not near[i.path], files[i.path], str(i.path), self.known.get(i.nodeid, 0.0)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add up setup, call and teardown."""
        self.times[report.nodeid] += report.duration


def set_alarm(seconds: float) -> None:
    """End this process, by a signal that nobody listens to, when it works or waits for too long."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)


def find_places(package: str) -> Iterator[tuple[Path, str, int, int]]:
    """Where each operator can change a package's files: (path, operator's name, which occurrence, line)."""
    import cosmic_ray.plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    for path in sorted((ROOT / "src" / "tessearth" / package).rglob("*.py")):
        nodes = list(ast_nodes(get_ast(path.read_text("utf-8"))))
        for name in cosmic_ray.plugins.operator_names():
            kind = cosmic_ray.plugins.get_operator(name)
            if not kind.arguments():
                found = (start for node in nodes for start, _ in kind().mutation_positions(node))
                yield from ((path, name, occurrence, start[0]) for occurrence, start in enumerate(found))


def make(package: str, path: Path, name: str, occurrence: int, line: int) -> Mutant | None:
    """The mutant, or None where it is no Python, Python itself warns of it, or it changes annotations alone."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    source = path.read_text("utf-8")
    try:
        mutated = mutate_code(source, cosmic_ray.plugins.get_operator(name)(), occurrence)
    except AttributeError:  # cosmic-ray cannot replace an exception with a dotted name
        return None
    if mutated is None or strip(mutated) in (strip(source), None):
        return None
    changed = [text for text in difflib.ndiff(source.splitlines(), mutated.splitlines()) if text[2:].strip()]
    before, after = (next((text[2:].strip() for text in changed if text[0] == sign), "") for sign in "-+")
    return Mutant(package, path, name.partition("/")[2], line, before, after, mutated)


def draw(package: str, count: int, seed: int) -> tuple[list[Mutant], int]:
    """So many mutants, and of how many places they were drawn."""
    places = list(find_places(package))
    random.Random(seed).shuffle(places)
    mutants = (make(package, *place) for place in places)
    return list(itertools.islice((mutant for mutant in mutants if mutant is not None), count)), len(places)


def strip(source: str) -> str | None:
    """What a file means: its tree without annotations; None where it is no Python, or such as `x is 1`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", SyntaxWarning)
            compile(source, "mutant", "exec", dont_inherit=True)
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(value=None)
    return ast.dump(tree)


def plant(source: Path, target: Path, mutant: Mutant) -> None:
    """A folder that looks like the source, all links but for the mutant."""
    target.mkdir()
    for entry in source.iterdir():
        if entry == mutant.path:
            (target / entry.name).write_text(mutant.source, "utf-8")
        elif entry in mutant.path.parents:
            plant(entry, target / entry.name, mutant)
        elif entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)


def function_at(source: str, line: int) -> range:
    """The lines of the innermost function around a line, but for those of its head; empty outside of all."""
    found = range(0)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
            if line in body and (not found or len(body) < len(found)):
                found = body
    return found


def run_tests(mutant: Mutant, folder: Path, usual: Usual | None) -> None:
    """In the child: the tests that can notice it, up to the first that fails; without a mutant, what they reach."""
    import coverage
    import pytest

    out = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["PYTHONPATH"] = str(folder / "src")
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed here, and some load for seconds
    sys.path.insert(0, str(folder / "src"))
    options = ["-x", "-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", "-m", "not slow"]
    options += [f"--basetemp={folder / 'pytest'}"]
    if usual:
        set_alarm(2 * SPARE_SECONDS)
        order = Order(mutant.module, usual, lambda file: None)
        code = pytest.main([*usual.tests(mutant), *options], plugins=[order])
    else:
        seen = coverage.Coverage(data_file=None, include=[str(mutant.path.parent / "*")], config_file=False)
        seen.start()
        order = Order(mutant.module, None, seen.switch_context)
        code = pytest.main([*PACKAGES[mutant.package], *options], plugins=[order])
        seen.stop()
        data = seen.get_data()
        reached = {path: data.contexts_by_lineno(path) for path in data.measured_files()}
        (folder / "usual.json").write_text(json.dumps({"times": order.times, "reached": reached}))
    sys.stdout.flush()
    os._exit(int(code))


def judge(mutant: Mutant, folder: Path, usual: Usual | None) -> Verdict:
    """Run the tests with it in a process of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plant(ROOT / "src", folder / "src", mutant)
    (folder / "recipes").symlink_to(ROOT / "recipes")  # where a source tree has them
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.setpgrp()
            run_tests(mutant, folder, usual)
        finally:  # the parent's own way out must never be taken here
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError, PermissionError):  # what tests started and left behind ends as well
        os.killpg(child, signal.SIGKILL)
    seconds = time.monotonic() - begun
    # No tests at all (5) is no mistake of the tests: nothing reaches the line.
    return Verdict(code in (0, 5), seconds, f"signal {-code}" if code < 0 else first_failure(folder / "log"))


def first_failure(log: Path) -> str:
    """The test named in pytest's last lines."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    found = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return found[-1].split(" - ")[0].partition(" ")[2] if found else (lines or [""])[-1]


def look_at_the_usual(package: str, folder: Path) -> Usual:
    """Run a package's tests on the code as it is: they must pass."""
    path = ROOT / "src" / "tessearth" / package / "__init__.py"
    verdict = judge(Mutant(package, path, "", 0, "", "", path.read_text("utf-8")), folder, None)
    if not verdict.survived:
        sys.exit(f"the tests of {package} fail without any mutant: {verdict.by}")
    found = json.loads((folder / "usual.json").read_text())
    reached = {path: {int(line): files for line, files in lines.items()} for path, lines in found["reached"].items()}
    return Usual(found["times"], reached)


def read_notes() -> dict[tuple[str, str, str], dict[str, Any]]:
    """What was found about survivors, by file, line before and line after."""
    notes = tomllib.loads(NOTES.read_text("utf-8")).get("survivor", []) if NOTES.exists() else []
    return {(note["file"], note["before"], note["after"]): note for note in notes}


def describe(mutant: Mutant, note: dict[str, Any]) -> str:
    """A survivor as a line of the page."""
    kind = "equivalent: " if note.get("equivalent") else ""
    return f"- `{mutant.where}` `{mutant.before}` -> `{mutant.after}`  \n  {kind}{note.get('why', 'not looked at')}"


def sample(package: str, folder: Path, count: int, seed: int) -> tuple[str, list[str]]:
    """Judge a package: its line of the table, and a line for every survivor."""
    usual = look_at_the_usual(package, folder)
    print(f"{package}: {len(usual.times)} tests, {sum(usual.times.values()):.0f} s without a mutant", flush=True)
    drawn, places = draw(package, count, seed)
    notes, survivors, equivalent = read_notes(), [], 0
    for mutant in drawn:
        verdict = judge(mutant, folder, usual)
        word = "SURVIVED" if verdict.survived else "killed"
        change = f"{mutant.before} -> {mutant.after}"
        print(f"{word:<9}{verdict.seconds:5.0f} s  {mutant.where}  {change}  [{verdict.by}]", flush=True)
        if verdict.survived:
            note = notes.get((str(mutant.path.relative_to(ROOT)), mutant.before, mutant.after), {})
            equivalent += bool(note.get("equivalent"))
            survivors.append(describe(mutant, note))
    killed, counted = len(drawn) - len(survivors), len(drawn) - equivalent
    shares = f"{killed / len(drawn):.0%} | {killed / counted:.0%}"
    return f"| {package} | {places} | {len(drawn)} | {killed} | {equivalent} | {shares} |", survivors


def main() -> None:
    """Draw, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--sample", type=int, default=40, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--cosmic-ray", type=Path, default=ROOT / "build" / "mutation", help="where it is installed")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.append(str(arguments.cosmic_ray))  # last, so that the tests run with the versions they always run with
    for name in HEAVY:
        importlib.import_module(name)
    rows: list[str] = []
    survivors: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for package in arguments.packages:
            line, alive = sample(package, Path(folder) / "judged", arguments.sample, arguments.seed)
            rows.append(line)
            survivors += alive
    text = page(f"SAMPLE={arguments.sample} SEED={arguments.seed}", rows, survivors)
    print(text)
    if arguments.out:
        arguments.out.write_text(text, "utf-8")


def page(settings: str, rows: list[str], survivors: list[str]) -> str:
    """benchmarks/results/mutation.md."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        *("# Mutation score", ""),
        f"`make mutation {settings}` on {today}: mutants of cosmic-ray, drawn at random, judged by the quick tests of",
        "their package (tools/mutation.py). An equivalent mutant changes nothing that a caller could see; it counts as",
        "survived in the score, and the last column leaves it out.",
        "",
        "| package | places to mutate | drawn | killed | equivalent | score | without equivalents |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(*rows, "", "## Survivors", "", *survivors),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
