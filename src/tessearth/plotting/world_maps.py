"""A value for every cell of the world: drawn with the shipped outlines, or written as a table."""

import io
from os import PathLike

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from tessearth.errors import ConfigError
from tessearth.labels.outlines import load_outlines
from tessearth.packages import require
from tessearth.sphere.coordinates import Floats
from tessearth.storage.files import atomic_write, write_bytes

SUFFIXES = (".png", ".csv")


def world_grid(step_degrees: float) -> Floats:
    """The centres of equal cells of latitude and longitude, (rows, columns, 2), the north-west corner first."""
    rows, columns = round(180 / step_degrees), round(360 / step_degrees)
    if not 0 < step_degrees <= 30 or abs(rows * step_degrees - 180) > 1e-9:
        raise ConfigError(f"step is {step_degrees} degrees; it must divide 180 and be at most 30")
    lat = 90 - (np.arange(rows) + 0.5) * step_degrees
    lon = -180 + (np.arange(columns) + 0.5) * step_degrees
    return np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1)


def write_world_map(path: str | PathLike[str], values: npt.NDArray[np.floating], *, name: str, title: str = "") -> None:
    """Write values (rows, columns) of a `world_grid`: as a picture (.png), or a table lat, lon, `name` (.csv)."""
    check_map_path(path)
    if str(path).lower().endswith(".png"):
        write_bytes(path, _draw(values, name, title))
        return
    latlon = world_grid(180 / len(values)).reshape(-1, 2)
    table = pa.table({"lat": latlon[:, 0], "lon": latlon[:, 1], name: values.reshape(-1)})
    with atomic_write(path) as file:
        pa.csv.write_csv(table, file)


def check_map_path(path: str | PathLike[str]) -> None:
    """Refuse a name whose suffix says neither picture nor table, before anything is computed."""
    if not str(path).lower().endswith(SUFFIXES):
        raise ConfigError(f"{path} names neither a picture nor a table: end it in {' or '.join(SUFFIXES)}")


def _draw(values: npt.NDArray[np.floating], name: str, title: str) -> bytes:
    """A PNG on the plain latitude-longitude map, coasts and borders over it; no display is needed."""
    figures = require("matplotlib.figure", extra="plot", what="a map")
    collections = require("matplotlib.collections", extra="plot", what="a map")
    figure = figures.Figure(figsize=(11, 5.4), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, extent=(-180, 180, -90, 90), cmap="viridis", vmin=0, interpolation="nearest")
    rings = [ring[:, ::-1] for outline in load_outlines() for ring in outline.rings]
    axes.add_collection(collections.LineCollection(rings, colors="white", linewidths=0.35, alpha=0.8))
    axes.set(title=title, xlabel="longitude", ylabel="latitude", xlim=(-180, 180), ylim=(-90, 90))
    figure.colorbar(image, ax=axes, label=name, shrink=0.85)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    return content.getvalue()
