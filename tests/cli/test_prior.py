"""`tessearth prior` from a table of sightings to a map."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tessearth.cli.prior import fit
from tessearth.embedding.embedder import Embedder
from tessearth.evaluation.geoprior import evaluate_prior, load_prior
from tests.cli.conftest import Command
from tests.evaluation.test_geoprior import simulate

NAMES = np.array([f"species {'abcdefghijkl'[code]}" for code in range(12)])


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sightings of twin species divided by great circles, in iNaturalist's layout and as csv."""
    folder = tmp_path_factory.mktemp("species")
    for name, rows, seed in (("train", 6000, 1), ("val", 2000, 2)):
        latlon, classes, scores = simulate(rows, seed, 0.0)
        pd.DataFrame({"lat": latlon[:, 0], "lon": latlon[:, 1], "species": NAMES[classes]}).to_csv(
            folder / f"{name}.csv", index=False
        )
        latlon[0] = np.nan
        arrays = {"lon": latlon[:, 1], "lat": latlon[:, 0], "classes": classes}
        np.savez(folder / f"{name}.npz", **arrays, **({"prediction": scores} if name == "val" else {}))
    return folder


@pytest.fixture(scope="module")
def priors(tables: Path) -> Path:
    """Fitted once for all tests."""
    for table in ("train.csv", "train.npz"):
        out, said = tables / f"{table}.prior", io.StringIO()
        with contextlib.redirect_stdout(said):
            fit(
                table=str(tables / table),
                out=str(out),
                model="cartesian3d",
                changes=["epochs=25", "batch_size=256", "learning_rate=0.02", "device=cpu"],
            )
        assert f"{out}: 12 species from " in said.getvalue()
        assert ("(1 without a place left out)" in said.getvalue()) == (table == "train.npz")
    return tables


def test_places_help_images_as_theory_says(tessearth: Command, priors: Path) -> None:
    """Images name the pair in 0.8333 of cases and never the twin; the place decides between twins."""
    outcome = tessearth("prior", "evaluate", priors / "train.npz.prior", "--input", priors / "val.npz", "--json")
    found = json.loads(outcome.out)
    assert found["rows"] == 2000
    assert found["image"]["top1"] == pytest.approx(0.4167, abs=0.03)
    assert found["image_and_place"]["top1"] == pytest.approx(0.8333, abs=0.05)
    saved = load_prior(priors / "train.npz.prior")
    latlon, classes, scores = simulate(2000, 2, 0.0)
    embeddings = Embedder("cartesian3d")(latlon)
    embeddings[0] = np.nan
    expected = evaluate_prior(saved.prior, [(embeddings, scores.astype(np.float32), classes)])
    assert found["image_and_place"] == {f"top{k}": share for k, share in expected.combined.items()}
    spoken = tessearth("prior", "evaluate", priors / "train.npz.prior", "--input", priors / "val.npz")
    assert spoken.out.startswith("2,000 rows\nimage ")


def test_a_table_without_images_is_judged_by_place(tessearth: Command, priors: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(priors / "val.csv")
    frame.loc[3, "species"] = "yeti"
    frame.to_csv(tmp_path / "val.csv", index=False)
    found = json.loads(
        tessearth("prior", "evaluate", priors / "train.csv.prior", "--input", tmp_path / "val.csv", "--json").out
    )
    assert (found["rows"], found["left_out"]) == (1999, 1)
    assert found.keys() == {"rows", "left_out", "place"}
    assert found["place"]["top1"] > 1.5 / 12  # each place has six of the twelve species


def test_a_species_is_mapped(tessearth: Command, priors: Path, tmp_path: Path) -> None:
    prior = priors / "train.csv.prior"
    options = ("--species", "species c", "--out", tmp_path / "c.csv", "--resolution", 10)
    outcome = tessearth("prior", "map", prior, *options)
    assert outcome.status == 0, outcome.err
    cells = pd.read_csv(tmp_path / "c.csv")
    assert list(cells.columns) == ["lat", "lon", "score"]
    assert len(cells) == 18 * 36
    again = tessearth("prior", "map", prior, *options)
    assert (again.status, again.err.count("add --overwrite")) == (2, 1)
    assert (cells["lat"].iloc[0], cells["lon"].iloc[0]) == (85, -175)
    saved = load_prior(prior)
    whole = saved.prior.probabilities(Embedder("cartesian3d")(cells))[:, saved.code_of("species c")]
    np.testing.assert_allclose(cells["score"], whole, atol=1e-5)
    poles = np.random.default_rng(99).normal(size=(6, 3))[1]  # species c and d share the second pair's circle
    lat, lon = np.deg2rad(cells["lat"]), np.deg2rad(cells["lon"])
    side = poles @ np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)))
    assert cells["score"][side < 0].min() > cells["score"][side > 0].quantile(0.8)


