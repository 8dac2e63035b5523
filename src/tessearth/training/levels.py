"""Tessellations whose sharpness is tied to spacing, in training: how sites move, and how spacing is kept up with.

A site moves in units of its spacing. Every so many steps spacing is measured anew; what has changed is not set at once
but followed in equal parts by each step until the next measurement, so that nothing jumps and a captured step only adds
what lies in its tensors. Growth (`growth`) writes drifts and fades of sites into the same tensors.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder import LEAST_SPACING, LocationEncoder, SoftVoronoi, SphericalVoronoiEncoder
from tessearth.sphere import EARTH_RADIUS_KM, mean_chord
from tessearth.training.sites_recipe import SitesRecipe

MOST_FOLLOWED = 0.05
"""The largest change of log spacing between two measurements; what is left over is followed after the next."""


class Level:
    """One tessellation of spaced sites with what every step adds to it."""

    def __init__(self, voronoi: SoftVoronoi) -> None:
        self.voronoi = voronoi
        self.spacing_step = torch.zeros_like(voronoi.spacing)  # (K,), of log spacing
        self.territory_step = torch.zeros_like(voronoi.spacing)  # (K,)
        self.drift = torch.zeros_like(voronoi.directions, requires_grad=False)  # (K, 3)

    def state(self) -> dict[str, Tensor]:
        """The tensors that change while training, by name."""
        return {"spacing_step": self.spacing_step, "territory_step": self.territory_step, "drift": self.drift}

    def staying(self) -> Tensor:
        """The numbers of sites that take part and do not fade, in rising order."""
        return (self.voronoi.takes_part() & (self.territory_step == 0)).nonzero().flatten()

    @torch.no_grad()
    def measure_(self, steps: int, drifting: int) -> None:
        """Measure spacing where sites will be after `drifting` steps, and spread its change over so many steps."""
        rows = self.staying()
        aims = F.normalize(self.voronoi.directions + drifting * self.drift, dim=-1)[rows]
        spacing = mean_chord(aims, self.voronoi.config.neighbours).clamp_min(LEAST_SPACING)
        change = (spacing / self.voronoi.spacing[rows]).log().clamp(-MOST_FOLLOWED, MOST_FOLLOWED)
        self.spacing_step.zero_().index_copy_(0, rows, change / steps)

    @torch.no_grad()
    def follow_(self, before: Tensor) -> None:
        """Take what the optimiser did to `before` in units of spacing, then one part of every change that is due."""
        voronoi = self.voronoi
        moved = voronoi.spacing[:, None] * (voronoi.directions - before)
        voronoi.directions.copy_(before + moved + self.drift)
        voronoi.spacing.mul_(self.spacing_step.exp())
        voronoi.log_sharpness.sub_(2 * self.spacing_step)
        voronoi.territory.add_(self.territory_step)


class Levels:
    """All spaced tessellations of an encoder; without any, nothing happens."""

    def __init__(self, encoder: LocationEncoder, recipe: SitesRecipe, *, moving: bool = True) -> None:
        """`moving` is whether positions are trained; sites that stay keep their spacing."""
        voronois = encoder.voronois() if isinstance(encoder, SphericalVoronoiEncoder) else []
        self.levels = {i: Level(v) for i, v in enumerate(voronois) if v.config.is_spaced}
        self.every, self.moving = recipe.refresh_every, moving

    def state(self) -> dict[str, Tensor]:
        """The tensors that change while training, by name."""
        return {f"levels.{i}.{name}": part for i, level in self.levels.items() for name, part in level.state().items()}

    def is_due(self, step: int) -> bool:
        """Whether spacing is measured before this step."""
        return bool(self.levels) and self.moving and step > 0 and step % self.every == 0

    def measure_(self, drifting: int = 0) -> None:
        """Measure spacing anew; sites that drift do so for `drifting` more steps."""
        for level in self.levels.values():
            level.measure_(self.every, drifting)

    def positions(self) -> list[Tensor]:
        """Where sites are before the optimiser's step."""
        return [level.voronoi.directions.detach().clone() for level in self.levels.values()]

    def follow_(self, before: list[Tensor]) -> None:
        """After the optimiser's step, take it in units of spacing and follow what is due."""
        for level, positions in zip(self.levels.values(), before, strict=True):
            level.follow_(positions)

    def report(self) -> dict[str, dict[str, float]]:
        """For the log, by the tessellation's number: sites that take part and their median spacing."""
        return {
            str(i): {
                "sites": float(level.voronoi.takes_part().sum()),
                "median_spacing_km": _kilometres(level.voronoi.spacing[level.voronoi.takes_part()]),
            }
            for i, level in self.levels.items()
        }


def _kilometres(chords: Tensor) -> float:
    """The median of chords of the unit sphere, along the ground."""
    return 2 * math.asin(min(1.0, float(chords.median()) / 2)) * EARTH_RADIUS_KM
