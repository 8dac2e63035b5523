"""Levels of sharp sites as a graph that other runtimes can run: lists are tables, and cells are found by arithmetic."""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from tessearth.embedding.fast.bounds import EPSILON
from tessearth.embedding.fast.listed import takes_lists
from tessearth.embedding.fast.regions import read_sites
from tessearth.encoder import LocationEncoder, SoftVoronoi, SphericalVoronoiEncoder, list_sites
from tessearth.sphere import DEPTH, spread_bits

MOST_DENSE = 4096
"""Levels of no more sites than this are written out whole."""
PIECE = 256
"""A cell's step along an edge is looked up in pieces of eight bits."""


class ListedGraph(nn.Module):
    """`ListedSites` in operations that every runtime has, with nothing made on the way."""

    keys: Tensor
    starts: Tensor
    listed: Tensor
    spread: Tensor
    sites: Tensor
    rows: Tensor

    def __init__(self, voronoi: SoftVoronoi) -> None:
        super().__init__()
        geometry = read_sites(voronoi)
        lists = list_sites(geometry, epsilon=EPSILON)
        columns = (*geometry.positions.unbind(1), geometry.sharpness / 2, geometry.territory)
        self.longest = max(1, int(lists.lengths.max()))
        self.halvings = [2**bit for bit in range(len(lists.keys).bit_length() - 1, -1, -1)]
        self.background = voronoi.config.background
        self.register_buffer("keys", lists.keys)
        self.register_buffer("starts", lists.starts)
        self.register_buffer("listed", torch.cat((lists.sites, torch.zeros(self.longest, dtype=torch.int32))))
        self.register_buffer("spread", spread_bits(torch.arange(PIECE)))
        self.register_buffer("sites", torch.stack(columns).float())
        self.register_buffer("rows", voronoi.at_season(voronoi.embeddings.detach(), None).contiguous())

    def forward(self, xyz: Tensor) -> Tensor:
        """Mixtures of site embeddings at directions, (N, 3) -> (N, S)."""
        cell = self.find(self.key(xyz))
        start, step = self.starts[cell], torch.arange(self.longest)
        length = self.starts[cell + 1] - start
        site = self.listed[start[:, None] + step].long()
        x, y, z, half, territory = (column[site] for column in self.sites.unbind(0))
        away = (x - xyz[:, :1]) ** 2 + (y - xyz[:, 1:2]) ** 2 + (z - xyz[:, 2:]) ** 2
        logits = torch.where(step < length[:, None], territory - half * away, -torch.inf)
        if self.background is not None:
            logits = torch.cat((logits, torch.full_like(logits[:, :1], self.background)), dim=-1)
        weights = torch.softmax(logits, dim=-1)[:, : self.longest]
        mixture: Tensor = (weights[:, None, :] @ self.rows[site])[:, 0]
        return mixture

    @property
    def widest(self) -> int:
        """The numbers per place of the widest array in memory."""
        return self.longest * self.rows.shape[1]

    def key(self, xyz: Tensor) -> Tensor:
        """The key of each direction's finest cell, as `cell_keys` gives it."""
        axis = xyz.abs().argmax(dim=-1, keepdim=True)
        height = xyz.gather(-1, axis)[:, 0]
        steps = []
        for turn in (1, 2):
            across = xyz.gather(-1, (axis + turn) % 3)[:, 0]
            step = (torch.atan(across / height.abs()) * (4 / torch.pi) + 1) * 2 ** (DEPTH - 1)
            steps.append(step.long().clamp(0, 2**DEPTH - 1))
        first, second = (self.spread[step // PIECE] * PIECE**2 + self.spread[step % PIECE] for step in steps)
        key: Tensor = (2 * axis[:, 0] + (height < 0)) * 4**DEPTH + 2 * first + second
        return key

    def find(self, key: Tensor) -> Tensor:
        """The last cell whose first key is no larger, by halving, (N,)."""
        cell = torch.zeros_like(key)
        for half in self.halvings:
            ahead = cell + half
            is_there = (ahead < len(self.keys)) & (self.keys[ahead.clamp(max=len(self.keys) - 1)] <= key)
            cell = torch.where(is_there, ahead, cell)
        return cell


def is_listed(voronoi: SoftVoronoi) -> bool:
    """Whether a level's lists are exported instead of all its sites."""
    return voronoi.config.num_sites > MOST_DENSE and takes_lists(voronoi)


def has_lists(encoder: LocationEncoder) -> TypeGuard[SphericalVoronoiEncoder]:
    """Whether some level of an encoder is exported by its lists."""
    return isinstance(encoder, SphericalVoronoiEncoder) and any(map(is_listed, encoder.voronois()))
