"""Makes tests/reference/official/*: small checkpoints of the released layout and the outputs they must give.

    python -m tests.reference.make_fixtures

The outputs come from the numpy reference beside this file; the package takes no part.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.reference.numpy_encoder import run, unit

FOLDER = Path(__file__).parent / "official"
VARIANTS = {
    "plain": {"n_sites": 30, "site_embed_dim": 6, "output_dim": 10, "hidden_dim": 14, "n_reslayers": 2},
    "same_width": {"n_sites": 24, "site_embed_dim": 9, "output_dim": 9, "hidden_dim": 9, "n_reslayers": 1},
    "cosine": {"n_sites": 20, "site_embed_dim": 7, "output_dim": 8, "hidden_dim": 8, "n_reslayers": 3},
}


def make_config(name):
    return {
        **VARIANTS[name],
        "n_registers": 5,
        "register_fixed_gate": 0.3 if name == "same_width" else 0.5,
        "use_cosine_attention": name == "cosine",
        "normalize": name != "cosine",
    }


def make_tensors(config, rng):
    k, s, t = config["n_sites"], config["site_embed_dim"], config["n_registers"]
    d, hidden, blocks = config["output_dim"], config["hidden_dim"], config["n_reslayers"]
    tokens = "location.semantic_registers."
    shapes = {
        "location._directions": (k, 3),
        "location._embeddings": (k, s),
        tokens + "registers": (t, d),
        tokens + "loc_to_logits.weight": (t, s),
        tokens + "img_to_logits.weight": (t, d),
        tokens + "norm.weight": (d,),
        tokens + "norm.bias": (d,),
        "location.mlp.0.weight": (hidden, d),
        "location.mlp.0.bias": (hidden,),
        f"location.mlp.{2 + blocks}.weight": (d, hidden),
    }
    if not config["use_cosine_attention"]:
        shapes |= {tokens + "loc_to_logits.bias": (t,), tokens + "img_to_logits.bias": (t,)}
    if s != d:
        shapes |= {tokens + "site_to_out.weight": (d, s), tokens + "site_to_out.bias": (d,)}
    for i in range(2, 2 + blocks):
        for layer in ("w1", "w2"):
            shapes |= {
                f"location.mlp.{i}.{layer}.weight": (hidden, hidden),
                f"location.mlp.{i}.{layer}.bias": (hidden,),
            }
    # Rows of about unit length, as trained weights have: outputs of order 1, where 1e-5 is a fair tolerance in float32.
    tensors = {name: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32) for name, shape in shapes.items()}
    tensors["location._log_tau"] = rng.uniform(np.log(2), np.log(200), size=k).astype(np.float32)
    tensors[tokens + "log_temperature"] = np.array(np.log(0.4), dtype=np.float32)
    tensors[tokens + "_img_temperature"] = np.array(0.05, dtype=np.float32)
    return tensors


def main():
    rng = np.random.default_rng(20260101)
    for name in VARIANTS:
        config = make_config(name)
        tensors = make_tensors(config, rng)
        latlon = np.stack([rng.uniform(-90, 90, 40), rng.uniform(-180, 180, 40)], axis=1).astype(np.float32)
        latlon[:4] = [[90, 0], [90, 77], [-90, 10], [0, 180]]
        image_features = unit(rng.normal(size=(12, config["output_dim"]))).astype(np.float32)
        expected = run(config, tensors, latlon, image_features)
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        save_file(tensors, folder / "model.safetensors")
        narrow = {key: value.astype(np.float32) for key, value in expected.items()}
        np.savez_compressed(folder / "expected.npz", latlon=latlon, image_features=image_features, **narrow)


if __name__ == "__main__":
    main()
