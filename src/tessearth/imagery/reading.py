"""Sources, places and encoders built from a recipe, and the tiles and features of places by view."""

import dataclasses
import inspect
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.density import read_density
from tessearth.imagery.image_encoders import IMAGE_ENCODERS, build_image_encoder
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.imagery.source import Source, Tiles
from tessearth.imagery.sources import SOURCES
from tessearth.imagery.sources.geotiff import GeoTiff
from tessearth.imagery.sources.on_device import DeviceSource
from tessearth.imagery.sources.pyramid import TilePyramid
from tessearth.imagery.store import ENCODERS, Places
from tessearth.imagery.views import augment, centre_crop
from tessearth.settings import did_you_mean
from tessearth.sphere import (
    GLOBE,
    Floats,
    check_box,
    find_region,
    is_inhabited_land,
    sample_box,
    sample_elsewhere,
    sample_land,
    sample_sphere,
    split_places,
)
from tessearth.storage import Reading, one_torch_thread, open_points, open_pool

Rows = range | npt.NDArray[np.int64]
Chunk = list[list[Tiles]]
"""Tiles of consecutive places by source and view, (n, C, h, w) each."""


FILE_OPTIONS = ("path", "paths", "folder", "location", "weights")
"""Options of sources and encoders that name files from the folder of the command."""


def check_files(recipe: FeatureRecipe) -> None:
    """Refuse a recipe whose files are not all there, before anything is made."""
    named: list[str] = []
    for source in recipe.sources:
        for options in (source.options, source.encoder_options):
            for value in (options.get(name) for name in FILE_OPTIONS):
                named += [value] if isinstance(value, str) else value if isinstance(value, list) else []
    named += [file for file in (recipe.places.table, recipe.places.density) if file]
    missing = [name for name in dict.fromkeys(named) if _is_missing(name)]
    if missing:
        advice = recipe.fetch or f"paths count from the folder of the command, {Path.cwd()}"
        raise DataError(f"the recipe needs files that are not there: {', '.join(missing)}; {advice}")


def _is_missing(name: str) -> bool:
    if name.startswith("/vsi") or ":" in name[2:]:  # an address, or a part of a file that GDAL knows
        return False
    try:
        return not Path(name).exists()
    except OSError:  # of a folder that may not be looked into: its reader says so
        return False


def build_source(recipe: SourceRecipe) -> Source:
    """The source a recipe names, its options checked against what that kind of source takes."""
    make = SOURCES[recipe.kind]
    known = [name for name in inspect.signature(make).parameters if name != "self"]
    for name in recipe.options:
        if name not in known:
            raise ConfigError(f"the source {recipe.kind!r} has no option {name!r}{did_you_mean(name, known)}")
    try:
        source: Source = make(**recipe.options)
    except TypeError as error:
        raise ConfigError(f"the source {recipe.kind!r} cannot be opened: {error}") from None
    return source


def build_places(recipe: PlacesRecipe, source: Source, kind: str) -> Places:
    """The places of a recipe, and which of them are held out."""
    return table_places(recipe) if recipe.table is not None else _split(_draw_places(recipe, source, kind), recipe)


def table_places(recipe: PlacesRecipe) -> Places:
    """The places of a recipe's table, and which of them are held out."""
    assert recipe.table is not None, "asked for a recipe with a table"
    with open_points(recipe.table, Reading(lat=recipe.lat, lon=recipe.lon), keep=[]) as points:
        latlon = np.concatenate([np.empty((0, 2)), *(batch.latlon for batch in points.batches)])
    return _split(_choose(latlon, recipe), recipe)


def _split(latlon: Floats, recipe: PlacesRecipe) -> Places:
    """Places with the mark of those that are held out."""
    held_out = split_places(
        latlon, validation=recipe.validation, seed=recipe.seed, block_degrees=recipe.validation_block_degrees
    )
    if held_out.all():
        raise ConfigError(f"all {len(latlon)} places would be held out for validation; draw more, or hold out fewer")
    return Places(latlon, held_out)


