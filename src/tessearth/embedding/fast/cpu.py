"""The fast path of a Voronoi encoder on a CPU: neighbours together, short series for sites, a head that skips zeros.

Equal to the plain path up to rounding and the epsilon of `bounds` and `series`.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import (
    EPSILON,
    SortedPlaces,
    read_logits,
    read_rows,
    sort_by_key,
    sort_places,
)
from tessearth.embedding.fast.head import FastHead, Precision, fold
from tessearth.embedding.fast.listed import ListedMixture, ListedSites, takes_lists
from tessearth.embedding.fast.mixture import TessellationMixture, Way
from tessearth.encoder import SoftVoronoi, SphericalVoronoiEncoder, mix_season
from tessearth.sphere import cell_key

Floats = npt.NDArray[np.float32]

ROWS_AT_ONCE = 512
"""Places whose activations are held at once: they stay in a CPU's second cache, and neighbours share silent units."""
LISTED_AT_ONCE = 1024
"""The same where sites are listed, which takes many small steps."""
ENDED_AT_ONCE = 128
"""Places whose units are held at once, which are as many as the embedding's numbers."""
FEW_PLACES = 4
"""Up to this many places are embedded one by one."""
LIGHT = (128.0, 512.0)
"""How many times less than epsilon a site weighs that one tries to leave out, the boldest try first."""
ROUNDED_SUM = 0.9
"""How much of epsilon may be left out: float32 shares add up to one except for their rounding."""
FULL_ABOVE = 0.7
"""The share of units above zero beyond which a layer is multiplied whole."""
START = torch.zeros(1, dtype=torch.int64)
ZERO = np.float32(0)


class FastVoronoi:
    """A Voronoi encoder on a CPU, prepared for speed: directions in, embeddings out, as `embed_xyz` gives them."""

    def __init__(self, encoder: SphericalVoronoiEncoder, precision: Precision) -> None:
        """`encoder` is the caller's own copy, in float32 on the CPU and in evaluation mode; its head may be rounded."""
        self.encoder, self.config = encoder, encoder.config
        self.folded = fold(encoder, fewest_rows=True)
        widths = [voronoi.config.site_dim for voronoi in encoder.voronois()]
        maps = torch.split(self.folded.mixture, widths, dim=1)
        self.mixtures = [
            prepare_mixture(voronoi, onwards.contiguous())
            for voronoi, onwards in zip(encoder.voronois(), maps, strict=True)
        ]
        self.head = FastHead(encoder.head, precision, self.folded.units)
        self.ended_at_once = ENDED_AT_ONCE if self.config.ends_in_units else LISTED_AT_ONCE
        self._one: OnePlace | None = None

    def embed(self, xyz: Tensor, season: Tensor | None = None) -> Tensor:
        """(N, 3) in float32 -> (N, D), over the year or at shares of it, (N,)."""
        few = self.embed_few(xyz.numpy()) if 0 < len(xyz) <= FEW_PLACES and season is None else None
        return self._embed_many(xyz, season) if few is None else torch.from_numpy(few)

    def embed_few(self, xyz: Floats) -> Floats | None:
        """One by one, (n, 3) in float32 -> (n, D); None where the head computes in half precision."""
        if not self.head.is_wide:
            return None
        if self._one is None:
            self._one = OnePlace(self)
        return np.stack([self._one.embed(here) for here in xyz])

    def _embed_many(self, xyz: Tensor, season: Tensor | None = None) -> Tensor:
        mixtures = self.mixtures if season is None else self.seasonal
        is_listed = any(isinstance(mixture, ListedMixture) for mixture in self.mixtures)
        places, at_once = (sort_by_key(xyz), LISTED_AT_ONCE) if is_listed else (sort_places(xyz), ROWS_AT_ONCE)
        ways = [Way() if isinstance(m, ListedMixture) else m.choose(places) for m in mixtures]
        sorted_xyz = xyz.index_select(0, places.order)
        when = None if season is None else season.index_select(0, places.order)
        self._list(places)
        order = places.order.numpy()
        rows = np.empty((len(xyz), self.config.output_dim), np.float32)  # numpy asks for large pages: 3 times as fast

        def embed_block(start: int) -> None:
            part = slice(start, start + at_once)
            then = None if when is None else when[part]
            x, which = self._activate(sorted_xyz[part], places.part(part), ways, then), order[part]
            for first in range(0, x.shape[1], self.ended_at_once):
                here = slice(first, first + self.ended_at_once)
                raw = self.head(x[:, here])
                if self.config.normalize:
                    raw.div_(torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp_(min=1e-12))
                rows[which[here]] = raw.numpy()  # numpy puts rows away three times as fast as torch

        for_each_block(embed_block, range(0, len(xyz), at_once))
        return torch.from_numpy(rows)

    def _list(self, places: SortedPlaces) -> None:
        """Make the lists that places need and that are not made yet."""
        listed = [mixture.sites for mixture in self.mixtures if isinstance(mixture, ListedMixture)]
        jobs = [(sites, region) for sites in listed for region in sites.regions.missing(places.keys)]
        for_each_block(lambda job: jobs[job][0].regions.make(jobs[job][1]), range(len(jobs)))

    def _activate(self, xyz: Tensor, places: SortedPlaces, ways: list[Way], season: Tensor | None) -> Tensor:
        """The head's first activation, (H, N)."""
        mixed = self.folded.offset[:, None].repeat(1, len(xyz))  # a copy even for one place: what follows writes to it
        for mixture, way in zip(self.mixtures if season is None else self.seasonal, ways, strict=True):
            if isinstance(mixture, ListedMixture):
                mixture.add_to(mixed, xyz, places.keys, season)
            elif isinstance(mixture, SeasonalMixture) and season is not None:
                mixture.add_to(mixed, xyz, places.fine, way, season)
            elif isinstance(mixture, TessellationMixture):
                mixture.add_to(mixed, xyz, places.fine, way)
        features = self.encoder.coordinate_features(xyz) if self.config.coordinate_octaves else None
        return self.folded.activate(mixed, features)

    @functools.cached_property
    def seasonal(self) -> "list[TessellationMixture | ListedMixture | SeasonalMixture]":
        """The mixtures at the seasons of places."""
        pairs = zip(self.encoder.voronois(), self.mixtures, strict=True)
        return [
            SeasonalMixture(voronoi, year.onwards)
            if isinstance(year, TessellationMixture) and voronoi.config.harmonics
            else year
            for voronoi, year in pairs
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "seasonal"} | {"_one": None}


