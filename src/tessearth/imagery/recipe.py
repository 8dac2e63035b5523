"""What a feature store is made of: places, imagery and frozen encoders. The `features` part of a recipe."""

import dataclasses
import functools
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.settings import check_at_least, check_share, did_you_mean, from_plain
from tessearth.sphere import check_box, find_region
from tessearth.version import __version__

RECIPE_FOLDERS = (Path(__file__).parents[1] / "recipes", Path(__file__).parents[3] / "recipes")
"""Where named recipes lie: inside the installed package, or at the top of a checkout."""
DEFAULT_PLACES = 100_000
ABOUT_WHERE = {"bbox": "[WEST, SOUTH, EAST, NORTH]", "region": '"NAME"', "table": '"FILE"'}
"""Settings that go with a value of `where` that has their name; left out of the plain values of other recipes, whose
checksum is that of versions without them."""
MAX_BASES = 8
"""Maximum depth of `base =` chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesRecipe:
    """Which places are drawn, and which of them are held out."""

    where: Literal["land", "sphere", "source", "bbox", "region", "table"] = "land"
    """Drawn evenly over land without Antarctica, the whole sphere, a box or a region; where the first source has
    imagery: its own places, or drawn within its bounds; or the places of a table."""

    count: int | None = None
    """How many places are drawn, 100,000 by default; of a source's own places or a table's, at most this many (of a
    table all by default)."""

    bbox: tuple[float, float, float, float] | None = None
    """For bbox: west, south, east, north in degrees, seas included; west above east crosses the antimeridian."""

    region: str | None = None
    """For region: a country by name or ISO code, or a continent (`sphere.find_region`)."""

    table: str | None = None
    """For table: a file of places in any format that `tessearth encode` reads."""

    lat: str | None = None
    """For table: the latitude column, by its usual name by default."""

    lon: str | None = None

    elsewhere: float = 0.0
    """For land: the share of places drawn over the rest of the sphere instead, seas and Antarctica."""

    density: str | None = None
    """A file that says where more places are wanted: a GeoTIFF, a picture of the globe, an .mbtiles file, or a table of
    places, which may have a column `weight` (`imagery.read_density`)."""

    density_share: float = 0.5
    """The share of the places that is drawn in proportion to the density, where the others are: not at sea for land."""

    density_above: float = 0.0
    """Of a density's pixels only what they have above this counts; pictures of the night show unlit ground up to 45."""

    density_km: float = 50.0
    """How wide the cells are over which the rows of a density's table are spread."""

    seed: int = 0
    """Another seed draws other places."""

    validation: float = 0.05
    """The share of places held out for validation."""

    validation_block_degrees: float | None = None
    """Hold out whole blocks of this side instead of single places."""

    def __post_init__(self) -> None:
        if self.count is None and self.where != "table":
            object.__setattr__(self, "count", DEFAULT_PLACES)
        check_at_least(self, 1, "count", where="places.")
        check_share(self, "validation", "elsewhere", where="places.")
        check_share(self, "density_share", where="places.", may_be_one=True)
        if self.elsewhere and self.where != "land":
            raise ConfigError(
                f"places.elsewhere adds to places over land, but places.where is {self.where!r}: "
                f"set places.elsewhere = 0"
            )
        self._check_where()

    def _check_where(self) -> None:
        """Refuse settings that do not go with `where`, and places that cannot be found."""
        for name, form in ABOUT_WHERE.items():
            given = getattr(self, name) is not None
            if self.where == name and not given:
                raise ConfigError(f"places.where is {name!r}: add places.{name} = {form}")
            if given and self.where != name:
                raise ConfigError(f"places.{name} is given, but places.where is {self.where!r}: set it to {name!r}")
        if self.density is not None and self.where in ("source", "table"):
            raise ConfigError(f"places.density draws places, but places.where is {self.where!r}, which has its own")
        if self.where != "table" and (self.lat is not None or self.lon is not None):
            raise ConfigError("places.lat and places.lon name columns of places.table: set places.where to 'table'")
        if self.bbox is not None:
            check_box(self.bbox)
        if self.region is not None:
            find_region(self.region)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecipe:
    """One source of imagery and the frozen encoder that reads its tiles."""

    kind: str
    """A name of `imagery.sources.SOURCES`, such as "blue-marble" or "tile-pyramid"."""

    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the source, such as size and km_per_pixel."""

    crop: int | None = None
    """Tiles are cropped to this many pixels: the first view to the middle, the others anywhere. None crops nothing."""

    encoder: str = "rcf"
    """A name of `imagery.image_encoders.IMAGE_ENCODERS`, or the folder of a transformers vision model."""

    encoder_options: dict[str, Any] = field(default_factory=dict)
    """Settings of the encoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    """Which changes a view may undergo."""

    flip: bool = True
    """Mirror left to right and top to bottom, each for half of the views."""

    rotation: Literal["none", "quarter"] = "quarter"
    """Turn not at all, or by a multiple of 90 degrees, which is exact."""

    blur_share: float = 0.5
    """The share of views that are blurred."""

    blur_pixels: tuple[float, float] = (0.1, 1.0)
    """From how little to how much, as the Gaussian's standard deviation in pixels."""

    def __post_init__(self) -> None:
        check_share(self, "blur_share", may_be_one=True)
        if not 0 < self.blur_pixels[0] <= self.blur_pixels[1]:
            raise ConfigError(f"blur_pixels is {self.blur_pixels}; give the least, above 0, and the most")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRecipe:
    """Everything that decides the bytes of a feature store."""

    sources: tuple[SourceRecipe, ...]
    """Read and encoded separately; their features are joined in this order."""

    places: PlacesRecipe = field(default_factory=PlacesRecipe)

    views: int = 1
    """Views of each place: the first as it is, the others cropped, turned, flipped and blurred."""

    augmentation: ViewSettings = field(default_factory=ViewSettings)
    """What may happen to a view after the first."""

    dtype: Literal["float16", "float32"] = "float16"
    """How features are stored."""

    pca: int = 0
    """Also keep this many principal components of the features (not whitened); 0 keeps none."""

    balanced: bool = False
    """Whether every source has the same share of the variance in the components, however wide or loud it is."""

    flattening: float = 0.0
    """Components are divided by this power of their deviation: 0 keeps their spectrum as it is, 1 makes all of them
    count the same, which hurts; a little helps finer detail to be learned."""

    seed: int = 0
    """The seed of everything random but the places: filters, views."""

    fit_places: int = 2048
    """How many training places an encoder that is fitted to its source is fitted on."""

    fetch: str = field(default="", compare=False)
    """What to do when files are missing, for a message; it decides no bytes and is no part of the checksum."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("features.sources is empty; name at least one source of imagery")
        check_at_least(self, 1, "views", "fit_places", where="features.")
        check_at_least(self, 0, "pca", where="features.")
        check_share(self, "flattening", where="features.", may_be_one=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON gives them back."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        del plain["fetch"]
        places = plain["places"]
        left_out = [name for name in (*ABOUT_WHERE, "lat", "lon") if places[name] is None]
        left_out += [name for name in places if name.startswith("density") and places["density"] is None]
        plain["places"] = {name: value for name, value in places.items() if name not in left_out}
        return plain

    def sha256(self) -> str:
        """The checksum of the recipe."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


