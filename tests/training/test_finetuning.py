"""Fine-tuning: the ridge it starts from, what frozen means, the best that is kept, what is left on disk, mistakes."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import geopandas
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch

from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.weights import save
from tessearth.errors import ConfigError, DataError, OutputError, TableError, WeightsError
from tessearth.sphere.sampling import sample_sphere, split_places
from tessearth.training.finetuned import (
    PENALTIES,
    FineTuned,
    LabelHead,
    Rows,
    fit_ridge_,
    load_finetuned,
    predict_table,
)
from tessearth.training.finetuning import finetune
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe, read_recipe
from tessearth.zoo import build_baseline, load_baseline
from tessearth.zoo.names import load
from tests.conftest import tiny_encoder
from tests.training.fabricate import toy_recipe

LATLON = sample_sphere(400, 3)
ELSEWHERE = sample_sphere(300, 4)


def waves(latlon: np.ndarray) -> np.ndarray:
    """A number that varies over the globe, in an odd unit."""
    lat, lon = np.deg2rad(latlon).T
    return 1000 + 50 * np.sin(2 * lon) * np.cos(lat) + 30 * np.sin(3 * lat)


def bands(latlon: np.ndarray) -> np.ndarray:
    """Three classes by latitude, cut by a meridian."""
    return np.where(latlon[:, 1] < 0, "west", np.where(latlon[:, 0] > 20, "north", "south"))


def encoder() -> SphericalVoronoiEncoder:
    return tiny_encoder(dtype=torch.float32, dropout=0.0, token_dropout=0.0)


def tune(**changes: object) -> FineTuned:
    options = {"target": waves(LATLON), "epochs": 15, "batch_size": 64, "device": "cpu", "encoder_rate": 5.0, **changes}
    return finetune(options.pop("model", None) or encoder(), LATLON, options.pop("target"), **options)  # type: ignore[arg-type]


def r2(target: np.ndarray, prediction: np.ndarray) -> float:
    return float(1 - np.square(target - prediction).sum() / np.square(target - target.mean()).sum())


@pytest.mark.parametrize("rows", [200, 12])
def test_the_start_is_the_ridge_regression_in_closed_form(rows: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 20)) * 3 + 1, rng.normal(size=300)
    y += x[:, 0]
    head = LabelHead("regress", 20, 1)
    training = Rows(torch.from_numpy(x[:rows]).float(), torch.from_numpy(y[:rows]).float())
    validation = Rows(torch.from_numpy(x[200:]).float(), torch.from_numpy(y[200:]).float())
    judged = fit_ridge_(head, training, validation)
    scaled = (x - x[:rows].mean(0)) / x[:rows].std(0, ddof=1)
    scores = []
    for penalty in PENALTIES:
        slope = np.linalg.solve(
            scaled[:rows].T @ scaled[:rows] + penalty * np.eye(20), scaled[:rows].T @ (y[:rows] - y[:rows].mean())
        )
        low, high = y[:rows].min() - np.ptp(y[:rows]) / 4, y[:rows].max() + np.ptp(y[:rows]) / 4
        scores.append(r2(y[200:], np.clip(y[:rows].mean() + scaled[200:] @ slope, low, high)))
    assert judged.score == pytest.approx(max(scores), abs=1e-4)


def test_numbers_stay_near_those_ever_seen() -> None:
    head = LabelHead("regress", 2, 1)
    rows = Rows(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)), torch.linspace(10, 30, 50))
    fit_ridge_(head, rows, rows)
    with torch.no_grad():
        head.linear.weight.fill_(1)
        far = head.values(head(torch.tensor([[1e6, 1e6], [-1e6, -1e6]])))
    assert far.tolist() == [35, 5]


def test_balanced_weights_count_rare_classes_as_much() -> None:
    rng = np.random.default_rng(1)
    codes = (rng.random(2000) < 0.05).astype(np.int64)
    x = torch.from_numpy(rng.normal(size=(2000, 3)) + codes[:, None]).float()
    rows = Rows(x, torch.from_numpy(codes))
    found = {}
    for name, weights in (("alike", None), ("balanced", 1 / torch.bincount(rows.target).float())):
        head = LabelHead("classify", 3, 2)
        fit_ridge_(head, rows, rows, weights)
        with torch.no_grad():
            found[name] = float((head(x).argmax(-1)[codes == 1] == 1).float().mean())
    assert found["balanced"] > 0.7
    assert found["alike"] < 0.4


def test_training_the_encoder_beats_the_ridge_on_places_that_took_no_part() -> None:
    tuned = tune(epochs=30)
    frozen = tune(epochs=0)
    assert frozen.about["finetuned"] == frozen.about["frozen_ridge"] == tuned.about["frozen_ridge"]
    scores = [r2(waves(ELSEWHERE), model.predict(ELSEWHERE)) for model in (frozen, tuned)]
    assert scores[1] > scores[0] + 0.02
    assert tuned.about["best_epoch"] > 0
    assert tuned.about["finetuned"] > tuned.about["frozen_ridge"]


def test_what_is_kept_scores_on_the_held_out_places_as_it_says() -> None:
    tuned = tune()
    held_out = split_places(LATLON, validation=0.2, seed=0)
    assert tuned.about["validation_rows"] == held_out.sum()
    score = r2(waves(LATLON[held_out]), tuned.predict(LATLON[held_out]))
    assert score == pytest.approx(tuned.about["finetuned"], abs=1e-4)
    blocks = tune(block_degrees=30.0)
    held_out = split_places(LATLON, validation=0.2, seed=0, block_degrees=30.0)
    assert r2(waves(LATLON[held_out]), blocks.predict(LATLON[held_out])) == pytest.approx(
        blocks.about["finetuned"], abs=1e-4
    )


@pytest.mark.parametrize("hidden", [0, 24])
def test_frozen_leaves_the_encoder_and_trains_the_head(hidden: int) -> None:
    given = encoder()
    tuned = tune(model=given, target=bands(LATLON), frozen=True, hidden_dim=hidden, epochs=30, head_learning_rate=1e-2)
    for name, tensor in given.state_dict().items():
        assert torch.equal(tensor, tuned.encoder.state_dict()[name]), name
    ridge = tune(target=bands(LATLON), hidden_dim=hidden, epochs=0)
    assert tuned.about["best_epoch"] > 0
    assert not torch.equal(tuned.head.linear.weight, ridge.head.linear.weight)
    assert tuned.about["finetuned"] >= ridge.about["finetuned"] > 0.5


def test_the_encoder_given_is_not_changed_and_its_constraints_hold() -> None:
    given = encoder()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    tuned = tune(model=given)
    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    assert isinstance(tuned.encoder, SphericalVoronoiEncoder)
    moved = tuned.encoder.voronois()[0].directions
    assert not torch.equal(moved, before["tessellations.0.directions"])
    torch.testing.assert_close(moved.norm(dim=-1), torch.ones(40))


def test_classes_come_back_by_name_with_probabilities() -> None:
    tuned = tune(target=bands(LATLON))
    assert tuned.classes == ("north", "south", "west")
    values = tuned.values(ELSEWHERE.reshape(30, 10, 2))
    assert values.shape == (30, 10, 3)
    np.testing.assert_allclose(values.sum(-1), 1, rtol=1e-5)
    named = tuned.predict(ELSEWHERE)
    assert named.shape == (300,)
    assert float(np.mean(named == bands(ELSEWHERE))) > 0.8


def test_chance_follows_from_the_seed_alone() -> None:
    given = tiny_encoder(dtype=torch.float32).train()
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one = tune(target=bands(LATLON), model=given)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(6)
    other = tune(target=bands(LATLON), model=given)
    np.testing.assert_array_equal(one.values(ELSEWHERE), other.values(ELSEWHERE))


def test_rows_without_a_target_are_left_out() -> None:
    target = waves(LATLON)
    target[:50] = np.nan
    assert tune(target=target, epochs=1).about["dropped_rows"] == 50
    named = bands(LATLON).astype(object)
    named[:7] = None
    assert tune(target=named, epochs=1).about["dropped_rows"] == 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a table and a run made from both."""
    path = tmp_path_factory.mktemp("finetune")
    save(encoder(), path / "model.safetensors")
    rows = zip(LATLON.tolist(), bands(LATLON), waves(LATLON).tolist(), strict=True)
    lines = [f"{lat!r},{lon!r},{band},{wave!r}" for (lat, lon), band, wave in rows]
    (path / "mine.csv").write_text("\n".join(["lat,lon,band,wave", *lines]) + "\n")
    finetune(
        path / "model.safetensors", path / "mine.csv", "band", out=path / "run", epochs=3, hidden_dim=8, device="cpu"
    )
    return path


