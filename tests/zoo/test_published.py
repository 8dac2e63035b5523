"""Published weights: GeoCLIP's own numbers, every layout on fabricated files, and every way a file can be wrong."""

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from tessearth.errors import UnknownNameError, WeightsError
from tessearth.zoo import PUBLISHED, PositionalEncoder, load_baseline, load_published
from tests.zoo import fabricate, slow

GOLDEN = Path(__file__).with_name("golden_geoclip.npz")
LATLON = torch.from_numpy(slow.PLACES)


def outputs(encoder: PositionalEncoder) -> slow.Vector:
    with torch.no_grad():
        return encoder.double()(LATLON).numpy()


def written(tmp_path: Path, content: object, name: str = "weights.pth") -> Path:
    torch.save(content, tmp_path / name)
    return tmp_path / name


@pytest.mark.skipif(importlib.util.find_spec("geoclip") is None, reason="the geoclip package is not installed")
def test_geoclip_gives_its_packages_own_outputs() -> None:
    """The golden file holds what geoclip 1.3.0 itself returns: 32 of its 512 numbers, and two sums over all of them."""
    golden = np.load(GOLDEN)
    encoder = load_published("geoclip")
    assert encoder.output_dim == 512
    with torch.no_grad():
        ours = encoder(torch.from_numpy(golden["latlon"])).numpy()
    np.testing.assert_allclose(ours[:, :32], golden["first_dims"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), golden["length"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours.mean(axis=1), golden["mean"], rtol=0, atol=1e-6)


def test_the_golden_places_are_worth_comparing() -> None:
    golden = np.load(GOLDEN)
    assert golden["first_dims"].shape == (len(golden["latlon"]), 32)
    assert len(golden["latlon"]) >= 50
    assert golden["first_dims"].std() > 1e-3
    assert np.abs(golden["latlon"][:, 0]).max() == 90
    assert golden["latlon"][:, 1].min() == -180


def reference_geoclip(w: slow.Weights, lat: float, lon: float) -> slow.Vector:
    total = np.zeros(5)
    for i in range(3):
        x = slow.fourier_features(lat, lon, w[f"LocEnc{i}.capsule.0.b"])
        for entry in (1, 3, 5):
            x = slow.relu(slow.linear(x, w, f"LocEnc{i}.capsule.{entry}"))
        total += slow.linear(x, w, f"LocEnc{i}.head.0")
    return total


@pytest.mark.parametrize("name", ["geoclip", "taxabind"])
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_geoclips_layout(tmp_path: Path, name: str, suffix: str) -> None:
    tensors, path = fabricate.geoclip(), tmp_path / f"weights.{suffix}"
    torch.save(tensors, path) if suffix == "pth" else safetensors.torch.save_file(tensors, path)
    encoder, w = load_published(name, path), fabricate.plain(tensors)
    assert (encoder.name, encoder.output_dim, encoder.training) == ("fourier", 5, False)
    expected = [reference_geoclip(w, lat, lon) for lat, lon in slow.PLACES]
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-10)


def test_the_whole_geoclip_model_is_read_without_its_image_side(tmp_path: Path) -> None:
    whole = fabricate.geoclip("location_encoder.")
    whole |= {"image_encoder.mlp.0.weight": torch.zeros(2, 2), "logit_scale": torch.tensor(3.7)}
    ours = outputs(load_published("geoclip", written(tmp_path, whole)))
    alone = outputs(load_published("geoclip", written(tmp_path, fabricate.geoclip(), "alone.pth")))
    np.testing.assert_array_equal(ours, alone)


def test_satclips_layout_in_its_own_angles(tmp_path: Path) -> None:
    content = fabricate.satclip(harmonics_calculation="analytic")
    encoder = load_published("satclip", written(tmp_path, content, "satclip.ckpt"))
    assert (encoder.name, encoder.output_dim, encoder.position.output_dim) == ("harmonics-siren", 4, 25)
    w, name, expected = fabricate.plain(content["state_dict"]), "model.location.nnet.", []
    for lat, lon in slow.PLACES:
        x = slow.harmonics(lat, lon, 5, satclip=True)
        x = np.sin(30 * slow.linear(x, w, f"{name}layers.0"))
        x = np.sin(slow.linear(x, w, f"{name}layers.1"))
        expected.append(slow.linear(x, w, f"{name}last_layer"))
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-6)  # signs are folded in in float32