def test_a_map_is_a_picture(tessearth: Command, priors: Path, tmp_path: Path) -> None:
    from PIL import Image

    out = tmp_path / "c.png"
    options = ("--species", 2, "--out", out, "--resolution", 5)
    assert tessearth("prior", "map", priors / "train.npz.prior", *options).status == 0
    picture = np.asarray(Image.open(out).convert("RGB"))
    assert picture.shape[1] > 1000
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


def test_a_mistake_is_one_clear_line(tessearth: Command, priors: Path, tmp_path: Path) -> None:
    prior, out = priors / "train.csv.prior", tmp_path / "x"
    np.savez(tmp_path / "short.npz", lon=[1.0], lat=[2.0], classes=[0], prediction=np.ones((2, 12)) / 12)
    np.savez(tmp_path / "nowhere.npz", lon=[np.nan], lat=[np.nan], classes=[0])
    cases = {
        ("fit", "--input", priors / "none.csv", "--out", out): "there is no such file",
        ("fit", "--input", priors / "train.csv", "--column", "specie", "--out", out): "did you mean 'species'?",
        ("fit", "--input", tmp_path / "nowhere.npz", "--out", out): "none of its 1 sightings has a place",
        ("fit", "--input", priors / "train.csv", "--epochs", 0, "--out", out): "epochs is 0",
        (
            "fit",
            "--input",
            priors / "train.npz",
            "--classes",
            3,
            "--model",
            "wrap",
            "--out",
            out,
        ): "there are 3,",
        ("evaluate", tmp_path / "none", "--input", priors / "val.csv"): "there is no file",
        ("evaluate", priors / "val.csv", "--input", priors / "val.csv"): "is not a prior, or is damaged",
        ("evaluate", prior, "--input", priors / "val.npz"): "and the other only numbers",
        ("evaluate", prior, "--input", priors / "val.csv", "--model", "wrap"): "fitted to other embeddings than wrap",
        (
            "evaluate",
            priors / "train.npz.prior",
            "--input",
            tmp_path / "short.npz",
        ): "for 2 rows and 1 sightings",
        ("map", prior, "--species", "species z", "--out", tmp_path / "x.png"): "did you mean 'species",
        ("map", priors / "train.npz.prior", "--species", 12, "--out", tmp_path / "x.png"): "numbers from 0 to 11",
        ("map", prior, "--species", "species a", "--out", tmp_path / "x.gif"): "end it in .png or .csv",
        ("map", prior, "--species", "species a", "--out", tmp_path / "x.csv", "--resolution", 7): "it must divide 180",
    }
    before = sorted(tmp_path.iterdir())
    for arguments, words in cases.items():
        outcome = tessearth("prior", *arguments)
        assert outcome.status == 2, arguments
        assert words in outcome.err, arguments
        assert outcome.err.count("\n") == 1, outcome.err
        assert sorted(tmp_path.iterdir()) == before


def test_sightings_are_read_as_encode_reads_a_table(tessearth: Command, priors: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(priors / "val.csv").head(300)
    frame.loc[0, "lat"] = np.nan
    frame.rename(columns={"lat": "gps_n", "lon": "gps_e"}).to_csv(tmp_path / "gps.csv", index=False, sep=";")
    where = ("--input", tmp_path / "gps.csv", "--lat", "gps_n", "--lon", "gps_e", "--sep", ";")
    scored = ("prior", "evaluate", priors / "train.csv.prior", *where, "--json")
    refused = tessearth(*scored)
    assert refused.status == 2
    assert "--bad-rows skip" in refused.err
    found = json.loads(tessearth(*scored, "--bad-rows", "skip").out)
    assert (found["rows"], found["left_out"]) == (299, 1)
    learn = ("prior", "fit", *where, "--model", "cartesian3d", "--epochs", 1, "--bad-rows", "skip")
    learned = tessearth(*learn, "--out", tmp_path / "p.safetensors")
    assert learned.status == 0, learned.err
    assert "299 sightings (1 without a place or a species left out)" in learned.out
    assert "add --overwrite" in tessearth(*learn, "--out", tmp_path / "p.safetensors").err
