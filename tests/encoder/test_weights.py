"""Encoders on disk: round trips, and every way a file can be wrong."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import tessearth
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.weights import load_weights, read_weights, save
from tessearth.errors import ConfigError, TessearthError, WeightsError
from tests.conftest import tiny_encoder

OFFICIAL = Path(__file__).parents[1] / "reference" / "official"
SHARED = Path(__file__).parents[3] / "shared" / "parity"
FOLDERS = sorted(path.parent for root in (OFFICIAL, SHARED) for path in root.glob("*/config.json"))
PLACES = torch.tensor([[48.85, 2.35], [-33.9, 151.2]])

FORMS = {
    "paper": {},
    "several": {
        "tessellations": (TessellationConfig(num_sites=6, site_dim=4), TessellationConfig(num_sites=9, site_dim=3))
    },
    "decoupled": {"tessellations": (TessellationConfig(num_sites=6, site_dim=4, logits="decoupled"),)},
    "no tokens": {"num_tokens": 0},
    "conditioned": {"coordinate_octaves": 1},
}


def same_tensors(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["model.safetensors", "new/folder"])
def test_an_encoder_comes_back_bit_for_bit(tmp_path: Path, form: str, name: str) -> None:
    encoder = tiny_encoder(dtype=torch.float32, **FORMS[form])
    save(encoder, tmp_path / name, provenance={"made": "by a test"})
    again = load_weights(tmp_path / name)
    assert again.config == encoder.config
    assert same_tensors(again, encoder)
    assert not again.training
    assert torch.equal(again(PLACES), encoder(PLACES))
    assert read_weights(tmp_path / name).provenance["made"] == "by a test"


def test_loaded_weights_can_be_trained_on(tmp_path: Path) -> None:
    save(tiny_encoder(dtype=torch.float32), tmp_path / "m.safetensors")
    encoder = load_weights(tmp_path / "m.safetensors").train()
    encoder(PLACES).sum().backward()
    assert all(p.requires_grad for p in encoder.parameters())


def test_a_header_may_have_any_length(tmp_path: Path) -> None:
    """The first bytes are the header's length: they may read like those of a pickle (0x80) or an archive (PK)."""
    path, seen = tmp_path / "m.safetensors", set()
    encoder = tiny_encoder(dtype=torch.float32)
    for filler in [*range(0, 300, 8), 0x4B50]:
        save(encoder, path, provenance={"filler": "x" * filler})
        if filler == 0x4B50:
            (length,) = struct.unpack("<Q", path.read_bytes()[:8])
            save(encoder, path, provenance={"filler": "x" * (filler - (length - 0x4B50))})
        seen.add(path.read_bytes()[:2])
        assert same_tensors(load_weights(path), encoder)
    assert any(start[0] == 0x80 for start in seen)
    assert b"PK" in seen


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    save(tiny_encoder(), tmp_path / "m.safetensors")
    before = torch.get_rng_state()
    load_weights(tmp_path / "m.safetensors")
    assert torch.equal(torch.get_rng_state(), before)


