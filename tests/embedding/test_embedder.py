"""`Embedder`: the same embeddings whatever the batch, the holder of the places, or the precision asked for."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth import Embedder, save
from tessearth.encoder.config import TessellationConfig
from tessearth.errors import ConfigError, CoordinateError, UnknownNameError
from tessearth.sphere.geometry import latlon_to_xyz
from tests.conftest import tiny_encoder

ENCODER = tiny_encoder(dtype=torch.float32)
RNG = np.random.default_rng(0)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LATLON = np.stack([RNG.uniform(-90, 90, 300), RNG.uniform(-180, 180, 300)], axis=1)


def test_embeddings_equal_the_encoders_own() -> None:
    with torch.no_grad():
        expected = ENCODER.double()(torch.from_numpy(LATLON)).numpy()
    ENCODER.float()
    got = Embedder(ENCODER)(LATLON)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 7, 299, 300, 10_000])
def test_the_batch_size_changes_nothing(batch_size: int) -> None:
    np.testing.assert_allclose(Embedder(ENCODER, batch_size=batch_size)(LATLON), Embedder(ENCODER)(LATLON), atol=1e-6)


def test_results_have_the_shape_of_the_places() -> None:
    embed = Embedder(ENCODER)
    assert embed.dim == 18
    assert embed((48.0, 2.0)).shape == (18,)
    assert embed(lat=48.0, lon=2.0).shape == (18,)
    assert embed([(48.0, 2.0)]).shape == (1, 18)
    assert embed(np.zeros((0, 2))).shape == (0, 18)
    assert embed(lat=np.zeros((4, 1)), lon=np.linspace(-170, 170, 5)).shape == (4, 5, 18)
    assert embed(xyz=np.eye(3)).shape == (3, 18)


def test_directions_and_degrees_agree() -> None:
    xyz = latlon_to_xyz(torch.from_numpy(LATLON)).numpy() * 6371.0
    np.testing.assert_allclose(Embedder(ENCODER)(xyz=xyz), Embedder(ENCODER)(LATLON), atol=1e-6)
    with pytest.raises(ConfigError, match="places were given twice"):
        Embedder(ENCODER)(LATLON, xyz=xyz)


def test_longitude_wraps_exactly() -> None:
    turned = LATLON + (0, 360) * (LATLON[:, [1]] < 0)
    np.testing.assert_allclose(Embedder(ENCODER)(turned), Embedder(ENCODER)(LATLON), atol=2e-6)


@pytest.mark.parametrize(
    ("precision", "least_cosine"), [("bfloat16", 0.999), ("float16", 0.99999), ("float64", 0.9999999)]
)
def test_other_precisions_stay_close(precision: str, least_cosine: float) -> None:
    reference = Embedder(ENCODER, precision="float64")(LATLON)
    embed = Embedder(ENCODER, precision=precision)
    got = embed(LATLON)
    assert got.dtype == (np.float64 if precision == "float64" else np.float32)
    assert float((got * reference).sum(axis=1).min()) > least_cosine
    assert embed.encoder.voronois()[0].directions.dtype in (torch.float32, torch.float64)


def test_the_users_encoder_stays_untouched() -> None:
    encoder = tiny_encoder(dtype=torch.float32).train()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    Embedder(encoder, precision="bfloat16")(LATLON)
    assert encoder.training
    assert all(p.requires_grad for p in encoder.parameters())
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, before[name])
        assert tensor.dtype == torch.float32


def test_an_explanation_names_the_parts() -> None:
    explanation = Embedder(ENCODER, batch_size=64).explain(LATLON)
    encoding = ENCODER.encode(torch.from_numpy(LATLON))
    np.testing.assert_allclose(explanation.embedding, encoding.embedding.detach(), atol=1e-6)
    np.testing.assert_allclose(explanation.site_weights, encoding.site_weights.detach(), atol=3e-6)
    np.testing.assert_allclose(explanation.token_attention, encoding.token_attention.detach(), atol=1e-6)
    without = Embedder(tiny_encoder(dtype=torch.float32, num_tokens=0)).explain(LATLON)
    assert without.token_attention is None


def test_support_is_entropy_and_distance_to_the_nearest_site() -> None:
    support = Embedder(ENCODER).support(LATLON)
    weights = ENCODER.double().encode(torch.from_numpy(LATLON)).site_weights.detach().numpy()
    sites = ENCODER.sites().positions.detach().numpy()
    ENCODER.float()
    np.testing.assert_allclose(support.entropy, -(weights * np.log(weights + 1e-300)).sum(axis=1), atol=1e-4)
    nearest = np.arccos(np.clip(latlon_to_xyz(torch.from_numpy(LATLON)).numpy() @ sites.T, -1, 1).max(axis=1))
    np.testing.assert_allclose(support.distance, np.rad2deg(nearest), atol=1e-3)
    assert Embedder(ENCODER).support((48.0, 2.0)).distance.shape == ()


def test_support_falls_with_distance_from_the_sites() -> None:
    """A site speaks alone where it stands and shares with others far away."""
    config = (TessellationConfig(num_sites=3, site_dim=12, sharpness=100.0),)
    encoder = tiny_encoder(tessellations=config, dtype=torch.float32)
    with torch.no_grad():
        encoder.voronois()[0].directions.copy_(latlon_to_xyz(torch.tensor([[0.0, 0.0], [0.0, 40.0], [40.0, 0.0]])))
        encoder.voronois()[0].log_sharpness.fill_(np.log(100.0))
    support = Embedder(encoder).support([(0.0, 0.0), (0.0, 20.0), (-60.0, 20.0)])
    assert support.entropy[0] < 1e-6 < support.entropy[1]
    np.testing.assert_allclose(support.distance[:2], [0, 20], atol=1e-3)
    assert support.distance[2] > 60


def test_nearest_sites_come_nearest_first_and_know_a_site_at_its_place() -> None:
    embed = Embedder(ENCODER)
    sites = ENCODER.sites().positions.detach().numpy()
    nearest = embed.nearest_sites(xyz=sites, count=3)
    assert nearest.site[:, 0].tolist() == list(range(40))
    np.testing.assert_allclose(nearest.distance[:, 0], 0, atol=1e-2)
    assert (np.diff(nearest.distance, axis=1) >= 0).all()
    with pytest.raises(ConfigError, match="count is 41; it must lie between 1 and 40"):
        embed.nearest_sites((0, 0), count=41)


def test_top_k_of_one_is_the_hard_cell() -> None:
    weights = Embedder(ENCODER, top_k=1).explain(LATLON).site_weights
    assert ((weights == 1).sum(axis=1) == 1).all()


def test_an_embedder_survives_pickling() -> None:
    embed = Embedder(ENCODER)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(embed))(LATLON), embed(LATLON))


def test_models_come_by_path(tmp_path: Path) -> None:
    save(ENCODER, tmp_path / "mine")
    np.testing.assert_array_equal(Embedder(tmp_path / "mine")(LATLON), Embedder(ENCODER)(LATLON))


@pytest.mark.parametrize("count", [0, 1, 4, 5, 300])
@pytest.mark.parametrize("options", [{}, {"strategy": "plain"}, {"precision": "float64"}, {"batch_size": 7}])
def test_tensors_give_the_numbers_of_arrays(options: dict[str, object], count: int) -> None:
    embed = Embedder(ENCODER, device="cpu", **options)  # type: ignore[arg-type]
    places = torch.from_numpy(LATLON[:count])
    got = embed.embed_tensor(places)
    np.testing.assert_array_equal(got, embed(LATLON[:count]))
    assert torch.equal(embed.embed_tensor(torch.stack(places.unbind(1)).T), got)  # coordinates that lie apart
    assert not got.is_inference()  # so that training can take it from here
    single = places.float()
    np.testing.assert_array_equal(embed.embed_tensor(single), embed(single.numpy()))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@pytest.mark.parametrize("model", ["wrap", "voronoi"])
def test_tensors_stay_on_the_device(device: str, model: str) -> None:
    for strategy in ("plain", "fast"):
        embed = Embedder(model if model == "wrap" else ENCODER, device=device, strategy=strategy)  # type: ignore[arg-type]
        got = embed.embed_tensor(torch.from_numpy(LATLON))
        assert got.device.type == device
        np.testing.assert_allclose(got.cpu(), embed(LATLON), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (torch.zeros(3, 3), "float32 of shape (3, 3), not floating degrees of shape (N, 2)"),
        (torch.zeros(2), "not floating degrees"),
        (torch.zeros(2, 2, dtype=torch.long), "int64"),
        (torch.tensor([[0.0, 0.0], [139.7, 35.7]]), "row 1 is"),
        (torch.tensor([[float("nan"), 0.0]]), "not finite"),
    ],
)
def test_tensors_that_are_no_places_are_refused(places: torch.Tensor, words: str) -> None:
    with pytest.raises(CoordinateError, match=re.escape(words)):
        Embedder(ENCODER).embed_tensor(places)


def test_auto_is_fast_on_a_cpu_where_the_model_and_the_options_have_such_a_form() -> None:
    assert Embedder(ENCODER, device="cpu").strategy == "fast"
    assert Embedder(ENCODER, device="cpu", strategy="plain").strategy == "plain"
    for plain in (Embedder("wrap", strategy="fast"), Embedder(ENCODER, strategy="fast", top_k=3)):
        assert plain.strategy == "plain"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "quick"}, "strategy is 'quick'; it must be one of auto, plain, fast"),
        ({"precision": "int4"}, "precision is 'int4'; it must be one of float32, float64, bfloat16, float16"),
        ({"device": "quantum"}, "the device 'quantum' cannot be used"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"top_k": -2}, "top_k is -2; it must be at least 1"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Embedder(ENCODER, **options)  # type: ignore[arg-type]
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_model_is_met_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'untrained'"):
        Embedder("untraned")


def test_places_that_may_not_be_written_to_are_embedded_without_a_word() -> None:
    places = np.array([[48.857, 2.352], [-1.292, 36.822]])
    wanted = Embedder(ENCODER)(places)
    places.flags.writeable = False
    np.testing.assert_array_equal(Embedder(ENCODER)(places), wanted)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_first_numbers_are_brought_back_to_unit_length(precision: str) -> None:
    whole = Embedder(ENCODER, precision=precision)(LATLON)[:, :5]  # type: ignore[arg-type]
    expected = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    for batch_size in (None, 70):
        embed = Embedder(ENCODER, precision=precision, dims=5, batch_size=batch_size)  # type: ignore[arg-type]
        assert embed.dim == 5
        np.testing.assert_allclose(embed(LATLON), expected, atol=1e-6)
        np.testing.assert_allclose(embed(LATLON[:2]), expected[:2], atol=1e-6)
        np.testing.assert_allclose(embed.embed_tensor(torch.from_numpy(LATLON)), expected, atol=1e-6)
        np.testing.assert_allclose(embed.explain(LATLON).embedding, expected, atol=1e-6)


def test_dims_are_part_of_the_fingerprint_and_in_range() -> None:
    prints = {Embedder(ENCODER, dims=dims).fingerprint() for dims in (None, 5, 6)}
    assert len(prints) == 3
    for dims in (0, 19, -1):
        with pytest.raises(ConfigError, match=f"dims is {dims}; it must lie between 1 and the embedding's width, 18"):
            Embedder(ENCODER, dims=dims)


def test_rows_without_a_place_are_left_out_or_kept_as_nan() -> None:
    embed = Embedder(ENCODER)
    given = LATLON.copy()
    given[[3, 200]] = np.nan, 500.0
    good = np.delete(LATLON, [3, 200], axis=0)
    with pytest.raises(CoordinateError, match="2 of 300 rows have no usable place"):
        embed(given)
    np.testing.assert_allclose(embed(given, on_bad="skip"), embed(good), atol=1e-6)
    kept = embed(given.reshape(30, 10, 2), on_bad="null")
    assert kept.shape == (30, 10, 18)
    assert np.isnan(kept.reshape(300, 18)[[3, 200]]).all()
    np.testing.assert_allclose(np.delete(kept.reshape(300, 18), [3, 200], axis=0), embed(good), atol=1e-6)
    with pytest.raises(ConfigError, match="on_bad is about degrees"):
        embed(xyz=np.eye(3), on_bad="null")


def test_two_numbers_and_two_arrays_are_places() -> None:
    embed = Embedder(ENCODER)
    np.testing.assert_array_equal(embed(48.8, 2.35), embed((48.8, 2.35)))
    np.testing.assert_array_equal(embed(*LATLON.T), embed(LATLON))
    np.testing.assert_array_equal(embed.support(48.8, 2.35).distance, embed.support((48.8, 2.35)).distance)


def test_one_line_loads_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tessearth
    from tessearth.embedding import embedder

    save(ENCODER, tmp_path / "m.safetensors")
    model = tmp_path / "m.safetensors"
    expected = Embedder(ENCODER)(48.8, 2.35)
    np.testing.assert_allclose(tessearth.embed(48.8, 2.35, model=model), expected, atol=1e-6)
    monkeypatch.setattr(embedder, "load_base", lambda name: pytest.fail(f"{name} was loaded again"))
    np.testing.assert_allclose(tessearth.embed([(48.8, 2.35)], model=model)[0], expected, atol=1e-6)
    table = {"a": [48.8, None], "b": [2.35, 1.0]}
    assert tessearth.embed(table, lat="a", lon="b", on_bad="skip", model=model).shape == (1, 18)
