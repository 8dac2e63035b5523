"""Sites over a run: the lattice they start on, slots for those born later, and the record of their movement.

A slot whose territory is -inf is empty: it takes no part.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError, DataError
from tessearth.sphere import fibonacci_lattice, is_inhabited_land, xyz_to_latlon
from tessearth.storage import read_npz

if TYPE_CHECKING:
    from tessearth.encoder.model import SphericalVoronoiEncoder

SiteStart = Literal["land", "full"]
"""Named starts: "land" is the Fibonacci lattice kept where it falls on land, "full" the whole lattice."""
LAND_SHARE = 0.2652
"""The share of the sphere that is land north of 60 S in the mask; the search for a lattice begins from it."""
MOST_SIZE = 100
"""A lattice this many times as large as the sites wanted has none of them on land to speak of."""
SEARCH_WIDTH, SEARCHED_SITES = 400, 8192
"""The number of lattice sizes to try before surplus sites are dropped instead; fewer for more sites than this."""


def start_sites(start: SiteStart, num_sites: int) -> Tensor:
    """Initial site positions by name, (num_sites, 3) unit vectors in float64."""
    starts: dict[str, Callable[[int], Tensor]] = {"land": land_lattice, "full": fibonacci_lattice}
    if start not in starts:
        raise ConfigError(f"sites start as {start!r}; it must be one of {', '.join(map(repr, starts))}")
    return starts[start](num_sites)


def land_lattice(
    num_sites: int, *, on_land: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.bool_]] = is_inhabited_land
) -> Tensor:
    """The Fibonacci lattice kept where it falls on land north of 60 S, (num_sites, 3) in float64.

    The size of the whole lattice is searched outwards from num_sites / land share, or, where that misses by more than
    the search can reach, from the share found there. If no size has exactly num_sites on land, the smallest surplus is
    dropped, evenly along the lattice, so that all regions lose alike.
    """

    def keep(size: int) -> Tensor:
        lattice = fibonacci_lattice(size)
        return lattice[torch.from_numpy(on_land(xyz_to_latlon(lattice).numpy()))]

    smallest: Tensor | None = None
    width = max(4, SEARCH_WIDTH * SEARCHED_SITES // max(num_sites, SEARCHED_SITES))
    centre = max(num_sites, round(num_sites / LAND_SHARE))
    found = len(keep(centre))
    if found and abs(found - num_sites) > width / 2 * LAND_SHARE:
        centre = max(num_sites, round(centre * num_sites / found))
    reach = width // 2
    for size in sorted(range(max(1, centre - reach), centre + reach + 1), key=lambda size: (abs(size - centre), -size)):
        kept = keep(size)
        if len(kept) == num_sites:
            return kept
        if len(kept) > num_sites and (smallest is None or len(kept) < len(smallest)):
            smallest = kept
    size = centre + reach
    while smallest is None:  # of many sites the narrow search may find only lattices that are too small
        size += max(1, size // 500)
        kept = keep(size)
        if len(kept) >= num_sites:
            smallest = kept
        elif size > MOST_SIZE * num_sites:
            raise ConfigError(f"no lattice with {num_sites} sites on land was found")
    return smallest[torch.linspace(0, len(smallest) - 1, num_sites).round().long()]


def add_slots(encoder: "SphericalVoronoiEncoder", counts: tuple[int, ...]) -> "SphericalVoronoiEncoder":
    """The same encoder with `counts` sites per tessellation; those it did not have take no part.

    An empty slot repeats the place and the sharpness of a site, so that all numbers but its territory are finite.
    """
    kept = [torch.arange(count) % v.config.num_sites for count, v in zip(counts, encoder.voronois(), strict=True)]
    wider = _choose(encoder, kept)
    with torch.no_grad():
        for before, voronoi in zip(encoder.voronois(), wider.voronois(), strict=True):
            alive = before.config.num_sites
            if voronoi.config.num_sites > alive:
                voronoi.territory[alive:] = -math.inf
                voronoi.embeddings[alive:] = 0
    return wider


def compact(encoder: "SphericalVoronoiEncoder") -> "SphericalVoronoiEncoder":
    """The same encoder without sites that take no part."""
    return _choose(encoder, [voronoi.takes_part().nonzero().flatten() for voronoi in encoder.voronois()])


def _choose(encoder: "SphericalVoronoiEncoder", kept: list[Tensor]) -> "SphericalVoronoiEncoder":
    """An encoder of the sites with these numbers in each tessellation; the same one where these are all."""
    config = encoder.config
    if all(
        torch.equal(rows.cpu(), torch.arange(t.num_sites)) for rows, t in zip(kept, config.tessellations, strict=True)
    ):
        return encoder
    sizes = [dataclasses.replace(t, num_sites=len(rows)) for rows, t in zip(kept, config.tessellations, strict=True)]
    state: dict[str, Tensor] = dict(encoder.state_dict())
    for i, (voronoi, rows) in enumerate(zip(encoder.voronois(), kept, strict=True)):
        for name, tensor in voronoi.state_dict().items():
            state[f"tessellations.{i}.{name}"] = tensor[rows.to(tensor.device)]
    chosen = encoder.allocate(dataclasses.replace(config, tessellations=tuple(sizes)))
    chosen.load_state_dict(state, strict=True, assign=True)
    return chosen.train(encoder.training)


TRAJECTORIES = "trajectories.npz"
"""The file's name in a run folder and in that of a shipped model."""


