"""`LocationFeatures` among scikit-learn's own."""

import pickle
from collections.abc import Callable
from pathlib import Path

import geopandas
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from tessearth import Embedder, LocationFeatures, save
from tessearth.errors import ConfigError, CoordinateError
from tests.conftest import tiny_encoder

# Rows that scikit-learn makes up with values near 100 are no latitudes, and are refused as they should be.
NOT_PLACES = dict.fromkeys(
    ("check_fit_idempotent", "check_fit_check_is_fitted", "check_n_features_in"),
    "the check's rows are latitudes above 90 degrees",
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save(tiny_encoder(dtype=torch.float32), path)
    return str(path)


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"name": "x", "size": rng.normal(size=80), "lon": rng.uniform(-180, 180, 80), "lat": rng.uniform(-90, 90, 80)}
    )


@pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")
@parametrize_with_checks([LocationFeatures()], expected_failed_checks=lambda estimator: NOT_PLACES)
def test_scikit_learns_own_checks(estimator: LocationFeatures, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def test_a_pipeline_with_a_data_frame(model: str, table: pd.DataFrame) -> None:
    target = np.sin(np.deg2rad(table["lat"]))
    pipeline = make_pipeline(LocationFeatures(model), Ridge(0.01)).fit(table, target)
    assert pipeline.score(table, target) > 0.5
    assert len(cross_val_score(pipeline, table, target, cv=3)) == 3


def test_other_columns_stay_in_a_column_transformer(model: str, table: pd.DataFrame) -> None:
    columns = make_column_transformer((LocationFeatures(model), ["lat", "lon"]), ("passthrough", ["size"]))
    out = columns.fit_transform(table)
    assert out.shape == (80, 19)
    np.testing.assert_allclose(out[:, 18], table["size"])
    np.testing.assert_allclose(out[:, :18], Embedder(model)(table), atol=1e-6)


def test_columns_by_name_and_pandas_output(model: str, table: pd.DataFrame) -> None:
    renamed = table.rename(columns={"lat": "breite", "lon": "laenge"})
    features = LocationFeatures(model, lat="breite", lon="laenge").set_output(transform="pandas")
    out = features.fit_transform(renamed)
    assert list(out.columns[:2]) == ["location_0", "location_1"]
    np.testing.assert_allclose(out.to_numpy(), Embedder(model)(table), atol=1e-6)
    with pytest.raises(CoordinateError, match="no column of name, size, laenge, breite reads as lat"):
        LocationFeatures(model).fit(renamed)


def test_the_model_is_a_parameter_to_search_over(model: str, table: pd.DataFrame) -> None:
    pipeline = make_pipeline(LocationFeatures(model), Ridge())
    search = GridSearchCV(pipeline, {"locationfeatures__precision": ["float32", "float64"]}, cv=2)
    assert search.fit(table, table["lat"]).best_score_ > -10
    assert clone(pipeline[0]).get_params()["model"] == model


def test_a_fitted_transformer_survives_pickling(model: str, table: pd.DataFrame) -> None:
    fitted = LocationFeatures(model).fit(table)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(table), fitted.transform(table))


def test_a_missing_model_is_named(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="nor such a file or folder"):
        LocationFeatures(str(tmp_path / "nothing.safetensors")).fit(table)


def test_a_geometry_comes_first_as_in_an_embedder(model: str, table: pd.DataFrame) -> None:
    """Columns that happen to be called x and y mean something else."""
    points = geopandas.GeoSeries.from_xy(table["lon"], table["lat"], crs=4326)
    frame = geopandas.GeoDataFrame({"x": table["size"], "y": table["size"] + 1}, geometry=points)
    expected = Embedder(model)(table)
    target = np.sin(np.deg2rad(table["lat"]))
    for given in (frame, frame.to_crs(3395), frame[["geometry"]], points):
        np.testing.assert_allclose(Embedder(model)(given), expected, atol=1e-4)
        pipeline = make_pipeline(LocationFeatures(model), Ridge(0.01)).fit(given, target)
        np.testing.assert_allclose(pipeline[0].transform(given), expected, atol=1e-4)
        assert len(cross_val_score(pipeline, given, target, cv=3)) == 3
    columns = make_column_transformer((LocationFeatures(model), ["geometry"]), ("passthrough", ["x"]))
    assert columns.fit_transform(frame).shape == (80, 19)
    named = LocationFeatures(model, lat="lat", lon="lon").fit_transform(frame.assign(lat=0.0, lon=9.0))
    np.testing.assert_allclose(named, Embedder(model)(np.full((80, 2), (0.0, 9.0))), atol=1e-6)


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table, lambda columns: pd.DataFrame(columns).to_dict("records")])
def test_other_tables_work_too(model: str, table: pd.DataFrame, make: Callable[[object], object]) -> None:
    given = make(table[["lat", "lon"]].to_dict("list"))
    np.testing.assert_allclose(LocationFeatures(model).fit_transform(given), Embedder(model)(table), atol=1e-6)


def test_bad_rows_are_refused_or_kept_and_never_left_out(model: str, table: pd.DataFrame) -> None:
    table.loc[7, "lat"] = np.nan
    with pytest.raises(CoordinateError, match="row 7 is"):
        LocationFeatures(model).fit(table)
    for given in (table, table[["lat", "lon"]].to_numpy()):
        found = LocationFeatures(model, on_bad="null").fit_transform(given)
        assert np.flatnonzero(np.isnan(found).all(axis=1)).tolist() == [7]
    with pytest.raises(ConfigError, match="fewer rows than the target"):
        LocationFeatures(model, on_bad="skip").fit(table)


def test_the_first_numbers_alone(model: str, table: pd.DataFrame) -> None:
    features = LocationFeatures(model, dims=4).fit(table)
    np.testing.assert_allclose(features.transform(table), Embedder(model, dims=4)(table), atol=1e-6)
    assert len(features.get_feature_names_out()) == 4