def load_recipe(name_or_path: str) -> FeatureRecipe:
    """The `features` part of a recipe and of those it is based on: a TOML file, or the name of one that comes along."""
    path = find_recipe(name_or_path)
    values = functools.reduce(lay_over, read_layers(str(path)))
    if "features" not in values:
        raise ConfigError(f"{path} has no [features] table")
    try:
        return from_plain(FeatureRecipe, values["features"], "features.")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_layers(name_or_path: str) -> list[dict[str, Any]]:
    """The tables of a recipe file after those of its base (`base = "paper"`), the base's own base first of all."""
    layers: list[dict[str, Any]] = []
    path = find_recipe(name_or_path)
    while True:
        try:
            values = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
        base = values.pop("base", None)
        layers.insert(0, values)
        if base is None:
            return layers
        if not isinstance(base, str) or len(layers) > MAX_BASES:
            raise ConfigError(f"{path}: base is {base!r}; it must name a recipe, and not lead back to itself")
        path = find_recipe(base)


def lay_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are laid over the tables below; anything else replaces what is there."""
    both = {
        key: lay_over(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }
    return {**below, **both}


def find_recipe(name_or_path: str) -> Path:
    """A recipe's file: the path as it is, else by name among those that come with the package."""
    path = Path(name_or_path)
    if os.path.exists(path) and path.is_file():  # the first alone knows names that are too long
        return path
    known = {
        found.relative_to(folder).with_suffix("").as_posix(): found
        for folder in RECIPE_FOLDERS
        if folder.is_dir()
        for found in folder.rglob("*.toml")
    }
    if name_or_path in known:
        return known[name_or_path]
    raise UnknownNameError(
        f"there is no recipe {name_or_path!r}, neither as a file nor by name{did_you_mean(name_or_path, sorted(known))}"
    )


def made_with() -> dict[str, str]:
    """The versions that can change a feature's last bits."""
    import numpy
    import torch

    return {"tessearth": __version__, "numpy": numpy.__version__, "torch": torch.__version__}