def reference_sinr(w: slow.Weights, lat: float, lon: float) -> slow.Vector:
    x = slow.relu(slow.linear(np.array(slow.wrap(lat, lon)), w, "feats.0"))
    for block in (2, 3, 4, 5):
        x = x + slow.relu(slow.linear(slow.relu(slow.linear(x, w, f"feats.{block}.w1")), w, f"feats.{block}.w2"))
    return x


@pytest.mark.parametrize(("name", "params"), [("sinr", {}), ("csp", {"spa_enc_type": "geo_net"})])
def test_sinrs_layout_and_csps_of_the_same_shape(tmp_path: Path, name: str, params: dict[str, str]) -> None:
    content = fabricate.sinr(**params)
    encoder, w = load_published(name, written(tmp_path, content)), fabricate.plain(content["state_dict"])
    assert (encoder.name, encoder.output_dim) == ("wrap-residual", 8)
    expected = [reference_sinr(w, lat, lon) for lat, lon in slow.PLACES]
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", ["gelu", "leakyrelu", "relu"])
def test_csps_layout(tmp_path: Path, activation: str) -> None:
    content = fabricate.csp(activation)
    encoder = load_published("csp", written(tmp_path, content, "model.pth.tar"))
    assert (encoder.name, encoder.output_dim) == ("grid-feedforward", 5)
    act = {"gelu": slow.gelu, "leakyrelu": slow.leaky, "relu": slow.relu}[activation]
    w, name, expected = fabricate.plain(content["state_dict"]), "spa_enc.ffn.layers.", []
    for lat, lon in slow.PLACES:
        x = act(slow.linear(np.array(slow.grid(lat, lon, 6, 0.5, 360.0)), w, f"{name}0.linear"))
        x = slow.norm(x, w, f"{name}0.layernorm")
        expected.append(act(slow.linear(x, w, f"{name}1.linear")))
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-10)


FILES: dict[str, Callable[[], Any]] = {
    "geoclip": fabricate.geoclip,
    "taxabind": fabricate.geoclip,
    "satclip": fabricate.satclip,
    "sinr": fabricate.sinr,
    "csp": fabricate.csp,
}
EVERY_TENSOR = [
    (name, key)
    for name in ("geoclip", "satclip", "sinr", "csp")
    for key in FILES[name]().get("state_dict", FILES[name]())
    if not key.startswith(("class_emb", "model.visual", "model.logit_scale"))
]


