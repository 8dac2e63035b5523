"""What a weights file says of itself: checksums, sizes, settings; and what is said when it is not so."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tessearth.encoder import official
from tessearth.encoder.weights import OFFICIAL_CHECKSUM, load_weights, read_weights, save
from tessearth.errors import OutputError, WeightsError
from tests.conftest import tiny_encoder

OFFICIAL = Path(__file__).parents[1] / "reference" / "official" / "plain"


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Rewrite the metadata of a safetensors file, its tensors as they are."""
    header, tensors = split(path.read_bytes())
    change(header["__metadata__"])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + tensors)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    save(tiny_encoder(), path, provenance={"made": "here"})
    return path


def refused(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load_weights(path)
    assert "\n" not in str(caught.value)
    assert str(path.parent) in str(caught.value)
    return str(caught.value)


def test_a_changed_story_of_its_making_is_noticed(ours: Path) -> None:
    edit(ours, lambda about: about.update(provenance=about["provenance"].replace("here", "there")))
    assert "its provenance was changed" in refused(ours)


def test_files_from_before_the_story_had_a_checksum_are_read(ours: Path) -> None:
    edit(ours, lambda about: about.pop("provenance_sha256"))
    assert read_weights(ours).provenance["made"] == "here"


def test_a_story_that_is_there_counts_only_with_its_checksum(ours: Path) -> None:
    edit(ours, lambda about: about.pop("provenance"))
    assert "its provenance was changed" in refused(ours)


@pytest.mark.parametrize(("version", "said"), [(None, "is of format unknown"), ("0", "is of format 0")])
def test_another_format_is_named(ours: Path, version: str | None, said: str) -> None:
    edit(ours, lambda about: about.pop("format_version") if version is None else about.update(format_version=version))
    assert said in refused(ours)
    assert "reads format 1; upgrade" in refused(ours)


def test_a_file_without_its_checksum_is_refused(ours: Path) -> None:
    edit(ours, lambda about: about.pop("sha256"))
    assert "does not match its own checksum" in refused(ours)


def resealed(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """A file of ours whose checksum is right for whatever it says: what is left to check is whether it makes sense."""
    from tessearth.encoder.weights import FORMAT, FORMAT_VERSION, _header

    weights = read_weights(path)
    changed = {**weights.config.to_dict(), **config}
    about = {"format": FORMAT, "format_version": FORMAT_VERSION, "config": changed, "provenance": {}}
    state = weights.state if tensors is None else tensors
    path.write_bytes(safetensors.torch.save(state, _header(about, state)))
    return path


def test_sizes_that_no_tensor_has_are_refused_before_anything_is_made_of_them(ours: Path) -> None:
    said = refused(resealed(ours, {"hidden_dim": 2**40}))
    assert f"its configuration asks for sizes up to {2**40} and 2 blocks" in said
    assert "tensors have sizes up to 40" in said
    assert refused(resealed_again(ours, {}, hidden_dim=2**40)).endswith("its 0 tensors have sizes up to 0")
    assert "and 10000 blocks; its" in refused(resealed_again(ours, num_blocks=10_000))


def resealed_again(path: Path, tensors: dict[str, torch.Tensor] | None = None, **config: Any) -> Path:
    save(tiny_encoder(), path)
    return resealed(path, config, tensors)


@pytest.mark.parametrize("name", ["output_dim", "hidden_dim", "num_tokens", "coordinate_octaves"])
def test_every_width_is_held_to_the_tensors_there_are(ours: Path, name: str) -> None:
    assert f"asks for sizes up to {2**20 + 1}" in refused(resealed(ours, {name: 2**20 + 1}))


def test_an_ordinary_wrong_size_is_named_by_its_tensor(ours: Path) -> None:
    said = refused(resealed(ours, {"hidden_dim": 23}))
    assert "tensor head.blocks.0.first.bias has shape (22,), its model needs (23,)" in said


def test_of_several_missing_tensors_one_is_named_and_the_others_counted(ours: Path) -> None:
    state = read_weights(ours).state
    less = {name: tensor for name, tensor in state.items() if not name.startswith("norm.")}
    assert refused(resealed(ours, {}, less)).endswith("missing tensor norm.bias (and 1 more)")
    save(tiny_encoder(), ours)
    assert refused(resealed(ours, {}, {**state, "a": torch.zeros(1)})).endswith("surplus tensor a")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_value_that_is_no_number_is_enough(ours: Path, value: float) -> None:
    state = read_weights(ours).state
    state["norm.bias"][3] = value
    assert "tensor norm.bias holds values that are not finite numbers" in refused(resealed(ours, {}, state))


def test_whole_numbers_are_no_weights(ours: Path) -> None:
    state = read_weights(ours).state
    state["norm.bias"] = state["norm.bias"].long()
    assert "tensor norm.bias holds values that are not finite numbers" in refused(resealed(ours, {}, state))


def test_a_configuration_that_cannot_be_read_is_said(ours: Path) -> None:
    assert "has a header that cannot be read: num_tokens is -1" in refused(resealed(ours, {"num_tokens": -1}))


def copy_official(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_bytes((OFFICIAL / name).read_bytes())
    return folder


def test_an_official_file_of_ours_is_sealed_too_and_the_authors_own_needs_no_seal(tmp_path: Path) -> None:
    save(load_weights(OFFICIAL), tmp_path / "sealed", layout="official")
    file = tmp_path / "sealed" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert "does not match the checksum in its header" in refused(tmp_path / "sealed")
    plain = copy_official(tmp_path / "plain") / "model.safetensors"
    assert OFFICIAL_CHECKSUM not in split(plain.read_bytes())[0].get("__metadata__", {})
    load_weights(tmp_path / "plain")


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "cannot be read as JSON"), ("[1]", "holds list, not an object")],
)
def test_a_config_beside_the_weights_must_be_an_object(tmp_path: Path, content: str, said: str) -> None:
    folder = copy_official(tmp_path / "m")
    (folder / "config.json").write_text(content)
    assert said in refused(folder)


