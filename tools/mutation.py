"""Count how many small faults in the code the tests notice.

    make mutation [SAMPLE=40] [SEED=4]

Mutants are cosmic-ray's, drawn at random. Each lies in a copy of the source, and the quick tests of its package run
with that copy. A mutant is killed when a test fails or when the tests run for too long. A mutant that changes nothing a
caller could see counts as survived.
"""

import argparse
import datetime
import difflib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "encoder": ("tests/encoder", "tests/laws", "tests/reference"),
    "training": ("tests/training", "tests/laws/test_value_laws.py"),
    "evaluation": ("tests/evaluation", "tests/laws/test_value_laws.py"),
}
LONGEST_S = 900
"""Seconds after which a mutant counts as killed."""
NO_TESTS = 5
"""pytest's exit status when it finds no test."""


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


def mutate(path: Path, operator: str, occurrence: int) -> str | None:
    """The changed text of a file; None where the change is not valid Python."""
    import cosmic_ray.plugins
    from cosmic_ray.mutating import mutate_code

    try:
        text = mutate_code(path.read_text("utf-8"), cosmic_ray.plugins.get_operator(operator)(), occurrence)
        compile(text or "", str(path), "exec", dont_inherit=True)
    except (AttributeError, SyntaxError):  # AttributeError: cosmic-ray cannot replace a dotted exception
        return None
    return text or None


def survives(path: Path, text: str, package: str, folder: Path) -> bool:
    """Whether all tests of a package pass with a changed file."""
    copy = folder / "src"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / path.relative_to(ROOT / "src")).write_text(text, "utf-8")
    (folder / "recipes").unlink(missing_ok=True)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", *PACKAGES[package]]
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=LONGEST_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return False
    return done in (0, NO_TESTS)


def sample(package: str, count: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Judge a package: its row of the table, and a line for every survivor."""
    places = list(find_places(package))
    random.Random(seed).shuffle(places)
    drawn, survivors = 0, []
    for path, operator, occurrence, line in places:
        text = mutate(path, operator, occurrence)
        if text is None:
            continue
        changes = difflib.ndiff(path.read_text("utf-8").splitlines(), text.splitlines())
        change = " ".join(" ".join(part.split()) for part in changes if part[0] in "+-")
        where = f"`{path.relative_to(ROOT)}:{line}` `{change}`"
        alive = survives(path, text, package, folder)
        print("SURVIVED" if alive else "killed  ", where, flush=True)
        survivors += [f"- {where}"] if alive else []
        drawn += 1
        if drawn == count:
            break
    killed = drawn - len(survivors)
    return f"| {package} | {len(places)} | {drawn} | {killed} | {killed / max(drawn, 1):.0%} |", survivors


def main() -> None:
    """Draw, judge, report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--packages", nargs="+", choices=PACKAGES, default=list(PACKAGES))
    parser.add_argument("--sample", type=int, default=40, help="mutants of each package")
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    sys.path.append(str(ROOT / "build" / "mutation"))  # last: the tests keep the versions they always run with
    with tempfile.TemporaryDirectory() as folder:
        judged = [sample(package, chosen.sample, chosen.seed, Path(folder)) for package in chosen.packages]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    title = f"# Mutation score\n\n`make mutation SAMPLE={chosen.sample} SEED={chosen.seed}` on {today}.\n"
    head = "| package | places to mutate | drawn | killed | score |\n|---|---:|---:|---:|---:|"
    survivors = [line for _, lines in judged for line in lines]
    text = "\n".join([title, head, *(row for row, _ in judged), "", "## Survivors", "", *survivors, ""])
    print(text)
    if chosen.out:
        chosen.out.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
