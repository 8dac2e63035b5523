"""Layouts of published weights: each turns the content of its authors' file into one of our baselines.

Every reader takes the content and the file's name for errors; sizes are read off the shapes of the tensors.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessearth.errors import ConfigError, WeightsError
from tessearth.storage import count_parts, find_prefix, linear_names, matrix_shape, rename, tensors_in
from tessearth.zoo.baselines.elementary import WrapResidualSettings
from tessearth.zoo.baselines.fourier import FourierSettings
from tessearth.zoo.baselines.harmonics import MAX_DEGREES, HarmonicsSirenSettings, SirenSettings
from tessearth.zoo.baselines.networks import ACTIVATIONS, FeedForwardSettings, ResidualSettings
from tessearth.zoo.baselines.space2vec import GridFeedForwardSettings

GEOCLIP_DROPPED = ("image_encoder.", "logit_scale", "gps_queue", "gps_gallery")
"""Parts of the whole GeoCLIP model that are no part of its location encoder."""
SATCLIP_DROPPED = ("model.visual.", "visual.", "model.logit_scale", "logit_scale")
"""The image encoder and the temperature of training."""
SPECIES_PREFIXES = ("", "module.", "loc_enc.")
SPECIES_DROPPED = tuple(prefix + part for prefix in SPECIES_PREFIXES for part in ("class_emb.", "user_emb."))
"""One row per species or photographer, in SINR's files and in CSP's."""
SATCLIP_EXPECTED = {"le_type": "sphericalharmonics", "pe_type": "siren", "harmonics_calculation": "analytic"}
"""What the hyper-parameters must say, where they say it."""
CSP_NEEDED = ("spa_enc_type", "frequency_num", "min_radius", "max_radius", "spa_f_act")
"""Settings that no shape shows, so the file has to say them."""


class Described(NamedTuple):
    """A published file in our words."""

    baseline: str
    """Which baseline it fits."""
    settings: Any
    """The settings to build that baseline from, read off the file."""
    state: dict[str, Tensor]
    """Its tensors under our names."""
    names: dict[str, str]
    """Ours -> the file's, for errors."""


def read_geoclip(content: Mapping[str, Any], where: str) -> Described:
    """GeoCLIP's location encoder, and TaxaBind's, which has the same shape.

    LocEnc<i>.capsule.0.b (B, 2)           random frequencies, one set per scale, coarse to fine
    LocEnc<i>.capsule.{1, 3, 5}.{weight, bias}     hidden layers (even entries are activations)
    LocEnc<i>.head.0.{weight, bias}        output layer
    """
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "LocEnc0.capsule.0.b", ("", "location_encoder.", "module.", "model."), where)
    num_sets = count_parts(tensors, f"{prefix}LocEnc")
    num_hidden = count_parts(tensors, f"{prefix}LocEnc0.capsule.", first=1, step=2)
    names: dict[str, str] = {}
    for i in range(num_sets):
        names |= linear_names(f"network.capsules.{i}.exit", f"{prefix}LocEnc{i}.head.0")
        for layer in range(num_hidden):
            theirs = f"{prefix}LocEnc{i}.capsule.{1 + 2 * layer}"
            names |= linear_names(f"network.capsules.{i}.layers.{layer}", theirs)
    frequencies = {f"frequencies.{i}": f"{prefix}LocEnc{i}.capsule.0.b" for i in range(num_sets)}
    state = rename(tensors, {**names, **frequencies}, GEOCLIP_DROPPED, where)
    first = matrix_shape(tensors, frequencies["frequencies.0"], where)
    for name in frequencies.values():
        if (shape := matrix_shape(tensors, name, where)) != first:
            raise WeightsError(f"{where}: tensor {name} has shape {shape}, unlike {frequencies['frequencies.0']}")
    drawn = torch.stack([state.pop(ours) for ours in frequencies])
    hidden_dim, _ = matrix_shape(tensors, f"{prefix}LocEnc0.capsule.1.weight", where)
    output_dim, _ = matrix_shape(tensors, f"{prefix}LocEnc0.head.0.weight", where)
    settings = FourierSettings(
        # The file holds the frequencies themselves; the deviation they were drawn with only describes them.
        sigmas=tuple(drawn.double().square().mean(dim=(1, 2)).sqrt().tolist()),
        num_frequencies=drawn.shape[1],
        network=FeedForwardSettings(hidden_dim=hidden_dim, num_hidden=num_hidden, output_dim=output_dim),
    )
    state["position.frequencies"] = drawn
    return Described("fourier", settings, state, {**names, "position.frequencies": frequencies["frequencies.0"]})


