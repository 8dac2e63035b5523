"""Every encoder by a name: ours, the baselines, published weights, saved files, and any of them with retrieval.

earth                     a shipped model, a path or a hub id
sphereM+                  a baseline, untrained
geoclip, satclip=PATH     published weights, where a package carries them or from the file named
trained.safetensors       a baseline that was trained and saved
earth+range=DB.npz        any of these with semantic retrieval; +range-geo=DB.npz semantic and geodesic
earth+range               the same with the database `tessearth retrieve build` made for the model
"""

import os
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from tessearth.embedding.retrieval import Mode
from tessearth.encoder.contract import LocationEncoder
from tessearth.errors import DataError, UnknownNameError
from tessearth.settings import did_you_mean
from tessearth.storage.files import cache_folder
from tessearth.zoo.baselines import BASELINES, PUBLISHED, build_baseline, load_baseline, load_published
from tessearth.zoo.hub import is_hub_id
from tessearth.zoo.saved import is_saved_baseline
from tessearth.zoo.shipped import MODELS, load

MODES: dict[str, Mode] = {"range": "semantic", "range-geo": "geodesic"}
_RETRIEVAL = re.compile(rf"(?P<base>.+?)\+(?P<mode>{'|'.join(sorted(MODES, reverse=True))})(=(?P<database>.+))?")


class ModelName(NamedTuple):
    """A name taken apart."""

    base: str
    """What is loaded."""
    mode: Mode | None = None
    """How retrieval completes it; None without retrieval."""
    database: str | None = None
    """The database's file; None is the one built for the model."""


def parse_name(model: str | os.PathLike[str]) -> ModelName:
    """Take the retrieval off a name; what is a path as it stands is left alone."""
    name = str(model)
    parts = _RETRIEVAL.fullmatch(name)
    if parts is None or os.path.exists(name):
        return ModelName(name)
    return ModelName(parts["base"], MODES[parts["mode"]], parts["database"])


def load_base(name: str) -> LocationEncoder:
    """The encoder of a name without retrieval, ready for inference."""
    published, has_path, path = name.partition("=")
    if name in MODELS:
        return load(name)
    if name in BASELINES:
        return build_baseline(name)
    if name in PUBLISHED:
        return load_published(name)
    if has_path and not os.path.exists(name):
        return load_published(published, path)
    if is_saved_baseline(name):
        return load_baseline(name)
    if not os.path.exists(name) and not is_hub_id(name):
        near = did_you_mean(name, (*known_names(), *(f"{known}+range" for known in known_names())))
        listed = near if "did you mean" in near else did_you_mean(name, known_names())
        raise UnknownNameError(f"there is no model named {name!r}, nor such a file or folder{listed}")
    return load(name)


def known_names() -> tuple[str, ...]:
    """Every name that needs no path: shipped models, baselines, published weights."""
    return (*MODELS, *BASELINES, *PUBLISHED)


def is_untrained(model: str) -> bool:
    """Whether a name stands for a network with random weights (positional features are nobody's to train)."""
    name = parse_name(model).base
    return (name in MODELS and not MODELS[name].trained) or (name in BASELINES and BASELINES[name].has_network)


def default_database(base: str) -> Path:
    """Where a model's own database lies: beside its file, in its folder, or in the cache for a name."""
    path = Path(base)
    if base in known_names() or not os.path.exists(path):
        return cache_folder("range") / f"{quote(base, safe='')}.npz"
    return path / "range.npz" if path.is_dir() else path.with_suffix(".range.npz")


def find_database(name: ModelName) -> Path:
    """The file a name's retrieval reads."""
    if name.database is not None:
        return Path(name.database)
    path = default_database(name.base)
    if not path.is_file():
        raise DataError(
            f"no database was built for {name.base} ({path}): tessearth retrieve build --model {name.base} "
            f"--store STORE makes it, or name one: {name.base}+range=DB.npz"
        )
    return path
