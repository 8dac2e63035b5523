"""Weights on disk: ours sealed by a checksum, those of others read without ever running code from the file."""

import argparse
import hashlib
import json
import os
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tessearth.errors import WeightsError

SEAL = "seal"
"""The entry of a header that holds the SHA-256 of all its other entries and of the tensors."""


class SealedTensors(NamedTuple):
    """What a sealed file holds."""

    header: dict[str, str]
    tensors: dict[str, Tensor]


def seal_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> bytes:
    """A safetensors file whose header also carries the checksum of header and tensors."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return _in_order(safetensors.torch.save(held, {**header, SEAL: _checksum(held, header)}))


def _in_order(content: bytes) -> bytes:
    """The same file with its header's entries sorted: safetensors writes them in an order of the moment."""
    (length,) = struct.unpack("<Q", content[:8])
    text = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    padded = text.ljust(-(-len(text) // 8) * 8)
    return struct.pack("<Q", len(padded)) + padded + content[8 + length :]


def read_sealed_tensors(path: str | os.PathLike[str]) -> SealedTensors:
    """Header and tensors of a file, checked against its seal; a file from before there were seals has none."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise WeightsError(f"there is no file {path}") from None
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise WeightsError(f"{path} is damaged: {(str(error).splitlines() or ['unreadable'])[0]}") from None
    seal = header.pop(SEAL, None)
    if seal is not None and seal != _checksum(tensors, header):
        raise WeightsError(f"{path} is damaged: it does not match its own checksum")
    return SealedTensors(header, tensors)


def _checksum(tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(header.items()):
        digest.update(f"{len(key)} {key} {len(value)} {value}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_weight_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a .safetensors file, or of a PyTorch file that may hold tensors and plain values only."""
    file = Path(path)
    if not file.is_file():
        raise WeightsError(f"there is no weights file {file}")
    try:
        content = _load(file)
    except pickle.UnpicklingError:
        raise WeightsError(
            f"{file} is damaged, or holds more than tensors and plain values and could run code when opened, so it was "
            f"refused; save its tensors as .safetensors"
        ) from None
    except Exception as error:  # the readers raise many kinds for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{file} is damaged, cut short or no weights file: {reason}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{file} holds a {type(content).__name__}, not a table of named tensors")
    return content


def _load(file: Path) -> Any:
    with open(file, "rb") as opened:
        if opened.read(9)[8:] == b"{":  # safetensors: eight bytes of length, then the header's brace
            return safetensors.torch.load_file(file)
        opened.seek(0)
        # Opened, not by its path: what a file is, its first bytes say, and torch would believe its suffix.
        # Training scripts store their arguments beside the weights; a Namespace only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(opened, map_location="cpu", weights_only=True)
