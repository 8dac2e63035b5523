"""Mixes a level's sites in training by lists that are made anew now and then, within a slack that sites keep to."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder.lists import EPSILON, LONGEST, SiteGeometry, Slack, list_sites, weigh_left_out
from tessearth.encoder.sparse import sparse_mixture
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.errors import ConfigError
from tessearth.sphere import CellLists

SLACK = Slack(shift=0.1, log_sharpness=0.1, territory=0.2)
"""What makes lists about a fifth longer."""
ANCHORED = ("directions", "log_sharpness", "territory")
HELD = 0.95
"""The share of the slack that sites may use; the rest is for the rounding of float32, up to a tau of 10^9."""
CELLS_PER_SITE, ENTRIES_PER_SITE = 1, 64
"""Room for lists of which nothing is known yet; an even lattice takes 0.1 to 0.4 cells and 15 to 45 entries a site."""


class SparseMixer:
    """A `Mixer` that looks at the sites in the list of each place's cell, and leaves out at most epsilon.

    The lists lie in buffers that stay where they are, so that a captured CUDA graph reads what `refresh_` writes. They
    depend only on the anchor: where the present sites were when the lists were last made.
    """

    def __init__(
        self,
        voronoi: SoftVoronoi,
        *,
        epsilon: float = EPSILON,
        slack: Slack = SLACK,
        longest: int = LONGEST,
        room: tuple[int, int] | None = None,
        deterministic: bool = True,
    ) -> None:
        """Make the first lists of a level; `room` is the number of cells and of entries that fit into the buffers."""
        if voronoi.config.logits != "chord" or not voronoi.config.on_sphere:
            raise ConfigError("a sparse mixture needs logits = 'chord' and sites on the sphere (on_sphere = true)")
        self.epsilon, self.slack, self.longest, self.deterministic = epsilon, slack, longest, deterministic
        self.background = voronoi.config.background
        self.anchor = {name: getattr(voronoi, name).detach().clone() for name in ANCHORED}
        """Where the sites were when the lists were made: what a checkpoint keeps, and `rebuild_` reads."""
        lists, count = self._list(), len(voronoi.directions)
        cells, entries = room or (
            max(CELLS_PER_SITE * count + 4096, 2 * len(lists.keys)),
            max(ENTRIES_PER_SITE * count + 2**16, 2 * len(lists.sites)),
        )
        self.lists = CellLists(
            lists.keys.new_empty(cells), lists.starts.new_empty(cells + 1), lists.sites.new_zeros(entries)
        )
        self._write(lists)

    def __call__(self, voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
        """Mixtures of site embeddings at directions, (N, 3) -> (N, S), with gradients."""
        return sparse_mixture(
            xyz,
            voronoi.positions(),
            voronoi.log_sharpness,
            voronoi.territory,
            voronoi.embeddings,
            self.lists,
            self.background,
            self.deterministic,
        )

    def refresh_(self, voronoi: SoftVoronoi) -> None:
        """Make the lists anew for where the present sites are."""
        self._note_anchor(voronoi)
        self.rebuild_()

    def rebuild_(self) -> None:
        """Make the lists of the anchor, the same as when it was noted."""
        self._write(self._list())

    @torch.no_grad()
    def hold_(self, voronoi: SoftVoronoi) -> None:
        """Bring sites that left the slack back to its edge, so that the lists hold; on the device, without waiting."""
        anchor, shift = self.anchor["directions"], self._shift()
        step = voronoi.directions - anchor
        length = step.norm(dim=-1)
        back = F.normalize(anchor + step * (shift / length)[:, None], dim=-1)
        voronoi.directions.copy_(torch.where((length > shift)[:, None], back, voronoi.directions))
        for name in ("log_sharpness", "territory"):
            held, middle = HELD * getattr(self.slack, name), self.anchor[name]
            parameter = getattr(voronoi, name)
            parameter.copy_(torch.clamp(parameter, middle - held, middle + held))

    @torch.no_grad()
    def strain(self, voronoi: SoftVoronoi) -> Tensor:
        """The share of the slack that each site has used, (K,): from 1 on `hold_` holds it."""
        used = [(voronoi.directions - self.anchor["directions"]).norm(dim=-1) / self._shift()]
        for name in ("log_sharpness", "territory"):
            gone = (getattr(voronoi, name) - self.anchor[name]).abs() / (HELD * getattr(self.slack, name))
            used.append(gone)
        return torch.stack(used).nan_to_num(nan=0.0).amax(0)  # nan: of an absent site, or of no slack at all

    @torch.no_grad()
    def left_out(self, voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
        """The weight that the lists leave out at each place by the dense form in float64, (N, 3) -> (N,)."""
        positions = F.normalize(voronoi.directions, dim=-1)
        geometry = SiteGeometry(positions, voronoi.sharpness(), voronoi.territory, self.background)
        return weigh_left_out(geometry, self.lists, xyz)

    def _note_anchor(self, voronoi: SoftVoronoi) -> None:
        for name, tensor in self.anchor.items():
            tensor.copy_(getattr(voronoi, name).detach())

    def _list(self) -> CellLists:
        positions = F.normalize(self.anchor["directions"].double(), dim=-1)
        sharpness = self.anchor["log_sharpness"].double().exp()
        geometry = SiteGeometry(positions, sharpness, self.anchor["territory"], self.background)
        return list_sites(geometry, epsilon=self.epsilon, slack=self.slack, longest=self.longest)

    def _write(self, lists: CellLists) -> None:
        """Copy lists into the buffers; the cells behind the last are empty and beyond every key."""
        cells, entries = len(lists.keys), len(lists.sites)
        if cells > len(self.lists.keys) or entries > len(self.lists.sites):
            count = len(self.anchor["territory"])
            raise ConfigError(
                f"lists of {count} sites take {cells} cells and {entries} entries; there is room "
                f"for {len(self.lists.keys)} and {len(self.lists.sites)}: give the mixer more room or less slack"
            )
        self.lists.keys.fill_(torch.iinfo(torch.int64).max)
        self.lists.starts.fill_(entries)
        for buffer, part in zip(self.lists, lists, strict=True):
            buffer[: len(part)] = part

    def _shift(self) -> Tensor:
        """How far each site may move, (K,)."""
        return HELD * self.slack.shift * torch.exp(self.anchor["log_sharpness"] / -2)
