"""The fast path: the plain path's embeddings up to rounding, whatever the encoder is made of."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tessearth import Embedder
from tessearth.embedding.fast import cpu as fast
from tessearth.embedding.fast import mixture as mixtures
from tessearth.embedding.fast import series as cell_tables
from tessearth.embedding.fast.bounds import FINEST, CubeCells, cells_along_curve, fine_per_cell, sort_places
from tessearth.embedding.fast.cpu import FastVoronoi, for_each_block
from tessearth.embedding.fast.head import FastHead, fold
from tessearth.embedding.fast.mixture import Way
from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import fibonacci_lattice
from tests.conftest import tiny_encoder

SHARP = TessellationConfig(num_sites=900, site_dim=12, sharpness=150.0)
BROAD = TessellationConfig(num_sites=700, site_dim=7, sharpness=15.0, logits="decoupled")
FREE = TessellationConfig(num_sites=600, site_dim=18, sharpness=60.0, on_sphere=False)
LEVEL: dict[str, Any] = {"logits": "chord", "sharpness": "spacing", "sharpness_range": (0.5, 8.0)}
COARSE = TessellationConfig(num_sites=300, site_dim=10, **LEVEL)
FINE = TessellationConfig(num_sites=2000, site_dim=6, background=-6.0, **LEVEL)
FLAT = TessellationConfig(num_sites=800, site_dim=9, sharpness=20.0, logits="chord", background=-1.0)
ENCODERS: dict[str, dict[str, Any]] = {
    "sharp": {"tessellations": (SHARP,)},
    "side by side": {"tessellations": (SHARP, BROAD)},
    "free sites of the output's width": {"tessellations": (FREE,)},
    "no tokens": {"tessellations": (SHARP,), "num_tokens": 0},
    "cosine attention": {"tessellations": (SHARP,), "cosine_attention": True},
    "coordinates": {"tessellations": (SHARP,), "coordinate_octaves": 3},
    "raw": {"tessellations": (SHARP,), "normalize": False},
    "few sites": {},
    "levels": {"tessellations": (COARSE, FINE)},
    "units": {"exit": "units", "leak": 0.2, "num_blocks": 0, "hidden_dim": 40, "output_dim": 40},
    "units behind a trunk": {"exit": "units", "tessellations": (FLAT, FINE), "coordinate_octaves": 2},
    "units of levels": {
        "tessellations": (FLAT, FINE),
        "num_tokens": 0,
        "exit": "units",
        "leak": 0.2,
        "num_blocks": 0,
        "hidden_dim": 40,
        "output_dim": 40,
        "coordinate_octaves": 2,
    },
    "levels, broad and sharp, no tokens": {"tessellations": (FLAT, FINE), "num_tokens": 0, "output_dim": 40},
}
PLACES = torch.cat((fibonacci_lattice(12), torch.nn.functional.normalize(torch.randn(500, 3).double() * 0.02 + 1)))


def build(**changes: Any) -> SphericalVoronoiEncoder:
    return tiny_encoder(dtype=torch.float64, **changes).requires_grad_(False)


def assert_as_good_as_plain(quick: FastVoronoi, encoder: SphericalVoronoiEncoder, xyz: torch.Tensor) -> None:
    """Within 1e-5 of float64, but for what float32 itself loses: sharp sites magnify the rounding of a direction."""
    here = xyz.float()
    exact = encoder.embed_xyz(here.double())
    plain = copy.deepcopy(encoder).float().embed_xyz(here)
    scale = exact.abs().max().clamp(min=1)
    lost = (plain - exact).abs().max() / scale
    assert lost < 1e-4
    assert (quick.embed(here) - exact).abs().max() / scale <= 1e-5 + 2 * lost


WAYS = ("series", "lists", "plain")


def force(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one way whatever it costs."""

    def choose(self: mixtures.TessellationMixture, places: Any) -> Way:
        if way == "series":
            return Way(series=self._series_at(8))
        return Way(lists=self._lists_at(8)) if way == "lists" else Way()

    monkeypatch.setattr(mixtures.TessellationMixture, "choose", choose)
    monkeypatch.setattr(mixtures.TessellationMixture, "_fewest", lambda self, lists: 3)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ENCODERS)
