"""CSP's location encoder: the grid encoding and fully connected layers, or wrapped coordinates as in SINR.

state_dict: spa_enc.ffn.layers.<i>.linear.{weight, bias}        layers, the last of them the output's
            spa_enc.ffn.layers.<i>.layernorm.{weight, bias}     norms of the hidden layers
            class_emb.weight, user_emb.weight                   not part of the embedding
params: spa_enc_type ("gridcell" or "geo_net"), frequency_num, min_radius, max_radius (degrees), spa_f_act

That the last layer is activated too, and where a skip connection runs, is not in the file nor was compared with its
authors' outputs.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tessearth.errors import ConfigError, WeightsError
from tessearth.storage import count_parts, find_prefix, linear_names, matrix_shape, rename, tensors_in
from tessearth.zoo.baselines.networks import ACTIVATIONS, FeedForwardSettings
from tessearth.zoo.baselines.space2vec import GridFeedForwardSettings
from tessearth.zoo.cards import Described
from tessearth.zoo.published import sinr

PREFIXES = ("", "module.", "loc_enc.")
DROPPED = tuple(prefix + part for prefix in PREFIXES for part in ("class_emb.", "user_emb."))
NEEDED = ("spa_enc_type", "frequency_num", "min_radius", "max_radius", "spa_f_act")
"""Settings that no shape shows, so the file has to say them."""


def read(content: Mapping[str, Any], where: str) -> Described:
    """CSP's tensors under our names, by the kind of encoder its params name."""
    params = content.get("params")
    if not isinstance(params, dict) or "spa_enc_type" not in params:
        raise WeightsError(
            f"{where}: it holds no params with spa_enc_type, so the encoding its weights belong to is unknown"
        )
    if params["spa_enc_type"] == "geo_net":
        return sinr.read({"state_dict": tensors_in(content, ("state_dict",), where)}, where)
    if params["spa_enc_type"] != "gridcell":
        raise WeightsError(
            f"{where}: its spa_enc_type is {params['spa_enc_type']!r}; only gridcell and geo_net can be read"
        )
    if lacking := [key for key in NEEDED if key not in params]:
        raise WeightsError(f"{where}: its params lack {', '.join(lacking)}")
    return _read_grid(tensors_in(content, ("state_dict",), where), params, where)


def _read_grid(tensors: Mapping[str, Tensor], params: Mapping[str, Any], where: str) -> Described:
    prefix = find_prefix(tensors, "spa_enc.ffn.layers.0.linear.weight", PREFIXES, where)
    layers = f"{prefix}spa_enc.ffn.layers"
    num_layers = count_parts(tensors, f"{layers}.")
    layer_norm = any(name.startswith(f"{layers}.0.layernorm.") for name in tensors)
    names = linear_names("network.exit", f"{layers}.{num_layers - 1}.linear")
    for i in range(num_layers - 1):
        names |= linear_names(f"network.layers.{i}", f"{layers}.{i}.linear")
        names |= linear_names(f"network.norms.{i}", f"{layers}.{i}.layernorm") if layer_norm else {}
    state = rename(tensors, names, DROPPED, where)
    hidden_dim, _ = matrix_shape(tensors, f"{layers}.0.linear.weight", where)
    output_dim, _ = matrix_shape(tensors, f"{layers}.{num_layers - 1}.linear.weight", where)
    sizes = {"hidden_dim": hidden_dim, "num_hidden": num_layers - 1, "output_dim": output_dim}
    return Described("grid-feedforward", _read_settings(params, sizes, layer_norm, where), state, names)


def _read_settings(
    params: Mapping[str, Any], sizes: Mapping[str, int], layer_norm: bool, where: str
) -> GridFeedForwardSettings:
    """The settings in the params that shapes do not show; skip connections are their default."""
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
