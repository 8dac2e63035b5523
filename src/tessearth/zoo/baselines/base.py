"""What every baseline is: places in degrees go in, vectors come out, through positional features and a network."""

import torch
from torch import Tensor, nn

from tessearth.errors import ConfigError
from tessearth.sphere.geometry import wrap_longitude


class PositionalEncoding(nn.Module):
    """Features of a place that nobody trained: degrees, (N, 2) latitude first, to (N, F) in the degrees' own precision.

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
        """Draw every weight anew from a generator."""
        raise NotImplementedError


class LocationEncoder(nn.Module):
    """A baseline: positional features, then a network; `position` alone is the untrained encoding.

    Features are computed in the precision the coordinates come in, the network runs in its own: phases of sharp
    features need digits that a network does not.
    """

    def __init__(self, position: PositionalEncoding, network: Network | None = None) -> None:
        super().__init__()
        self.position = position
        self.network = network
        self.output_dim = position.output_dim if network is None else network.output_dim
        self.name = ""
        """What it is registered as; `build_baseline` fills it in, with the settings it was built from."""
        self.settings: object = None

    def forward(self, latlon: Tensor) -> Tensor:
        """Embed places given in degrees, latitude first: (N, 2) -> (N, D)."""
        features: Tensor = self.position(latlon)
        if self.network is None:
            return features
        embedding: Tensor = self.network(features.to(next(self.network.parameters()).dtype))
        return embedding


def flat_degrees(latlon: Tensor) -> tuple[Tensor, Tensor]:
    """Latitude and longitude in degrees, each (N,), longitude in [-180, 180): one flat map of the Earth.

    Encodings of the plane tear the map at the antimeridian, but a place must not depend on which turn its longitude is
    counted in. Longitudes already on the map stay bit for bit as they are: turning them would round them.
    """
    lat, lon = latlon.unbind(-1)
    return lat, torch.where((lon >= -180) & (lon < 180), lon, wrap_longitude(lon))


def check_at_least(minimum: float, **values: float) -> None:
    """Refuse settings below their minimum, by name."""
    for name, value in values.items():
        if not value >= minimum:
            raise ConfigError(f"{name} is {value}; it must be at least {minimum}")
