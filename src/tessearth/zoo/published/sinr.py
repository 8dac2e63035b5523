"""SINR's location encoder: wrapped coordinates and a residual network; also CSP's models of that shape.

state_dict: feats.0.{weight, bias}     entry layer (feats.1 is its activation)
            feats.<2 + i>.{w1, w2}.{weight, bias}     residual blocks
            class_emb.weight           one row per species: not part of the embedding
params: input_enc ("sin_cos" when coordinates are all it takes)
"""

from collections.abc import Mapping
from typing import Any

from tessearth.errors import WeightsError
from tessearth.storage import count_parts, find_prefix, linear_names, matrix_shape, rename, tensors_in
from tessearth.zoo.baselines.elementary import WrapResidualSettings
from tessearth.zoo.baselines.networks import ResidualSettings
from tessearth.zoo.cards import Described

PREFIXES = ("", "module.", "loc_enc.")
DROPPED = tuple(prefix + part for prefix in PREFIXES for part in ("class_emb.", "user_emb."))


def read(content: Mapping[str, Any], where: str) -> Described:
    """SINR's tensors under our names; sizes are read off their shapes."""
    params = content.get("params")
    encoding = params.get("input_enc", "sin_cos") if isinstance(params, dict) else "sin_cos"
    if encoding != "sin_cos":
        raise WeightsError(
            f"{where}: its input is {encoding!r}, which needs more than coordinates; only 'sin_cos' can be read"
        )
    tensors = tensors_in(content, ("state_dict",), where)
    prefix = find_prefix(tensors, "feats.0.weight", PREFIXES, where)
    num_blocks = count_parts(tensors, f"{prefix}feats.", first=2)
    names = linear_names("network.entry", f"{prefix}feats.0")
    for block in range(num_blocks):
        for ours, theirs in (("first", "w1"), ("second", "w2")):
            names |= linear_names(f"network.blocks.{block}.{ours}", f"{prefix}feats.{2 + block}.{theirs}")
    state = rename(tensors, names, DROPPED, where)
    hidden_dim, _ = matrix_shape(tensors, f"{prefix}feats.0.weight", where)
    network = ResidualSettings(hidden_dim=hidden_dim, num_blocks=num_blocks)
    return Described("wrap-residual", WrapResidualSettings(network=network), state, names)
