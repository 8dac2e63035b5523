"""SatCLIP's location encoder, in the training checkpoint that was published.

    model.location.nnet.layers.<i>.{weight, bias}     sinusoidal layers
    model.location.nnet.last_layer.{weight, bias}     output layer
    hyper_parameters: legendre_polys (our degrees), le_type, pe_type, harmonics_calculation, ...

Its harmonics are ours of the opposite point of the sphere: it adds 180 degrees to longitude and takes latitude + 90 as
the angle from the pole, which gives every degree l the sign (-1)^l. Computed in "closed-form" they also carry the
Condon-Shortley sign (-1)^m, computed as "analytic" they do not. The signs go into the first layer's columns.
Neither these conventions nor the sines' frequencies (30, then 1) are in the file, and they were not compared with its
authors' outputs.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessearth.errors import WeightsError
from tessearth.storage import count_parts, find_prefix, linear_names, matrix_shape, rename, tensors_in
from tessearth.zoo.baselines.harmonics import MAX_DEGREES
from tessearth.zoo.baselines.siren import HarmonicsSirenSettings, SirenSettings
from tessearth.zoo.cards import Described

PREFIXES = ("model.location.", "location.", "")
DROPPED = ("model.visual.", "visual.", "model.logit_scale", "logit_scale")
"""The image encoder and the temperature of training."""

CONDON_SHORTLEY = {"analytic": False, "closed-form": True}
"""Ways the harmonics were computed, and whether their odd orders are negated."""

EXPECTED = {"le_type": ("sphericalharmonics",), "pe_type": ("siren",), "harmonics_calculation": tuple(CONDON_SHORTLEY)}
"""What the hyper-parameters must say, where they say it."""


def read(content: Mapping[str, Any], where: str) -> Described:
    """SatCLIP's tensors under our names; sizes are read off their shapes."""
    calculation = _read_calculation(content.get("hyper_parameters"), where)
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "nnet.layers.0.weight", PREFIXES, where)
    num_hidden = count_parts(tensors, f"{prefix}nnet.layers.")
    names = linear_names("network.exit", f"{prefix}nnet.last_layer")
    for layer in range(num_hidden):
        names |= linear_names(f"network.layers.{layer}", f"{prefix}nnet.layers.{layer}")
    state = rename(tensors, names, DROPPED, where)
    hidden_dim, inputs = matrix_shape(tensors, f"{prefix}nnet.layers.0.weight", where)
    output_dim, _ = matrix_shape(tensors, f"{prefix}nnet.last_layer.weight", where)
    degrees = _read_degrees(inputs, where)
    first = state["network.layers.0.weight"]
    state["network.layers.0.weight"] = first * harmonic_signs(degrees, CONDON_SHORTLEY[calculation]).to(first.dtype)
    network = SirenSettings(hidden_dim=hidden_dim, num_hidden=num_hidden, output_dim=output_dim)
    return Described("harmonics-siren", HarmonicsSirenSettings(degrees=degrees, network=network), state, names)


def harmonic_signs(degrees: int, condon_shortley: bool) -> Tensor:
    """The published harmonics over ours, (L^2,): (-1)^l, and (-1)^m besides with the Condon-Shortley sign."""
    orders = [(degree, m) for degree in range(degrees) for m in range(-degree, degree + 1)]
    return torch.tensor([(-1.0) ** (degree + m * condon_shortley) for degree, m in orders])


def _read_degrees(inputs: int, where: str) -> int:
    degrees = math.isqrt(inputs)
    if degrees**2 != inputs or not 1 <= degrees <= MAX_DEGREES:
        raise WeightsError(
            f"{where}: the first layer takes {inputs} features, which are not all harmonics up to a degree"
        )
    return degrees


def _read_calculation(given: object, where: str) -> str:
    """How the harmonics were computed; "analytic", which was published, when the file does not say."""
    values = given if isinstance(given, dict) else {}
    for key, known in EXPECTED.items():
        if key in values and values[key] not in known:
            raise WeightsError(f"{where}: its {key} is {values[key]!r}; only {' and '.join(known)} can be read")
    return str(values.get("harmonics_calculation", "analytic"))