def test_a_run_comes_back_from_disk_and_its_encoder_is_a_model(folder: Path) -> None:
    tuned = load_finetuned(folder / "run")
    again = finetune(encoder(), LATLON, bands(LATLON), epochs=3, hidden_dim=8, device="cpu")
    np.testing.assert_allclose(tuned.values(ELSEWHERE), again.values(ELSEWHERE), atol=1e-6)
    assert tuned.about == {**again.about}
    loaded = load(folder / "run" / "encoder.safetensors")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, tuned.encoder.state_dict()[name])
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2, 3]
    scores = [line["validation"]["score"] for line in lines]
    assert max(scores) == tuned.about["finetuned"]
    assert scores[0] == tuned.about["frozen_ridge"]


def test_a_folder_predicts_in_one_line(folder: Path) -> None:
    import tessearth

    tuned = tessearth.load_finetuned(folder / "run")
    expected = tuned.predict(LATLON)
    assert tessearth.predict(folder / "run", LATLON).tolist() == expected.tolist()
    assert tessearth.predict(tuned, *LATLON[0]) == expected[0]
    columns = {"a": [*LATLON[:3, 0], None], "b": [*LATLON[:3, 1], 5.0]}
    named = tessearth.predict(tuned, columns, lat="a", lon="b", on_bad="null")
    assert named.tolist() == [*expected[:3], None]
    assert np.isnan(tuned.values(columns, lat="a", lon="b", on_bad="null")[3]).all()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_comes_back_with_its_predictions(folder: Path, tmp_path: Path, suffix: str) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    tuned = load_finetuned(folder / "run")
    out = tmp_path / f"predictions{suffix}"
    assert predict_table(tuned, str(folder / "mine.csv"), out) == (400, 0)
    read = {".csv": pyarrow.csv.read_csv, ".parquet": pyarrow.parquet.read_table}[suffix]
    table = read(out)
    assert table.column_names == ["lat", "lon", "band", "wave", "prediction", "probability"]
    assert table["prediction"].to_pylist() == tuned.predict(LATLON).tolist()
    with pytest.raises(TableError, match="has a column 'prediction' already"):
        predict_table(tuned, str(out), tmp_path / "again.csv")
    with pytest.raises(TableError, match="holds arrays, not a table"):
        predict_table(tuned, str(folder / "mine.csv"), tmp_path / "x.npy")
    with pytest.raises(OutputError, match="exists already: add --overwrite"):
        predict_table(tuned, str(folder / "mine.csv"), out)
    assert not (tmp_path / "again.csv").exists()