def tensors_of(content: dict[str, Any]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = content.get("state_dict", content)
    return tensors


def refusal(name: str, path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load_published(name, path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_every_published_set_has_a_fabricated_file() -> None:
    assert set(FILES) == set(PUBLISHED)
    assert [name for name, card in PUBLISHED.items() if card.verified] == ["geoclip"]  # the one with a golden file


@pytest.mark.parametrize(("name", "key"), EVERY_TENSOR)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str, key: str) -> None:
    content = FILES[name]()
    del tensors_of(content)[key]
    said = refusal(name, written(tmp_path, content))
    assert said.endswith(f"missing tensor {key}"), said


@pytest.mark.parametrize("name", FILES)
def test_a_surplus_tensor_is_refused_by_name(tmp_path: Path, name: str) -> None:
    content = FILES[name]()
    tensors_of(content)["something.else"] = torch.zeros(2)
    assert "surplus tensor something.else" in refusal(name, written(tmp_path, content))


@pytest.mark.parametrize(("name", "key"), [pair for pair in EVERY_TENSOR if pair[1].endswith("bias")])
def test_a_misshapen_or_infinite_tensor_is_refused_by_name(tmp_path: Path, name: str, key: str) -> None:
    content = FILES[name]()
    tensors_of(content)[key] = torch.zeros(3)
    assert f"tensor {key} has shape (3,)" in refusal(name, written(tmp_path, content))
    content = FILES[name]()
    tensors_of(content)[key][0] = torch.nan
    assert f"tensor {key} holds values that are not finite" in refusal(name, written(tmp_path, content))


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    other = "sinr" if name != "sinr" else "geoclip"
    refusal(name, written(tmp_path, FILES[other]()))
    refusal(name, written(tmp_path, {"epoch": 3}))
    assert "holds a list" in refusal(name, written(tmp_path, [1, 2]))
    assert "there is no weights file" in refusal(name, tmp_path / "nowhere.pth")
    (tmp_path / "text.pth").write_text("these are not weights at all")
    refusal(name, tmp_path / "text.pth")
    (tmp_path / "empty.pth").write_bytes(b"")
    refusal(name, tmp_path / "empty.pth")
    whole = written(tmp_path, FILES[name]()).read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(name, tmp_path / "cut.pth")


class Intruder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_file_is_not_run(tmp_path: Path, legacy: bool) -> None:
    trace, path = tmp_path / "it ran", tmp_path / "weights.pth"
    content = {**fabricate.geoclip(), "intruder": Intruder(trace)}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    assert "could run code" in refusal("geoclip", path)
    path.write_bytes(pickle.dumps(Intruder(trace)))
    refusal("geoclip", path)
    assert not trace.exists()


WRONG_WORDS = [
    ("satclip", {"le_type": "grid"}, "its le_type is 'grid'"),
    ("satclip", {"pe_type": "fcnet"}, "its pe_type is 'fcnet'"),
    ("satclip", {"harmonics_calculation": "discretized"}, "its harmonics_calculation is 'discretized'"),
    ("sinr", {"input_enc": "sin_cos_env"}, "needs more than coordinates"),
    ("sinr", {"inputs": 24}, "tensor feats.0.weight has shape (8, 24), its model needs (8, 4)"),
    ("csp", {"spa_enc_type": "sphereC"}, "only gridcell and geo_net"),
    ("csp", {"activation": "swish"}, "its activation is 'swish'"),
    ("csp", {"min_radius": -1}, "its params cannot be used"),
    ("csp", {"frequency_num": 7}, "tensor spa_enc.ffn.layers.0.linear.weight has shape (8, 24)"),
]


@pytest.mark.parametrize(("name", "said", "answer"), WRONG_WORDS)
def test_a_file_that_describes_another_model_is_refused(
    tmp_path: Path, name: str, said: dict[str, Any], answer: str
) -> None:
    assert answer in refusal(name, written(tmp_path, FILES[name](**said)))  # type: ignore[call-arg]


def test_satclip_harmonics_must_be_whole_degrees(tmp_path: Path) -> None:
    content = fabricate.satclip()
    tensors_of(content)["model.location.nnet.layers.0.weight"] = torch.zeros(7, 26)
    assert "takes 26 features" in refusal("satclip", written(tmp_path, content))


def test_geoclip_sets_of_unequal_size_are_refused(tmp_path: Path) -> None:
    tensors = fabricate.geoclip() | {"LocEnc1.capsule.0.b": torch.zeros(5, 2)}
    assert "tensor LocEnc1.capsule.0.b has shape (5, 2)" in refusal("geoclip", written(tmp_path, tensors))


@pytest.mark.parametrize("name", [name for name in FILES if name != "geoclip"])
def test_without_a_path_the_error_says_which_file_is_needed(name: str) -> None:
    with pytest.raises(WeightsError, match="name the path of"):
        load_published(name)


def test_geoclip_is_found_in_its_package_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "geoclip" / "model" / "weights"
    folder.mkdir(parents=True)
    (tmp_path / "geoclip" / "__init__.py").write_text("raise RuntimeError('the package was run')")
    torch.save(fabricate.geoclip(), folder / "location_encoder_weights.pth")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_published("geoclip").output_dim == 5
    (folder / "location_encoder_weights.pth").unlink()
    with pytest.raises(WeightsError, match="or pip install --no-deps geoclip"):
        load_published("geoclip")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'satclip'"):
        load_published("satclipp")


@pytest.mark.parametrize("name", FILES)
def test_published_weights_can_be_trained_on_and_saved(tmp_path: Path, name: str) -> None:
    encoder = load_published(name, written(tmp_path, FILES[name]())).train()
    encoder(LATLON.float()).sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    encoder.eval().save(tmp_path / "again.safetensors")
    np.testing.assert_array_equal(outputs(load_baseline(tmp_path / "again.safetensors")), outputs(encoder))
