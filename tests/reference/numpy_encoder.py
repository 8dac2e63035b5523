"""The encoder once more, in float64 numpy, straight from the equations: shares no code with the package.

Takes tensors under the released model's names, so that it also judges the map between names.
"""

import numpy as np


def softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def unit(vectors):
    return vectors / np.sqrt((vectors**2).sum(axis=-1, keepdims=True))


def sphere(latlon):
    lat, lon = np.deg2rad(latlon[:, 0]), np.deg2rad(latlon[:, 1])
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)


def site_weights(x, sites, log_tau):
    return softmax((x @ unit(sites).T) * np.exp(log_tau))


def chord_site_weights(x, sites, log_tau, territory, background=None):
    s = sites / np.linalg.norm(sites, axis=1, keepdims=True)
    square = ((x[:, None, :] - s) ** 2).sum(axis=-1)
    logits = territory - np.exp(log_tau) / 2 * square
    if background is None:
        return softmax(logits)
    return softmax(np.concatenate([logits, np.full((len(x), 1), background)], axis=1))[:, :-1]


def decoupled_site_weights(x, sites, log_tau, territory):
    return softmax((x @ unit(sites).T - 1) * np.exp(log_tau) + territory)


def layer_norm(x, weight, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def residual(x, w1, b1, w2, b2):
    return x + np.maximum(np.maximum(x @ w1.T + b1, 0) @ w2.T + b2, 0)


def location_attention(f, tensors, cosine):
    weight = tensors["location.semantic_registers.loc_to_logits.weight"]
    temperature = np.exp(tensors["location.semantic_registers.log_temperature"])
    if cosine:
        return softmax(unit(f) @ unit(weight).T / temperature)
    return softmax((f @ weight.T + tensors["location.semantic_registers.loc_to_logits.bias"]) / temperature)


def image_attention(v, tensors, cosine):
    logits = v @ tensors["location.semantic_registers.img_to_logits.weight"].T
    if not cosine:
        logits = logits + tensors["location.semantic_registers.img_to_logits.bias"]
    return softmax(logits / tensors["location.semantic_registers._img_temperature"])


def head(h, tensors, blocks):
    x = np.maximum(h @ tensors["location.mlp.0.weight"].T + tensors["location.mlp.0.bias"], 0)
    for i in range(2, 2 + blocks):
        x = residual(x, *(tensors[f"location.mlp.{i}.{k}"] for k in ("w1.weight", "w1.bias", "w2.weight", "w2.bias")))
    return x @ tensors[f"location.mlp.{2 + blocks}.weight"].T


def run(config, tensors, latlon, image_features):
    """Everything a parity file holds, from a released config.json and its tensors."""
    tensors = {name: np.asarray(value, dtype=np.float64) for name, value in tensors.items()}
    tokens = tensors["location.semantic_registers.registers"]
    cosine, gate = config["use_cosine_attention"], config["register_fixed_gate"]
    weights = site_weights(
        sphere(np.asarray(latlon, dtype=np.float64)), tensors["location._directions"], tensors["location._log_tau"]
    )
    f = weights @ tensors["location._embeddings"]
    attention = location_attention(f, tensors, cosine)
    projected = f
    if config["site_embed_dim"] != config["output_dim"]:
        weight, bias = (tensors[f"location.semantic_registers.site_to_out.{k}"] for k in ("weight", "bias"))
        projected = f @ weight.T + bias
    norm = (tensors[f"location.semantic_registers.norm.{k}"] for k in ("weight", "bias"))
    h = layer_norm((1 - gate) * projected + gate * (attention @ tokens), *norm)
    raw = head(h, tensors, config["n_reslayers"])
    looking = image_attention(np.asarray(image_features, dtype=np.float64), tensors, cosine)
    return {
        "site_weights": weights,
        "token_attention": attention,
        "embedding_raw": raw,
        "embedding_unit": unit(raw) if config["normalize"] else raw,
        "image_attention": looking,
        "image_attended": looking @ tokens,
    }
