"""Make the files of a shipped model from trained weights.

    .venv/bin/python tools/release.py WEIGHTS FOLDER [--made-by WORDS] [--trajectories FILE] [--metrics FILE]

The embedding is turned so that its first 64 dimensions summarise it, in principal order. Weights are stored as float16,
and the sites' way during training is kept every 200 steps, in the layout of a run folder.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tessearth.embedding.embedder import Embedder
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.weights import load_weights, save
from tessearth.errors import ConfigError
from tessearth.sphere.sampling import sample_land

SUMMARY = 64
EVERY = 200
"""Steps between the records of the sites that are shipped."""
PLACES = 50_000
"""Places over land whose embeddings say which directions lead."""


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("weights")
    parser.add_argument("folder")
    parser.add_argument("--made-by", default="", help="the recipe and its changes, in words")
    parser.add_argument("--trajectories", help="the run's trajectories.npz")
    parser.add_argument("--metrics", help="the run's metrics.jsonl")
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    encoder = load_weights(arguments.weights)
    put_summary_in_front_(encoder, SUMMARY)
    sort_front_(encoder, SUMMARY)
    provenance = {
        "made_by": arguments.made_by,
        "made_from_sha256": hashlib.sha256(Path(arguments.weights).read_bytes()).hexdigest(),
        "summary_dimensions": SUMMARY,
    }
    save(encoder, folder, dtype=torch.float16, provenance=provenance)
    if arguments.trajectories:
        thin_trajectories(Path(arguments.trajectories), folder / "trajectories.npz")
    if arguments.metrics:
        shutil.copy(arguments.metrics, folder / "metrics.jsonl")


@torch.no_grad()
def put_summary_in_front_(encoder: SphericalVoronoiEncoder, count: int, *, places: int = PLACES, seed: int = 0) -> None:
    """Fold the map into the head's last layer: e -> unit(e [P_count R, P_rest R']), P the principal directions.

    R and R' are rotations drawn from the seed; the `rest` = D - count leading directions keep their natural spectrum,
    so the last `count` ones, which hardly vary, are given up.
    """
    width = encoder.config.output_dim
    if not 1 <= count < width:
        raise ConfigError(f"the summary is {count} dimensions; it must be at least 1 and below the embedding's {width}")
    embeddings = Embedder(encoder).embed(sample_land(places, seed))
    directions = principal_directions(torch.from_numpy(np.asarray(embeddings)))
    generator = torch.Generator().manual_seed(seed)
    front = directions[:, :count] @ _rotation(count, generator)
    behind = directions[:, : width - count] @ _rotation(width - count, generator)
    exit_layer = encoder.head.exit
    exit_layer.weight.copy_(torch.cat((front, behind), dim=1).T.to(exit_layer.weight) @ exit_layer.weight)


@torch.no_grad()
def sort_front_(encoder: SphericalVoronoiEncoder, count: int = SUMMARY, *, places: int = PLACES, seed: int = 0) -> None:
    """Turn the first `count` numbers into principal order: e -> [e_front Q, e_rest], Q orthogonal (count, count).

    Q holds the principal directions of the front over land, by falling variance, so that a prefix of any length is the
    best of its length within the front. Inner products and the numbers behind stay as they are; Q is folded into the
    head's last layer in float64.
    """
    width = encoder.config.output_dim
    if not 1 <= count <= width:
        raise ConfigError(f"the front is {count} dimensions; it must be at least 1 and at most the embedding's {width}")
    front = torch.from_numpy(np.asarray(Embedder(encoder).embed(sample_land(places, seed))))[:, :count]
    directions = principal_directions(front)
    exit_layer = encoder.head.exit
    for parameter in exit_layer.parameters():
        parameter[:count] = (directions.T @ parameter[:count].double()).to(parameter)


def principal_directions(embeddings: Tensor) -> Tensor:
    """Directions (D, D) as columns, by falling variance of the embeddings (N, D), in float64.

    Each one's largest entry is positive: a decomposition leaves the sign open, a shipped file must not.
    """
    centred = embeddings.double() - embeddings.double().mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    directions = directions.flip(1)
    largest = directions.abs().argmax(dim=0)
    oriented: Tensor = directions * directions.gather(0, largest[None]).sign()
    return oriented


def _rotation(width: int, generator: torch.Generator) -> Tensor:
    rotation: Tensor = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
    return rotation


def thin_trajectories(source: Path, out: Path) -> None:
    """Keep every EVERY steps' record; float16 leaves positions right to three kilometres."""
    with np.load(source) as kept:
        arrays = {name: kept[name] for name in kept.files}
    chosen = arrays["steps"] % EVERY == 0
    np.savez_compressed(
        out,
        steps=arrays["steps"][chosen],
        positions=arrays["positions"][chosen].astype(np.float16),
        sharpness=arrays["sharpness"][chosen].astype(np.float16),
    )


if __name__ == "__main__":
    main()