def test_a_folder_in_place_of_the_file_cannot_be_read(tmp_path: Path) -> None:
    folder = copy_official(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    assert "there is no weights file" in refused(folder)
    (folder / "model.safetensors").mkdir()
    assert "is a directory" in refused(folder)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot make the folder .*file/m: not a directory"):
        save(tiny_encoder(), tmp_path / "file" / "m")


OF_ANOTHER_TYPE: dict[str, object] = {
    "n_sites": 30.0,
    "site_embed_dim": "8",
    "output_dim": True,
    "hidden_dim": None,
    "n_reslayers": 2.0,
    "n_registers": [4],
    "register_fixed_gate": "0.5",
    "use_cosine_attention": 0,
    "normalize": 1,
}


@pytest.mark.parametrize("key", OF_ANOTHER_TYPE)
def test_official_settings_are_of_their_own_type(tmp_path: Path, key: str) -> None:
    folder = copy_official(tmp_path / "m")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, key: OF_ANOTHER_TYPE[key]}))
    assert f"config.json has {key} = {OF_ANOTHER_TYPE[key]!r}, not " in refused(folder)


def test_a_gate_may_be_a_whole_number(tmp_path: Path) -> None:
    folder = copy_official(tmp_path / "m")
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "register_fixed_gate": 1}))
    assert load_weights(folder).config.token_gate == 1.0


def test_a_config_is_read_off_the_shapes_as_it_would_be_written() -> None:
    tensors = safetensors.torch.load_file(OFFICIAL / "model.safetensors")
    assert official.infer_config(tensors, "x") == json.loads((OFFICIAL / "config.json").read_text())
    for name in ("location._embeddings", "location.semantic_registers.registers", "location.mlp.0.weight"):
        rest = {other: tensor for other, tensor in tensors.items() if other != name}
        with pytest.raises(WeightsError, match=f"x: tensor {name} is missing"):
            official.infer_config(rest, "x")
        with pytest.raises(WeightsError, match="x: the tensors are not of the official layout's shapes"):
            official.infer_config({**tensors, name: torch.zeros(3)}, "x")


def test_attention_without_a_bias_is_cosine_attention() -> None:
    tensors = safetensors.torch.load_file(OFFICIAL / "model.safetensors")
    tensors.pop("location.semantic_registers.loc_to_logits.bias")
    assert official.infer_config(tensors, "x")["use_cosine_attention"]


def test_the_fixed_temperature_comes_from_the_tensors(tmp_path: Path) -> None:
    folder = copy_official(tmp_path / "m")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["location.semantic_registers._img_temperature"] = torch.tensor(0.25)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    assert load_weights(folder).config.image_temperature == 0.25
    tensors["location.semantic_registers._img_temperature"] = torch.ones(2)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    assert "image_temperature has shape (2,), its model needs ()" in refused(folder)


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_the_official_temperature_is_the_one_the_encoder_runs_at(progress: float) -> None:
    """Exactly theta when nothing was annealed: a value that came from the release goes back bit for bit."""
    encoder = tiny_encoder(dtype=torch.float32)
    encoder.tokens.temperature_progress.fill_(progress)
    written = official.write_state(encoder.state_dict(), encoder.config)
    theta = written["location.semantic_registers.log_temperature"]
    torch.testing.assert_close(theta.exp(), encoder.tokens.temperature(), rtol=1e-6, atol=0)
    assert progress or torch.equal(theta, encoder.tokens.log_temperature)


def test_checkpoints_of_anything_else_are_refused() -> None:
    for wrong in ({"state_dict": [1]}, {"state_dict": {"model.location.a": 1}}, {"other": {}}):
        with pytest.raises(WeightsError, match=r"x: not a training checkpoint \(no state_dict of tensors in it\)"):
            official.read_checkpoint_state(wrong, "x")
    foreign = {"state_dict": {f"model.decoder.{name}": torch.zeros(1) for name in "ba"}}
    with pytest.raises(WeightsError, match=r"surplus tensor model\.decoder\.a \(2 that this model does not have\)"):
        official.read_checkpoint_state(foreign, "x")