def read_satclip(content: Mapping[str, Any], where: str) -> Described:
    """SatCLIP's location encoder, in the training checkpoint that was published.

        model.location.nnet.layers.<i>.{weight, bias}     sinusoidal layers
        model.location.nnet.last_layer.{weight, bias}     output layer
        hyper_parameters: legendre_polys (our degrees), le_type, pe_type, harmonics_calculation, ...

    Its harmonics are ours of the opposite point of the sphere: it adds 180 degrees to longitude and takes latitude + 90
    as the angle from the pole, which gives every degree l the sign (-1)^l. The signs go into the first layer's columns.
    Neither this convention nor the sines' frequencies (30, then 1) are in the file, and they were not compared with its
    authors' outputs.
    """
    given = content.get("hyper_parameters")
    said = given if isinstance(given, dict) else {}
    for key, expected in SATCLIP_EXPECTED.items():
        if said.get(key, expected) != expected:
            raise WeightsError(f"{where}: its {key} is {said[key]!r}; only {expected} can be read")
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "nnet.layers.0.weight", ("model.location.", "location.", ""), where)
    num_hidden = count_parts(tensors, f"{prefix}nnet.layers.")
    names = linear_names("network.exit", f"{prefix}nnet.last_layer")
    for layer in range(num_hidden):
        names |= linear_names(f"network.layers.{layer}", f"{prefix}nnet.layers.{layer}")
    state = rename(tensors, names, SATCLIP_DROPPED, where)
    hidden_dim, inputs = matrix_shape(tensors, f"{prefix}nnet.layers.0.weight", where)
    output_dim, _ = matrix_shape(tensors, f"{prefix}nnet.last_layer.weight", where)
    degrees = _read_degrees(inputs, where)
    first = state["network.layers.0.weight"]
    state["network.layers.0.weight"] = first * harmonic_signs(degrees).to(first.dtype)
    network = SirenSettings(hidden_dim=hidden_dim, num_hidden=num_hidden, output_dim=output_dim)
    return Described("harmonics-siren", HarmonicsSirenSettings(degrees=degrees, network=network), state, names)


def harmonic_signs(degrees: int) -> Tensor:
    """SatCLIP's harmonics over ours, (L^2,): (-1)^l for each order of degree l."""
    return torch.tensor([(-1.0) ** degree for degree in range(degrees) for _ in range(2 * degree + 1)])


def _read_degrees(inputs: int, where: str) -> int:
    degrees = math.isqrt(inputs)
    if degrees**2 != inputs or not 1 <= degrees <= MAX_DEGREES:
        raise WeightsError(
            f"{where}: the first layer takes {inputs} features, which are not all harmonics up to a degree"
        )
    return degrees


def read_sinr(content: Mapping[str, Any], where: str) -> Described:
    """SINR's location encoder: wrapped coordinates and a residual network; also CSP's models of that shape.

    state_dict: feats.0.{weight, bias}     entry layer (feats.1 is its activation)
                feats.<2 + i>.{w1, w2}.{weight, bias}     residual blocks
                class_emb.weight           one row per species: not part of the embedding
    params: input_enc ("sin_cos" when coordinates are all it takes)
    """
    params = content.get("params")
    encoding = params.get("input_enc", "sin_cos") if isinstance(params, dict) else "sin_cos"
    if encoding != "sin_cos":
        raise WeightsError(
            f"{where}: its input is {encoding!r}, which needs more than coordinates; only 'sin_cos' can be read"
        )
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "feats.0.weight", SPECIES_PREFIXES, where)
    num_blocks = count_parts(tensors, f"{prefix}feats.", first=2)
    names = linear_names("network.entry", f"{prefix}feats.0")
    for block in range(num_blocks):
        for ours, theirs in (("first", "w1"), ("second", "w2")):
            names |= linear_names(f"network.blocks.{block}.{ours}", f"{prefix}feats.{2 + block}.{theirs}")
    state = rename(tensors, names, SPECIES_DROPPED, where)
    hidden_dim, _ = matrix_shape(tensors, f"{prefix}feats.0.weight", where)
    network = ResidualSettings(hidden_dim=hidden_dim, num_blocks=num_blocks)
    return Described("wrap-residual", WrapResidualSettings(network=network), state, names)


