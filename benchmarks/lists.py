"""Lists of sites held against millions of places and a search for the worst, also for sites anywhere in their slack.

    PYTHONPATH=src python3 benchmarks/lists.py [--places 1000000] [--lattices 8192] [--device cuda] [--out FILE]

Half of the tries weigh, by all sites in float64, what the lists leave out for the sites that they were made of; the
others move every site as far as training may before lists are made anew. Places lie everywhere, around sites, in cells
and at their corners, and at the end of climbs from the worst of them. Tries share the places so that all cost the same.
"""

import argparse
import datetime
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessearth.encoder import SiteGeometry, Slack, list_sites, weigh_left_out
from tessearth.encoder.lists import EPSILON
from tessearth.sphere import DEPTH, CellLists, CubeCells, fibonacci_lattice

DOUBLE = torch.float64
STEPS = 40
PLACES_AT_ONCE = 2**16
SLACK = Slack(0.2, 0.15, 0.1)
"""What training allows for."""


class Held(NamedTuple):
    """What was seen of one set of sites."""

    name: str
    sites: int
    cells: int
    mean: float
    longest: int
    seconds: float
    places: int
    worst_random: float
    worst_found: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--places", type=int, default=1_000_000, help="random places altogether")
    parser.add_argument("--lattices", type=int, nargs="+", default=[8192], help="numbers of sites of even lattices")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    lines = attack_all(arguments)
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    if arguments.out:
        today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} (UTC), {where}, torch {torch.__version__}."
        title = "# Lists of sites against random places and a search for the worst"
        arguments.out.write_text("\n".join([title, "", today, "", *lines]) + "\n")


def crowd(count: int, spread: float) -> Tensor:
    """Points about `spread` from one place, or all over the sphere."""
    noise = torch.randn(count, 3, dtype=DOUBLE)
    return normalize(
        noise if spread == math.inf else normalize(torch.randn(3, dtype=DOUBLE), dim=-1) + spread * noise, dim=-1
    )


def geometries(lattices: list[int]) -> dict[str, SiteGeometry]:
    """Sites of every kind: even, crowded, coincident, of mixed sharpness, absent."""

    def build(positions: Tensor, sharpness: float | Tensor, territory: Tensor | None = None) -> SiteGeometry:
        count = len(positions)
        tau = sharpness if isinstance(sharpness, Tensor) else torch.full((count,), sharpness, dtype=DOUBLE)
        return SiteGeometry(positions, tau, torch.zeros(count, dtype=DOUBLE) if territory is None else territory)

    made = {f"everywhere, sharpness {tau:g}": build(crowd(2000, math.inf), tau) for tau in (0.5, 45.0, 1e4, 1e6, 1e8)}
    made |= {f"lattice of {count}": build(fibonacci_lattice(count), count / 7.2) for count in lattices}
    made |= {
        f"crowd of {spread:g}": build(crowd(2000, spread), min(1e8, 400 / spread**2)) for spread in (0.3, 1e-2, 1e-4)
    }
    made["every sharpness"] = build(
        crowd(2000, math.inf), 10 ** (8.3 * torch.rand(2000, dtype=DOUBLE) - 0.3), crowd(2000, 1)[:, 0]
    )
    made["crowd of every sharpness"] = build(crowd(2000, 0.3), (4 + 1.2 * torch.randn(2000, dtype=DOUBLE)).exp())
    made["coincident"] = build(
        torch.cat((crowd(300, 0.0), crowd(1500, math.inf))), torch.tensor([1e8] * 300 + [300.0] * 1500)
    )
    levels = [(64, math.inf, 10.0), (1500, 0.3, 1e3), (1500, 1e-2, 1e6), (1500, 1e-3, 1e8)]
    made["levels in one"] = build(
        torch.cat([crowd(count, spread) for count, spread, _ in levels]),
        torch.cat([torch.full((count,), tau, dtype=DOUBLE) for count, _, tau in levels]),
    )
    made["half absent"] = build(
        crowd(3000, math.inf), 500.0, torch.where(torch.rand(3000) < 0.5, -math.inf, 0.0).double()
    )
    return made


