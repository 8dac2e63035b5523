"""Places drawn over the sphere or its land, a split of them, and random numbers that depend on a place alone."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.sphere.coordinates import Floats, as_places
from tessearth.sphere.grids import Box
from tessearth.sphere.land import is_inhabited_land

Bits = npt.NDArray[np.uint64]

KEYS_PER_DEGREE = 1_000_000
"""Places closer than a millionth of a degree (11 cm) count as one."""
KEYS_AROUND = 360 * KEYS_PER_DEGREE
DRAWN_AT_ONCE = 65_536
MOST_DRAWS = 50
"""Draws without a single wanted place, after which it is taken to have none."""

Rule = Callable[[Floats], npt.NDArray[np.bool_]]
"""Which of some places (N, 2) are wanted, (N,)."""


def sample_sphere(count: int, seed: int, *, purpose: str = "") -> Floats:
    """Draw places evenly over the sphere, (count, 2) in degrees: lat = asin(2 u - 1), lon = 360 v - 180.

    A larger draw with the same seed begins with the smaller one. Draws for different purposes share no places.
    """
    return _draw(_generator(count, seed, purpose), count)


def sample_land(count: int, seed: int, *, purpose: str = "") -> Floats:
    """Draw places evenly over land north of 60 S, (count, 2) in degrees; prefix-stable like `sample_sphere`."""
    return _sample_where(is_inhabited_land, count, seed, purpose)


def sample_elsewhere(count: int, seed: int) -> Floats:
    """Draw places evenly over what `sample_land` leaves out, seas and Antarctica; (count, 2), prefix-stable too."""
    return _sample_where(lambda places: ~is_inhabited_land(places), count, seed, "elsewhere")


def sample_box(box: Box, wanted: Rule, count: int, seed: int) -> Floats:
    """Draw places evenly over what is wanted of a box, (count, 2) in degrees; prefix-stable like `sample_sphere`."""
    generator, (low, high) = _generator(count, seed, ""), np.sin(np.deg2rad([box.south, box.north]))

    def draw() -> Floats:
        up, around = generator.random((DRAWN_AT_ONCE, 2)).T
        lon = np.mod(box.west + box.width * around + 180.0, 360.0) - 180.0
        return np.stack((np.rad2deg(np.arcsin(low + (high - low) * up)), lon), axis=-1)

    return _keep(draw, wanted, count, f"between {', '.join(f'{side:g}' for side in box)} (W, S, E, N)")


def _sample_where(wanted: Rule, count: int, seed: int, purpose: str) -> Floats:
    generator = _generator(count, seed, purpose)
    return _keep(lambda: _draw(generator, DRAWN_AT_ONCE), wanted, count, "on the sphere")


def _keep(draw: Callable[[], Floats], wanted: Rule, count: int, where: str) -> Floats:
    """The first wanted places of draws."""
    found, missing, without = [np.empty((0, 2))], count, 0
    while missing > 0:
        drawn = draw()
        found.append(drawn[wanted(drawn)][:missing])
        missing -= len(found[-1])
        without = 0 if len(found[-1]) else without + 1
        if without == MOST_DRAWS:
            raise ConfigError(f"no place is found {where}")
    return np.concatenate(found)


def split_places(
    latlon: npt.ArrayLike, *, validation: float = 0.05, seed: int = 0, block_degrees: float | None = None
) -> npt.NDArray[np.bool_]:
    """Which places (N, 2) are held out for validation, (N,), by a hash of the place itself.

    The side depends on the place and the seed alone: duplicates stay together, and adding places moves none. About the
    share `validation` is held out; with `block_degrees`, of whole latitude-longitude blocks.
    """
    if not 0 <= validation <= 1:
        raise ConfigError(f"validation is {validation}; it must be a share between 0 and 1")
    keys = place_keys(latlon) if block_degrees is None else _block_keys(latlon, block_degrees)
    return to_unit(mix(keys.astype(np.uint64) ^ mix_seed(seed))) < validation


def place_keys(latlon: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """One whole number per place (N, 2) -> (N,), equal for places that agree to a millionth of a degree.

    Longitudes are taken around the circle (180 and -180 are one meridian) and forgotten at the poles.
    """
    lat, lon = as_places(latlon).T
    row = np.rint((lat + 90.0) * KEYS_PER_DEGREE).astype(np.int64)
    column = np.rint((lon + 180.0) * KEYS_PER_DEGREE).astype(np.int64) % KEYS_AROUND
    at_pole = (row == 0) | (row == 180 * KEYS_PER_DEGREE)
    return np.asarray(row * KEYS_AROUND + np.where(at_pole, 0, column))


def _draw(generator: np.random.Generator, count: int) -> Floats:
    up, around = generator.random((count, 2)).T
    return np.stack((np.rad2deg(np.arcsin(2.0 * up - 1.0)), 360.0 * around - 180.0), axis=-1)


def _generator(count: int, seed: int, purpose: str) -> np.random.Generator:
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed is {seed!r}; it must be a whole number, 0 or more")
    if not isinstance(count, int | np.integer) or count < 0:
        raise ConfigError(f"cannot draw {count!r} places; count must be a whole number, 0 or more")
    return np.random.default_rng([seed, *purpose.encode()])


def _block_keys(latlon: npt.ArrayLike, block_degrees: float) -> npt.NDArray[np.int64]:
    if not 0 < block_degrees <= 180:
        raise ConfigError(f"block_degrees is {block_degrees}; it must be above 0 and at most 180")
    lat, lon = as_places(latlon).T
    row, column = np.floor(np.stack((lat + 90.0, np.mod(lon + 180.0, 360.0))) / block_degrees).astype(np.int64)
    return np.asarray(row * 2**32 + column)


def mix(state: Bits) -> Bits:
    """The finaliser of splitmix64: every bit of the input moves about half of the output's."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def mix_seed(seed: int) -> Bits:
    """A seed of any size and sign as the first state of a chain, (1,)."""
    return mix(np.array([seed % 2**64], dtype=np.uint64))


def to_unit(bits: Bits) -> Floats:
    """Bits as numbers in [0, 1), 53 of them each."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
