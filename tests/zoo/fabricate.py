"""Files of the published layouts with random weights, in the names their authors gave the tensors."""

import torch
from torch import Tensor

from tests.zoo import slow

Tensors = dict[str, Tensor]


class Draw:
    """Random layers, small enough that nothing saturates."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def tensor(self, *shape: int, scale: float = 0.5) -> Tensor:
        return scale * torch.randn(*shape, generator=self.generator)

    def linear(self, name: str, inputs: int, outputs: int) -> Tensors:
        weight = self.tensor(outputs, inputs, scale=inputs**-0.5)
        return {f"{name}.weight": weight, f"{name}.bias": self.tensor(outputs)}


def geoclip(prefix: str = "") -> Tensors:
    draw, tensors = Draw(), {}
    for i, sigma in enumerate((1.0, 16.0, 256.0)):
        tensors[f"{prefix}LocEnc{i}.capsule.0.b"] = draw.tensor(6, 2, scale=sigma)
        for entry, inputs in ((1, 12), (3, 9), (5, 9)):
            tensors |= draw.linear(f"{prefix}LocEnc{i}.capsule.{entry}", inputs, 9)
        tensors |= draw.linear(f"{prefix}LocEnc{i}.head.0", 9, 5)
    return tensors


def satclip(degrees: int = 5, **hyper_parameters: object) -> dict[str, object]:
    draw, name = Draw(), "model.location.nnet."
    tensors = draw.linear(f"{name}layers.0", degrees**2, 7)
    tensors[f"{name}layers.0.weight"] /= 30
    tensors |= draw.linear(f"{name}layers.1", 7, 7) | draw.linear(f"{name}last_layer", 7, 4)
    tensors |= {"model.visual.conv1.weight": torch.zeros(3), "model.logit_scale": torch.tensor(2.6)}
    said = {"le_type": "sphericalharmonics", "pe_type": "siren", "legendre_polys": degrees, "embed_dim": 4}
    said |= {"harmonics_calculation": "analytic", "capacity": 7, "num_hidden_layers": 2, **hyper_parameters}
    return {"epoch": 3, "global_step": 5, "state_dict": tensors, "hyper_parameters": said}


def sinr(inputs: int = 4, **params: object) -> dict[str, object]:
    draw = Draw()
    tensors = draw.linear("feats.0", inputs, 8)
    for block in (2, 3, 4, 5):
        tensors |= draw.linear(f"feats.{block}.w1", 8, 8) | draw.linear(f"feats.{block}.w2", 8, 8)
    tensors["class_emb.weight"] = draw.tensor(11, 8)
    said = {"model": "ResidualFCNet", "input_enc": "sin_cos", "num_classes": 11, "depth": 4, **params}
    return {"state_dict": tensors, "params": said}


def csp(activation: str = "gelu", **params: object) -> dict[str, object]:
    draw, name = Draw(), "spa_enc.ffn.layers."
    tensors = draw.linear(f"{name}0.linear", 4 * 6, 8) | draw.linear(f"{name}1.linear", 8, 5)
    tensors |= {f"{name}0.layernorm.weight": 1 + draw.tensor(8), f"{name}0.layernorm.bias": draw.tensor(8)}
    tensors["class_emb.weight"] = draw.tensor(11, 5)
    said = {
        "spa_enc_type": "gridcell",
        "frequency_num": 6,
        "min_radius": 0.5,
        "max_radius": 360,
        "spa_f_act": activation,
    }
    return {"state_dict": tensors, "params": {**said, "device": "cuda:0", **params}, "epoch": 9}


def plain(tensors: object) -> slow.Weights:
    """The tensors of a fabricated file as numpy in double."""
    assert isinstance(tensors, dict)
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}
