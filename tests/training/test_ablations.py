"""Every ablation recipe runs end to end at toy size and changes what it says it changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.sites import start_sites
from tessearth.encoder.weights import load_weights, read_weights, save
from tessearth.imagery.recipe import RECIPE_FOLDERS
from tessearth.training.loop import pretrain
from tessearth.training.recipe import read_recipe
from tests.conftest import tiny_encoder

TOY = (
    "features=none",
    "encoder.output_dim=16",
    "encoder.hidden_dim=12",
    "training.batch_size=32",
    "training.steps=6",
    "training.record_every=3",
)
SMALLER = 128
"""Site counts are divided by this, so that the recipes still differ as they say."""


class Trained(NamedTuple):
    encoder: SphericalVoronoiEncoder
    positions: np.ndarray
    terms: dict[str, float]
    places: int
    alive: np.ndarray | None


def run(name: str, store: Path, folder: Path) -> Trained:
    """Train a recipe at toy size; what remains of it."""
    sizes = [tessellation.num_sites for tessellation in read_recipe(name).encoder.tessellations]
    changes = [
        change
        for i, size in enumerate(sizes)
        for change in (
            f"encoder.tessellations.{i}.num_sites={size // SMALLER}",
            f"encoder.tessellations.{i}.site_dim=8",
        )
    ]
    if name == "ablations/clusters":
        save(tiny_encoder(dtype=torch.float32), folder / "other.safetensors")
        changes += [f"sites.model={folder / 'other.safetensors'}", "sites.places=500", "sites.rounds=3"]
    if (growth := read_recipe(name).sites.growth) is not None:
        start = [size // SMALLER for size in growth.start or ()]
        changes += [f"sites.growth.start={start}", "sites.refresh_every=1", "sites.growth.every=1"]
        changes += ["sites.growth.accumulate_every=1"]
    out = folder / name.replace("/", "-")
    pretrain(read_recipe(name, [*TOY, *changes]), out, store=store, device="cpu")
    with np.load(out / "trajectories.npz") as found:
        positions, alive = found["positions"], found.get("alive")
    last = out / "weights" / "last.safetensors"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    terms = next(line["training"] for line in lines if "training" in line)
    return Trained(load_weights(last), positions, terms, read_weights(last).provenance["training_places"], alive)


@pytest.fixture(scope="module")
def paper(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return run("paper", store, tmp_path_factory.mktemp("paper"))


def counts_sites(number: int) -> Callable[[Trained, Trained], bool]:
    return lambda found, paper: found.encoder.config.num_sites == number // SMALLER != paper.encoder.config.num_sites


def counts_tokens(number: int) -> Callable[[Trained, Trained], bool]:
    def check(found: Trained, paper: Trained) -> bool:
        return found.encoder.tokens is not None and len(found.encoder.tokens.tokens) == number

    return check


def term_is_zero(name: str) -> Callable[[Trained, Trained], bool]:
    return lambda found, paper: found.terms[name] == 0 < paper.terms[name]


def distils(found: Trained, paper: Trained) -> bool:
    return found.terms["distillation"] > 0 == paper.terms["distillation"]


def stays(found: Trained, paper: Trained) -> bool:
    def moved(trained: Trained) -> float:
        return float(np.abs(trained.positions - trained.positions[0]).max())

    return moved(found) < 1e-6 and moved(paper) > 1e-4


def starts_at(start: str) -> Callable[[Trained, Trained], bool]:
    def check(found: Trained, paper: Trained) -> bool:
        expected = start_sites(start, found.encoder.config.num_sites).numpy()  # type: ignore[arg-type]
        return np.allclose(found.positions[0], expected, atol=1e-6) and not np.allclose(paper.positions[0], expected)

    return check


def leaves_the_sphere(found: Trained, paper: Trained) -> bool:
    def away(trained: Trained) -> float:
        return float(np.abs(np.linalg.norm(trained.positions[-1], axis=-1) - 1).max())

    return away(found) > 1e-5 > away(paper)


def attends_softly(found: Trained, paper: Trained) -> bool:
    softly, sharply = found.encoder.tokens, paper.encoder.tokens
    assert softly is not None
    assert sharply is not None
    temperatures = [float(value) for value in (softly.temperature(), softly.image_temperature)]
    return temperatures == pytest.approx([0.2, 0.2]) and float(sharply.image_temperature) == pytest.approx(0.05)


def sharp_as_spaced(found: Trained, paper: Trained) -> bool:
    levels = [v for v in found.encoder.voronois() if v.config.is_spaced]
    return len(levels) > 0 and all(
        torch.allclose(v.sharpness() * v.spacing.square(), torch.tensor(2.0), rtol=0.05) for v in levels
    )


def grows(found: Trained, paper: Trained) -> bool:
    return (
        sharp_as_spaced(found, paper) and found.alive is not None and bool(found.alive[0].sum() < found.alive[-1].sum())
    )


CHANGES: dict[str, Callable[[Trained, Trained], bool]] = {
    "fixed-sites": stays,
    "no-tokens": lambda found, paper: found.encoder.tokens is None and found.terms["alignment"] == 0,
    "no-alignment": term_is_zero("alignment"),
    "no-reconstruction": term_is_zero("reconstruction"),
    "symmetric-attention": attends_softly,
    "sites-256": counts_sites(256),
    "sites-512": counts_sites(512),
    "sites-1024": counts_sites(1024),
    "sites-2048": counts_sites(2048),
    "sites-8192": counts_sites(8192),
    "tokens-8": counts_tokens(8),
    "tokens-16": counts_tokens(16),
    "tokens-32": counts_tokens(32),
    "tokens-128": counts_tokens(128),
    "tokens-256": counts_tokens(256),
    "half-data": lambda found, paper: found.places == round(paper.places / 2),
    "full-lattice": starts_at("full"),
    "clusters": lambda found, paper: not np.allclose(found.positions[0], paper.positions[0]),
    "coordinates": lambda found, paper: found.encoder.head.entry.in_features == 16 + 6 * 8,
    "free-sites": leaves_the_sphere,
    "decoupled-sharpness": lambda found, paper: bool(found.encoder.voronois()[0].territory.abs().max() > 0),
    "several-tessellations": lambda found, paper: len(found.encoder.voronois()) == 3,
    "levels": lambda found, paper: sharp_as_spaced(found, paper) and len(found.encoder.voronois()) == 3,
    "levels-stay": lambda found, paper: sharp_as_spaced(found, paper) and stays(found, paper),
    "levels-grown": grows,
    "one-level": lambda found, paper: sharp_as_spaced(found, paper) and len(found.encoder.voronois()) == 1,
    "sum-reduction": lambda found, paper: found.terms["reconstruction"] > 8 * paper.terms["reconstruction"],
    "distillation-1": distils,
    "distillation-10": distils,
    "distillation-30": distils,
    "distillation-only": lambda found, paper: distils(found, paper) and term_is_zero("contrastive")(found, paper),
}


def test_every_ablation_recipe_is_checked() -> None:
    folder = next(folder for folder in RECIPE_FOLDERS if folder.is_dir()) / "ablations"
    assert {path.stem for path in folder.glob("*.toml")} == set(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
def test_an_ablation_changes_what_it_says(name: str, paper: Trained, store: Path, tmp_path: Path) -> None:
    assert CHANGES[name](run(f"ablations/{name}", store, tmp_path), paper)