def test_a_trained_baseline_is_fine_tuned_and_saved_as_one(tmp_path: Path) -> None:
    settings = {"num_scales": 6, "network": {"hidden_dim": 24, "num_blocks": 1, "dropout": 0.0}}
    tuned = finetune(
        build_baseline("sphereM", settings), LATLON, waves(LATLON), out=tmp_path / "run", epochs=5, device="cpu"
    )
    saved = load_baseline(tmp_path / "run" / "encoder.safetensors")
    assert saved.settings == tuned.encoder.settings  # type: ignore[union-attr]
    np.testing.assert_allclose(load_finetuned(tmp_path / "run").predict(ELSEWHERE), tuned.predict(ELSEWHERE))
    assert finetune("wrap", LATLON, waves(LATLON), frozen=True, epochs=2, device="cpu").about["finetuned"] > 0.05
    with pytest.raises(ConfigError, match="wrap has no network, so there is nothing to train"):
        finetune("wrap", LATLON, waves(LATLON), device="cpu")


def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path) -> None:
    def interrupt(done: int, epochs: int, score: float) -> None:
        if done == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # ignored, where the suite runs in the background
    tuned = tune(epochs=500, out=tmp_path / "run", progress=interrupt)
    assert tuned.about["interrupted"] is True
    assert tuned.about["epochs_done"] == 4
    np.testing.assert_array_equal(load_finetuned(tmp_path / "run").predict(ELSEWHERE), tuned.predict(ELSEWHERE))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": np.ones(400)}, "all rows to learn from have the same target"),
        ({"target": np.array(["a"] * 400)}, "all rows to learn from have the same target"),
        ({"target": np.full(400, np.nan)}, "0 labelled rows leave 0 to learn from"),
        ({"target": np.ones(3)}, "there are 400 places and 3 targets"),
        ({"target": bands(LATLON), "kind": "regress"}, "not numbers; give kind='classify'"),
        ({"validation": 1.5}, "validation is 1.5"),
        ({"block_degrees": 180.0, "validation": 0.001}, "smaller blocks"),
        ({"epoch": 3}, "unknown setting epoch; did you mean 'epochs'"),
        ({"epochs": -1}, "epochs is -1"),
        ({"class_weights": "rare"}, "must be one of 'none', 'balanced'"),
        ({"device": "quantum"}, "quantum"),
    ],
)
def test_mistakes_are_one_line(changes: dict[str, object], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words) as raised:
        tune(**changes)
    assert "\n" not in str(raised.value)


