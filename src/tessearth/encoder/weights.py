"""Encoders on disk: one safetensors file that describes itself, or a folder; and the released model's layout.

Our file is safetensors with, in its header, `format` "tessearth", `format_version`, `config` and `provenance` as JSON,
`sha256` over configuration and tensors, and `provenance_sha256`. A folder holds the same file as model.safetensors, and
a config.json for people to read. Reading never runs code from the file; every tensor must be finite and of the shape
that follows from the configuration.
"""

import hashlib
import json
import os
import struct
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tessearth.encoder import official
from tessearth.encoder.config import EncoderConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError, OutputError, WeightsError, first_line
from tessearth.settings import from_plain
from tessearth.storage import read_weight_file, take_state, write_bytes
from tessearth.version import __version__

FORMAT = "tessearth"
FORMAT_VERSION = 1
WEIGHTS_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
HUGE = 2**20
OFFICIAL_CHECKSUM = "tessearth_sha256"
"""Our addition to the header of the official layout; other readers ignore it."""
Layout = Literal["tessearth", "official"]


class Weights(NamedTuple):
    """The content of a weights file."""

    config: EncoderConfig
    state: dict[str, Tensor]
    layout: str
    """The format: "tessearth", "official" or "official checkpoint"."""
    provenance: dict[str, Any]
    """How the weights were made; empty for the official layout."""