class Trajectory(NamedTuple):
    """The sites at R steps of a run; of one in which sites are born and die, all K slots for them."""

    steps: npt.NDArray[np.int64]
    """(R,) optimiser steps, in rising order."""
    positions: npt.NDArray[np.float32]
    """(R, K, 3)."""
    sharpness: npt.NDArray[np.float32]
    """(R, K)."""
    alive: npt.NDArray[np.bool_] | None = None
    """(R, K), whether there is a site in the slot; None where there always is."""
    births: npt.NDArray[np.int64] | None = None
    """(B, 3), in order of time: the step after whose record a site was born, its parent's slot, its own."""


def follow_living(record: Trajectory) -> Trajectory:
    """The sites that are alive at the end, (R, L, 3): before its birth each is where its parent is."""
    if record.alive is None or record.births is None:
        return record
    positions, sharpness, alive = record.positions.copy(), record.sharpness.copy(), record.alive.copy()
    for step in np.unique(record.births[:, 0]).tolist():
        _, parents, children = record.births[record.births[:, 0] == step].T
        before = record.steps <= step
        for part in (positions, sharpness):
            part[np.ix_(before, children)] = part[np.ix_(before, parents)]
        alive[np.ix_(before, children)] = False
    living = record.alive[-1]
    return Trajectory(record.steps, positions[:, living], sharpness[:, living], alive[:, living], record.births[:0])


def read_trajectory(path: str | os.PathLike[str]) -> Trajectory:
    """Read the trajectories of a run, of the sites that are alive at its end."""
    return follow_living(read_slots(path))


def read_slots(path: str | os.PathLike[str]) -> Trajectory:
    """Read the trajectories of a run, slot by slot."""
    if not Path(path).is_file():
        raise DataError(f"there is no file {path}: the run recorded no site positions")
    steps, positions, sharpness, *growth = read_npz(
        path, Trajectory._fields[:3], optional=Trajectory._fields[3:]
    ).values()
    if positions.ndim != 3 or steps.shape != positions.shape[:1] or positions.shape[-1] != 3:
        raise DataError(f"{path} has {len(steps)} steps for positions of shape {positions.shape}")
    if 0 in positions.shape or sharpness.shape != positions.shape[:2] or not np.isfinite(positions).all():
        raise DataError(f"{path} is no record of sites: it is empty, or its positions are not finite")
    record = Trajectory(steps.astype(np.int64), positions.astype(np.float32), sharpness.astype(np.float32))
    return record._replace(**_read_growth(growth, positions.shape, path)) if growth else record


def _read_growth(
    growth: list[npt.NDArray[Any]], shape: tuple[int, ...], path: str | os.PathLike[str]
) -> dict[str, npt.NDArray[Any]]:
    """`alive` and `births`, when they fit the positions."""
    alive, births = growth if len(growth) == 2 else (np.empty(0), np.empty(0))
    fits = alive.shape == shape[:2] and alive.dtype == np.bool_ and births.ndim == 2 and births.shape[1] == 3
    if not fits or births.dtype.kind != "i" or (births[:, 1:] < 0).any() or (births[:, 1:] >= shape[1]).any():
        raise DataError(f"{path} is no record of sites that are born and die: its alive and births do not fit")
    return {"alive": alive, "births": births.astype(np.int64)}