def test_a_loss_that_is_no_longer_finite_says_so() -> None:
    with pytest.raises(DataError, match="no longer finite in epoch 1; lower the learning rates"):
        tune(head_learning_rate=1e38, epochs=2)


def test_folders_that_hold_something_else_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="holds a fine-tuned model already"):
        finetune(folder / "model.safetensors", folder / "mine.csv", "band", out=folder / "run", device="cpu")
    with pytest.raises(DataError, match=r"it has no head\.safetensors"):
        load_finetuned(tmp_path)
    whole = (folder / "run" / "head.safetensors").read_bytes()
    (tmp_path / "head.safetensors").write_bytes(whole[:100])
    with pytest.raises(WeightsError, match="is damaged"):
        load_finetuned(tmp_path)
    save(encoder(), tmp_path / "head.safetensors")
    with pytest.raises(WeightsError, match="is no head of format 1"):
        load_finetuned(tmp_path)


def test_the_finetune_recipe_takes_its_sizes_from_the_weights(store: Path, folder: Path, tmp_path: Path) -> None:
    start = f"start_from={folder / 'model.safetensors'}"
    recipe = read_recipe("finetune/own-store", [start, "training.batch_size=32", "training.steps=3"])
    assert recipe.encoder == encoder().config
    result = pretrain(recipe, tmp_path / "run", store=store, device="cpu")
    start_encoder = encoder()
    start_encoder.constrain_()
    begun = start_encoder.state_dict()
    moved = {name for name, tensor in load(result.weights).state_dict().items() if not torch.equal(tensor, begun[name])}
    assert {"tessellations.0.embeddings", "head.exit.weight", "tokens.tokens"} <= moved
    for name, tensor in load(result.weights).state_dict().items():
        assert float((tensor - begun[name]).abs().max()) < 2e-3, name
    assert read_recipe("smoke", [start, "encoder=none"]).encoder == encoder().config
    with pytest.raises(ConfigError, match=r"other sizes than the recipe's; take its own with --set encoder=none"):
        pretrain(read_recipe("smoke", [start, "features=none"]), tmp_path / "other", store=store, device="cpu")


def test_what_starts_from_weights_starts_with_an_image_side_that_suits_them(store: Path, tmp_path: Path) -> None:
    def first_losses(recipe: Recipe, name: str) -> dict[str, float]:
        pretrain(recipe, tmp_path / name, store=store, device="cpu")
        first = (tmp_path / name / "metrics.jsonl").read_text().splitlines()[0]
        found: dict[str, float] = json.loads(first)["training"]
        return found

    objective = {"contrastive": 0.3, "distillation": 10.0, "prefixes": (4,)}
    whole = toy_recipe(objective=objective, encoder={"dropout": 0.0, "token_dropout": 0.0}, steps=150, log_every=1)
    fresh = first_losses(whole, "whole")
    again = replace(whole, start_from=str(tmp_path / "whole" / "weights" / "last.safetensors"))
    started = first_losses(again, "again")
    last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-2])["training"]
    assert started["distillation"] < 0.8 * fresh["distillation"]
    assert started["distillation"] < 1.05 * last["distillation"]
    assert started["contrastive"] < fresh["contrastive"]


def frame_of(rows: int = 400) -> pd.DataFrame:
    return pd.DataFrame({"gps_lat": LATLON[:rows, 0], "gps_lon": LATLON[:rows, 1], "wave": waves(LATLON)[:rows]})


def test_a_frame_is_read_as_a_file_is(tmp_path: Path) -> None:
    frame = frame_of()
    frame.to_csv(tmp_path / "mine.csv", index=False)
    where = {"lat": "gps_lat", "lon": "gps_lon"}
    options = {"epochs": 1, "frozen": True, "device": "cpu"}
    expected = finetune(encoder(), LATLON, waves(LATLON), **options).predict(ELSEWHERE)  # type: ignore[arg-type]
    for table in (frame, tmp_path / "mine.csv", pa.table(frame), dict(frame), polars.from_pandas(frame).lazy()):
        tuned = finetune(encoder(), table, "wave", **options, **where)  # type: ignore[arg-type]
        np.testing.assert_allclose(tuned.predict(ELSEWHERE), expected, rtol=1e-5)
    shapes = geopandas.GeoDataFrame(
        frame[["wave"]], geometry=geopandas.points_from_xy(frame.gps_lon, frame.gps_lat, crs=4326)
    ).to_crs(3857)
    tuned = finetune(encoder(), shapes[np.abs(frame.gps_lat) < 80], "wave", **options)  # type: ignore[arg-type]
    assert tuned.about["training_rows"] + tuned.about["validation_rows"] == int((np.abs(frame.gps_lat) < 80).sum())


