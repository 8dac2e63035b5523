"""How many small faults in the code do the tests notice? A sample of mutants, judged by the tests of their package.

    uv pip install cosmic-ray==8.7.0
    .venv/bin/python tools/mutation.py [--packages encoder objective evaluation] [--sample 40] [--seed 0] [--out FILE]

Mutants are cosmic-ray's (operators, numbers, comparisons, conditions, loops, decorators), those that touch only
annotations left out. Each runs in a fork of one process that has the heavy libraries loaded, so that a mutant costs its
tests and no more; the source tree is never written to. A mutant is killed when a test fails or the tests hang.
"""

import argparse
import ast
import importlib.abc
import importlib.util
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "encoder": ("tests/encoder", "tests/laws", "tests/reference"),
    "objective": ("tests/objective", "tests/pretraining/test_parts.py", "tests/pretraining/test_prefixes.py"),
    "evaluation": ("tests/evaluation",),
}
HEAVY = ("numpy", "torch", "pytest", "hypothesis", "scipy.sparse", "sklearn.linear_model", "pandas", "pyarrow.parquet")
SECONDS = 400
"""Tests that take longer hang."""


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
    def module(self) -> str:
        """Its file's name when imported."""
        return ".".join(self.path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from other source than its file's."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name, path=None, target=None):
        """The mutant's module, with this as its loader."""
        if name != self.mutant.module:
            return None
        is_package = self.mutant.path.name == "__init__.py"
        return importlib.util.spec_from_file_location(
            name,
            self.mutant.path,
            loader=self,
            submodule_search_locations=[str(self.mutant.path.parent)] if is_package else None,
        )

    def create_module(self, spec):
        """An ordinary module."""

    def exec_module(self, module):
        """Fill it from the changed source."""
        exec(compile(self.mutant.source, str(self.mutant.path), "exec"), module.__dict__)


def find_places(package: str):
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
    """The mutant, or None where it is no Python or changes annotations alone."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    source = path.read_text("utf-8")
    try:
        mutated = mutate_code(source, cosmic_ray.plugins.get_operator(name)(), occurrence)
    except AttributeError:  # cosmic-ray cannot replace an exception with a dotted name
        return None
    if mutated is None or strip(mutated) in (strip(source), None):
        return None
    before, after = (text.splitlines()[line - 1].strip() for text in (source, mutated))
    return Mutant(package, path, name.partition("/")[2], line, before, after, mutated)


def draw(package: str, count: int, seed: int) -> tuple[list[Mutant], int]:
    """So many mutants, and of how many places they were drawn."""
    places = list(find_places(package))
    random.Random(seed).shuffle(places)
    mutants = (make(package, *place) for place in places)
    return list(itertools.islice((mutant for mutant in mutants if mutant is not None), count)), len(places)


def strip(source: str) -> str | None:
    """What a file means: its tree without annotations; None where it is no Python."""
    try:
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


def survives(mutant: Mutant, log: Path) -> bool:
    """Whether every test passes with it."""
    child = os.fork()
    if child == 0:
        os.setpgrp()
        run_tests(mutant, log)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def run_tests(mutant: Mutant, log: Path) -> None:
    """In the child: its own tests first, then its package's."""
    import pytest

    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.meta_path.insert(0, Mutated(mutant))
    folders = PACKAGES[mutant.package]
    own = [str(path) for folder in folders for path in (ROOT / folder).glob(f"test_{mutant.path.stem}*.py")]
    code = pytest.main([*own, *folders, "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--no-header"])
    os._exit(int(code))


def main() -> None:
    """Draw, judge, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--sample", type=int, default=40, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in HEAVY:
        importlib.import_module(name)
    lines = ["| package | places to mutate | drawn | killed | score |", "|---|---:|---:|---:|---:|"]
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        for package in arguments.packages:
            drawn, places = draw(package, arguments.sample, arguments.seed)
            alive = [mutant for mutant in drawn if judge(mutant, Path(folder) / "log")]
            killed = len(drawn) - len(alive)
            lines.append(f"| {package} | {places} | {len(drawn)} | {killed} | {killed / len(drawn):.0%} |")
            survivors += alive
    lines += ["", "Survivors:", ""]
    lines += [f"- `{m.path.relative_to(ROOT)}:{m.line}` {m.operator}: `{m.before}` -> `{m.after}`" for m in survivors]
    print("\n".join(lines))
    if arguments.out:
        arguments.out.write_text("\n".join(lines) + "\n")


def judge(mutant: Mutant, log: Path) -> bool:
    """Whether it survives, told on a line."""
    begun = time.monotonic()
    alive = survives(mutant, log)
    word = "SURVIVED" if alive else "killed"
    where = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
    print(f"{word:<9}{time.monotonic() - begun:6.0f} s  {where}  {mutant.before} -> {mutant.after}", flush=True)
    return alive


if __name__ == "__main__":
    main()
