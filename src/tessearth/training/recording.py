"""Where the sites are along the way of a run, and who was born of whom."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tessearth.encoder import LocationEncoder, SphericalVoronoiEncoder, Trajectory
from tessearth.training.growth import Births


class SiteRecords:
    """The parts of a run's trajectory; none are made of an encoder without sites."""

    def __init__(self, encoder: LocationEncoder | None, *, growing: bool) -> None:
        """`encoder` is the one in training; None records nothing."""
        self.encoder, self.growing = encoder, growing
        self.parts: list[Trajectory] = []

    def add(self, step: int) -> None:
        """Record positions and sharpness as they are before this step."""
        sites = self.encoder.sites() if self.encoder is not None else None
        if sites is None:
            return
        positions, sharpness = (part.detach().float().cpu().numpy()[None] for part in sites)
        self._append(Trajectory(np.array([step]), positions, sharpness), np.empty((0, 3), np.int64))

    def add_births(self, step: int, births: Sequence[Births]) -> None:
        """Record who was born of whom before this step, as a part without a moment."""
        if not births or not isinstance(self.encoder, SphericalVoronoiEncoder):
            return
        sizes = [t.num_sites for t in self.encoder.config.tessellations]
        firsts = [sum(sizes[: born.level]) for born in births]
        pairs = [
            torch.stack((born.parents, born.children), 1) + first for born, first in zip(births, firsts, strict=True)
        ]
        rows = torch.nn.functional.pad(torch.cat(pairs), (1, 0), value=step).cpu().numpy()
        total = sum(sizes)
        nothing = np.empty((0, total, 3), np.float32), np.empty((0, total), np.float32)
        self._append(Trajectory(np.empty(0, np.int64), *nothing), rows)

    def _append(self, record: Trajectory, births: npt.NDArray[np.int64]) -> None:
        if self.growing and isinstance(self.encoder, SphericalVoronoiEncoder):
            alive = torch.cat([voronoi.takes_part() for voronoi in self.encoder.voronois()]).cpu().numpy()
            record = record._replace(alive=np.tile(alive, (len(record.steps), 1)), births=births)
        self.parts.append(record)
