"""The contract of every location encoder: ours, a published one or a user's own."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from tessearth.encoder.tokens import SemanticTokens
from tessearth.errors import ConfigError
from tessearth.sphere import latlon_to_xyz
from tessearth.storage import seal_tensors, write_bytes

BASELINE_FORMAT, BASELINE_FORMAT_VERSION = "tessearth-baseline", "1"


class Sites(NamedTuple):
    """Positions and sharpness of an encoder's sites."""

    positions: Tensor
    """(K, 3)."""
    sharpness: Tensor
    """(K,)."""


class LocationEncoder(nn.Module):
    """Turns places in degrees, (N, 2) latitude first, into embeddings, (N, D).

    A subclass has an `output_dim` and defines `forward`. The other methods have defaults that suit any such class;
    an encoder overrides those where it knows better.
    """

    output_dim: int
    """The width of the embedding (D)."""
    name: str = ""
    """Its registered name; `build_baseline` sets it, with the settings it was built from."""
    settings: object = None
    """The dataclass that `describe` and `save` write down."""
    takes_directions: ClassVar[bool] = False
    """Whether `embed_input` takes unit vectors, (N, 3), instead of degrees, (N, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: SemanticTokens | None = None
        """The semantic tokens that images attend to as well; None leaves out the training terms about them."""

    # For embedding.

    @property
    def label(self) -> str:
        """The name for messages."""
        return self.name or type(self).__name__

    @property
    def input_dtype(self) -> torch.dtype:
        """The precision places come in: that of the first parameter, float64 without any."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.float64)

    @property
    def widest(self) -> int:
        """The numbers per place of the widest array in memory; batches are sized by it."""
        linear = [layer.out_features for layer in self.modules() if isinstance(layer, nn.Linear)]
        return 4 * max(self.output_dim, *linear, 1)  # a few arrays as wide stand side by side

    def to_input(self, latlon: Tensor) -> Tensor:
        """What `embed_input` takes, from degrees in float64."""
        return (latlon_to_xyz(latlon) if self.takes_directions else latlon).to(self.input_dtype)

    def embed_input(self, places: Tensor) -> Tensor:
        """Embeddings (N, D) of prepared places: degrees, or directions where the encoder takes those."""
        embedding: Tensor = self(places)
        return embedding

    def set_precision_(self, dtype: torch.dtype) -> None:
        """Run in this precision from now on; refuses half precision, which is too coarse for coordinates."""
        if dtype.itemsize < 4:
            word = str(dtype).removeprefix("torch.")
            raise ConfigError(f"{self.label} does not run in {word}: use float32 or float64")
        self.to(dtype)

    # For training.

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """The part of `forward` that is computed outside half precision, from degrees (N, 2)."""
        return (self(latlon.to(self.input_dtype)),)

    def from_exact(self, *exact: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rest: the raw embedding (N, D), and the token attention (N, T) of an encoder with tokens."""
        return exact[0], None

    def constrain_(self) -> None:
        """Bring parameters back within their constraints; called after every optimiser step."""

    def sites(self) -> Sites | None:
        """The sites, tessellations one after another; None for an encoder without sites."""
        return None

    # For files and lists.

    def describe(self) -> dict[str, Any]:
        """A description as plain values: its kind first, then everything that decides its shape."""
        known = dataclasses.is_dataclass(self.settings) and not isinstance(self.settings, type)
        settings = dataclasses.asdict(self.settings) if known else None  # type: ignore[call-overload]
        return {"kind": "baseline", "name": self.name, "settings": settings}

    def save(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> None:
        """Write a file whose path works wherever a model is named, with its provenance as JSON."""
        if not self.name:
            raise ConfigError("only an encoder made by build_baseline or load_published can be saved: this has no name")
        header = {
            "format": BASELINE_FORMAT,
            "format_version": BASELINE_FORMAT_VERSION,
            "baseline": self.name,
            "settings": json.dumps(self.describe()["settings"]),
            "provenance": json.dumps(dict(provenance or {})),
        }
        write_bytes(path, seal_tensors(self.state_dict(), header))