def prepare_mixture(voronoi: SoftVoronoi, onwards: Tensor) -> TessellationMixture | ListedMixture:
    """A tessellation in the form that suits its sites, with the map (W, S) behind its mixture."""
    if takes_lists(voronoi):
        return ListedMixture(ListedSites(voronoi), onwards)
    return TessellationMixture(read_logits(voronoi), read_rows(voronoi), onwards)


class SeasonalMixture:
    """A tessellation without lists whose sites have cycles, at the seasons of places."""

    def __init__(self, voronoi: SoftVoronoi, onwards: Tensor) -> None:
        self.width, self.onwards = voronoi.config.site_dim, onwards
        rows = read_rows(voronoi, cycles=True)
        self.inner = TessellationMixture(read_logits(voronoi), rows, torch.eye(rows.shape[1]))

    def choose(self, places: SortedPlaces) -> Way:
        """The cheapest way for a batch."""
        return self.inner.choose(places)

    def add_to(self, mixed: Tensor, xyz: Tensor, fine: Tensor, way: Way, season: Tensor) -> None:
        """Add the mixture at each direction, (N, 3), and share of the year, (N,), to `mixed`, (W, N)."""
        numbers = torch.zeros(len(self.inner.onwards), len(xyz))
        self.inner.add_to(numbers, xyz, fine, way)
        mixed.addmm_(self.onwards, mix_season(numbers.T, self.width, season).T)


