"""What docs/determinism.md promises: when the same bytes come out, and how far apart they may be when they need not."""

import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from tessearth import Embedder
from tests.golden.conftest import MODEL, Golden

pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

COMPANY = 1e-6
"""How far a float32 embedding may move with how many other places are asked for in the same call."""
WAYS: dict[str, dict[str, Any]] = {
    "fast": {},
    "plain": {"strategy": "plain"},
    "float64": {"precision": "float64"},
    "bfloat16": {"precision": "bfloat16"},
}
IN_A_NEW_PROCESS = """
import hashlib, sys
import numpy as np, torch
torch.set_num_threads(1)
from tessearth import Embedder
places = np.frombuffer(sys.stdin.buffer.read()).reshape(-1, 2)
print(hashlib.sha256(Embedder(sys.argv[1], device="cpu")(places).tobytes()).hexdigest())
"""


def places(count: int = 800) -> np.ndarray:
    rng = np.random.default_rng(3)
    return np.stack((np.rad2deg(np.arcsin(rng.uniform(-1, 1, count))), rng.uniform(-180, 180, count)), axis=-1)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_call_gives_the_same_bytes(way: str) -> None:
    embedder = Embedder(MODEL, device="cpu", **WAYS[way])
    first = embedder(places()).tobytes()
    assert embedder(places()).tobytes() == first
    assert Embedder(MODEL, device="cpu", **WAYS[way])(places()).tobytes() == first


@pytest.mark.slow  # importing everything anew takes as long as a dozen other tests
def test_another_process_gives_the_same_bytes() -> None:
    here = hashlib.sha256(Embedder(MODEL, device="cpu")(places()).tobytes()).hexdigest()
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, MODEL]
    done = subprocess.run(command, input=places().tobytes(), capture_output=True, check=True)
    assert done.stdout.decode().strip() == here


@pytest.mark.parametrize("way", WAYS)
def test_order_and_threads_do_not_show(way: str) -> None:
    embedder = Embedder(MODEL, device="cpu", **WAYS[way])
    given = places()
    first = embedder(given)
    order = np.random.default_rng(0).permutation(len(given))
    assert embedder(given[order]).tobytes() == first[order].tobytes()
    torch.set_num_threads(2)
    try:
        assert np.abs(embedder(given) - first).max() <= (COMPANY if way == "plain" else 0)
    finally:
        torch.set_num_threads(1)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("way", ["fast", pytest.param("plain", marks=SLOW), pytest.param("float64", marks=SLOW)])
def test_company_shows_in_the_last_digits_only(way: str) -> None:
    given = places()
    whole = Embedder(MODEL, device="cpu", **WAYS[way])(given)
    for size in (50, 300):
        parts = Embedder(MODEL, device="cpu", batch_size=size, **WAYS[way])(given)
        assert np.abs(parts - whole).max() < COMPANY


KINDS: dict[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "longdouble": np.longdouble,
    "big-endian": ">f8",
}
TENSORS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
def test_coordinates_of_any_array_type_are_the_numbers_they_hold(golden: Golden, kind: str) -> None:
    """Narrow types round a place before anybody sees it; nothing is lost after that."""
    embedder = Embedder(MODEL, device="cpu")
    rounded = np.clip(golden.latlon.astype(KINDS[kind]), *np.array([[-90, -360], [90, 360]], dtype=KINDS[kind]))
    assert embedder(rounded).tobytes() == embedder(rounded.astype(np.float64)).tobytes()


@pytest.mark.parametrize("kind", TENSORS)
def test_coordinates_of_any_tensor_type_are_the_numbers_they_hold(golden: Golden, kind: torch.dtype) -> None:
    embedder = Embedder(MODEL, device="cpu")
    rounded = torch.from_numpy(golden.latlon).to(kind).requires_grad_()
    assert embedder(rounded).tobytes() == embedder(rounded.detach().double().numpy()).tobytes()


@pytest.mark.parametrize("precision", ["float64", "float32", "float16", "bfloat16"])
def test_poles_and_the_antimeridian_are_ordinary_places_in_every_precision(precision: Any) -> None:
    """Either side of the line, and both sides of a pole, give nearly the same; names of one place give the same."""
    embedder = Embedder(MODEL, device="cpu", precision=precision)
    close = 1e-9
    lines = [((lat, 180 - close), (lat, -180 + close)) for lat in (-60.0, 0.0, 35.0)]
    poles = [((sign * (90 - close), 10.0), (sign * (90 - close), -170.0)) for sign in (1, -1)]
    for one, other in (*lines, *poles):
        apart = np.abs(embedder([one, other, *places(8)])[:2])
        np.testing.assert_allclose(apart[0], apart[1], rtol=0, atol=2e-6)
