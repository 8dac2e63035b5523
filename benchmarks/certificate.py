"""The certificate held against a million places and a search for the worst: no way misplaces more than it says.

    .venv/bin/python benchmarks/certificate.py [MODEL ...] [--places 1000000] [--out benchmarks/results/certificate.md]

For random weights (the paper's, and a mix of sharpness), and every model named, at several cell sizes: the share that a
list leaves out, and half the summed difference between a series' shares and the softmax, in float64, at random places,
at edges and corners of cells, and at the end of many climbs towards the worst. Then the same for levels of sharp sites,
whose cells are as fine as they need: sharpness to 10^8, mixed in one level, with and without a background, at places
everywhere, around sites and at corners of their cells. `--device cuda` looks at levels on a GPU.
"""

import argparse
import datetime
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON, AffineLogits, CubeCells, SiteLists, read_logits
from tessearth.embedding.fast.listed import takes_lists
from tessearth.embedding.fast.regions import RegionLists
from tessearth.embedding.fast.series import Chart, Expansion, build_chart, evaluate_terms, expand, series_degree
from tessearth.encoder import SoftVoronoi, SphericalVoronoiEncoder, TessellationConfig
from tessearth.sphere import DEPTH, CellLists, fibonacci_lattice
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
    parser.add_argument("--device", default="cpu", help="for levels")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/certificate.md"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    start = time.perf_counter()
    tessellations = dict(random_logits())
    for model in arguments.models:
        encoder = load_base(model)
        if isinstance(encoder, SphericalVoronoiEncoder):
            label = "/".join(Path(model).parts[-2:])
            broad = (v for v in encoder.voronois() if not takes_lists(v))
            tessellations |= {f"{label} {i}": read_logits(v) for i, v in enumerate(broad)}
    levels = dict(random_levels())
    for model in arguments.models:
        encoder = load_base(model)
        voronois = encoder.voronois() if isinstance(encoder, SphericalVoronoiEncoder) else []
        levels |= {f"{'/'.join(Path(model).parts[-2:])} {i}": v for i, v in enumerate(voronois) if takes_lists(v)}
    each = math.ceil(arguments.places / 2 / (len(tessellations) * 2 * len(SIDES) * CELLS))
    held = [
        examine(name, logits, form, side, each)
        for name, logits in tessellations.items()
        for form in ("series", "lists")
        for side in SIDES
    ]
    each = math.ceil(arguments.places / 2 / len(levels))
    held += [examine_level(name, level, each, arguments.device) for name, level in levels.items()]
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


def random_levels() -> Iterator[tuple[str, SoftVoronoi]]:
    """Levels that nobody trained: even ones, and crowds whose spacing falls to a kilometre, of every sharpness."""
    generator = torch.Generator().manual_seed(0)
    crowd = 10 ** (-3.5 * torch.rand(3000, 1, generator=generator, dtype=torch.float64))
    crowd = torch.tensor([0.6, -0.2, 0.8]) + crowd * torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    crowded = torch.nn.functional.normalize(torch.cat((fibonacci_lattice(1000), crowd)), dim=-1)
    kilometres = torch.nn.functional.normalize(torch.tensor([0.0, 0.1, -1.0]) + 1e-3 * fibonacci_lattice(4000), dim=-1)
    for name, sites, background, spread in (
        ("even", fibonacci_lattice(4000), None, 0.0),
        ("even, one seventh absent, territories differ", fibonacci_lattice(4000), None, 1.0),
        ("crowded", crowded, None, 0.0),
        ("crowded, sharpness and territories differ", crowded, None, 1.0),
        ("crowded, with a background", crowded, -8.0, 0.5),
        ("a patch, kilometres apart", kilometres, None, 0.0),
        ("a patch, kilometres apart, sharpness differs, with a background", kilometres, -2.0, 1.0),
        ("sixty coincide", torch.cat((fibonacci_lattice(1000), crowded[:1].expand(60, 3))), None, 0.0),
    ):
        config = TessellationConfig(
            num_sites=len(sites), site_dim=1, logits="chord", sharpness="spacing", background=background,
            sharpness_range=(0.5, 8.0),
        )  # fmt: skip
        level = SoftVoronoi(config, sites).double().requires_grad_(False)
        level.log_sharpness += spread * torch.randn(len(sites), generator=generator, dtype=torch.float64)
        level.log_sharpness.clamp_(max=math.log(1e8))
        level.territory += spread * torch.randn(len(sites), generator=generator, dtype=torch.float64)
        if "absent" in name:
            level.territory[::7] = -math.inf
        yield f"levels: {name}", level


