"""Measure source trees room by room, as Markdown tables.

    python tools/house.py [SRC ...]          default: src

A room is a folder of the package; `base` holds the modules beside the rooms. An importer is another module of the
package with an import statement for it, lazy imports included and imports for type checkers left out; a name that is
imported from a front counts for the module that the front names. A chain counts the modules on the longest path of
imports that begins in the room; imports inside functions, which run later, are not part of it.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

HEAD = ("room", "lines", "files", "functions > 40 lines", "functions > 6 parameters", "one importer", "longest chain")
FRONT_TABLES = ("_HOMES", "HOMES")
Graph = dict[str, set[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Module(NamedTuple):
    """One source file, parsed, with the list of a front's names that lies next to it."""

    lines: int
    tree: ast.Module
    listing: ast.Module

    def functions(self) -> Iterator[Function]:
        """Every function and method in it."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))


def read_tree(source: Path) -> dict[str, Module]:
    """All modules of the only package below a folder, by dotted name."""
    found = {}
    for path in sorted(source.glob("*/**/*.py")):
        text = path.read_text("utf-8")
        name = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        listing = path.with_suffix(".pyi")
        names = listing.read_text("utf-8") if listing.is_file() else ""
        found[name] = Module(len(text.splitlines()), ast.parse(text), ast.parse(names))
    return found


def room(name: str, modules: dict[str, Module]) -> str:
    """The folder that a module lies in."""
    parts = name.split(".")
    is_folder = any(other.startswith(".".join(parts[:2]) + ".") for other in modules)
    return parts[1] if len(parts) > 1 and is_folder else "base"


def runtime_nodes(tree: ast.AST, *, in_functions: bool = True) -> Iterator[ast.AST]:
    """Every node outside of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        if in_functions or not isinstance(node, Function):
            yield from runtime_nodes(node, in_functions=in_functions)


def front_names(tree: ast.Module) -> dict[str, str]:
    """The homes of a front's names, from its list, its table or its imports."""
    homes: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.asname or alias.name: node.module for alias in node.names}
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id in FRONT_TABLES and isinstance(node.value, ast.Dict):  # type: ignore[union-attr]
            homes |= ast.literal_eval(node.value)  # type: ignore[union-attr]
    return homes


def imports(modules: dict[str, Module], *, in_functions: bool = True) -> Graph:
    """Which modules each module imports."""
    fronts = {name: front_names(module.tree) | front_names(module.listing) for name, module in modules.items()}

    def resolve(base: str, name: str) -> str:
        if f"{base}.{name}" in modules:
            return f"{base}.{name}"
        home = fronts.get(base, {}).get(name, "")
        packaged = any(other.startswith(base + ".") for other in modules)
        return home if packaged and home in modules else base

    graph: Graph = {name: set() for name in modules}
    for name, module in modules.items():
        for node in runtime_nodes(module.tree, in_functions=in_functions):
            if isinstance(node, ast.ImportFrom) and node.module:
                graph[name] |= {resolve(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names}
        graph[name] = {other for other in graph[name] if other in modules and other != name}
    return graph


def chain_lengths(graph: Graph) -> dict[str, int]:
    """The number of modules on the longest path from each module of a graph without circles."""

    @cache
    def length(name: str) -> int:
        return 1 + max((length(other) for other in graph[name]), default=0)

    return {name: length(name) for name in graph}


def parameters(node: Function) -> int:
    """How many parameters a function has, self and cls not counted."""
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in every)


def measure(source: Path) -> list[tuple[str | int, ...]]:
    """One row a room, and the totals."""
    sys.setrecursionlimit(10_000)
    modules = read_tree(source)
    graph = imports(modules)
    lengths = chain_lengths(imports(modules, in_functions=False))
    importers: defaultdict[str, int] = defaultdict(int)
    for others in graph.values():
        for other in others:
            importers[other] += 1
    rooms: defaultdict[str, list[str]] = defaultdict(list)
    for name in modules:
        rooms[room(name, modules)].append(name)

    def row(title: str, names: list[str]) -> tuple[str | int, ...]:
        functions = [function for name in names for function in modules[name].functions()]
        return (
            title,
            sum(modules[name].lines for name in names),
            len(names),
            sum((one.end_lineno or 0) - one.lineno + 1 > 40 for one in functions),
            sum(parameters(one) > 6 for one in functions),
            sum(importers[name] == 1 for name in names),
            max(lengths[name] for name in names),
        )

    return [*(row(title, names) for title, names in sorted(rooms.items())), row("**all**", list(modules))]


def main() -> None:
    """Print one table a tree."""
    for source in sys.argv[1:] or ["src"]:
        print(f"\n`{source}`\n\n| {' | '.join(HEAD)} |\n|---|{'---:|' * (len(HEAD) - 1)}")
        for cells in measure(Path(source)):
            print(f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in cells)} |")


if __name__ == "__main__":
    main()
