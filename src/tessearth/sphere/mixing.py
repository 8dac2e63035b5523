"""Random numbers that are a function of what they are for: a hash of seed, place, view ..., never of order or batch."""

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]


def mix(state: Bits) -> Bits:
    """The finaliser of splitmix64: every bit of the input moves about half of the output's."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def mix_seed(seed: int) -> Bits:
    """A seed of any size and sign as the first state of a chain, (1,)."""
    return mix(np.array([seed % 2**64], dtype=np.uint64))


def to_unit(bits: Bits) -> npt.NDArray[np.float64]:
    """Bits as numbers in [0, 1), 53 of them each."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