def examine_level(name: str, level: SoftVoronoi, places: int, device: str) -> Held:
    """What the lists of a level leave out at many places, and at the end of climbs from the worst of them."""
    level = level.double().to(device)
    lists = RegionLists(level)
    for region in range(6 * 4**lists.depth):
        lists.make(region)
    joined = lists.joined()
    joined = joined._replace(sites=lists.order[joined.sites])
    generator = torch.Generator(device).manual_seed(1)
    at_once, worst, worst_at = max(256, 2**24 // level.config.num_sites), torch.zeros(0), torch.zeros(0, 3)
    worst, worst_at = worst.to(device, torch.float64), worst_at.to(device, torch.float64)
    for start in range(0, places, at_once):
        xyz = look_around(level, joined, min(at_once, places - start), generator)
        value = leave_out(level, joined, xyz)
        worst, order = torch.cat((worst, value)).topk(min(STARTS, len(worst) + len(value)))
        worst_at = torch.cat((worst_at, xyz))[order]
    climbed, step = worst.clone(), 2.0
    reach = level.sharpness().rsqrt()[(worst_at @ level.positions().T).argmax(-1)][:, None]
    for _ in range(STEPS):
        noise = torch.randn(worst_at.shape, generator=generator, dtype=torch.float64, device=device)
        moved = torch.nn.functional.normalize(worst_at + step * reach * noise, dim=-1)
        there = leave_out(level, joined, moved)
        worst_at = torch.where((there > climbed)[:, None], moved, worst_at)
        climbed, step = torch.maximum(climbed, there), step * 0.9
    found, count = climbed.max().item(), len(joined.keys)
    if found > EPSILON:
        print(f"BROKEN: {name}: {found} > {EPSILON}")
    looked = places + STARTS * STEPS
    result = Held(name, "levels", 0, count, looked, worst.max().item(), found, EPSILON)
    print(*result, f"sharpest {level.sharpness().max():.1e}", flush=True)
    return result


def look_around(level: SoftVoronoi, lists: CellLists, count: int, generator: torch.Generator) -> Tensor:
    """Places everywhere, around sites at every distance, and at corners of cells, (count, 3)."""
    device, third = level.directions.device, count // 3

    def draw(rows: int, columns: int, normal: bool = True) -> Tensor:
        made = torch.randn if normal else torch.rand
        return made(rows, columns, generator=generator, dtype=torch.float64, device=device)

    def choose(among: int) -> Tensor:
        return torch.randint(among, (third,), generator=generator, device=device)

    distance = 10 ** (-5 * draw(third, 1, normal=False))
    around = level.positions()[choose(level.config.num_sites)] + distance * draw(third, 3)
    finest = CubeCells(2**DEPTH)
    corners = finest.points(
        finest.of_keys(lists.keys[choose(len(lists.keys))]), torch.zeros(1, 2, device=device).double()
    )
    return torch.nn.functional.normalize(torch.cat((draw(count - 2 * third, 3), around, corners[:, 0])), dim=-1)


def leave_out(level: SoftVoronoi, lists: CellLists, xyz: Tensor) -> Tensor:
    """The weight of the sites that are in no place's list, (N, 3) -> (N,): summed by itself, to the last digit."""
    weights = level.weights(xyz)
    cell = lists.find(xyz)
    start, step = lists.starts[cell][:, None], torch.arange(int(lists.lengths.max()), device=xyz.device)
    inside = step < (lists.starts[cell + 1][:, None] - start)
    listed = lists.sites[(start + step).clamp(max=len(lists.sites) - 1)]
    weights.scatter_reduce_(-1, listed, torch.where(inside, 0.0, 2.0).double(), "amin")
    return weights.sum(-1)


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
        f"| {row.model} | {row.form} | {row.side or 'as needed'} | {row.cells} | {row.places:,} | "
        f"{row.worst_random:.1e} | {row.worst_found:.1e} | {row.stated:.1e} |"
        for row in held
    ]
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"{arguments.out}: {len(broken)} broken of {len(held)}")


if __name__ == "__main__":
    main()