def save(
    encoder: SphericalVoronoiEncoder,
    path: str | os.PathLike[str],
    *,
    layout: Layout = "tessearth",
    dtype: torch.dtype | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write an encoder: to one file when the path ends in .safetensors, else to a folder with a config.json.

    `layout="official"` writes the format of the authors' code. `dtype` stores floating tensors narrower, such as
    torch.float16; the geometry of sites with chords stays as it is, because sites may be a kilometre apart.
    `provenance` is any JSON that should travel with the weights.
    """
    if layout not in typing.get_args(Layout):
        raise ConfigError(f"layout is {layout!r}; it must be 'tessearth' or 'official'")
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in encoder.state_dict().items()}
    if layout == "official":
        config: dict[str, Any] = official.write_config(encoder.config)
        state = official.write_state(state, encoder.config)
        header = {OFFICIAL_CHECKSUM: _digest("", state)}
    else:
        kept = _geometry(encoder)
        state = {name: tensor if name in kept else tensor.to(dtype or tensor.dtype) for name, tensor in state.items()}
        config = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "config": encoder.config.to_dict(),
            "provenance": {"tessearth": __version__, **(provenance or {})},
        }
        header = _header(config, state)
    _write(Path(path), safetensors.torch.save(state, header), config)


def _geometry(encoder: SphericalVoronoiEncoder) -> set[str]:
    """The names of tensors that hold where sites with chords are and how far they reach."""
    chords = [(i, v) for i, v in enumerate(encoder.voronois()) if v.config.logits == "chord"]
    return {f"tessellations.{i}.{name}" for i, v in chords for name in v.state_dict() if name != "embeddings"}


def load_weights(path: str | os.PathLike[str]) -> SphericalVoronoiEncoder:
    """An encoder, ready for inference, from a file or folder of either layout."""
    return build_from(read_weights(path))


def build_from(weights: Weights) -> SphericalVoronoiEncoder:
    """An encoder in evaluation mode that holds these weights."""
    encoder = SphericalVoronoiEncoder.allocate(weights.config)
    encoder.load_state_dict(weights.state, strict=True, assign=True)
    return encoder.eval()


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """Read and check a weights file or folder; any fault is one WeightsError that names it."""
    path = Path(path)
    folder_config = _read_config_json(path / CONFIG_NAME if path.is_dir() else path.parent / CONFIG_NAME, path)
    file = path / WEIGHTS_NAME if path.is_dir() else path
    content = _read_bytes(file)
    # A safetensors file begins with the eight bytes of its header's length and the header's brace. The length may look
    # like the first bytes of an archive or a pickle, so the brace is checked first.
    is_safetensors = content[8:9] == b"{"
    if content[:2] == b"PK" and not is_safetensors:
        return _read_checkpoint(file)
    if content[:1] == b"\x80" and not is_safetensors:
        raise WeightsError(f"{file} is a pickle file, which can run code when opened; ask for a .safetensors file")
    header, tensors = _parse(content, file)
    if header.get("format") == FORMAT:
        weights = _read_ours(header, tensors, file)
        described = folder_config.get("config") if path.is_dir() else None
        if described not in (None, json.loads(json.dumps(weights.config.to_dict()))):  # edited by hand, to no effect
            raise WeightsError(f"{path}: {CONFIG_NAME} and the header of {WEIGHTS_NAME} describe different encoders")
        return weights
    if not any(name.startswith("location.") for name in tensors):
        raise WeightsError(
            f"{file} holds no location encoder: its header names no tessearth format and its tensors are "
            f"not of the official layout"
        )
    if header.get(OFFICIAL_CHECKSUM) not in (None, _digest("", tensors)):
        raise WeightsError(f"{file} does not match the checksum in its header: it was changed or damaged")
    values = folder_config if "n_sites" in folder_config else official.infer_config(tensors, str(file))
    return _read_official(values, tensors, str(file), "official")


def _read_ours(header: Mapping[str, str], tensors: dict[str, Tensor], file: Path) -> Weights:
    version = header.get("format_version", "")
    if version != str(FORMAT_VERSION):
        raise WeightsError(
            f"{file} is of format {version or 'unknown'}, this tessearth ({__version__}) reads format "
            f"{FORMAT_VERSION}; upgrade with pip install -U tessearth"
        )
    if header.get("sha256") != _digest(header.get("config", ""), tensors):
        raise WeightsError(f"{file} does not match its own checksum: it was changed or damaged; fetch it again")
    said = hashlib.sha256(header.get("provenance", "{}").encode()).hexdigest()
    if header.get("provenance_sha256", said) != said:  # older files have none
        raise WeightsError(f"{file} does not match its own checksum: its provenance was changed")
    try:
        config = from_plain(EncoderConfig, json.loads(header["config"]))
        provenance = json.loads(header.get("provenance", "{}"))
    except (ValueError, KeyError, RecursionError) as error:
        raise WeightsError(f"{file} has a header that cannot be read: {error}") from None
    _check_sizes(tensors, config, str(file))
    return Weights(config, _checked(tensors, config, str(file)), "tessearth", provenance)


def _read_official(values: Mapping[str, Any], tensors: dict[str, Tensor], source: str, layout: str) -> Weights:
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype != torch.float32:
            raise WeightsError(f"{source}: tensor {name} is {tensor.dtype}, the official layout is float32")
    try:
        config = official.read_config(values, tensors, source)
    except ConfigError as error:
        raise WeightsError(f"{source}: config.json cannot be used: {error}") from None
    _check_sizes(tensors, config, source)
    return Weights(config, _checked(official.read_state(tensors, config), config, source), layout, {})


def _read_checkpoint(file: Path) -> Weights:
    """A training checkpoint of the official model."""
    checkpoint = read_weight_file(file)
    tensors = official.read_checkpoint_state(checkpoint, str(file))
    given = checkpoint.get("hyper_parameters")
    inferred = official.infer_config(tensors, str(file))
    named = {key: given[key] for key in official.CONFIG_KEYS if key in given} if isinstance(given, dict) else {}
    return _read_official({**inferred, **named}, tensors, str(file), "official checkpoint")


def _check_sizes(tensors: Mapping[str, Tensor], config: EncoderConfig, source: str) -> None:
    """Refuse huge sizes that no tensor in the file has before memory is allocated; other faults are named later."""
    widths = [config.output_dim, config.hidden_dim, config.num_tokens, config.coordinate_octaves]
    widths += [size for one in config.tessellations for size in (one.num_sites, one.site_dim)]
    largest = max((size for tensor in tensors.values() for size in tensor.shape), default=0)
    if max(widths) > max(HUGE, largest) or config.num_blocks > len(tensors):
        raise WeightsError(
            f"{source}: its configuration asks for sizes up to {max(widths)} and {config.num_blocks} blocks; "
            f"its {len(tensors)} tensors have sizes up to {largest}"
        )


def _checked(state: Mapping[str, Tensor], config: EncoderConfig, source: str) -> dict[str, Tensor]:
    """The state when it fits the configuration exactly, half precision widened to float32."""
    state = take_state(state, SphericalVoronoiEncoder.allocate(config).state_dict(), source)
    return {name: tensor.float() if tensor.dtype.itemsize < 4 else tensor for name, tensor in state.items()}


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise WeightsError(f"there is no weights file {file}") from None
    except OSError as error:
        raise WeightsError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None


def _read_config_json(path: Path, asked: Path) -> dict[str, Any]:
    """The config.json next to the weights; only a model folder must have one."""
    if not path.is_file():
        if asked.is_dir():
            raise WeightsError(f"{asked} holds no {CONFIG_NAME}: it is not a model folder")
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as JSON: {first_line(error)}") from None
    if not isinstance(values, dict):
        raise WeightsError(f"{path} holds {type(values).__name__}, not an object")
    return values


def _parse(content: bytes, file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The header's metadata and the tensors, each in its own memory."""
    try:
        tensors = {name: tensor.clone() for name, tensor in safetensors.torch.load(content).items()}
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise WeightsError(f"{file} is damaged, cut short or not safetensors: {first_line(error)}") from None
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]).get("__metadata__") or {}, tensors


def _header(description: Mapping[str, Any], state: Mapping[str, Tensor]) -> dict[str, str]:
    """The description as safetensors metadata, which is text only, with the checksums."""
    header = {key: value if isinstance(value, str) else json.dumps(value) for key, value in description.items()}
    provenance = hashlib.sha256(header["provenance"].encode()).hexdigest()
    return {**header, "sha256": _digest(header["config"], state), "provenance_sha256": provenance}


def _digest(config: str, state: Mapping[str, Tensor]) -> str:
    """SHA-256 over configuration, names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256(config.encode())
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _write(path: Path, content: bytes, config: Mapping[str, Any]) -> None:
    """Write one file, or a folder: the weights first, then the config.json that makes it a model folder."""
    if path.suffix == ".safetensors":
        write_bytes(path, content)
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {path}: {(error.strerror or str(error)).lower()}") from error
    write_bytes(path / WEIGHTS_NAME, content)
    write_bytes(path / CONFIG_NAME, (json.dumps(config, indent=2) + "\n").encode())
