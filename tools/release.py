"""Make the files of a shipped model from trained weights.

    .venv/bin/python tools/release.py WEIGHTS FOLDER [--made-by WORDS] [--trajectories FILE] [--metrics FILE]

The embedding is turned so that its first 64 dimensions summarise it, weights are stored as float16, and the sites' way
during training is kept every 200 steps, in the layout of a run folder.
"""

import argparse
import hashlib
import shutil
from pathlib import Path

import numpy as np
import torch

from tessearth.embedding.leading import put_summary_in_front_
from tessearth.encoder.weights import load_weights, save

SUMMARY = 64
EVERY = 200
"""Steps between the records of the sites that are shipped."""


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
