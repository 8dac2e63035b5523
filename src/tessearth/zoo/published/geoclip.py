"""GeoCLIP's location encoder, and TaxaBind's, which has the same shape.

LocEnc<i>.capsule.0.b (B, 2)           random frequencies, one set per scale, coarse to fine
LocEnc<i>.capsule.{1, 3, 5}.{weight, bias}     hidden layers (even entries are activations)
LocEnc<i>.head.0.{weight, bias}        output layer
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessearth.errors import WeightsError
from tessearth.storage import count_parts, find_prefix, linear_names, matrix_shape, rename, tensors_in
from tessearth.zoo.baselines.fourier import FourierSettings
from tessearth.zoo.baselines.networks import FeedForwardSettings
from tessearth.zoo.cards import Described

PREFIXES = ("", "location_encoder.", "module.", "model.")
DROPPED = ("image_encoder.", "logit_scale", "gps_queue", "gps_gallery")
"""Parts of the whole GeoCLIP model that are no part of its location encoder."""


def read(content: Mapping[str, Any], where: str) -> Described:
    """GeoCLIP's tensors under our names; sizes are read off their shapes."""
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "LocEnc0.capsule.0.b", PREFIXES, where)
    num_sets = count_parts(tensors, f"{prefix}LocEnc")
    num_hidden = count_parts(tensors, f"{prefix}LocEnc0.capsule.", first=1, step=2)
    names: dict[str, str] = {}
    for i in range(num_sets):
        names |= _capsule_names(f"network.capsules.{i}", f"{prefix}LocEnc{i}", num_hidden)
    frequencies = {f"frequencies.{i}": f"{prefix}LocEnc{i}.capsule.0.b" for i in range(num_sets)}
    state = rename(tensors, {**names, **frequencies}, DROPPED, where)
    drawn = torch.stack(_same_shape({name: state.pop(ours) for ours, name in frequencies.items()}, where))
    settings = _read_settings(tensors, f"{prefix}LocEnc0", drawn, num_hidden, where)
    state["position.frequencies"] = drawn
    return Described("fourier", settings, state, {**names, "position.frequencies": frequencies["frequencies.0"]})


def _capsule_names(ours: str, theirs: str, num_hidden: int) -> dict[str, str]:
    names = linear_names(f"{ours}.exit", f"{theirs}.head.0")
    for layer in range(num_hidden):
        names |= linear_names(f"{ours}.layers.{layer}", f"{theirs}.capsule.{1 + 2 * layer}")
    return names


def _read_settings(
    tensors: Mapping[str, Tensor], first: str, drawn: Tensor, num_hidden: int, where: str
) -> FourierSettings:
    hidden_dim, _ = matrix_shape(tensors, f"{first}.capsule.1.weight", where)
    output_dim, _ = matrix_shape(tensors, f"{first}.head.0.weight", where)
    return FourierSettings(
        # The file holds the frequencies themselves; the deviation they were drawn with only describes them.
        sigmas=tuple(drawn.double().square().mean(dim=(1, 2)).sqrt().tolist()),
        num_frequencies=drawn.shape[1],
        network=FeedForwardSettings(hidden_dim=hidden_dim, num_hidden=num_hidden, output_dim=output_dim),
    )


def _same_shape(sets: Mapping[str, Tensor], where: str) -> list[Tensor]:
    """The sets of frequencies, (B, 2) each, when all have the first one's shape."""
    for name in sets:
        shape = matrix_shape(sets, name, where)
        if shape != matrix_shape(sets, next(iter(sets)), where):
            raise WeightsError(f"{where}: tensor {name} has shape {shape}, unlike {next(iter(sets))}")
    return list(sets.values())
