"""Tessellations whose sharpness is tied to spacing, in training: how sites move, and how spacing is kept up with.

A site moves in units of its spacing. Every so many steps spacing is measured anew; what has changed is not set at once
but followed in equal parts by each step until the next measurement, so that nothing jumps and a captured step only adds
what lies in its tensors. Growth (`growth`) writes drifts and fades of sites into the same tensors. Lists of near sites,
by which large tessellations are mixed, are made anew at the same moments.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder import LEAST_SPACING, LocationEncoder, Slack, SoftVoronoi, SparseMixer, SphericalVoronoiEncoder
from tessearth.sphere import EARTH_RADIUS_KM, mean_chord
from tessearth.training.sites_recipe import SitesRecipe

APART = 0.3
"""How far each half of a split site drifts from where it was, in units of its spacing."""
SHIFT, SHARPNESS, TERRITORY = 0.2, 0.15, 0.1
"""How far a site may go before its lists are made anew, besides the drifts and fades of growth."""
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


class Listed:
    """A tessellation that is mixed by lists of near sites, with the slack that a site can use up between two lists."""

    def __init__(self, voronoi: SoftVoronoi, level: Level | None, recipe: SitesRecipe) -> None:
        self.voronoi, self.level, self.every = voronoi, level, recipe.refresh_every
        drift = 0.0 if recipe.growth is None else APART * recipe.refresh_every / recipe.growth.every
        self.territory = torch.full_like(voronoi.log_sharpness, TERRITORY, requires_grad=False)  # (K,)
        shift = max(SHIFT, SHIFT / 2 + drift * math.sqrt(voronoi.config.spacing_factor))
        slack = Slack(shift=shift, log_sharpness=SHARPNESS, territory=self.territory)
        grows = voronoi.config.num_sites / int(voronoi.takes_part().sum())
        self.mixer = voronoi.mixer = SparseMixer(recipe.left_out, slack, room=2 * grows)
        self.refresh_()

    def state(self) -> dict[str, Tensor]:
        """Where the sites were when the lists were made."""
        return dict(zip(("anchor", "anchor_log_sharpness", "anchor_territory"), self.mixer.anchor, strict=True))

    def refresh_(self) -> bool:
        """Make the lists of the present sites."""
        self._allow_for_fading_()
        return self.mixer.refresh_(self.voronoi)

    def rebuild_(self) -> bool:
        """Make the lists of the anchor."""
        self._allow_for_fading_()
        return self.mixer.rebuild_(self.voronoi.config.background)

    def _allow_for_fading_(self) -> None:
        self.territory.fill_(TERRITORY)
        if self.level is not None:
            self.territory.sub_(self.every * self.level.territory_step)


class Levels:
    """The tessellations of an encoder that are spaced, or mixed by lists; without any, nothing happens."""

    def __init__(self, encoder: LocationEncoder, recipe: SitesRecipe, *, moving: bool = True) -> None:
        """`moving` is whether positions are trained; sites that stay keep their spacing."""
        voronois = encoder.voronois() if isinstance(encoder, SphericalVoronoiEncoder) else []
        self.levels = {i: Level(v) for i, v in enumerate(voronois) if v.config.is_spaced}
        self.every, self.moving = recipe.refresh_every, moving
        self.listed = {
            i: Listed(voronoi, self.levels.get(i), recipe)
            for i, voronoi in enumerate(voronois)
            if voronoi.config.logits == "chord" and voronoi.config.num_sites > recipe.sparse_from
        }

    def state(self) -> dict[str, Tensor]:
        """The tensors that change while training, by name."""
        parts = {i: level.state() for i, level in self.levels.items()}
        for i, listed in self.listed.items():
            parts[i] = parts.get(i, {}) | listed.state()
        return {f"levels.{i}.{name}": tensor for i, part in parts.items() for name, tensor in part.items()}

    def is_due(self, step: int) -> bool:
        """Whether `refresh_` comes before this step."""
        return bool((self.levels and self.moving) or self.listed) and step > 0 and step % self.every == 0

    def refresh_(self, drifting: int = 0) -> bool:
        """Measure spacing and make lists anew; sites that drift do so for `drifting` more steps.

        Whether lists now lie elsewhere in memory, where a captured step does not look for them.
        """
        for level in self.levels.values() if self.moving else ():
            level.measure_(self.every, drifting)
        moved = [listed.refresh_() for listed in self.listed.values()]
        return any(moved)

    def rebuild_(self) -> bool:
        """Make the lists of a restored state; whether they now lie elsewhere in memory."""
        moved = [listed.rebuild_() for listed in self.listed.values()]
        return any(moved)

    def hold_(self) -> None:
        """Keep sites to what their lists allow for; called after every constraint."""
        for listed in self.listed.values():
            listed.mixer.hold_(listed.voronoi)

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
