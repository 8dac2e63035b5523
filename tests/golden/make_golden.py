"""The golden file: places all over the Earth and what `earth-small` makes of them, from the equations in float64 numpy.

    .venv/bin/python -m tests.golden.make_golden

Weights are read from the file by safetensors' numpy reader and the arithmetic is that of tests/reference: nothing of
the package's own inference takes part, so every path can be judged by it.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from tests.reference import numpy_encoder as reference

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "src" / "tessearth" / "zoo" / "shipped" / "earth-small" / "model.safetensors"
GOLDEN = Path(__file__).with_name("earth-small.npz")
STEP = 45.0
"""Degrees between the cells of the map that is part of the golden places."""
OCTAVES, GATE, FINAL_TEMPERATURE, BLOCKS = 12, 0.5, 0.2, 2
"""As in the model's config.json."""
SPECIAL = (
    *((90.0, 0.0), (90.0, 123.4), (-90.0, 0.0), (-90.0, -77.0), (89.9999999, 10.0), (-89.9999999, 10.0)),
    *((10.0, 180.0), (10.0, -180.0), (-65.3, 180.0), (-65.3, -180.0), (10.0, 179.9999999), (10.0, -179.9999999)),
    *((5.0, 359.5), (5.0, -0.5), (0.0, 0.0), (0.0, 360.0), (-0.0, -0.0), (0.0, 90.0), (48.8566, 2.3522)),
    *((-33.8688, 151.2093), (64.1466, -21.9426), (-16.9833, 179.9861), (71.1, 180.0), (1e-12, -1e-12), (85.0511, -0.1)),
)
"""Poles, the antimeridian from both sides, where counting begins, and towns."""
SAME = ((0, 1), (2, 3), (6, 7), (8, 9), (12, 13), (14, 15), (14, 16))
"""Rows of `SPECIAL` that are one place under two names."""


def golden_places() -> npt.NDArray[np.float64]:
    """The special places, then the centres of a map's cells, north-west first, (N, 2)."""
    lat = 90 - STEP / 2 - STEP * np.arange(int(180 / STEP))
    lon = -180 + STEP / 2 + STEP * np.arange(int(360 / STEP))
    cells = np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate((np.array(SPECIAL), cells))


def embed(latlon: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Unit embeddings (N, D) straight from the equations."""
    tensors = {name: tensor.astype(np.float64) for name, tensor in load_file(WEIGHTS).items()}
    x = reference.sphere(latlon)
    sites = (tensors[f"tessellations.0.{name}"] for name in ("directions", "log_sharpness"))
    mixture = reference.site_weights(x, *sites) @ tensors["tessellations.0.embeddings"]
    progress = tensors["tokens.temperature_progress"]
    temperature = np.exp(tensors["tokens.log_temperature"]) * (1 - progress) + FINAL_TEMPERATURE * progress
    logits = mixture @ tensors["tokens.location_logits.weight"].T + tensors["tokens.location_logits.bias"]
    attended = reference.softmax(logits / temperature) @ tensors["tokens.tokens"]
    projected = mixture @ tensors["projection.weight"].T + tensors["projection.bias"]
    blend = reference.layer_norm((1 - GATE) * projected + GATE * attended, tensors["norm.weight"], tensors["norm.bias"])
    angles = np.concatenate([np.pi * 2**octave * x for octave in range(OCTAVES)], axis=1)
    h = np.concatenate([blend, np.sin(angles), np.cos(angles)], axis=1)
    h = np.maximum(h @ tensors["head.entry.weight"].T + tensors["head.entry.bias"], 0)
    for block in range(BLOCKS):
        names = ("first.weight", "first.bias", "second.weight", "second.bias")
        h = reference.residual(h, *(tensors[f"head.blocks.{block}.{name}"] for name in names))
    return np.asarray(reference.unit(h @ tensors["head.exit.weight"].T))


def main() -> None:
    places = golden_places()
    np.savez(GOLDEN, latlon=places, embedding=embed(places).astype(np.float32))
    print(f"{GOLDEN}: {len(places)} places, {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    main()
