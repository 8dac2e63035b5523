"""The golden file of levels: a small encoder with levels, and what the equations make of it in float64 numpy.

    .venv/bin/python -m tests.golden.make_levels

Its numbers are drawn by numpy and written to a file by the library, whose inference takes no part in the embeddings.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tessearth.encoder import EncoderConfig, SphericalVoronoiEncoder, TessellationConfig
from tests.golden.make_golden import golden_places
from tests.reference import numpy_encoder as reference

FOLDER = Path(__file__).parent
WEIGHTS, GOLDEN = FOLDER / "levels.safetensors", FOLDER / "levels.npz"
PARIS = (48.8566, 2.3522)
PATCH = 0.3
"""Radians: the finest level's sites lie as far around Paris."""
LEVEL = {"logits": "chord", "sharpness": "spacing", "sharpness_range": (0.5, 8.0)}
CONFIG = EncoderConfig(
    tessellations=(
        TessellationConfig(num_sites=40, site_dim=4, sharpness=9.0, logits="chord"),
        TessellationConfig(num_sites=200, site_dim=6, **LEVEL),  # type: ignore[arg-type]
        TessellationConfig(num_sites=1200, site_dim=5, background=-6.0, **LEVEL),  # type: ignore[arg-type]
    ),
    num_tokens=4,
    output_dim=20,
    hidden_dim=16,
    num_blocks=1,
)
Floats = npt.NDArray[np.float64]


def places() -> Floats:
    """The golden places of `make_golden`, then places around Paris, (N, 2)."""
    near = np.random.default_rng(1).normal(0, 8, (40, 2))
    return np.concatenate((golden_places(), np.array([PARIS]) + near))


def build() -> SphericalVoronoiEncoder:
    """The encoder; its sites, weights and spacing come from numpy."""
    draw = np.random.default_rng(0)
    centre = reference.sphere(np.array([PARIS]))
    spread = (np.inf, np.inf, PATCH)
    sites = []
    for tessellation, reach in zip(CONFIG.tessellations, spread, strict=True):
        points = draw.normal(size=(tessellation.num_sites, 3))
        sites.append(reference.unit(points if reach == np.inf else centre + reach / 2 * reference.unit(points)))
    encoder = SphericalVoronoiEncoder(CONFIG, sites=[torch.from_numpy(part) for part in sites])
    state = {}
    for name, tensor in encoder.state_dict().items():
        if name.rpartition(".")[2] in ("directions", "log_sharpness", "spacing", "image_temperature"):
            state[name] = tensor
        else:
            scale = 1.0 if "embeddings" in name or "territory" in name else 0.4
            state[name] = torch.from_numpy(draw.normal(0, scale, tuple(tensor.shape)).astype(np.float32))
    encoder.load_state_dict(state)
    return encoder.eval()


def embed(latlon: Floats, weights: Path = WEIGHTS) -> Floats:
    """Unit embeddings (N, D) straight from the equations and the file's numbers."""
    from safetensors.numpy import load_file

    tensors = {name: tensor.astype(np.float64) for name, tensor in load_file(weights).items()}
    x, mixtures = reference.sphere(latlon), []
    for i, tessellation in enumerate(CONFIG.tessellations):
        sites, log_tau, territory, rows = (
            tensors[f"tessellations.{i}.{name}"] for name in ("directions", "log_sharpness", "territory", "embeddings")
        )
        weights_of = reference.chord_site_weights(x, sites, log_tau, territory, tessellation.background)
        mixtures.append(weights_of @ rows)
    mixture = np.concatenate(mixtures, axis=1)
    progress = tensors["tokens.temperature_progress"]
    final = CONFIG.final_temperature
    temperature = np.exp(tensors["tokens.log_temperature"]) * (1 - progress) + final * progress
    logits = mixture @ tensors["tokens.location_logits.weight"].T + tensors["tokens.location_logits.bias"]
    attended = reference.softmax(logits / temperature) @ tensors["tokens.tokens"]
    projected = mixture @ tensors["projection.weight"].T + tensors["projection.bias"]
    gate = CONFIG.token_gate
    h = reference.layer_norm((1 - gate) * projected + gate * attended, tensors["norm.weight"], tensors["norm.bias"])
    h = np.maximum(h @ tensors["head.entry.weight"].T + tensors["head.entry.bias"], 0)
    names = ("first.weight", "first.bias", "second.weight", "second.bias")
    h = reference.residual(h, *(tensors[f"head.blocks.0.{name}"] for name in names))
    return np.asarray(reference.unit(h @ tensors["head.exit.weight"].T))


def main() -> None:
    build().save(WEIGHTS)
    latlon = places()
    np.savez(GOLDEN, latlon=latlon, embedding=embed(latlon).astype(np.float32))
    print(f"{GOLDEN}: {len(latlon)} places; {WEIGHTS}: {WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
