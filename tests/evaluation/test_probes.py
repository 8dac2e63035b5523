"""Probes and references: one contract, each against something that is known."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score, r2_score, recall_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from tessearth.errors import ConfigError, DataError, UnknownNameError
from tessearth.evaluation import PROBES, REFERENCES, accuracy, build_probe, probes, r2
from tessearth.evaluation.probes import InverseDistance, MlpProbe, RandomFeatures, vote
from tessearth.evaluation.runner import class_table
from tessearth.ridge import ALPHAS
from tessearth.settings import Kind
from tessearth.sphere.geometry import EARTH_RADIUS_KM
from tessearth.sphere.sampling import sample_sphere
from tests.evaluation.fabricate import number_task

RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 16)).astype(np.float32)
NUMBERS = X[:, 0] + 0.5 * X[:, 1] + 0.1 * RNG.normal(size=900) + 3.0
CODES = (np.digitize(X[:, 0], (-0.5, 0.5)) * 2 + 1).astype(np.int64)
TARGETS: dict[Kind, np.ndarray] = {"classify": CODES, "regress": NUMBERS}
PLACES = sample_sphere(900, 0)
MAP: dict[Kind, np.ndarray] = {"classify": (PLACES[:, 0] > 20).astype(np.int64) * 4 + 2, "regress": PLACES[:, 0] * 2.0}


@pytest.mark.parametrize("kind", ["classify", "regress"])
@pytest.mark.parametrize("name", PROBES)
def test_every_probe_learns_what_is_there_and_says_what_it_did(name: str, kind: Kind) -> None:
    y = TARGETS[kind]
    probe = build_probe(name, kind).fit(X[:700], y[:700])
    predicted = probe.predict(X[700:])
    assert predicted.shape == (200,)
    assert (predicted.dtype.kind == "i") == (kind == "classify")
    assert set(predicted) <= set(y) or kind == "regress"
    assert probe.score(X[700:], y[700:]) > 0.6
    assert probe.describe()["probe"] == name
    shuffled = RNG.permutation(y)
    assert build_probe(name, kind).fit(X[:700], shuffled[:700]).score(X[700:], shuffled[700:]) < 0.5


def test_the_settings_are_the_documented_ones() -> None:
    assert build_probe("mlp", "regress", seed=3).describe() == {
        "probe": "mlp",
        "hidden": 256,
        "epochs": 30,
        "fewest_steps": 600,
        "batch": 512,
        "learning_rate": 1e-3,
        "weight_decay": 1e-4,
        "dropout": 0.1,
        "seed": 3,
    }
    assert build_probe("knn", "regress").describe() == {"probe": "knn", "neighbours": 8}
    assert build_probe("mlp", "regress").describe()["seed"] == 0
    assert ALPHAS == (0.1, 1.0, 10.0)
    nearest = REFERENCES["inverse-distance"]("regress")
    assert nearest.describe() == {"reference": "inverse-distance", "neighbours": 8, "power": 1}


@pytest.mark.parametrize(("rows", "steps"), [(64, 600), (512, 600), (513, 600), (1500, 600), (512 * 21, 30 * 21)])
def test_few_rows_are_seen_more_often(rows: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, *a, **k: (taken.append(1), step(self, *a, **k))[1])
    monkeypatch.setattr(MlpProbe, "hidden", 4)
    x = np.resize(X[:, :2], (rows, 2))
    build_probe("mlp", "regress").fit(x, x[:, 0])
    assert len(taken) == steps


def test_one_row_or_a_column_that_does_not_vary_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MlpProbe, "fewest_steps", 5)
    one = build_probe("mlp", "regress").fit(X[:1], NUMBERS[:1])
    assert np.isfinite(one.predict(X[:5])).all()
    flat = np.concatenate((X[:50], np.full((50, 1), 7.0, dtype=np.float32)), axis=1)
    assert np.isfinite(build_probe("mlp", "regress").fit(flat, NUMBERS[:50]).predict(flat)).all()
    same = build_probe("mlp", "regress").fit(X[:50], np.full(50, 2.5))
    np.testing.assert_allclose(same.predict(X[:50]), 2.5, atol=1)


def test_rows_are_asked_for_a_block_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    known = build_probe("knn", "regress").fit(X[:300], NUMBERS[:300])
    whole = known.predict(X[300:400])
    for at_once in (1, 300, 299 * 7, 300 * 100):
        monkeypatch.setattr(probes, "DISTANCES_AT_ONCE", at_once)
        np.testing.assert_allclose(known.predict(X[300:400]), whole, rtol=1e-12)


@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_neighbours_are_scikit_learns(kind: Kind) -> None:
    theirs = (KNeighborsClassifier if kind == "classify" else KNeighborsRegressor)(8).fit(X[:700], TARGETS[kind][:700])
    ours = build_probe("knn", kind).fit(X[:700], TARGETS[kind][:700])
    np.testing.assert_allclose(ours.predict(X[700:]), theirs.predict(X[700:]), rtol=1e-12)


def test_the_same_seed_gives_the_same_network() -> None:
    one, same, other = (
        build_probe("mlp", "regress", seed=seed).fit(X[:64], NUMBERS[:64]).predict(X) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_the_network_learns_what_ridge_cannot() -> None:
    y = np.abs(X[:, 0]) - np.abs(X[:, 1])
    scores = [build_probe(name, "regress").fit(X[:700], y[:700]).score(X[700:], y[700:]) for name in ("mlp", "ridge")]
    assert scores[0] > 0.3 > scores[1] + 0.2


@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_few_labels_take_fewer_folds(kind: Kind) -> None:
    few = build_probe("ridge", kind, few=True)
    assert few.fit(X, TARGETS[kind]).describe()["folds"] == (10 if kind == "classify" else 3)
    assert few.fit(X[:5], TARGETS[kind][:5]).describe()["folds"] == int(
        np.bincount(CODES[:5]).max() if kind == "classify" else 2
    )
    rows = [0, int(np.flatnonzero(CODES[0] != CODES)[0])]
    said = few.fit(X[rows], TARGETS[kind][rows]).describe()
    assert (said["folds"], said["alpha"], said["fold_scores"]) == (1, 1.0, None)
    with pytest.raises(DataError, match="too few for"):
        build_probe("ridge", kind).fit(X[:5], TARGETS[kind][:5])


@pytest.mark.parametrize("kind", ["classify", "regress"])
@pytest.mark.parametrize("name", REFERENCES)
def test_every_reference_keeps_the_contract(name: str, kind: Kind) -> None:
    y = MAP[kind]
    reference = REFERENCES[name](kind).fit(PLACES[:700], y[:700])
    assert reference.predict(PLACES[700:]).shape == (200,)
    score = reference.score(PLACES[700:], y[700:])
    assert (score > 0.9) == (name != "majority")
    said = reference.describe()
    assert said["reference"] == ("mean" if (name, kind) == ("majority", "regress") else name)


def test_the_mean_scores_nothing_and_the_majority_its_share() -> None:
    assert REFERENCES["majority"]("regress").fit(PLACES, MAP["regress"]).score(PLACES, MAP["regress"]) == (
        pytest.approx(0, abs=1e-12)
    )
    share = max(np.mean(MAP["classify"] == 2), np.mean(MAP["classify"] == 6))
    assert REFERENCES["majority"]("classify").fit(PLACES, MAP["classify"]).score(PLACES, MAP["classify"]) == share


def test_inverse_distance_is_the_formula_on_great_circles() -> None:
    reference = InverseDistance("regress").fit(PLACES, MAP["regress"])
    for lat, lon in ((0.0, 179.99), (89.9, 12.0), (-33.0, -60.0)):
        a, b, c, d = *np.deg2rad((lat, lon)), *np.deg2rad(PLACES.T)
        h = np.sin((c - a) / 2) ** 2 + np.cos(a) * np.cos(c) * np.sin((d - b) / 2) ** 2
        km = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(h))
        near = np.argsort(km)[:8]
        expected = (MAP["regress"][near] / km[near]).sum() / (1 / km[near]).sum()
        assert reference.predict(np.array([[lat, lon]]))[0] == pytest.approx(expected, rel=1e-9)


def test_inverse_distance_repeats_what_it_was_told() -> None:
    np.testing.assert_allclose(
        InverseDistance("regress").fit(PLACES, MAP["regress"]).predict(PLACES), MAP["regress"], atol=1e-4
    )
    np.testing.assert_array_equal(InverseDistance("classify").fit(PLACES, CODES).predict(PLACES), CODES)


def test_votes_are_weighted_and_ties_go_to_the_lowest_code() -> None:
    values = np.array([[7, 3, 3], [9, 3, 7], [5, 5, 2]])
    np.testing.assert_array_equal(vote(values, np.array([[5.0, 1, 1], [1, 1, 1], [1, 1, 2.0]])), [7, 3, 2])


def test_random_features_are_the_networks_formula() -> None:
    network = RandomFeatures(width=300, hidden=400, seed=5)
    (w0, b0), (w1, b1) = ((weight.numpy(), bias.numpy()) for weight, bias in network.layers)
    assert w0.std() == pytest.approx((2 / 3) ** 0.5, rel=0.1)
    assert w1.std() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert b0.std() == pytest.approx(0.3, rel=0.15)
    assert b1.std() == pytest.approx(0.3, rel=0.15)
    lat, lon = np.deg2rad(PLACES).T
    xyz = np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), -1)
    expected = np.maximum(np.maximum(xyz @ w0 + b0, 0) @ w1 + b1, 0)
    np.testing.assert_allclose(network.embed(PLACES), expected, rtol=1e-5, atol=1e-6)
    assert RandomFeatures().embed(PLACES[:2]).shape == (2, 512)
    many = np.resize(PLACES, (9000, 2))  # more than are worked out at once
    np.testing.assert_array_equal(network.embed(many)[8990:], network.embed(many[8990:]))


def test_references_need_as_many_places_as_neighbours() -> None:
    assert InverseDistance("regress").fit(PLACES[:8], np.arange(8.0)).predict(PLACES[:1])[0] == pytest.approx(
        0, abs=1e-6
    )
    with pytest.raises(DataError, match="7 places to learn from are fewer than 8 neighbours"):
        InverseDistance("regress").fit(PLACES[:7], np.arange(7.0))


def test_places_on_top_of_each_other_share_their_say() -> None:
    places = np.concatenate((np.zeros((2, 2)), np.full((6, 2), 40.0)))
    found = InverseDistance("regress").fit(places, np.array([1.0, 3.0, *[100.0] * 6])).predict(np.zeros((1, 2)))
    assert found[0] == pytest.approx(2, abs=1e-6)


def test_random_features_depend_on_the_seed_and_the_sphere_alone() -> None:
    one = RandomFeatures(width=32, seed=1).embed(PLACES)
    np.testing.assert_array_equal(one, RandomFeatures(width=32, seed=1).embed(PLACES))
    assert not np.array_equal(one, RandomFeatures(width=32, seed=2).embed(PLACES))
    west, east = RandomFeatures(seed=1).embed(np.array([(10.0, -180.0), (10.0, 180.0)]))
    np.testing.assert_allclose(west, east, atol=1e-6)


def test_metrics_are_scikit_learns() -> None:
    target, found = RNG.integers(0, 6, 300), RNG.integers(1, 7, 300)
    rows = class_table(number_task(), target, found)
    assert rows.names == tuple("0123456")
    np.testing.assert_array_equal(rows.rows, np.bincount(target, minlength=7))
    recall = recall_score(target, found, labels=range(7), average=None, zero_division=np.nan)
    precision = precision_score(target, found, labels=range(7), average=None, zero_division=np.nan)
    np.testing.assert_allclose(np.array(rows.recall, dtype=float), recall)
    np.testing.assert_allclose(np.array(rows.precision, dtype=float), precision)
    assert accuracy(target, found) == np.mean(target == found)
    y, p = RNG.normal(size=(2, 50)) + 1000
    assert r2(y, p) == pytest.approx(r2_score(y, p), rel=1e-9)
    assert (r2(np.ones(3), np.ones(3)), r2(np.ones(3), np.zeros(3))) == (1.0, 0.0)


def test_misuse_is_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        build_probe("rigde", "classify")
    with pytest.raises(ConfigError, match="has not been fitted yet"):
        build_probe("ridge", "classify").predict(X)
    with pytest.raises(ConfigError, match="has not been fitted yet"):
        REFERENCES["inverse-distance"]("classify").predict(PLACES)
    for rows in (3, 7):
        with pytest.raises(DataError, match=f"{rows} rows to learn from are fewer than 8 neighbours"):
            build_probe("knn", "classify").fit(X[:rows], CODES[:rows])
    build_probe("knn", "classify").fit(X[:8], CODES[:8])
    for one, other in ((CODES[:0], CODES[:0]), (CODES[:4].reshape(2, 2), CODES[:4].reshape(2, 2))):
        with pytest.raises(DataError, match="cannot be scored"):
            r2(one, other)
    with pytest.raises(DataError, match="cannot be scored"):
        accuracy(CODES, CODES[:5])