def for_each_block(work: Callable[[int], None], blocks: Sequence[int]) -> None:
    """Call `work` with every block, on as many threads as torch was given; each block writes to its own memory."""
    allowed = torch.get_num_threads()
    if min(allowed, len(blocks)) < 2:
        for block in blocks:
            work(block)
        return

    def work_in_thread(block: int) -> None:
        with torch.inference_mode():  # a setting of each thread
            work(block)

    try:
        with ThreadPoolExecutor(min(allowed, len(blocks)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work_in_thread, blocks):
                pass
    finally:
        torch.set_num_threads(allowed)  # threads that start later take what was set last


class OnePlace:
    """The fast path for one direction, without a batch's fixed costs; it shares tensors with the path for many."""

    def __init__(self, many: FastVoronoi) -> None:
        self.mixtures = [
            OneByLists(mixture) if isinstance(mixture, ListedMixture) else OneByAll(mixture)
            for mixture in many.mixtures
        ]
        self.is_listed = any(isinstance(mixture, ListedMixture) for mixture in many.mixtures)
        self.folded, self.bias, self.normalize = many.folded, many.folded.bias.numpy(), many.config.normalize
        octaves = np.arange(many.config.coordinate_octaves, dtype=np.float32)
        self.octaves = np.float32(np.pi) * np.exp2(octaves)[:, None]
        self.head, self.centre = many.head, many.head.centre.numpy()

    def embed(self, here: Floats) -> Floats:
        """A direction's embedding, (3,) -> (D,)."""
        x = self._enter(self._mix(here), here)
        for first, second in self.head.blocks:
            x = x + _relu(_times(_relu(_times(x, *first)), *second))
        raw = _times(x, self.head.exit, self.head.bias)
        if self.head.leak is not None:
            raw = np.maximum(raw, np.float32(self.head.leak) * raw) - self.centre
        return raw / max(np.sqrt(raw @ raw), np.float32(1e-12)) if self.normalize else raw

    def _mix(self, here: Floats) -> Tensor:
        """The mixed rows, (W,)."""
        mixed, key = self.folded.offset, cell_key(here.tolist()) if self.is_listed else 0
        for mixture in self.mixtures:
            mixed = torch.addmv(mixed, mixture.onwards, mixture.mix(here, key))
        return mixed

    def _enter(self, mixed: Tensor, here: Floats) -> Floats:
        """What `Folded.activate` computes, for one place."""
        folded, tokens = self.folded, self.folded.num_tokens
        width = folded.blend_dim
        both = mixed[tokens : tokens + width + folded.hidden_dim]
        if tokens:
            numbers = mixed.numpy()
            logits = numbers[:tokens]
            if folded.compares_directions:
                logits = logits / max(float(np.linalg.norm(numbers[tokens + len(both) :])), 1e-12)
            attention = np.exp(logits - logits.max())
            both = torch.addmv(both, folded.tokens, torch.from_numpy(attention / attention.sum()))
        numbers = both.numpy()
        blend = numbers[:width]
        scale = np.float32(np.sqrt(float(blend @ blend) / folded.spread + folded.eps))
        angles = (here * self.octaves).ravel()  # as in `SphericalVoronoiEncoder.coordinate_features`
        features = np.concatenate((np.sin(angles), np.cos(angles)))
        if folded.units is not None:
            return np.concatenate((blend / scale, features))
        entry: Floats = numbers[width:] / scale + self.bias
        if folded.coordinates is not None:
            entry = torch.addmv(torch.from_numpy(entry), folded.coordinates, torch.from_numpy(features)).numpy()
        return _relu(entry)


class OneByAll:
    """The mixture at one direction by the heaviest of all sites: the others weigh at most epsilon together."""

    def __init__(self, many: TessellationMixture) -> None:
        self.rows, self.onwards, self.offsets = many.rows, many.onwards, many.logits.offsets
        self.slopes = many.logits.slopes.T.contiguous().T
        """(K, 3), the numbers of one coordinate contiguous in memory."""

    def mix(self, here: Floats, key: int) -> Tensor:
        """(3,) -> (S,)."""
        weights = torch.softmax(torch.addmv(self.offsets, self.slopes, torch.from_numpy(here)), dim=0).numpy()
        return _sum_rows(self.rows, *self._heaviest(weights))

    def _heaviest(self, weights: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        for light in LIGHT:
            kept = (weights > EPSILON / light).nonzero()[0]
            shares = weights[kept]
            held = shares.sum(dtype=np.float64)
            if held >= 1 - ROUNDED_SUM * EPSILON:
                return kept, shares / np.float32(held)
        return np.arange(len(weights)), weights


class OneByLists:
    """The mixture at one direction by the sites of its cell."""

    def __init__(self, many: ListedMixture) -> None:
        self.sites, self.rows, self.onwards = many.sites, many.sites.rows, many.onwards

    def mix(self, here: Floats, key: int) -> Tensor:
        """(3,) in the cell with this key -> (S,)."""
        return _sum_rows(self.rows, *self.sites.weigh_one(here, key))


def _times(x: Floats, rows: Tensor, bias: Tensor) -> Floats:
    """X @ rows + bias, (n,), (n, m), (m,) -> (m,), by the units that are not zero where those are clearly fewer."""
    active = x.nonzero()[0]
    if len(active) > FULL_ABOVE * len(x):
        # By torch: numpy's products start threads of their own, which torch's then wait for.
        return torch.addmv(bias, rows.T, torch.from_numpy(x)).numpy()
    return _sum_rows(rows, active, x[active]).add_(bias).numpy()


def _sum_rows(rows: Tensor, which: npt.NDArray[np.integer], shares: Floats) -> Tensor:
    """Some rows of a table (n, m), each times its share, added up without a copy of them: (m,)."""
    bag = torch.embedding_bag(rows, torch.from_numpy(which), START, False, 0, False, torch.from_numpy(shares))
    return bag[0][0]


def _relu(x: Floats) -> Floats:
    return np.maximum(x, ZERO, out=x)
