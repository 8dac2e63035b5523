"""Descriptions of a model: sizes, sharpness, how places use its tokens, and where it comes from."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessearth.embedding.embedder import Embedder
from tessearth.embedding.retrieval import read_database
from tessearth.encoder import (
    EncoderConfig,
    LocationEncoder,
    SoftVoronoi,
    SphericalVoronoiEncoder,
    build_from,
    measure_token_use,
    read_weights,
)
from tessearth.sphere import EARTH_RADIUS_KM, fibonacci_lattice
from tessearth.zoo import (
    BASELINES,
    MODELS,
    PUBLISHED,
    PositionalEncoder,
    find_database,
    is_saved_baseline,
    load,
    load_base,
    locate,
    parse_name,
    read_provenance,
    split_month,
    weights_of_run,
)

QUANTILES = (0.0, 0.5, 1.0)
SAMPLE_PLACES = 4096
"""Token statistics are taken over this many places spread evenly over the sphere."""


def list_names() -> dict[str, dict[str, str]]:
    """Every model that has a name, with one line on each."""
    return {
        "models": {name: card.summary for name, card in MODELS.items()},
        "baselines": {name: card.summary for name, card in BASELINES.items()},
        "published_weights": {name: f"{card.summary} ({card.file})" for name, card in PUBLISHED.items()},
    }


def describe_model(model: str | os.PathLike[str]) -> dict[str, Any]:
    """A nested description of a model named as for `Embedder`, ready for JSON."""
    named = parse_name(model)
    base, month = split_month(named.base)
    described = _describe_base(base)
    if month is not None:
        load_base(named.base)  # which refuses months of models that know none
        described |= {"model": str(model), "month": month}
    if named.mode is None:
        return described
    path = find_database(named)
    database = read_database(path)
    retrieval = {
        "mode": named.mode,
        "database": str(path),
        "rows": len(database.keys),
        "key_width": database.keys.shape[1],
        "value_width": database.values.shape[1],
    }
    return {**described, "model": str(model), "retrieval": retrieval}


def _describe_base(name: str) -> dict[str, Any]:
    """A Voronoi encoder by its tessellations and tokens, a baseline by its card and settings."""
    if name in MODELS:
        card = MODELS[name]
        return _describe_voronoi(name, load(name), {"summary": card.summary, "trained": card.trained})
    name = weights_of_run(name)
    encoder = load_base(name)
    if encoder.sites() is None:
        return _describe_baseline(name, encoder)
    weights = read_weights(locate(name))
    return _describe_voronoi(name, build_from(weights), {"layout": weights.layout, **weights.provenance})


def _describe_voronoi(name: str, encoder: SphericalVoronoiEncoder, origin: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": name,
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "sites": encoder.config.num_sites,
        "tokens": encoder.config.num_tokens,
        "head": _describe_head(encoder.config),
        "embedding_width": encoder.config.output_dim,
        "unit_length": encoder.config.normalize,
        "tessellations": {str(i): _describe_tessellation(one) for i, one in enumerate(encoder.voronois())},
        "token_use": describe_tokens(encoder),
        "provenance": dict(origin),
    }


def _describe_head(config: EncoderConfig) -> str:
    """What the head is made of, in words."""
    blocks = f"{config.num_blocks} block{'' if config.num_blocks == 1 else 's'}"
    trunk = f"{config.hidden_dim:,} wide, {blocks}, " if config.has_trunk else ""
    return trunk + (f"{config.output_dim:,} units" if config.ends_in_units else "linear exit")


def _describe_baseline(name: str, encoder: LocationEncoder) -> dict[str, Any]:
    card = BASELINES[encoder.name]
    positional = {"positional_features": encoder.position.output_dim} if isinstance(encoder, PositionalEncoder) else {}
    return {
        "model": name,
        "baseline": encoder.name,
        "summary": card.summary,
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        **positional,
        "embedding_width": encoder.output_dim,
        "continuous_across_the_antimeridian": card.seamless,
        "settings": _readable(encoder.describe()["settings"]),
        "provenance": _baseline_origin(name, encoder),
    }


def _baseline_origin(name: str, encoder: LocationEncoder) -> dict[str, Any]:
    """The origin of a baseline's numbers: no training, its authors, or a run of ours."""
    published = PUBLISHED.get(name.partition("=")[0])
    if published is not None:
        return {
            "published_as": published.file,
            "citation": published.citation,
            "outputs_compared_with_the_authors": published.verified,
        }
    said = _readable(read_provenance(name)) if is_saved_baseline(name) else {"trained": False}
    return {"citation": BASELINES[encoder.name].citation, **said}


def _readable(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same nested values with every list as text."""
    texts = {key: json.dumps(value) for key, value in values.items() if isinstance(value, list | tuple)}
    tables = {key: _readable(value) for key, value in values.items() if isinstance(value, Mapping)}
    return {**values, **texts, **tables}


def describe_tokens(encoder: SphericalVoronoiEncoder) -> dict[str, Any]:
    """How places over the whole sphere spread their attention over the tokens; empty for an encoder without tokens."""
    if encoder.tokens is None:
        return {}
    attention = Embedder(encoder, device="cpu").explain(xyz=fibonacci_lattice(SAMPLE_PLACES).numpy()).token_attention
    assert attention is not None
    use = measure_token_use(torch.from_numpy(attention))
    return {
        "temperature": float(encoder.tokens.temperature().detach()),
        "effective_tokens_per_place": use.effective,
        "entropy_share_of_uniform": use.entropy_share,
        "tokens_above_uniform": use.above_uniform,
        "sampled_places": SAMPLE_PLACES,
    }


def _describe_tessellation(voronoi: SoftVoronoi) -> dict[str, Any]:
    config, sharpness = voronoi.config, voronoi.sharpness().detach().double().numpy()
    low, median, high = np.quantile(sharpness, QUANTILES)
    return {
        "sites": config.num_sites,
        "site_width": config.site_dim,
        "logits": config.logits,
        "sharpness_lowest": float(low),
        "sharpness_median": float(median),
        "sharpness_highest": float(high),
        # Around a site the weight falls like exp(-tau angle^2 / 2): a Gaussian of this width.
        "median_reach_km": float(EARTH_RADIUS_KM / np.sqrt(median)),
        **(_describe_spacing(voronoi, sharpness) if config.is_spaced else {}),
        **({} if config.background is None else {"background": config.background}),
        **({"harmonics_of_the_year": config.harmonics} if config.harmonics else {}),
    }


def _describe_spacing(voronoi: SoftVoronoi, sharpness: npt.NDArray[np.float64]) -> dict[str, float]:
    """How far apart the sites that take part are, and how sharp they are for that (tau d^2)."""
    present = (voronoi.territory > -torch.inf).numpy()
    spacing = voronoi.spacing.double().numpy()[present]
    ratio = sharpness[present] * spacing**2
    named = {"spacing_km": spacing * EARTH_RADIUS_KM, "sharpness_times_spacing_squared": ratio}
    return {
        f"{name}_{which}": float(value)
        for name, values in named.items()
        for which, value in zip(("lowest", "median", "highest"), np.quantile(values, QUANTILES), strict=True)
    }