def read_csp(content: Mapping[str, Any], where: str) -> Described:
    """CSP's location encoder: the grid encoding and fully connected layers, or wrapped coordinates as in SINR.

    state_dict: spa_enc.ffn.layers.<i>.linear.{weight, bias}        layers, the last of them the output's
                spa_enc.ffn.layers.<i>.layernorm.{weight, bias}     norms of the hidden layers
                class_emb.weight, user_emb.weight                   not part of the embedding
    params: spa_enc_type ("gridcell" or "geo_net"), frequency_num, min_radius, max_radius (degrees), spa_f_act

    That the last layer is activated too, and where a skip connection runs, is not in the file nor was compared with its
    authors' outputs.
    """
    params = content.get("params")
    if not isinstance(params, dict) or "spa_enc_type" not in params:
        raise WeightsError(
            f"{where}: it holds no params with spa_enc_type, so the encoding its weights belong to is unknown"
        )
    if params["spa_enc_type"] == "geo_net":
        return read_sinr({"state_dict": tensors_in(content, ("state_dict",), where)}, where)
    if params["spa_enc_type"] != "gridcell":
        raise WeightsError(
            f"{where}: its spa_enc_type is {params['spa_enc_type']!r}; only gridcell and geo_net can be read"
        )
    if lacking := [key for key in CSP_NEEDED if key not in params]:
        raise WeightsError(f"{where}: its params lack {', '.join(lacking)}")
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "spa_enc.ffn.layers.0.linear.weight", SPECIES_PREFIXES, where)
    layers = f"{prefix}spa_enc.ffn.layers"
    last = count_parts(tensors, f"{layers}.") - 1
    layer_norm = any(name.startswith(f"{layers}.0.layernorm.") for name in tensors)
    names = linear_names("network.exit", f"{layers}.{last}.linear")
    for i in range(last):
        names |= linear_names(f"network.layers.{i}", f"{layers}.{i}.linear")
        names |= linear_names(f"network.norms.{i}", f"{layers}.{i}.layernorm") if layer_norm else {}
    state = rename(tensors, names, SPECIES_DROPPED, where)
    hidden_dim, _ = matrix_shape(tensors, f"{layers}.0.linear.weight", where)
    output_dim, _ = matrix_shape(tensors, f"{layers}.{last}.linear.weight", where)
    sizes = {"hidden_dim": hidden_dim, "num_hidden": last, "output_dim": output_dim}
    return Described("grid-feedforward", _read_grid_settings(params, sizes, layer_norm, where), state, names)


def _read_grid_settings(
    params: Mapping[str, Any], sizes: Mapping[str, int], layer_norm: bool, where: str
) -> GridFeedForwardSettings:
    """The settings in CSP's params that shapes do not show; skip connections are their default."""
    activation = str(params["spa_f_act"]).lower()
    if activation not in ACTIVATIONS:
        raise WeightsError(f"{where}: its activation is {activation!r}; known are {', '.join(ACTIVATIONS)}")
    try:
        return GridFeedForwardSettings(
            num_scales=int(params["frequency_num"]),
            min_radius=float(params["min_radius"]),
            max_radius=float(params["max_radius"]),
            network=FeedForwardSettings(
                activation=activation,  # type: ignore[arg-type]  # looked up above
                layer_norm=layer_norm,
                skip=params.get("skip_connection", "T") in ("T", True),
                activate_output=True,
                dropout=float(params.get("dropout", 0.5)),
                **sizes,
            ),
        )
    except (ConfigError, TypeError, ValueError) as error:
        raise WeightsError(f"{where}: its params cannot be used: {error}") from None
