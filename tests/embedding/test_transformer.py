"""`LocationFeatures` among scikit-learn's own."""

import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from tessearth import Embedder, LocationFeatures, save
from tessearth.errors import CoordinateError
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