def redraw_places(recipe: PlacesRecipe, source: Source, kind: str, count: int, number: int) -> Floats:
    """So many training places of another draw by a recipe, in random order; none lies in a block that is held out."""
    found, missing, attempt = [np.empty((0, 2))], count, 0
    while missing > 0:
        generator = np.random.default_rng([recipe.seed, number, attempt, *b"again"])
        again = dataclasses.replace(recipe, seed=int(generator.integers(2**31)))
        drawn = _split(_draw_places(again, source, kind), recipe)  # blocks are held out by the recipe's own seed
        found.append(generator.permutation(drawn.latlon[~drawn.validation])[:missing])
        missing, attempt = missing - len(found[-1]), attempt + 1
    return np.concatenate(found)


def _draw_places(recipe: PlacesRecipe, source: Source, kind: str) -> Floats:
    """The places of a recipe without a table; those of its density come last."""
    if recipe.where == "source":
        return _source_places(source, kind, recipe)
    assert recipe.count is not None, "only a table has as many places as it has"
    dense = 0 if recipe.density is None else round(recipe.density_share * recipe.count)
    even = _draw_evenly(recipe, recipe.count - dense)
    if recipe.density is None:
        return even
    density = read_density(recipe.density, above=recipe.density_above, km=recipe.density_km)
    box, wanted = GLOBE, is_inhabited_land if recipe.where == "land" else None
    if recipe.region is not None:
        region = find_region(recipe.region)
        box, wanted = region.box, region.contains
    box = box if recipe.bbox is None else check_box(recipe.bbox)
    return np.concatenate((even, density.draw(dense, recipe.seed, box=box, wanted=wanted)))


def _draw_evenly(recipe: PlacesRecipe, count: int) -> Floats:
    if recipe.bbox is not None:
        box = check_box(recipe.bbox)
        return sample_box(box, box.contains, count, recipe.seed)
    if recipe.region is not None:
        region = find_region(recipe.region)
        return sample_box(region.box, region.contains, count, recipe.seed)
    if recipe.where == "sphere":
        return sample_sphere(count, recipe.seed)
    rest = round(recipe.elsewhere * count)
    return np.concatenate((sample_land(count - rest, recipe.seed), sample_elsewhere(rest, recipe.seed)))


def _source_places(source: Source, kind: str, recipe: PlacesRecipe) -> Floats:
    """A source's own places; of one without, places drawn where the whole tile lies within its bounds."""
    own: Floats | None = getattr(source, "places", None)
    if own is not None:
        return _choose(own, recipe)
    if not isinstance(source, GeoTiff | TilePyramid):
        raise ConfigError(
            f"the source {kind!r} has no places of its own and no bounds; set places.where to 'land', 'sphere', "
            f"'bbox', 'region' or 'table'"
        )
    assert recipe.count is not None, "only a table has as many places as it has"
    return sample_box(source.bounds(), source.covers, recipe.count, recipe.seed)


def _choose(latlon: Floats, recipe: PlacesRecipe) -> Floats:
    """Places in their order; of more than are wanted, a seeded choice."""
    if recipe.count is None or len(latlon) <= recipe.count:
        return latlon
    chosen = np.random.default_rng(recipe.seed).permutation(len(latlon))[: recipe.count]
    return latlon[np.sort(chosen)]


def load_or_fit_encoder(
    recipe: FeatureRecipe,
    number: int,
    source: Source | DeviceSource,
    places: Places,
    store: Path | None,
    device: str | torch.device,
) -> ImageEncoder:
    """The frozen encoder of one source: from the store when it was fitted before, else made and kept there, if any."""
    wanted = recipe.sources[number]
    build = IMAGE_ENCODERS.get(wanted.encoder)
    if build is None or "tiles" not in inspect.signature(build).parameters:
        return build_image_encoder(wanted.encoder, device=device, **wanted.encoder_options)
    kept = store and store / ENCODERS / f"{number}.safetensors"
    if kept and kept.is_file():
        return build_image_encoder(kept, device=device)
    sample = np.flatnonzero(~places.validation)[: recipe.fit_places]
    tiles = _cropped(torch.as_tensor(source.tiles(places.latlon[sample])).cpu(), wanted.crop)
    encoder = build(tiles=tiles, **{"seed": recipe.seed + number, **wanted.encoder_options})
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        encoder.save(kept)
    return encoder.to(device)


