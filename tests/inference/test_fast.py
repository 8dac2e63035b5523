"""The fast path: the plain path's embeddings up to rounding, whatever the encoder is made of."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from tessearth import Embedder
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.geometry import fibonacci_lattice
from tessearth.inference import fast
from tessearth.inference.fast import FastVoronoi
from tests.conftest import tiny_encoder

SHARP = TessellationConfig(num_sites=900, site_dim=12, sharpness=400.0)
BROAD = TessellationConfig(num_sites=700, site_dim=7, sharpness=15.0, logits="decoupled")
FREE = TessellationConfig(num_sites=600, site_dim=18, sharpness=200.0, on_sphere=False)
ENCODERS: dict[str, dict[str, Any]] = {
    "sharp": {"tessellations": (SHARP,)},
    "side by side": {"tessellations": (SHARP, BROAD)},
    "free sites of the output's width": {"tessellations": (FREE,)},
    "no tokens": {"tessellations": (SHARP,), "num_tokens": 0},
    "cosine attention": {"tessellations": (SHARP,), "cosine_attention": True},
    "coordinates": {"tessellations": (SHARP,), "coordinate_octaves": 3},
    "raw": {"tessellations": (SHARP,), "normalize": False},
    "few sites": {},
}
PLACES = torch.cat((fibonacci_lattice(1500), torch.nn.functional.normalize(torch.randn(1500, 3).double() * 0.05 + 1)))


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


@pytest.fixture
def cheap_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs by which lists pay at the sizes of tests."""
    monkeypatch.setattr(fast.Cost, "cell", 0.0)
    monkeypatch.setattr(fast.Cost, "bound", 0.0)
    monkeypatch.setattr(fast.Cost, "gathered", 1.0)


@pytest.mark.usefixtures("cheap_cells")
@pytest.mark.parametrize("kind", ENCODERS)
def test_the_fast_path_equals_the_plain_one(kind: str) -> None:
    encoder = build(**ENCODERS[kind])
    quick = FastVoronoi(copy.deepcopy(encoder).float(), "float32")
    assert_as_good_as_plain(quick, encoder, PLACES)
    if kind == "sharp":
        assert quick.mixtures[0].group(PLACES.float()) is not None


@pytest.mark.usefixtures("cheap_cells")
@pytest.mark.parametrize("folded", [True, False])
def test_folding_changes_nothing(folded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FastVoronoi, "_folding_pays", lambda self: folded)
    for kind in ("side by side", "free sites of the output's width", "no tokens"):
        encoder = build(**ENCODERS[kind])
        quick = FastVoronoi(copy.deepcopy(encoder).float(), "float32")
        assert_as_good_as_plain(quick, encoder, PLACES)


@pytest.mark.parametrize("count", [1, fast.FEW_PLACES, fast.FEW_PLACES + 1, 40])
def test_few_places_equal_many(count: int) -> None:
    encoder = build(**ENCODERS["side by side"])
    quick = FastVoronoi(copy.deepcopy(encoder).float(), "float32")
    assert_as_good_as_plain(quick, encoder, PLACES[:count])


@pytest.mark.usefixtures("cheap_cells")
def test_the_same_places_give_the_same_bytes_whatever_came_before() -> None:
    encoder = build(**ENCODERS["sharp"]).float()
    latlon = np.stack([np.linspace(-80, 80, 3000), np.linspace(-700, 700, 3000) % 360 - 180], axis=1)
    fresh, used = Embedder(encoder), Embedder(encoder)
    used(latlon[:700])
    used((48.0, 2.0))
    np.testing.assert_array_equal(used(latlon), fresh(latlon))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(used))(latlon), fresh(latlon))


def test_exact_is_the_formula_as_written() -> None:
    encoder = build(**ENCODERS["sharp"]).float()
    latlon = np.stack([np.linspace(-90, 90, 500), np.linspace(-180, 180, 500)], axis=1)
    plain = encoder.eval()(torch.from_numpy(latlon)).numpy()
    exact = Embedder(encoder, exact=True)(latlon)
    np.testing.assert_allclose(exact, plain, rtol=0, atol=1e-4)
    assert not np.array_equal(Embedder(encoder)(latlon), exact)
    np.testing.assert_allclose(Embedder(encoder)(latlon), exact, rtol=0, atol=1e-4)


def test_broad_tessellations_take_the_dense_form() -> None:
    encoder = build(tessellations=(TessellationConfig(num_sites=800, site_dim=12, sharpness=3.0),)).float()
    assert FastVoronoi(encoder, "float32").mixtures[0].group(PLACES.float()) is None


def test_working_memory_does_not_grow_with_the_places() -> None:
    encoder = build(**ENCODERS["sharp"]).float()
    sizes: list[int] = []
    embed = Embedder(encoder)
    inner = embed._places.embed
    embed._places.embed = lambda batch: sizes.append(len(batch.values)) or inner(batch)  # type: ignore[method-assign]
    embed(np.zeros((3 * embed.batch_size + 5, 2)))
    assert sizes == [embed.batch_size] * 3 + [5]
    assert embed.batch_size <= 2**15


@pytest.mark.parametrize("options", [{"exact": True}, {"top_k": 3}])
def test_int8_refuses_the_plain_path(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="int8 is for the fast path on a CPU"):
        Embedder(tiny_encoder(dtype=torch.float32), precision="int8", **options)
