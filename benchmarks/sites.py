"""Where a model's sites are: their share on land or near a coast, and whether they are dense where pictures vary.

    python benchmarks/sites.py MODEL [...] --features FEATURES.npy --places PLACES.npz [--table TABLE.md]

Variance is that of image features among the places of a cell, the mean squared distance from the cell's mean; density
is the number of sites per unit of area. Cells are those of a cube's faces, `--side` along an edge, with at least
`--fewest` places; Spearman's correlation is taken over all of them, and over those whose centre is on land.
FEATURES.npy (N, F) or (N, 1, F) and PLACES.npz (latlon) are written by benchmarks/study.py.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from tessearth.embedding.fast.bounds import CubeCells
from tessearth.settings import find_device
from tessearth.sphere import EARTH_RADIUS_KM, fibonacci_lattice, is_land, latlon_to_xyz, xyz_to_latlon
from tessearth.storage.files import write_bytes
from tessearth.zoo import load_base

COAST_KM = 100.0
BEARINGS, RINGS = 24, 5
ROWS_AT_ONCE = 50_000
LATTICE = 2_000_000


def main() -> None:
    """Measure and print, and write the table where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--features", required=True)
    parser.add_argument("--places", required=True)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--fewest", type=int, default=20)
    parser.add_argument("--table")
    arguments = parser.parse_args()
    cells = CubeCells(arguments.side)
    latlon = np.load(arguments.places)["latlon"]
    variance, counts = local_variance(np.load(arguments.features, mmap_mode="r"), find(cells, latlon), cells.count)
    area = np.bincount(find(cells, xyz_to_latlon(fibonacci_lattice(LATTICE)).numpy()), minlength=cells.count)
    centres = xyz_to_latlon(cells.caps(torch.arange(cells.count))[0]).numpy()
    known, on_land = counts >= arguments.fewest, is_land(centres)
    lines = [
        "| model | level | sites | on land | on land or within 100 km | Spearman, all cells | on land |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in arguments.models:
        for level, latlon in levels(name):
            density = np.bincount(find(cells, latlon), minlength=cells.count) / np.maximum(area, 1)
            both = [spearman(density, variance, known & chosen) for chosen in (np.ones_like(on_land), on_land)]
            land, near = float(is_land(latlon).mean()), float(near_land(latlon).mean())
            numbers = " | ".join(f"{number:.3f}" for number in (land, near, *both))
            lines.append(f"| {Path(name).stem} | {level} | {len(latlon):,} | {numbers} |")
    print("\n".join(lines))
    if arguments.table:
        command = " ".join(["python", "benchmarks/sites.py", *sys.argv[1:]])
        write_bytes(
            Path(arguments.table),
            f"# Where the sites are\n\n`{command}`\n\n".encode() + "\n".join(lines).encode() + b"\n",
        )


def levels(name):
    """Every level's sites in degrees, then all of them."""
    encoder = load_base(name)
    each = [xyz_to_latlon(v.positions().detach().double()).numpy() for v in encoder.voronois()]
    return [*((str(i + 1), latlon) for i, latlon in enumerate(each)), ("all", np.concatenate(each))]


def find(cells, latlon):
    """The cell of each place."""
    return cells.find(latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(latlon)))).numpy()


def local_variance(features, cell, count):
    """The variance of features within each cell and the number of its places, (count,) both."""
    features, device = features.reshape(len(features), -1), find_device()
    sums = torch.zeros(count, features.shape[1], dtype=torch.float64, device=device)
    squares = torch.zeros(count, dtype=torch.float64, device=device)
    for rows in np.array_split(np.arange(len(features)), max(1, len(features) // ROWS_AT_ONCE)):
        part = torch.from_numpy(np.array(features[rows[0] : rows[-1] + 1])).to(device).double()
        where = torch.from_numpy(cell[rows]).to(device)
        sums.index_add_(0, where, part)
        squares.index_add_(0, where, part.square().sum(-1))
    counts = np.bincount(cell, minlength=count)
    many = torch.from_numpy(np.maximum(counts, 1)).to(device)
    return (squares / many - (sums / many[:, None]).square().sum(-1)).cpu().numpy(), counts


def spearman(density, variance, chosen):
    """The rank correlation over some cells."""
    return float(stats.spearmanr(density[chosen], variance[chosen]).statistic)


def near_land(latlon):
    """Which places are on land or have land within 100 km, found on rings of points around them."""
    near = is_land(latlon)
    rest = np.flatnonzero(~near)
    for ring in np.linspace(COAST_KM / RINGS, COAST_KM, RINGS):
        for bearing in np.linspace(0, 2 * np.pi, BEARINGS, endpoint=False):
            rest = rest[~near[rest]]
            near[rest] = is_land(moved(latlon[rest], ring / EARTH_RADIUS_KM, bearing))
    return near


def moved(latlon, distance, bearing):
    """Places a distance (radians) away in a direction from north."""
    lat, lon = np.radians(latlon).T
    to = np.arcsin(np.clip(np.sin(lat) * np.cos(distance) + np.cos(lat) * np.sin(distance) * np.cos(bearing), -1, 1))
    turn = np.arctan2(np.sin(bearing) * np.sin(distance) * np.cos(lat), np.cos(distance) - np.sin(lat) * np.sin(to))
    return np.degrees(np.column_stack([to, np.mod(lon + turn + np.pi, 2 * np.pi) - np.pi]))


if __name__ == "__main__":
    main()