def test_the_fast_path_equals_the_plain_one(kind: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(way, monkeypatch)
    encoder = build(**ENCODERS[kind])
    quick = FastVoronoi(copy.deepcopy(encoder).float(), "float32")
    assert_as_good_as_plain(quick, encoder, PLACES)


def test_series_are_taken_where_places_crowd_and_the_plain_form_where_they_are_few() -> None:
    tessellation = TessellationConfig(num_sites=4096, site_dim=64, sharpness=45.0)
    wide = SphericalVoronoiEncoder(EncoderConfig(tessellations=(tessellation,)), sites="full").requires_grad_(False)
    mixture = FastVoronoi(wide, "float32").mixtures[0]
    crowd = torch.nn.functional.normalize(torch.randn(8000, 3) * 0.02 + torch.tensor([0.3, -0.5, 0.8]))
    assert mixture.choose(sort_places(crowd)).series is not None
    assert mixture.choose(sort_places(crowd[:100])) == Way()


def test_sharp_sites_far_apart_are_taken_by_lists_or_series_never_plainly() -> None:
    tessellation = TessellationConfig(num_sites=4096, site_dim=64, sharpness=3000.0, sharpness_range=(0.5, 1e4))
    mixture = FastVoronoi(build(tessellations=(tessellation,)).float(), "float32").mixtures[0]
    crowd = torch.nn.functional.normalize(torch.randn(8000, 3) * 0.02 + torch.tensor([0.3, -0.5, 0.8]))
    assert mixture.choose(sort_places(crowd)) != Way()


def test_tables_that_do_not_fit_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    force("series", monkeypatch)
    encoder = build(**ENCODERS["sharp"]).float()
    here = PLACES.float()
    expected = FastVoronoi(copy.deepcopy(encoder), "float32").embed(here)
    monkeypatch.setattr(cell_tables, "TABLE_BYTES", 20_000)
    quick = FastVoronoi(copy.deepcopy(encoder), "float32")
    torch.testing.assert_close(quick.embed(here), expected, rtol=0, atol=1e-6)
    series = quick.mixtures[0]._series_at(8)
    assert not series.is_folded
    assert len(series._tables) < len(series.leaves)
    assert series._bytes <= 20_000 or len(series._tables) == 1


@pytest.mark.parametrize("fewest_rows", [False, True])
@pytest.mark.parametrize("kind", ENCODERS)
def test_folding_changes_nothing(kind: str, fewest_rows: bool) -> None:
    encoder = build(**{"output_dim": 40, **ENCODERS[kind]} if "free" not in kind else ENCODERS[kind])
    here = PLACES[:50].float().double()
    weights = [voronoi.weights(here) for voronoi in encoder.voronois()]
    blend = encoder.blend(here, encoder.mix(weights))[0]
    entry = encoder.head.entry
    expected = encoder.head.exit.layer(blend) if entry is None else torch.relu(entry(blend))
    mixture = torch.cat([w @ voronoi.embeddings for w, voronoi in zip(weights, encoder.voronois(), strict=True)], -1)
    folded = fold(encoder, fewest_rows=fewest_rows)
    assert folded.blend_dim <= encoder.config.output_dim
    features = encoder.coordinate_features(here).float() if encoder.config.coordinate_octaves else None
    got = folded.activate(folded.mixture @ mixture.float().T + folded.offset[:, None], features)
    if folded.units is not None:
        got = folded.units.columns.T @ got + folded.units.bias[:, None]
    torch.testing.assert_close(got.T.double(), expected, rtol=1e-4, atol=1e-5)


def test_narrow_sites_need_fewer_rows_of_the_blend_than_it_is_wide() -> None:
    narrow = TessellationConfig(num_sites=30, site_dim=4)
    encoder = build(tessellations=(narrow,), num_tokens=3, output_dim=40)
    assert fold(encoder, fewest_rows=True).blend_dim == 4 + 3
    assert fold(encoder).blend_dim == 40


@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0], ids=["one place", "neighbours", "strangers"])
def test_leaving_out_silent_units_changes_nothing(spread: float) -> None:
    head = build(hidden_dim=200).head.float()
    generator = torch.Generator().manual_seed(0)
    x = torch.relu(torch.randn(200, 1, generator=generator) + spread * torch.randn(200, 300, generator=generator))
    expected = x.T
    for block in head.blocks:
        expected = block(expected)
    torch.testing.assert_close(FastHead(head, "float32")(x.clone()), head.exit(expected), rtol=1e-4, atol=1e-4)


