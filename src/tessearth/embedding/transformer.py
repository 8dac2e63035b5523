"""`LocationFeatures`: embeddings as a scikit-learn transformer, for pipelines."""

import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, CoordinateError, MissingExtraError
from tessearth.seasons import share_of_dates
from tessearth.sphere import Floats, OnBad, Places, Shape, is_container, take_dates, take_places
from tessearth.zoo import DEFAULT_MODEL

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, TransformerMixin

    from tessearth.embedding.embedder import Precision
else:
    try:
        from sklearn.base import BaseEstimator, TransformerMixin
    except ImportError:  # the module stays importable; using the class says what is missing

        class BaseEstimator:  # noqa: D101
            def __init_subclass__(cls) -> None:
                def refuse(self, *args, **kwargs) -> None:
                    raise MissingExtraError("LocationFeatures", "eval")

                cls.__init__ = refuse

        class TransformerMixin: ...  # noqa: D101


class LocationFeatures(TransformerMixin, BaseEstimator):
    """Replaces a latitude and a longitude column by the embedding of the place.

        make_pipeline(LocationFeatures(), Ridge()).fit(table[["lat", "lon"]], target)

    Places are read as `Embedder` reads them: from the columns that `lat` and `lon` name, else from the geometry of a
    GeoDataFrame or GeoSeries, else from columns of the usual names; in an array they are the first two columns. Other
    columns are left out: put this in a ColumnTransformer to keep them. Rows without a usable place are refused;
    `on_bad="null"` gives them NaN. `dims` keeps that many of the first numbers; `geometry` is what stands for lines and
    polygons, "point" (inside), "centroid" or "mean". Embeddings are of the whole year, or at the dates of the column
    `date`, by models that know seasons.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        lat: str | None = None,
        lon: str | None = None,
        device: str | None = None,
        precision: "Precision" = "float32",
        dims: int | None = None,
        on_bad: OnBad = "error",
        geometry: Shape = "point",
        date: str | None = None,
    ) -> None:
        self.model = model
        self.lat = lat
        self.lon = lon
        self.device = device
        self.precision = precision
        self.dims = dims
        self.on_bad = on_bad
        self.geometry = geometry
        self.date = date

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803
        """Load the model and note the columns; nothing is learned from the rows."""
        from tessearth.embedding.embedder import Embedder

        if self.on_bad == "skip":
            raise ConfigError(
                "on_bad='skip' would leave fewer rows than the target has: drop such rows from both, or keep them as "
                "NaN with on_bad='null'"
            )
        self._read(X, reset=True)
        self.embedder_: Embedder = Embedder(self.model, device=self.device, precision=self.precision, dims=self.dims)
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        """One embedding a row, (n_samples, D)."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "embedder_")
        places = self._read(X, reset=False)
        if self.date is not None:
            dates = take_dates((X,), self.date)
            if dates is self.date:
                raise CoordinateError(f"there is no column {self.date!r} of dates")
            places = places._replace(season=share_of_dates(dates))
        return places.apply(self._embed)

    def _embed(self, latlon: Floats, season: Floats | None = None) -> npt.NDArray[np.float32]:
        if season is None:
            return self.embedder_.embed(latlon)
        import torch

        return self.embedder_.embed_tensor(torch.from_numpy(latlon), season=torch.from_numpy(season)).cpu().numpy()

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """location_0, location_1, ..."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "embedder_")
        return np.array([f"location_{i}" for i in range(self.embedder_.dim)], dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # the precision is the embedder's, not the coordinates'
        return tags

    def _read(self, table: Any, *, reset: bool) -> Places:
        """Checked places, after scikit-learn's own checks of shape and column names."""
        from sklearn.utils.validation import validate_data

        if is_container(table):
            if hasattr(table, "columns") or hasattr(table, "shape"):
                validate_data(self, table, reset=reset, skip_check_array=True)
            places = take_places((table,), self.lat, self.lon, self.on_bad, self.geometry)
        else:
            finite = self.on_bad == "error"
            array = validate_data(self, table, reset=reset, dtype="numeric", ensure_all_finite=finite)
            if array.shape[1] < 2:
                raise CoordinateError("found 1 feature(s) while 2 are required: latitude and longitude")
            places = take_places((array[:, :2],), on_bad=self.on_bad)
        if len(places.latlon) == 0:
            raise CoordinateError("found a table with 0 sample(s) while a minimum of 1 is required")
        return places
