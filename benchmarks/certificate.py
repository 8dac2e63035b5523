"""The certificate held against a million places and a search for the worst: no way misplaces more than it says.

    .venv/bin/python benchmarks/certificate.py [MODEL ...] [--places 1000000] [--out benchmarks/results/certificate.md]

For random weights (the paper's, and a mix of sharpness), and every model named, at several cell sizes: the share that a
list leaves out, and half the summed difference between a series' shares and the softmax, in float64, at random places,
at edges and corners of cells, and at the end of many climbs towards the worst.
"""

import argparse
import datetime
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON, AffineLogits, CubeCells, SiteLists, read_logits
from tessearth.embedding.fast.series import Chart, Expansion, build_chart, evaluate_terms, expand, series_degree
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.zoo.names import load_base

SIDES = (8, 16, 32)
CELLS = 24
"""Cells examined per model, form and size, spread over the sphere."""
STARTS, STEPS = 200, 40
PLACES_AT_ONCE = 2048


class Held(NamedTuple):
    """What was seen for one model, form and cell size."""

    model: str
    form: str
    side: int
    cells: int
    places: int
    worst_random: float
    worst_found: float
    stated: float


class Cell:
    """One cell with what it promises: `misplaced` says how much goes wrong at places in it."""

    def __init__(self, logits: AffineLogits, side: int, number: int, form: str) -> None:
        self.logits, self.cells, self.number = logits, CubeCells(side), torch.tensor([number])
        self.chart: Chart = build_chart(self.cells, number)
        self.series: Expansion | None = None
        self.stated = EPSILON
        if form == "series":
            self.series = expand(logits, self.chart, EPSILON)
            self.stated = 0.0 if self.series is None else self.series.misplaced
        else:
            lists = SiteLists.__new__(SiteLists)
            lists.logits, lists.epsilon, lists.cells = logits, EPSILON, self.cells
            lists.known, lists._lists = torch.zeros(self.cells.count, dtype=torch.bool), {}
            lists.prepare(self.number)
            self.sites = lists[number].long()

    def at(self, within: Tensor) -> Tensor:
        """Directions at positions in the unit square, (P, 2) -> (P, 3)."""
        return self.cells.points(self.number, within)[0]

    def misplaced(self, xyz: Tensor) -> Tensor:
        """(P, 3) -> (P,)."""
        weights = torch.softmax(self.logits.at(xyz), dim=-1)
        if self.series is None:
            return 1 - weights[:, self.sites].sum(-1)
        flat = (xyz @ self.chart.across.T / self.chart.half).T.clamp(-1, 1)
        shares = evaluate_terms(flat, series_degree(len(self.series.coefficients))).T @ self.series.coefficients
        shares = shares / shares.sum(-1, keepdim=True)
        weights[:, self.series.sites] -= shares
        return weights.abs().sum(-1) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("models", nargs="*")
    parser.add_argument("--places", type=int, default=1_000_000, help="random places altogether")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/certificate.md"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    start = time.perf_counter()
    tessellations = dict(random_logits())
    for model in arguments.models:
        encoder = load_base(model)
        if isinstance(encoder, SphericalVoronoiEncoder):
            label = "/".join(Path(model).parts[-2:])
            tessellations |= {f"{label} {i}": read_logits(v) for i, v in enumerate(encoder.voronois())}
    each = math.ceil(arguments.places / (len(tessellations) * 2 * len(SIDES) * CELLS))
    held = [
        examine(name, logits, form, side, each)
        for name, logits in tessellations.items()
        for form in ("series", "lists")
        for side in SIDES
    ]
    write(arguments, held, time.perf_counter() - start)


def random_logits() -> list[tuple[str, AffineLogits]]:
    """Weights that nobody trained: the paper's start, and sites of every sharpness crowded on one side."""
    encoder = load_base("untrained")
    assert isinstance(encoder, SphericalVoronoiEncoder)
    sites = torch.nn.functional.normalize(torch.randn(2000, 3).double() + torch.tensor([1.0, 0.2, -0.4]), dim=-1)
    sharpness = (math.log(60) + 1.2 * torch.randn(2000).double()).exp()
    mixed = AffineLogits(sites * sharpness[:, None], torch.randn(2000).double() - sharpness)
    return [("random, sharpness 45", read_logits(encoder.voronois()[0])), ("random, mixed, decoupled", mixed)]


def examine(name: str, logits: AffineLogits, form: str, side: int, places: int) -> Held:
    count, worst_random, worst_found, stated, looked = 0, 0.0, 0.0, 0.0, 0
    for number in torch.linspace(0, 6 * side**2 - 1, CELLS, dtype=torch.float64).long().tolist():
        cell = Cell(logits, side, number, form)
        if form == "series" and cell.series is None:
            continue
        within = torch.rand(places, 2, dtype=torch.float64)
        within[: places // 8] = within[: places // 8].round()  # corners
        within[places // 8 : places // 4, 0].round_()  # edges
        seen = torch.cat([cell.misplaced(cell.at(part)) for part in within.split(PLACES_AT_ONCE)])
        climbed = climb(cell, within[seen.argsort(descending=True)[:STARTS]])
        worst_random, worst_found = max(worst_random, seen.max().item()), max(worst_found, climbed)
        stated, count, looked = max(stated, cell.stated), count + 1, looked + places + STARTS * STEPS
        if max(seen.max().item(), climbed) > cell.stated:
            print(f"BROKEN: {name} {form} side {side} cell {number}: {max(seen.max().item(), climbed)} > {cell.stated}")
    result = Held(name, form, side, count, looked, worst_random, max(worst_found, worst_random), stated)
    print(*result, flush=True)
    return result


def climb(cell: Cell, within: Tensor) -> float:
    """From many starts, steps that shrink towards where more is misplaced; the most met."""
    value, step = cell.misplaced(cell.at(within)), 0.2
    for _ in range(STEPS):
        moved = (within + step * torch.randn_like(within)).clamp(0, 1)
        there = cell.misplaced(cell.at(moved))
        better = there > value
        within, value = torch.where(better[:, None], moved, within), torch.maximum(value, there)
        step *= 0.9
    return value.max().item()


def write(arguments: argparse.Namespace, held: list[Held], seconds: float) -> None:
    broken = [row for row in held if row.worst_found > row.stated]
    total = sum(row.places for row in held)
    lines = [
        "# The certificate against random places and a search for the worst",
        "",
        f"`python benchmarks/certificate.py {' '.join(arguments.models)} --places {arguments.places}`",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} (UTC), CPU, shared with other work; {seconds:.0f} s. "
        f"{total:,} places looked at; the promise was broken {'nowhere' if not broken else f'{len(broken)} times'}.",
        "",
        "Misplaced share, in float64: what a list leaves out, or half the summed difference of series and softmax. "
        "Stated is the bound of the loosest cell; cells too sharp for a series at that size are left out.",
        "",
        "| weights | form | cells per edge | cells | places | worst at random | worst found | stated |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.model} | {row.form} | {row.side} | {row.cells} | {row.places:,} | {row.worst_random:.1e} | "
        f"{row.worst_found:.1e} | {row.stated:.1e} |"
        for row in held
    ]
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{arguments.out}: {len(broken)} broken of {len(held)}")


if __name__ == "__main__":
    main()
