"""Seals: the SHA-256 of content and of what it is about, next to it in the same file.

One `checksum` serves bytes, arrays and plain values; `seal_tensors` puts it into the header of a safetensors file;
`read_npz` checks an npz by the checksums of its archive. Torch is imported only where tensors are sealed or read.
"""

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

SEAL = "seal"
"""The entry of a header that holds the SHA-256 of all its other entries and of the tensors."""
SMALL_NPZ_BYTES = 2**28
MOST_COMPRESSION = 100
"""Numbers worth keeping do not shrink more than this; an archive of zeros shrinks a thousandfold and fills memory."""


def checksum(content: bytes | memoryview | npt.NDArray[Any], *, about: bytes | None = None) -> str:
    """The SHA-256 of bytes or of an array's numbers; with `about`, of what they belong to as well."""
    data = np.ascontiguousarray(content).view(np.uint8).data if isinstance(content, np.ndarray) else content
    prefix = b"" if about is None else hashlib.sha256(about).digest()
    digest = hashlib.sha256(prefix)
    digest.update(data)
    return digest.hexdigest()


def checksum_of_plain(value: object) -> str:
    """The SHA-256 of a plain value (as in JSON), in any order of its keys."""
    return checksum(json.dumps(value, sort_keys=True).encode())


def seal_tensors(tensors: "Mapping[str, Tensor]", header: Mapping[str, str]) -> bytes:
    """A safetensors file whose header also carries the checksum of header and tensors."""
    import safetensors.torch

    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return _in_order(safetensors.torch.save(held, {**header, SEAL: _checksum_of_tensors(held, header)}))


def _in_order(content: bytes) -> bytes:
    """The same file with its header's entries sorted: safetensors writes them in an order that varies."""
    (length,) = struct.unpack("<Q", content[:8])
    text = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    padded = text.ljust(-(-len(text) // 8) * 8)
    return struct.pack("<Q", len(padded)) + padded + content[8 + length :]


def read_sealed_tensors(path: str | os.PathLike[str]) -> "tuple[dict[str, str], dict[str, Tensor]]":
    """Header and tensors of a file, checked against its seal; a file from before there were seals has none."""
    import safetensors

    try:
        with safetensors.safe_open(path, "pt") as file:
            header = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise WeightsError(f"there is no file {path}") from None
    except (OSError, safetensors.SafetensorError, ValueError) as error:
        raise WeightsError(f"{path} is damaged: {(str(error).splitlines() or ['unreadable'])[0]}") from None
    seal = header.pop(SEAL, None)
    if seal is not None and seal != _checksum_of_tensors(tensors, header):
        raise WeightsError(f"{path} is damaged: it does not match its own checksum")
    return header, tensors


def _checksum_of_tensors(tensors: "Mapping[str, Tensor]", header: Mapping[str, str]) -> str:
    import torch

    digest = hashlib.sha256()
    for key, value in sorted(header.items()):
        digest.update(f"{len(key)} {key} {len(value)} {value}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_npz(
    path: str | os.PathLike[str], names: tuple[str, ...], *, optional: tuple[str, ...] = ()
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an npz that must hold these, may hold the optional ones and no others, in this order.

    No code in it is ever run.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = list(getattr(archive, "files", []))
            missing, surplus = sorted(set(names) - set(found)), sorted(set(found) - {*names, *optional})
            if missing or surplus:
                said = [f"no {name}" for name in missing] + [f"a surplus {name}" for name in surplus]
                raise DataError(f"{path} has {' and '.join(said)}; it must hold {', '.join(names)}")
            claimed, there = sum(entry.file_size for entry in archive.zip.infolist()), Path(path).stat().st_size
            if claimed > max(SMALL_NPZ_BYTES, MOST_COMPRESSION * there):
                raise DataError(f"{path} would fill {claimed / 2**30:.1f} GiB of memory from {there / 2**20:.1f} MB")
            # The archive's checksums are only compared at the end of an entry, which an array never reaches when the
            # bit that turned stands in its shape.
            if archive.zip.testzip() is not None:
                raise zipfile.BadZipFile
            return {name: np.asarray(archive[name]) for name in (*names, *optional) if name in found}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except DataError:
        raise
    except Exception:  # damage makes the readers of archives and arrays raise errors of any kind
        raise DataError(f"{path} is not an npz of plain arrays, or is damaged") from None