def test_double_precision_stays_and_half_precision_is_widened(tmp_path: Path) -> None:
    encoder = tiny_encoder(dtype=torch.float64)
    save(encoder, tmp_path / "double.safetensors")
    assert load_weights(tmp_path / "double.safetensors").head.entry.weight.dtype == torch.float64
    save(encoder, tmp_path / "half.safetensors", dtype=torch.float16)
    assert (tmp_path / "half.safetensors").stat().st_size < (tmp_path / "double.safetensors").stat().st_size / 3
    half = load_weights(tmp_path / "half.safetensors")
    assert half.head.entry.weight.dtype == torch.float32
    torch.testing.assert_close(half(PLACES).double(), encoder(PLACES.double()), rtol=0, atol=2e-2)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_official_to_ours_to_official_is_bit_identical(tmp_path: Path, folder: Path) -> None:
    save(load_weights(folder), tmp_path / "ours.safetensors")
    save(load_weights(tmp_path / "ours.safetensors"), tmp_path / "official", layout="official")
    before = safetensors.torch.load_file(folder / "model.safetensors")
    after = safetensors.torch.load_file(tmp_path / "official" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(before[name].numpy().tobytes() == after[name].numpy().tobytes() for name in before)
    assert json.loads((tmp_path / "official/config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )


def test_a_single_official_file_is_read_with_or_without_its_config(tmp_path: Path) -> None:
    content = (OFFICIAL / "plain" / "model.safetensors").read_bytes()
    (tmp_path / "alone.safetensors").write_bytes(content)
    assert torch.equal(load_weights(tmp_path / "alone.safetensors")(PLACES), load_weights(OFFICIAL / "plain")(PLACES))
    beside = load_weights(OFFICIAL / "same_width" / "model.safetensors")
    assert beside.config.token_gate == 0.3


def lightning(folder: Path, **extra: object) -> dict[str, object]:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    state = {f"model.{name}": tensor for name, tensor in tensors.items()}
    state["model.visual.patch_embed.weight"] = torch.zeros(3)
    state["model.logit_scale"] = torch.tensor(2.6)
    return {"epoch": 3, "state_dict": state, "hyper_parameters": {"lr": 1e-3}, **extra}


def test_a_training_checkpoint_is_read_without_its_training_parts(tmp_path: Path) -> None:
    torch.save(lightning(OFFICIAL / "plain"), tmp_path / "last.ckpt")
    weights = read_weights(tmp_path / "last.ckpt")
    assert weights.layout == "official checkpoint"
    assert torch.equal(load_weights(tmp_path / "last.ckpt")(PLACES), load_weights(OFFICIAL / "plain")(PLACES))


def test_a_training_checkpoints_own_settings_win_over_what_shapes_tell(tmp_path: Path) -> None:
    torch.save(
        lightning(OFFICIAL / "same_width", hyper_parameters={"register_fixed_gate": 0.3, "normalize": True}),
        tmp_path / "last.ckpt",
    )
    assert torch.equal(load_weights(tmp_path / "last.ckpt")(PLACES), load_weights(OFFICIAL / "same_width")(PLACES))


def test_the_annealed_temperature_is_written_into_the_official_layout(tmp_path: Path) -> None:
    encoder = tiny_encoder(dtype=torch.float32)
    encoder.tokens.temperature_progress.fill_(0.75)
    save(encoder, tmp_path / "official", layout="official")
    again = load_weights(tmp_path / "official")
    torch.testing.assert_close(again.tokens.temperature(), encoder.tokens.temperature())
    torch.testing.assert_close(again(PLACES), encoder(PLACES))


@pytest.mark.parametrize("form", [form for form in FORMS if form != "paper"])
def test_what_the_official_layout_cannot_hold_is_refused_before_anything_is_written(tmp_path: Path, form: str) -> None:
    with pytest.raises(WeightsError, match="the official layout has no room for"):
        save(tiny_encoder(**FORMS[form]), tmp_path / "official", layout="official")
    assert list(tmp_path.iterdir()) == []


def edit_header(content: bytes, edit: Callable[[dict[str, object]], None]) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def flip_a_bit(content: bytes) -> bytes:
    return content[:-5] + bytes([content[-5] ^ 4]) + content[-4:]


def change_config(content: bytes) -> bytes:
    def edit(header: dict) -> None:
        header["__metadata__"]["config"] = header["__metadata__"]["config"].replace(
            '"token_gate": 0.5', '"token_gate": 0.4'
        )

    return edit_header(content, edit)


def raise_version(content: bytes) -> bytes:
    return edit_header(content, lambda header: header["__metadata__"].update(format_version="2"))


DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda content: content[: len(content) // 2], "is damaged, cut short or not safetensors"),
    "cut to a few bytes": (lambda content: content[:5], "is damaged, cut short or not safetensors"),
    "nothing left": (lambda content: b"", "is damaged, cut short or not safetensors"),
    "one bit flipped": (flip_a_bit, "does not match its own checksum"),
    "configuration changed": (change_config, "does not match its own checksum"),
    "a newer format": (raise_version, "is of format 2"),
    "text": (lambda content: b"hello, this is not a model at all", "is damaged, cut short or not safetensors"),
    "a huge header": (lambda content: struct.pack("<Q", 2**62) + content, "is damaged, cut short or not safetensors"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, damage: str) -> None:
    save(tiny_encoder(), tmp_path / "m.safetensors")
    harm, words = DAMAGE[damage]
    (tmp_path / "m.safetensors").write_bytes(harm((tmp_path / "m.safetensors").read_bytes()))
    with pytest.raises(WeightsError) as caught:
        load_weights(tmp_path / "m.safetensors")
    assert words in str(caught.value)
    assert "m.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def official_with(tmp_path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, object]], None]) -> Path:
    tensors = safetensors.torch.load_file(OFFICIAL / "plain" / "model.safetensors")
    config = json.loads((OFFICIAL / "plain" / "config.json").read_text())
    change(tensors, config)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


WRONG: dict[str, tuple[Callable[[dict, dict], object], str]] = {
    "missing": (lambda t, c: t.pop("location.mlp.3.w2.bias"), "missing tensor head.blocks.1.second.bias"),
    "surplus": (lambda t, c: t.update({"location.extra": torch.zeros(2)}), "surplus tensor location.extra"),
    "shape": (
        lambda t, c: t.update({"location._log_tau": torch.zeros(29)}),
        "tensor tessellations.0.log_sharpness has shape (29,), its model needs (30,)",
    ),
    "not finite": (
        lambda t, c: t["location._embeddings"].fill_(float("nan")),
        "tensor tessellations.0.embeddings holds values that are not finite numbers",
    ),
    "half precision": (
        lambda t, c: t.update({"location._embeddings": t["location._embeddings"].half()}),
        "tensor location._embeddings is torch.float16, the official layout is float32",
    ),
    "another size": (
        lambda t, c: c.update(n_sites=31),
        "tensor tessellations.0.directions has shape (30, 3), its model needs (31, 3)",
    ),
    "setting missing": (lambda t, c: c.pop("n_reslayers"), "config.json lacks n_reslayers"),
    "setting of another type": (lambda t, c: c.update(normalize="yes"), "config.json has normalize = 'yes', not bool"),
    "impossible setting": (lambda t, c: c.update(hidden_dim=0), "config.json cannot be used: hidden_dim is 0"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_official_weights_are_read_strictly(tmp_path: Path, wrong: str) -> None:
    change, words = WRONG[wrong]
    with pytest.raises(WeightsError) as caught:
        load_weights(official_with(tmp_path, lambda t, c: (change(t, c), None)[1]))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_safetensors_file_of_something_else_is_refused(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="holds no location encoder"):
        load_weights(tmp_path / "other.safetensors")


def test_a_folder_whose_config_was_edited_is_refused(tmp_path: Path) -> None:
    save(tiny_encoder(), tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(path.read_text().replace('"token_gate": 0.5', '"token_gate": 0.4'))
    with pytest.raises(WeightsError, match="describe different encoders"):
        load_weights(tmp_path / "m")


class Touch:
    """Would leave a file behind if its pickle were ever run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_pickle_files_are_refused_and_never_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Touch(trace)))
    with pytest.raises(WeightsError, match="is a pickle file, which can run code when opened"):
        load_weights(tmp_path / "model.pkl")
    torch.save({"state_dict": {"a": Touch(trace)}}, tmp_path / "evil.ckpt")
    with pytest.raises(WeightsError, match="could run code when opened, so it was refused"):
        load_weights(tmp_path / "evil.ckpt")
    assert not trace.exists()


def test_checkpoints_that_are_none_are_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / "a.ckpt")
    with pytest.raises(WeightsError, match="not a training checkpoint"):
        load_weights(tmp_path / "a.ckpt")
    foreign = lightning(OFFICIAL / "plain")
    foreign["state_dict"]["model.decoder.weight"] = torch.zeros(1)  # type: ignore[index]
    torch.save(foreign, tmp_path / "b.ckpt")
    with pytest.raises(WeightsError, match=r"surplus tensor model\.decoder\.weight"):
        load_weights(tmp_path / "b.ckpt")
    (tmp_path / "c.ckpt").write_bytes((tmp_path / "b.ckpt").read_bytes()[:3000])
    with pytest.raises(WeightsError, match="is damaged, cut short"):
        load_weights(tmp_path / "c.ckpt")


@pytest.mark.parametrize("name", ["model.safetensors", "folder"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(TessearthError, match=name):
        tessearth.load(str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(WeightsError, match=r"holds no config\.json"):
        load_weights(tmp_path / "empty")


def test_an_unknown_layout_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="layout is 'keras'"):
        save(tiny_encoder(), tmp_path / "x", layout="keras")  # type: ignore[arg-type]