def read_views(
    source: Source | DeviceSource, crop: int | None, latlon: Floats, recipe: FeatureRecipe, rows: Rows
) -> list[Tensor]:
    """The tiles of some rows of the places by view, (n, C, h, w) each, where the source reads them.

    A view is drawn from the seed, the place's row and the view's number, never from the batch it is read in.
    """
    tiles = torch.as_tensor(source.tiles(latlon[np.asarray(rows)]))
    seed, settings = recipe.seed, recipe.augmentation
    others = (
        augment(tiles, indices=rows, view=view, seed=seed, size=crop, settings=settings)
        for view in range(1, recipe.views)
    )
    return [_cropped(tiles, crop), *others]


def read_tiles(sources: list[Source], latlon: Floats, recipe: FeatureRecipe, rows: Rows) -> Chunk:
    """The tiles of some rows of the places, by source and view."""
    return [
        [view.numpy() for view in read_views(source, wanted.crop, latlon, recipe, rows)]
        for source, wanted in zip(sources, recipe.sources, strict=True)
    ]


def encode_views(encoder: ImageEncoder, views: Sequence[Tensor]) -> Tensor:
    """Features of one source, (n, views, width), on the encoder's device."""
    return torch.stack([encoder.encode(view) for view in views], dim=1)


def join_sources(by_source: Sequence[Tensor], recipe: FeatureRecipe, rows: Rows) -> Tensor:
    """Features of all sources, (n, views, F), in the stored type, all of them finite."""
    features = torch.cat(list(by_source), dim=-1)
    stored = features.to(getattr(torch, recipe.dtype))
    finite = stored.isfinite()  # where they are: half precision is slow on a processor
    if not bool(finite.all()):
        row = int(rows[int((~finite).flatten(1).any(dim=1).nonzero()[0, 0])])
        if bool(features.isfinite().all()):
            largest = float(features.abs().max())
            raise ConfigError(
                f"a feature of place {row} is {largest:.3g}, too large for float16; set dtype = 'float32'"
            )
        raise DataError(f"the features of place {row} are not finite: its tile holds pixels without data")
    return stored


def _cropped(tiles: Tensor, crop: int | None) -> Tensor:
    """Tiles (N, C, H, W) cut to their middle; None leaves them whole."""
    return tiles if crop is None else centre_crop(tiles, crop).contiguous()


def read_ahead(
    read: Callable[[range], Chunk], chunks: Iterable[tuple[int, range]], *, threads: int = 2, processes: int = 0
) -> Generator[tuple[int, Chunk], None, None]:
    """Numbered chunks of rows in order, read while the ones before are worked on; processes go before threads.

    Threads share one interpreter, which lets few of them work at once; processes share nothing, but take seconds to
    start.
    """
    workers = max(1, processes or threads)
    kind, setup = ("processes", partial(_begin_reading, read)) if processes else ("threads", None)
    with open_pool(kind, workers, setup=setup, advice="run it again with fewer --processes") as pool:  # type: ignore[arg-type]
        yield from pool.run(_read if processes else read, chunks, at_once=workers + 1)


_readers: list[Callable[[range], Chunk]] = []
"""In a process that reads: what it reads by, which keeps decoded imagery from chunk to chunk."""


def _begin_reading(read: Callable[[range], Chunk]) -> None:
    one_torch_thread()
    _readers[:] = [read]


def _read(rows: range) -> Chunk:
    return _readers[0](rows)
