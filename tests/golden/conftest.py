"""The golden file and the model it speaks of."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tests.golden.make_golden import GOLDEN, SAME, SPECIAL

MODEL = "earth-small"
LARGEST_ERROR = {"float64": 1e-7, "float32": 1e-5, "float16": 2e-3, "bfloat16": 6e-3}
"""Of any number of a unit embedding against the golden one, which is float64 rounded to float32."""
ONE_PLACE = 2e-6
"""The largest difference between two names of one place, in float32."""


class Golden(NamedTuple):
    """Places and what the equations make of them."""

    latlon: npt.NDArray[np.float64]
    embedding: npt.NDArray[np.float32]

    def check(self, got: npt.ArrayLike, precision: str = "float32", rows: slice = slice(None)) -> None:
        """Every number within the tolerance of its precision, and one place under two names the same."""
        found: npt.NDArray[Any] = np.asarray(got, dtype=np.float64)
        wanted = self.embedding[rows]
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() < LARGEST_ERROR[precision]
        if precision == "float32" and rows == slice(None):
            for one, other in SAME:
                assert np.abs(found[one] - found[other]).max() < ONE_PLACE, SPECIAL[other]


@pytest.fixture(scope="session")
def golden() -> Golden:
    with np.load(GOLDEN, allow_pickle=False) as file:
        return Golden(file["latlon"], file["embedding"])