def attack_all(arguments: argparse.Namespace) -> list[str]:
    tries = [
        (f"{name}{', background' * (background is not None)}{', slack' * (slack.shift > 0)}", sites, background, slack)
        for name, sites in geometries(arguments.lattices).items()
        for background in (None, -8.0)
        for slack in (Slack(), SLACK)
    ]
    weight = sum(1 / len(sites.positions) for _, sites, _, _ in tries)  # so that all cost the same
    held = []
    for name, sites, background, slack in tries:
        on_device = SiteGeometry(*(part.to(arguments.device) for part in sites[:3]), background)
        places = math.ceil(arguments.places / weight / len(sites.positions))
        held.append(attack(name, on_device, slack, places))
        print(*held[-1], "BROKEN" * (held[-1].worst_found > EPSILON), flush=True)
    broken = sum(row.worst_found > EPSILON for row in held)
    total = sum(row.places for row in held)
    print(f"{total:,} places; broken {broken} times")
    return [
        f"{total:,} places looked at; {EPSILON:g} was exceeded {f'{broken} times' if broken else 'nowhere'}.",
        "",
        "| sites | number | cells | mean length | longest | made in, s | places | worst at random | worst found |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {row.name} | {row.sites:,} | {row.cells:,} | {row.mean:.0f} | {row.longest:,} | {row.seconds:.3f} | "
            f"{row.places:,} | {row.worst_random:.1e} | {row.worst_found:.1e} |"
            for row in held
        ),
    ]


def attack(name: str, sites: SiteGeometry, slack: Slack, places: int) -> Held:
    list_sites(sites, slack=slack)
    start = time.perf_counter()
    lists = list_sites(sites, slack=slack)
    if sites.positions.is_cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    worst_random, worst_found, looked = 0.0, 0.0, 0
    for part in torch.arange(places).split(PLACES_AT_ONCE):
        now = sites if not slack.shift else moved(sites, slack)
        xyz = draw(now, lists, len(part))
        seen = weigh_left_out(now, lists, xyz)
        worst_random = max(worst_random, float(seen.max()))
        looked += len(part)
        if worst_found == 0.0 or float(seen.max()) > worst_found:
            starts = xyz[seen.argsort(descending=True)[: math.ceil(len(part) / STEPS)]]
            worst_found = max(worst_found, climb(now, lists, starts))
            looked += len(starts) * STEPS
    lengths = lists.lengths.double()
    return Held(
        name, len(sites.positions), len(lists.keys), float(lengths.mean()), int(lengths.max()), seconds, looked,
        worst_random, max(worst_random, worst_found),
    )  # fmt: skip


def moved(sites: SiteGeometry, slack: Slack) -> SiteGeometry:
    """Sites that went as far as they may."""
    way = normalize(torch.randn_like(sites.positions), dim=-1)
    signs = [torch.randint(0, 2, sites.sharpness.shape, device=way.device) * 2.0 - 1 for _ in range(2)]
    return sites._replace(
        positions=normalize(sites.positions + 0.999 * slack.shift / sites.sharpness.sqrt()[:, None] * way, dim=-1),
        sharpness=sites.sharpness * (signs[0] * slack.log_sharpness).exp(),
        territory=sites.territory + signs[1] * slack.territory,
    )


def draw(sites: SiteGeometry, lists: CellLists, count: int) -> Tensor:
    """Places: a quarter each everywhere, around sites, in cells drawn evenly, and at the corners of such cells."""
    everywhere = torch.randn(count, 3, dtype=DOUBLE, device=sites.positions.device)
    quarter = count // 4
    own = torch.randint(len(sites.positions), (quarter,), device=everywhere.device)
    everywhere[:quarter] *= 4 * torch.rand(quarter, 1, device=own.device) / sites.sharpness[own].sqrt()[:, None]
    everywhere[:quarter] += sites.positions[own]
    cell = torch.randint(len(lists.keys), (quarter,), device=own.device)
    gaps = torch.cat((lists.keys, lists.keys.new_tensor([6 * 4**DEPTH]))).diff()[cell]
    cells = CubeCells(2**DEPTH)
    for part, within in enumerate((torch.rand(quarter, dtype=DOUBLE, device=own.device), 0.0), 1):
        keys = lists.keys[cell] + (within * gaps).long()
        corner = torch.zeros(1, 2, dtype=DOUBLE, device=own.device)
        everywhere[part * quarter : (part + 1) * quarter] = cells.points(cells.of_keys(keys), corner)[:, 0]
    return normalize(everywhere, dim=-1)


def climb(sites: SiteGeometry, lists: CellLists, xyz: Tensor) -> float:
    """From many starts, steps of all sizes that are kept where more is left out; the most met."""
    value = weigh_left_out(sites, lists, xyz)
    gaps = torch.cat((lists.keys, lists.keys.new_tensor([6 * 4**DEPTH]))).diff()[lists.find(xyz)]
    size = gaps.double().sqrt()[:, None] * (math.pi / 2 / 2**DEPTH)
    for step in range(STEPS):
        there = normalize(xyz + size * 0.9**step * torch.randn_like(xyz), dim=-1)
        new = weigh_left_out(sites, lists, there)
        xyz, value = torch.where((new > value)[:, None], there, xyz), torch.maximum(value, new)
    return float(value.max())


if __name__ == "__main__":
    main()
