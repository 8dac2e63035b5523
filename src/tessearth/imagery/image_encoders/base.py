"""The contract of frozen image encoders: tiles in, features out, and a description that a feature store keeps."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError


class Scratch(dict[tuple[Any, ...], Tensor]):
    """Memory that every chunk of one `encode` uses again, because fresh pages cost as much to get as to fill."""

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of the type and on the device of another one, as the last use of the same name and shape left it."""
        key = (name, shape, like.dtype, like.device)
        if key not in self:
            self[key] = torch.empty(shape, dtype=like.dtype, device=like.device)
        return self[key]


class ImageEncoder(nn.Module):
    """Tiles to frozen features; tiles are checked at the edge and encoded in chunks of one fixed size.

    The last chunk is filled up with blank tiles, so the arithmetic a tile meets never depends on how many tiles came
    with it: a feature store that was interrupted and resumed at another batch boundary holds the same bytes.
    """

    tiles_at_once: ClassVar[Mapping[str, int]] = {"cpu": 1, "cuda": 128}
    """Chunk size by device type: small enough for a processor's cache, large enough to fill a GPU."""

    title: str
    """What messages call the encoder."""
    bands: int
    """How many bands a tile must have (C)."""
    width: int
    """How many features a tile gets (F)."""

    @abstractmethod
    def features(self, tiles: Tensor, scratch: Scratch) -> Tensor:
        """One chunk of tiles (n, C, H, W), on the encoder's device, to features (n, F) in float32."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What made these features, ready for JSON: name, settings, seed, SHA-256 of the weights."""

    def check_tiles(self, tiles: Tensor) -> None:
        """Refuse tiles that this encoder cannot read."""
        if tiles.shape[1] != self.bands:
            raise DataError(f"tiles have {tiles.shape[1]} bands, but {self.title} reads {self.bands}")

    def chunk_size(self, tiles: Tensor) -> int:
        """How many tiles of this shape are encoded together on the present device."""
        return self.tiles_at_once.get(self.device.type, self.tiles_at_once["cpu"])

    def save(self, path: str | Path) -> None:
        """Write what this encoder drew from tiles, so that `build_image_encoder(path)` gives the same one again."""
        raise ConfigError(f"{type(self).__name__} drew nothing from tiles, so {path} was not written; its weights stay")

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return next(itertools.chain(self.parameters(), self.buffers())).device

    @torch.no_grad()
    def encode(self, tiles: Tensor) -> Tensor:
        """Tiles (N, C, H, W) to features (N, F), both float32; no gradient, on the encoder's device.

        Products are full float32 whatever the caller allows, so that a GPU gives a processor's features.
        """
        if tiles.ndim != 4:
            raise DataError(f"tiles have shape {tuple(tiles.shape)}, not (number, bands, height, width)")
        self.check_tiles(tiles)
        device = self.device
        size = self.chunk_size(tiles)
        encoded = torch.empty(len(tiles), self.width, device=device)
        scratch = Scratch()
        with exact_products():
            for start in range(0, len(tiles), size):
                chunk = tiles[start : start + size].to(device, torch.float32)
                missing = size - len(chunk)
                full = F.pad(chunk, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else chunk
                encoded[start : start + size] = self.features(full, scratch)[: len(chunk)]
        return encoded


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """Matrix products of float32 without TF32 while a block runs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """One SHA-256 over named tensors: names in order, each with its type, its shape and its bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def plain(settings: object) -> dict[str, Any]:
    """A settings dataclass as plain JSON values: tuples become lists."""
    described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))  # type: ignore[call-overload]
    return described
