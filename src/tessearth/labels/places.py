"""Places as plain arrays: drawing them evenly, putting them on the sphere."""

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError
from tessearth.geometry import latlon_to_xyz
from tessearth.land import is_inhabited_land

Values = npt.NDArray[np.float64]

DRAWN_AT_ONCE = 65_536


def sphere_places(count: int, seed: int) -> Values:
    """Places (count, 2) drawn uniformly over the whole sphere; a smaller count gives the first of the same places."""
    return _draw(count, seed, land_only=False)


def land_places(count: int, seed: int) -> Values:
    """Places (count, 2) drawn uniformly over land without Antarctica; a smaller count gives the first of the same."""
    return _draw(count, seed, land_only=True)


def to_xyz(latlon: Values) -> Values:
    """Places (N, 2) as unit vectors (N, 3)."""
    return np.asarray(latlon_to_xyz(torch.tensor(latlon, dtype=torch.float64)).numpy())


def _draw(count: int, seed: int, *, land_only: bool) -> Values:
    """Blocks of one size from one stream, so that how many are wanted changes nothing but where it stops."""
    if count < 1 or seed < 0:
        raise ConfigError(f"count must be at least 1 and seed at least 0, not {count} and {seed}")
    # Salted: the same seed given to whoever draws training places must not give the places tested on.
    generator = np.random.default_rng([seed, *b"tessearth labels", land_only])
    kept: list[Values] = []
    while sum(map(len, kept)) < count:
        height, turn = generator.random((DRAWN_AT_ONCE, 2)).T
        latlon = np.stack((np.degrees(np.arcsin(2 * height - 1)), 360 * turn - 180), axis=-1)
        kept.append(latlon[is_inhabited_land(latlon)] if land_only else latlon)
    return np.concatenate(kept)[:count]