def test_rows_without_a_place_are_refused_or_left_out_and_counted(tmp_path: Path) -> None:
    frame = frame_of()
    frame.loc[:4, "gps_lat"] = np.nan
    frame.loc[5, "wave"] = np.nan
    where = {"lat": "gps_lat", "lon": "gps_lon", "epochs": 0, "device": "cpu"}
    with pytest.raises(TableError, match=r"the DataFrame: 5 of 400 rows have no usable place.*on_bad"):
        finetune(encoder(), frame, "wave", **where)
    for on_bad in ("skip", "null"):
        tuned = finetune(encoder(), frame, "wave", on_bad=on_bad, bad_file=str(tmp_path / "bad.csv"), **where)
        assert tuned.about["dropped_rows"] == 6
    assert len((tmp_path / "bad.csv").read_text().splitlines()) == 6
    places = frame[["gps_lat", "gps_lon"]].to_numpy()
    assert finetune(encoder(), places, frame.wave, on_bad="skip", epochs=0, device="cpu").about["dropped_rows"] == 6
    assert finetune(encoder(), frame, frame.wave.to_numpy(), on_bad="skip", **where).about["dropped_rows"] == 6
    with pytest.raises(ConfigError, match="on_bad is 'drop'"):
        finetune(encoder(), frame, "wave", on_bad="drop", **where)
    with pytest.raises(TableError, match="a ndarray is no table"):
        finetune(encoder(), places, "wave", device="cpu")


def test_intervals_hold_as_many_numbers_of_new_places_as_they_say(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 20, 400)
    tuned = tune(target=waves(LATLON) + noise, frozen=True, epochs=0, validation=0.5, out=tmp_path / "run")
    truth = waves(ELSEWHERE) + np.random.default_rng(1).normal(0, 20, len(ELSEWHERE))
    for model in (tuned, load_finetuned(tmp_path / "run")):
        shares = []
        for coverage in (0.5, 0.9):
            low, high = model.interval(ELSEWHERE, coverage=coverage)
            shares.append(float(np.mean((low <= truth) & (truth <= high))))
        assert shares == pytest.approx([0.5, 0.9], abs=0.08)
    with pytest.raises(DataError, match="held-out rows give intervals of at most"):
        tuned.interval(ELSEWHERE, coverage=0.9999)
    with pytest.raises(ConfigError, match="coverage is 90"):
        tuned.interval(ELSEWHERE, coverage=90)
    with pytest.raises(DataError, match="classes have probabilities"):
        tune(target=bands(LATLON), epochs=0).interval(ELSEWHERE)


def test_numbers_come_with_bounds_unless_the_model_is_an_old_one(tmp_path: Path) -> None:
    tuned = tune(epochs=0, out=tmp_path / "run")
    frame_of(20).rename(columns={"gps_lat": "lat", "gps_lon": "lon"}).to_csv(tmp_path / "new.csv", index=False)
    predict_table(tuned, str(tmp_path / "new.csv"), tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")
    assert list(found.columns)[-3:] == ["prediction", "low", "high"]
    np.testing.assert_allclose(found.high - found.prediction, tuned.half_width(0.9), rtol=1e-4)
    tuned.residuals = None
    (tmp_path / "old").mkdir()
    tuned.save(tmp_path / "old")
    old = load_finetuned(tmp_path / "old")
    with pytest.warns(UserWarning, match="there are no intervals: the model was made without them"):
        predict_table(old, str(tmp_path / "new.csv"), tmp_path / "old.csv")
    assert list(pd.read_csv(tmp_path / "old.csv").columns)[-1] == "prediction"


def test_a_model_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    tune(epochs=0, out=tmp_path / "run")
    with pytest.raises(OutputError, match="holds a fine-tuned model already; choose another --out, or add --overwrite"):
        tune(epochs=0, out=tmp_path / "run")
    tune(epochs=0, out=tmp_path / "run", target=bands(LATLON), overwrite=True)
    assert load_finetuned(tmp_path / "run").kind == "classify"
