"""The parts of most published encoders: positional features of a place, and a network behind them."""

import torch
from torch import Tensor, nn

from tessearth.encoder import LocationEncoder, reset_linear
from tessearth.sphere import wrap_longitude


class PositionalEncoding(nn.Module):
    """Features of a place without training: degrees, (N, 2) latitude first, to (N, F) in the degrees' own precision.

    Subclasses define `forward`. Each knows its own units and the order its authors take the coordinates in.
    """

    def __init__(self, output_dim: int) -> None:
        super().__init__()
        self.output_dim = output_dim


class Network(nn.Module):
    """A trainable map from positional features, (N, F), to embeddings, (N, D)."""

    def __init__(self, output_dim: int) -> None:
        super().__init__()
        self.output_dim = output_dim

    def reset_parameters(self, generator: torch.Generator) -> None:
        """Draw every linear layer anew from a generator, as PyTorch does by default; norms stay the identity."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                reset_linear(module, generator)


class PositionalEncoder(LocationEncoder):
    """Positional features, then a network; `position` alone is the untrained encoding.

    Features are computed in the precision the coordinates come in, the network runs in its own: phases of sharp
    features need digits that a network does not.
    """

    def __init__(self, position: PositionalEncoding, network: Network | None = None) -> None:
        super().__init__()
        self.position = position
        self.network = network
        self.output_dim = position.output_dim if network is None else network.output_dim

    def forward(self, latlon: Tensor) -> Tensor:
        """Embed places given in degrees, latitude first: (N, 2) -> (N, D)."""
        return self.from_exact(self._features(latlon))[0]

    @property
    def input_dtype(self) -> torch.dtype:
        """Positional features are computed in float64 at every precision: their phases need the digits."""
        return torch.float64

    @property
    def widest(self) -> int:
        """A few arrays as wide as the features, or as a layer of the network."""
        return max(4 * self.position.output_dim, super().widest)

    def set_precision_(self, dtype: torch.dtype) -> None:
        """The precision is that of the network; features alone are float32 or float64."""
        if self.network is not None:
            self.network.to(dtype)
        elif dtype.itemsize < 4:
            super().set_precision_(dtype)

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """Positional features (N, F), in float64 as they are when the encoder is used.

        A GPU's matrix units would round phases of thousands of radians to ten bits; float64 never goes through them.
        """
        with torch.no_grad():
            return (self._features(latlon.double()),)

    def from_exact(self, *exact: Tensor) -> tuple[Tensor, Tensor | None]:
        """The network's output."""
        return exact[0] if self.network is None else self.network(*exact), None

    def _features(self, latlon: Tensor) -> Tensor:
        """Positional features in the precision of the network behind them."""
        features: Tensor = self.position(latlon)
        return features if self.network is None else features.to(next(self.network.parameters()).dtype)


def flat_degrees(latlon: Tensor) -> tuple[Tensor, Tensor]:
    """Latitude and longitude in degrees, each (N,), longitude in [-180, 180): one flat map of the Earth.

    Encodings of the plane tear the map at the antimeridian, but a place must not depend on which turn its longitude is
    counted in. Longitudes already on the map stay bit for bit as they are: turning them would round them.
    """
    lat, lon = latlon.unbind(-1)
    return lat, torch.where((lon >= -180) & (lon < 180), lon, wrap_longitude(lon))
