"""The geographic prior: a worked example, its gradient, and species whose ranges are known."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tessearth.errors import ConfigError, DataError
from tessearth.evaluation.geoprior import (
    GeoPrior,
    PriorSettings,
    _loss_and_gradient,
    combine,
    evaluate_prior,
    fit_prior,
    load_prior,
    prior_loss,
    ranks_of,
    read_scores,
    read_sightings,
    save_prior,
)
from tessearth.evaluation.probes import RandomFeatures
from tessearth.sphere.sampling import sample_sphere
from tests.memory import PEAK


def test_the_worked_example() -> None:
    """Two places, three classes, weights written out.

    e = (3, 4)/5 and (1, 0); w = (1, 0), (0, 1), (-1, 0); b = (0, 0, ln 2).
    Logits: (0.6, 0.8, ln 2 - 0.6) and (1, 0, ln 2 - 1). sigmoid(ln 2 - x) = 2 / (2 + e^x).
    """
    prior = GeoPrior(torch.tensor([[1.0, 0], [0, 1], [-1, 0]]), torch.tensor([0.0, 0.0, math.log(2)]))
    p = [[1 / (1 + math.exp(-0.6)), 1 / (1 + math.exp(-0.8)), 2 / (2 + math.exp(0.6))]]
    p += [[1 / (1 + math.exp(-1)), 0.5, 2 / (2 + math.e)]]
    embeddings = np.array([[3.0, 4.0], [1.0, 0.0]])
    np.testing.assert_allclose(prior.probabilities(embeddings), p, rtol=1e-6)
    # Seen: class 1 at the first place, class 0 at the second; a seen class weighs 2048.
    loss = -math.log(1 - p[0][0]) - 2048 * math.log(p[0][1]) - math.log(1 - p[0][2])
    loss += -2048 * math.log(p[1][0]) - math.log(1 - p[1][1]) - math.log(1 - p[1][2])
    logits = torch.logit(torch.tensor(p, dtype=torch.float64))
    assert prior_loss(logits, torch.tensor([1, 0]), 2048.0).item() == pytest.approx(loss / 6, rel=1e-9)
    # Images say (0.4, 0.5, 0.1) and (0.3, 0.4, 0.3): with the places 0.2583 < 0.3450 and 0.2193 > 0.2.
    scores = np.array([[0.4, 0.5, 0.1], [0.3, 0.4, 0.3]])
    both = combine(scores, np.array(p))
    np.testing.assert_allclose(both[1], np.array([0.21932, 0.2, 0.12716]) / 0.54648, atol=1e-4)
    found = evaluate_prior(prior, [(embeddings, scores, np.array([1, 0]))])
    assert found == ({1: 0.5, 3: 1.0, 5: 1.0, 10: 1.0}, {1: 1.0, 3: 1.0, 5: 1.0, 10: 1.0}, 2)


def test_the_written_gradient_is_the_recorded_one() -> None:
    generator = torch.Generator().manual_seed(0)
    unit, weight, bias = (torch.randn(*shape, generator=generator).double() for shape in ((9, 4), (6, 4), (6,)))
    code = torch.tensor([0, 5, 2, 2, 1, 3, 4, 0, 5])
    weight.requires_grad_(True)
    bias.requires_grad_(True)
    prior_loss(unit @ weight.T + bias, code, 2048.0).backward()
    loss, by_weight, by_bias = _loss_and_gradient(unit, code, weight.detach(), bias.detach(), 2048.0)
    torch.testing.assert_close(by_weight, weight.grad)
    torch.testing.assert_close(by_bias, bias.grad)
    assert loss.item() == pytest.approx(prior_loss(unit @ weight.T + bias, code, 2048.0).item())


def test_ranks_count_what_comes_before_and_ties_keep_their_order() -> None:
    scores = np.array([[0.2, 0.5, 0.3], [0.3, 0.3, 0.3], [0.0, 0.0, 1.0]])
    for code in range(3):
        order = np.argsort(-scores, axis=1, kind="stable")
        np.testing.assert_array_equal(ranks_of(scores, np.full(3, code)), np.argmax(order == code, axis=1))


def simulate(rows: int, seed: int, overlap: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twelve species in six pairs of twins, each pair divided by its own great circle.

    A species is seen on its own side of the circle with probability 1 - overlap and on the other with `overlap`.
    Images tell the pairs apart in four cases of five, and twins never.
    """
    rng = np.random.default_rng(seed)
    latlon = sample_sphere(rows, seed)
    lat, lon = np.deg2rad(latlon).T
    xyz = np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), -1)
    poles = np.random.default_rng(99).normal(size=(6, 3))
    pair = rng.integers(0, 6, rows)
    side = (xyz * poles[pair]).sum(1) > 0
    own_side = rng.random(rows) >= overlap
    classes = 2 * pair + (side == own_side)
    shown = np.where(rng.random(rows) < 0.8, pair, rng.integers(0, 6, rows))  # what the image looks like
    confusion = np.full((6, 6), 0.2 / 6) + np.eye(6) * 0.8
    return latlon, classes.astype(np.int64), np.repeat(confusion[shown], 2, axis=1) / 2