def test_neighbours_follow_each_other_and_cells_nest() -> None:
    places = sort_places(PLACES.float())
    assert (places.fine.diff() >= 0).all()
    assert places.order.sort().values.equal(torch.arange(len(PLACES)))
    for side in (4, 16, FINEST):
        cells = CubeCells(side).find(PLACES.float()[places.order])
        torch.testing.assert_close(cells_along_curve(side)[places.fine // fine_per_cell(side)], cells)


@pytest.mark.parametrize("count", [1, fast.FEW_PLACES, fast.FEW_PLACES + 1, 40])
def test_few_places_equal_many(count: int) -> None:
    encoder = build(**ENCODERS["side by side"])
    quick = FastVoronoi(copy.deepcopy(encoder).float(), "float32")
    assert_as_good_as_plain(quick, encoder, PLACES[:count])


@pytest.mark.parametrize("way", WAYS)
def test_the_same_places_give_the_same_bytes_whatever_came_before(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(way, monkeypatch)
    encoder = build(**ENCODERS["sharp"]).float()
    latlon = np.stack([np.linspace(40, 60, 600), np.linspace(100, 130, 600)], axis=1)
    fresh, used = Embedder(encoder), Embedder(encoder)
    used(latlon[:300])
    used((48.0, 2.0))
    np.testing.assert_array_equal(used(latlon), fresh(latlon))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(used))(latlon), fresh(latlon))


@pytest.mark.parametrize("way", WAYS)
def test_threads_change_no_byte_and_are_left_as_they_were(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    force(way, monkeypatch)
    monkeypatch.setattr(fast, "ROWS_AT_ONCE", 100)
    encoder = build(**ENCODERS["sharp"]).float()
    latlon = np.stack([np.linspace(-80, 80, 2000), np.linspace(-170, 170, 2000)], axis=1)
    alone = Embedder(encoder)(latlon)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = Embedder(encoder)(latlon)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(together, alone)


def test_an_error_in_a_thread_reaches_the_caller() -> None:
    def fail(block: int) -> None:
        raise ConfigError(f"block {block}")

    torch.set_num_threads(2)
    try:
        with pytest.raises(ConfigError, match="block 0"):
            for_each_block(fail, range(4))
    finally:
        torch.set_num_threads(1)


def test_plain_is_the_formula_as_written() -> None:
    encoder = build(**ENCODERS["sharp"]).float()
    latlon = np.stack([np.linspace(-90, 90, 500), np.linspace(-180, 180, 500)], axis=1)
    plain = encoder.eval()(torch.from_numpy(latlon)).numpy()
    exact = Embedder(encoder, device="cpu", strategy="plain")(latlon)
    np.testing.assert_allclose(exact, plain, rtol=0, atol=1e-4)
    assert not np.array_equal(Embedder(encoder, device="cpu")(latlon), exact)
    np.testing.assert_allclose(Embedder(encoder, device="cpu")(latlon), exact, rtol=0, atol=1e-4)


def test_working_memory_does_not_grow_with_the_places() -> None:
    encoder = build(**ENCODERS["sharp"]).float()
    sizes: list[int] = []
    embed = Embedder(encoder, device="cpu")
    inner = embed._engine.embed
    embed._engine.embed = lambda batch: sizes.append(len(batch.values)) or inner(batch)  # type: ignore[method-assign]
    embed(np.zeros((3 * embed.batch_size + 5, 2)))
    assert sizes == [embed.batch_size] * 3 + [5]
    assert embed.batch_size <= 2**16
