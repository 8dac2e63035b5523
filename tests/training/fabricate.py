"""Small feature stores of the true format, and recipes small enough to train in a second."""

from pathlib import Path

import numpy as np

from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.imagery.building import write_components
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe, made_with
from tessearth.imagery.store import (
    FEATURES,
    FORMAT,
    FORMAT_VERSION,
    FeatureStore,
    Places,
    places_sha256,
    write_manifest,
    write_places,
)
from tessearth.sphere.sampling import sample_sphere, split_places
from tessearth.storage.sealed import checksum
from tessearth.training.objective import ObjectiveConfig
from tessearth.training.recipe import Recipe, TrainingRecipe

CHUNK = 64


def fabricate_store(
    path: Path,
    *,
    places: int = 240,
    views: int = 2,
    width: int = 24,
    pca: int = 0,
    dtype: str = "float16",
    spoil: int | None = None,
    seed: int = 0,
) -> FeatureStore:
    """A finished store whose features are smooth functions of the place, with a little noise in every view."""
    latlon = sample_sphere(places, seed)
    held_out = split_places(latlon, validation=0.2, seed=seed)
    table = Places(latlon, held_out)
    features = smooth_features(latlon, views, width, seed).astype(dtype)
    if spoil is not None:
        features[spoil, 0, 0] = np.nan
    recipe = FeatureRecipe(
        sources=(SourceRecipe(kind="blue-marble"),),
        places=PlacesRecipe(where="sphere", count=places, seed=seed, validation=0.2),
        views=views,
        dtype=dtype,  # type: ignore[arg-type]
        pca=pca,
    )
    path.mkdir(parents=True)
    write_places(path, table)
    np.save(path / FEATURES, features)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "recipe": recipe.to_dict(),
        "recipe_sha256": recipe.sha256(),
        "places": places,
        "places_sha256": places_sha256(table),
        "views": views,
        "width": width,
        "dtype": dtype,
        "chunk_places": CHUNK,
        "chunks": [checksum(features[start : start + CHUNK]) for start in range(0, places, CHUNK)],
        "sources": [{"source": {"kind": "fabricated"}, "encoder": {"name": "fabricated"}}],
        "made_with": made_with(),
    }
    if pca:
        manifest["components"] = write_components(path, manifest, np.flatnonzero(~held_out))
    write_manifest(path, {**manifest, "complete": True})
    return FeatureStore(path)


def smooth_features(latlon: np.ndarray, views: int, width: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lat, lon = np.deg2rad(latlon).T
    xyz = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
    waves = np.cos(xyz @ rng.normal(size=(3, width)) * 3 + rng.uniform(0, 6, width))
    spectrum = 2.0 + waves * (np.arange(width) + 1.0) ** -0.5  # an offset and a falling spectrum, as real features have
    return spectrum[:, None, :] + 0.02 * rng.normal(size=(len(latlon), views, width))


def toy_recipe(
    *, encoder: dict[str, object] | None = None, objective: dict[str, object] | None = None, **training: object
) -> Recipe:
    return Recipe(
        encoder=EncoderConfig(
            **{
                "tessellations": (TessellationConfig(num_sites=24, site_dim=10, sharpness=20.0),),
                "num_tokens": 6,
                "output_dim": 16,
                "hidden_dim": 20,
                "dropout": 0.2,
                **(encoder or {}),
            }  # type: ignore[arg-type]
        ),
        objective=ObjectiveConfig(**{"distillation": 1.0, **(objective or {})}),  # type: ignore[arg-type]
        training=TrainingRecipe(
            **{
                "batch_size": 32,
                "steps": 20,
                "warmup_epochs": 1.0,
                "log_every": 5,
                "evaluate_every": 10,
                "checkpoint_every": 5,
                "record_every": 4,
                **training,
            }  # type: ignore[arg-type]
        ),
    )
