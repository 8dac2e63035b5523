"""Where sites start, level by level: as dense as a weight and evenly spaced for it, or where a finished run errs."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.encoder import load_weights, start_sites
from tessearth.errors import ConfigError, TessearthError, WeightsError
from tessearth.imagery import FeatureStore
from tessearth.sphere import fibonacci_lattice, latlon_to_xyz, mean_chord, xyz_to_latlon
from tessearth.storage import read_sealed_tensors
from tessearth.training.finished import read_residuals
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe
from tessearth.training.sites_recipe import SitesRecipe
from tessearth.training.start import place_sites, spread_sites
from tests.training.fabricate import toy_recipe
from tests.training.growing import growing_recipe

PLACES = fibonacci_lattice(8000)


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    pretrain(toy_recipe(), out, store=store, device="cpu")
    return out


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sites_are_as_dense_as_the_weight(seed: int) -> None:
    north = PLACES[:, 2] > 0
    sites = spread_sites(PLACES, torch.where(north, 4.0, 1.0).double(), 500, seed)
    assert float((sites[:, 2] > 0).double().mean()) == pytest.approx(0.8, abs=0.06)
    torch.testing.assert_close(sites.norm(dim=-1), torch.ones(500, dtype=torch.float64))


def test_sites_are_evenly_spaced_for_their_density() -> None:
    def evenness(sites: torch.Tensor) -> float:
        spacing = mean_chord(sites, 1)
        return float(spacing.std() / spacing.mean())

    sites = spread_sites(PLACES, torch.ones(8000, dtype=torch.float64), 500, 0)
    drawn = PLACES[torch.randperm(8000, generator=torch.Generator().manual_seed(0))[:500]]
    assert evenness(sites) < 0.5 * evenness(drawn)


def test_where_nothing_weighs_there_is_no_site() -> None:
    sites = spread_sites(PLACES, (PLACES[:, 0] > 0.5).double(), 200, 0)
    assert float(sites[:, 0].min()) > 0.5
    with pytest.raises(ConfigError, match=r"3000 sites cannot be drawn from 2001 places of any weight"):
        spread_sites(PLACES, (PLACES[:, 0] > 0.5).double(), 3000, 0)


def test_the_residual_of_a_run_is_the_error_of_its_decoder(run: Path, store: Path) -> None:
    latlon, residual = read_residuals(str(run), 50)
    opened = FeatureStore(store)
    rows = [int(np.abs(opened.latlon - place).sum(1).argmin()) for place in latlon.numpy()]
    assert set(rows) <= set(opened.training.tolist())
    state = {name: part.double() for name, part in read_sealed_tensors(run / "checkpoint.safetensors")[1].items()}
    encoder = load_weights(run / "weights" / "last.safetensors")
    raw = encoder.encode(latlon.float()).raw.double()
    feature = torch.from_numpy(opened.features[rows, 0].astype(np.float64)) - state["model.feature_mean"]
    decoded = raw @ state["model.decoder.weight"].T + state["model.decoder.bias"]
    wanted = (decoded - feature * state["model.feature_scale"]).square().mean(-1)
    torch.testing.assert_close(residual, wanted.detach(), rtol=1e-4, atol=1e-6)


def test_sites_follow_a_density_of_the_users_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shops = rng.normal((47.0, 8.0), 1.0, (2000, 2))
    (tmp_path / "shops.csv").write_text("lat,lon\n" + "\n".join(f"{lat},{lon}" for lat, lon in shops.tolist()))
    recipe = SitesRecipe(start=("full", "density"), density=str(tmp_path / "shops.csv"), places=1000)
    sphere, sites = place_sites(recipe, (20, 150), 0)
    assert torch.equal(sphere, start_sites("full", 20))
    latlon = xyz_to_latlon(sites).numpy()
    assert np.abs(latlon - (47.0, 8.0)).max() < 6
    assert np.abs(latlon.mean(0) - (47.0, 8.0)).max() < 0.4
    assert float(mean_chord(sites, 1).min()) > 1e-3  # spread, not on top of each other
    (tmp_path / "nothing.csv").write_text("lat,lon,weight\n47,8,0\n")
    for file, message in (("nothing.csv", "are all 0"), ("none.csv", "there is no density")):
        with pytest.raises(TessearthError, match=message):
            place_sites(dataclasses.replace(recipe, density=str(tmp_path / file)), (20, 150), 0)


def recipe_of(start: object, **settings: object) -> Recipe:
    recipe = growing_recipe(growth=None, steps=2, evaluate_every=2)
    return dataclasses.replace(recipe, sites=SitesRecipe(start=start, **settings))  # type: ignore[arg-type]


def test_each_tessellation_starts_as_it_says(run: Path, store: Path, tmp_path: Path) -> None:
    pretrain(recipe_of(("full", "error"), model=str(run)), tmp_path / "out", store=store, device="cpu")
    with np.load(tmp_path / "out" / "trajectories.npz") as found:
        begun = torch.from_numpy(found["positions"][0]).double()
    torch.testing.assert_close(begun[:12], start_sites("full", 12), rtol=0, atol=1e-6)
    places, residual = read_residuals(str(run), 100_000)
    wanted = spread_sites(latlon_to_xyz(places), residual, 40, 0)
    torch.testing.assert_close(begun[12:], wanted, rtol=0, atol=1e-6)


def test_sites_on_land_and_over_the_sphere_side_by_side() -> None:
    positions = place_sites(SitesRecipe(start=("land", "full")), (30, 20), 0)
    assert torch.equal(positions[0], start_sites("land", 30))
    assert torch.equal(positions[1], start_sites("full", 20))


def test_starts_that_cannot_be_are_refused(run: Path, store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sites\.start is 'error'; name the run: sites\.model = NAME or PATH"):
        recipe_of(("full", "error"))
    with pytest.raises(ConfigError, match=r"sites\.start is 'density'; name the file: sites\.density = NAME or PATH"):
        recipe_of("density")
    with pytest.raises(ConfigError, match=r"sites\.start has 3 names for 2 tessellations"):
        recipe_of(("full", "land", "full"))
    bare = tmp_path / "bare"
    shutil.copytree(run, bare)
    (bare / "checkpoint.safetensors").unlink()
    with pytest.raises(WeightsError, match="bare is no finished run: it has no weights with a checkpoint"):
        read_residuals(str(bare), 10)
    recipe = toy_recipe(objective={"distillation": 0.0}, steps=1)
    pretrain(recipe, tmp_path / "paper", store=store, device="cpu")
    with pytest.raises(ConfigError, match="paper distilled nothing, so it has no residual"):
        read_residuals(str(tmp_path / "paper"), 10)
