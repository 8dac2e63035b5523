"""Every encoder by a name: shipped models, baselines, published weights, files, the hub; any of them with retrieval.

earth                     a shipped model, a path or a hub id
sphereM+                  a baseline, untrained
geoclip, satclip=PATH     published weights, where a package carries them or from the file named
trained.safetensors       an encoder that was trained and saved
runs/mine                 the folder of a run of `tessearth finetune` or `pretrain` (its best weights)
earth+range=DB.npz        any of these with semantic retrieval; +range-geo=DB.npz semantic and geodesic
earth+range               the same with the database `tessearth retrieve build` made for the model
mine+month=7              a model that knows seasons, in one month instead of over the year; +range may follow
"""

import os
import re
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from tessearth.encoder import LocationEncoder, SphericalVoronoiEncoder, load_weights
from tessearth.errors import ConfigError, DataError, UnknownNameError, first_line
from tessearth.packages import require
from tessearth.seasons import share_of_months
from tessearth.settings import did_you_mean
from tessearth.storage import cache_folder
from tessearth.zoo.cards import BASELINES, build_baseline
from tessearth.zoo.published import PUBLISHED, load_published
from tessearth.zoo.saved import is_saved_baseline, load_baseline
from tessearth.zoo.shipped import DEFAULT_MODEL, MODELS, SHIPPED

Mode = Literal["semantic", "geodesic"]
"""How retrieval weighs the rows of a database: by embeddings, or by embeddings and distance."""
MODES: dict[str, Mode] = {"range": "semantic", "range-geo": "geodesic"}
FOLDER = "model.safetensors"
"""The weights in the folder of a saved model."""
RUN_WEIGHTS = (("encoder.safetensors",), ("weights/best.safetensors", "weights/last.safetensors"))
"""The weights in a run's folder, those of `finetune` and of `pretrain`; of each the first that is there."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_RETRIEVAL = re.compile(rf"(?P<base>.+?)\+(?P<mode>{'|'.join(sorted(MODES, reverse=True))})(=(?P<database>.+))?")


class ModelName(NamedTuple):
    """The parts of a name."""

    base: str
    """The model without retrieval."""
    mode: Mode | None = None
    """How retrieval completes it; None without retrieval."""
    database: str | None = None
    """The database's file; None is the one built for the model."""


def parse_name(model: str | os.PathLike[str]) -> ModelName:
    """Split a name into model and retrieval; the path of an existing file is a model."""
    name = str(model)
    parts = _RETRIEVAL.fullmatch(name)
    if parts is None or os.path.exists(name):
        return ModelName(name)
    return ModelName(parts["base"], MODES[parts["mode"]], parts["database"])


def split_month(name: str) -> tuple[str, str | None]:
    """A name without its month, and the month; the path of an existing file is a model."""
    base, plus, month = name.rpartition("+month=")
    return (base, month) if plus and not os.path.exists(name) else (name, None)


def load_base(name: str) -> LocationEncoder:
    """The encoder of a name without retrieval, ready for inference."""
    name, month = split_month(name)
    if month is not None:
        return _in_month(load_base(name), name, month)
    name = weights_of_run(name)
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


def _in_month(encoder: LocationEncoder, name: str, month: str) -> SphericalVoronoiEncoder:
    """An encoder that knows seasons, as it embeds in one month."""
    if not isinstance(encoder, SphericalVoronoiEncoder) or not encoder.config.knows_seasons:
        raise ConfigError(f"{name} knows no season: leave out the month, or choose a model with harmonics")
    number = int(month) if month.isdecimal() else month
    return encoder.at(float(share_of_months(number))).eval()


def weights_of_run(name: str) -> str:
    """The file of weights in the folder of a run; any other name as it is."""
    folder = Path(name)
    if name in known_names() or not (os.path.exists(name) and folder.is_dir()):
        return name
    of_runs = [next((file for file in files if (folder / file).is_file()), None) for files in RUN_WEIGHTS]
    found = [file for file in of_runs if file]
    if len(found) + (folder / FOLDER).is_file() > 1:
        several = " and ".join([*found, *([FOLDER] if (folder / FOLDER).is_file() else [])])
        raise ConfigError(f"{name} holds several models: name one of its files, {several}")
    if not found and (folder / "recipe.toml").is_file() and not (folder / FOLDER).is_file():
        raise DataError(f"{name} is a run without weights yet; tessearth pretrain --resume {name} continues it")
    return str(folder / found[0]) if found else name


def known_names() -> tuple[str, ...]:
    """Every name that needs no path: shipped models, baselines, published weights."""
    return (*MODELS, *BASELINES, *PUBLISHED)


def is_untrained(model: str) -> bool:
    """Whether a name stands for a network with random weights; positional features have none."""
    name, _ = split_month(parse_name(model).base)
    return (name in MODELS and not MODELS[name].trained) or (name in BASELINES and BASELINES[name].has_network)


def default_database(base: str) -> Path:
    """Where a model's own database is: next to its file, in its folder, or in the cache for a name."""
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


def load(model: str | os.PathLike[str] = DEFAULT_MODEL) -> SphericalVoronoiEncoder:
    """A Voronoi encoder, ready for inference: by shipped name, path of a file or folder, or hub id such as MVRL/TTE.

    A hub id is looked up only when no such path exists, and needs the `hub` extra; `owner/name@revision` pins a
    revision.
    """
    if str(model) == "untrained":
        import torch

        return SphericalVoronoiEncoder(generator=torch.Generator().manual_seed(0)).eval()
    file = weights_of_run(str(model))
    return load_weights(SHIPPED / str(model) if str(model) in MODELS else locate(model if file == str(model) else file))


def locate(model: str | os.PathLike[str]) -> Path:
    """The file or folder of a model that is not shipped: a path as it is, a hub id after its download."""
    path = Path(model)
    if os.path.exists(path):
        return path
    if isinstance(model, str) and is_hub_id(model):
        return fetch(model)
    known = did_you_mean(str(model), MODELS)
    raise UnknownNameError(f"there is no model named {str(model)!r}, nor such a file or folder{known}")


def is_hub_id(model: str) -> bool:
    """Whether a name reads as owner/name or owner/name@revision; in an existing folder it is a mistyped path."""
    return bool(_HUB_ID.fullmatch(model)) and not os.path.exists(Path(model).parent)


def fetch(model: str) -> Path:
    """Download a model's configuration and weights into the hub's own cache; the folder there."""
    hub = require("huggingface_hub", extra="hub", what=f"the model {model!r} (no such path here, so taken as a hub id)")
    name, _, revision = model.partition("@")
    wanted = ["config.json", "model.safetensors"]
    try:
        return Path(hub.snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except Exception as error:  # the hub client raises its own, the network's and the file system's kinds
        said = f"the model {model!r} is no path here and cannot be had from the hub: {first_line(error)}"
        raise UnknownNameError(said) from error