@pytest.mark.parametrize("overlap", [0.0, 0.2, 0.5])
def test_places_tell_twins_apart_as_far_as_their_ranges_do(overlap: float) -> None:
    """Bayes: the image's pair is right with 0.8 + 0.2 / 6; within the pair the place is right with 1 - overlap.

    So images alone reach 0.4167, and image and place (1 - overlap) 0.8333, which is no gain at all for twins that live
    together.
    """
    embed = RandomFeatures(width=128, seed=3).embed
    latlon, classes, _ = simulate(12_000, 1, overlap)
    prior = fit_prior(embed(latlon), classes, 12, PriorSettings(epochs=25, batch_size=256, learning_rate=0.02))
    latlon, classes, scores = simulate(4000, 2, overlap)
    found = evaluate_prior(prior, [(embed(latlon), scores, classes)])
    right_pair = 0.8 + 0.2 / 6
    assert found.image[1] == pytest.approx(right_pair / 2, abs=0.03)
    assert found.image[3] <= found.combined[3] + 0.03
    best = max(1 - overlap, 0.5) * right_pair
    assert best - 0.05 < found.combined[1] < best + 0.03
    if overlap < 0.5:
        assert found.combined[1] > found.image[1] + 0.2


def test_fitting_lowers_the_loss_and_repeats_itself() -> None:
    embeddings = RandomFeatures(width=32).embed(sample_sphere(500, 0))
    classes = np.arange(500) % 5
    told: list[tuple[int, float]] = []
    settings = PriorSettings(epochs=4, batch_size=64)
    first = fit_prior(embeddings, classes, 5, settings, on_epoch=lambda *state: told.append(state))
    assert [epoch for epoch, _ in told] == [1, 2, 3, 4]
    assert told[-1][1] < told[0][1]
    torch.testing.assert_close(first, fit_prior(embeddings, classes, 5, settings), rtol=0, atol=0)


def test_a_row_without_a_place_is_judged_by_its_image() -> None:
    prior = GeoPrior(torch.tensor([[9.0], [-9.0]]), torch.zeros(2))
    scores = np.array([[0.4, 0.6], [0.4, 0.6]])
    found = evaluate_prior(prior, [(np.array([[1.0], [np.nan]]), scores, np.array([0, 1]))])
    assert (found.image[1], found.combined[1]) == (0.5, 1.0)


def write_inat(path: Path, rows: int = 40, **change: object) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, object] = {
        "lon": rng.uniform(-180, 180, rows),
        "lat": rng.uniform(-60, 60, rows),
        "classes": np.arange(rows) % 7,
        **change,
    }
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items() if array is not None})
    return path


def test_sightings_and_scores_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessearth.evaluation.geoprior.SCORES_AT_ONCE", 7 * 9)
    scores = np.random.default_rng(1).random((40, 7), dtype=np.float32)
    path = write_inat(tmp_path / "inat2018_val.npz", prediction=scores, lat=[np.nan, *range(39)])
    sightings = read_sightings(path)
    assert sightings.known.sum() == 39
    np.testing.assert_array_equal(sightings.latlon[1:, 0], range(39))
    np.testing.assert_array_equal(sightings.classes, np.arange(40) % 7)
    blocks = list(read_scores(path))
    assert [len(block) for block in blocks] == [9, 9, 9, 9, 4]
    np.testing.assert_array_equal(np.concatenate(blocks), scores)
    train = read_sightings(write_inat(tmp_path / "inat2018_train.npz"))
    assert train.latlon.shape == (40, 2)
    np.savez_compressed(tmp_path / "c.npz", **dict(np.load(path)))
    np.testing.assert_array_equal(np.concatenate(list(read_scores(tmp_path / "c.npz"))), scores)


