"""`FineTuned`: an encoder and the head that reads one label off it, together in memory and on disk.

RUN/
encoder.safetensors  the encoder; its path is a name wherever a model is asked for
head.safetensors     the head, with the label's kind, classes and scores in its header; written last
metrics.jsonl        one line per epoch
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import DataError, WeightsError
from tessearth.settings import Kind
from tessearth.sphere.coordinates import as_latlon
from tessearth.storage.files import write_bytes
from tessearth.storage.sealed import read_sealed_tensors, seal_tensors
from tessearth.training.label_head import LabelHead
from tessearth.training.location_side import TrainableEncoder, save_encoder
from tessearth.zoo.names import load_base

ENCODER, HEAD, METRICS = "encoder.safetensors", "head.safetensors", "metrics.jsonl"
FORMAT, FORMAT_VERSION = "tessearth-label-head", "1"
PLACES_AT_ONCE = 2048

Array = npt.NDArray[Any]


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class FineTuned:
    """Predicts a label of places."""

    encoder: TrainableEncoder
    head: LabelHead
    kind: Kind
    classes: tuple[str, ...]
    """Names in the order of the head's outputs; empty for numbers."""
    about: dict[str, Any]
    """What it was made from and how well it did, ready for JSON."""

    def predict(self, points: Any) -> Array:
        """The label of places given in any form `as_latlon` takes: class names or numbers, (...)."""
        values = self.values(points)
        return values if self.kind == "regress" else np.array(self.classes, dtype=object)[values.argmax(-1)]

    def values(self, points: Any) -> Array:
        """The probability of every class, (..., C), or the number itself, (...)."""
        latlon = as_latlon(points)
        self.head.eval()
        device = self.head.linear.weight.device
        embedding = embed_places(self.encoder, torch.from_numpy(latlon.reshape(-1, 2)), device)
        with torch.inference_mode():
            values = self.head.values(self.head(embedding)).cpu().numpy()
        return np.asarray(values.reshape((*latlon.shape[:-1], *values.shape[1:])))

    def save(self, path: str | Path) -> None:
        """Write both files into a folder that is there, the head last."""
        folder = Path(path)
        save_encoder(self.encoder, folder / ENCODER, {"finetuned": self.about})
        header = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "classes": json.dumps(self.classes),
            "hidden_dim": str(self.head.entry.out_features if self.head.entry is not None else 0),
            "about": json.dumps(self.about),
        }
        write_bytes(folder / HEAD, seal_tensors(self.head.state_dict(), header))


@torch.no_grad()
def embed_places(encoder: TrainableEncoder, latlon: Tensor, device: torch.device) -> Tensor:
    """Embeddings of an encoder in evaluation mode, degrees (N, 2) -> (N, D) in float32."""
    return torch.cat([encoder(part.to(device)).float() for part in torch.split(latlon.double(), PLACES_AT_ONCE)])


def load_finetuned(path: str | Path, device: torch.device | None = None) -> FineTuned:
    """Read what `finetune` left in a folder."""
    file = Path(path) / HEAD
    if not file.is_file():
        raise DataError(f"{path} holds no fine-tuned model: it has no {HEAD}; tessearth finetune makes one")
    try:
        header, state = read_sealed_tensors(file)
        if header.get("format") != FORMAT or header.get("format_version") != FORMAT_VERSION:
            raise WeightsError(f"{file} is no head of format {FORMAT_VERSION}")
        outputs, width = state["linear.weight"].shape
        kind: Kind = "regress" if header["kind"] == "regress" else "classify"
        head = LabelHead(kind, width, outputs, int(header["hidden_dim"]))
        head.load_state_dict(state, strict=True)
        classes, about = tuple(json.loads(header["classes"])), json.loads(header["about"])
    except (KeyError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise error if isinstance(error, WeightsError) else WeightsError(f"{file} is damaged: {reason}") from None
    chosen = device or torch.device("cpu")
    encoder = load_base(str(Path(path) / ENCODER))
    return FineTuned(encoder=encoder.to(chosen), head=head.to(chosen).eval(), kind=kind, classes=classes, about=about)