def test_any_table_of_species_is_read(tmp_path: Path) -> None:
    names = ["lynx", "wolf", "lynx", "bear"]
    pd.DataFrame({"lat": range(4), "lon": range(10, 14), "species": names}).to_csv(tmp_path / "s.csv", index=False)
    sightings = read_sightings(tmp_path / "s.csv")
    assert [sightings.names[code] for code in sightings.classes] == names


def test_a_prior_reads_back(tmp_path: Path) -> None:
    prior = GeoPrior(torch.randn(3, 4), torch.randn(3))
    save_prior(prior, tmp_path / "p.safetensors", names=("a", "b", "c"), model="earth")
    read = load_prior(tmp_path / "p.safetensors")
    torch.testing.assert_close(read.prior, prior, rtol=0, atol=0)
    assert (read.names, read.model) == (("a", "b", "c"), "earth")


def test_bad_files_are_one_line(tmp_path: Path) -> None:
    cases = {
        "surplus": ({"extra": [1]}, "has a surplus extra"),
        "no classes": ({"classes": None}, "has no classes"),
        "fractions": ({"classes": np.arange(40) / 2}, "must be whole numbers"),
        "lengths": ({"lat": np.zeros(3)}, "have shapes (40,), (3,) and (40,)"),
        "latitudes": ({"lat": np.full(40, 99.0)}, "latitude lies between -90 and 90"),
    }
    for name, (change, words) in cases.items():
        with pytest.raises(DataError) as caught:
            read_sightings(write_inat(tmp_path / f"{name}.npz", **change))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    for change, words in (({"prediction": np.ones(40)}, "must be numbers"), ({}, "holds no image scores")):
        with pytest.raises(DataError, match=words):
            list(read_scores(write_inat(tmp_path / "v.npz", **change)))
    (tmp_path / "text.npz").write_text("hello")
    for read in (read_sightings, load_prior, lambda path: list(read_scores(path))):
        for name in ("text.npz", "missing.npz"):
            with pytest.raises(DataError):
                read(tmp_path / name)


def test_misuse_is_named() -> None:
    prior = GeoPrior(torch.zeros(3, 2), torch.zeros(3))
    with pytest.raises(DataError, match="the prior knows 3 classes"):
        evaluate_prior(prior, [(np.ones((1, 2)), np.ones((1, 4)), np.array([0]))])
    with pytest.raises(DataError, match="apply softmax to logits first"):
        evaluate_prior(prior, [(np.ones((1, 2)), -np.ones((1, 3)), np.array([0]))])
    with pytest.raises(DataError, match="no rows to evaluate"):
        evaluate_prior(prior, [])
    with pytest.raises(DataError, match="classes run from 0 to 3; there are 3, counted from 0"):
        fit_prior(np.ones((4, 2)), np.arange(4), 3)
    with pytest.raises(ConfigError, match="epochs is 0"):
        PriorSettings(epochs=0)


CODE = """
import numpy as np, torch
torch.set_num_threads(1)
from tessearth.evaluation.geoprior import PriorSettings, evaluate_prior, fit_prior
rng = np.random.default_rng(0)
embeddings, classes = rng.random((12_000, 16), dtype=np.float32), rng.integers(0, 6000, 12_000)
settings = PriorSettings(epochs=1, batch_size=512)
fit_prior(embeddings[:64], classes[:64], 6000, settings)
before = peak()
prior = fit_prior(embeddings, classes, 6000, settings)
scores = np.broadcast_to(rng.random((1, 6000), dtype=np.float32), (4000, 6000))
parts = (slice(start, start + 500) for start in range(0, 4000, 500))
evaluate_prior(prior, ((embeddings[part], scores[part], classes[part]) for part in parts))
print((peak() - before) / 2**20)
"""


def test_memory_does_not_grow_with_the_rows() -> None:
    """The scores of all 12,000 sightings for 6,000 species would be 288 MB, those of the photographs another 192 MB."""
    done = subprocess.run([sys.executable, "-c", PEAK + CODE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 180
