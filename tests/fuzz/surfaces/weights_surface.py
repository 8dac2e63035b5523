"""Weights files: safetensors of both layouts with their headers, and torch archives, which may never run code."""

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import VALUES, damage_bytes, damage_tree
from tests.fuzz.surfaces import Prepared, Surface, each

SEALS = ("seal", "tessearth_sha256", "provenance_sha256")
PLACES = [(10.0, 20.0), (-90.0, 180.0)]
TOKENS = (
    b'"F32"',
    b'"F16"',
    b'"BF16"',
    b'"I64"',
    b'"F8_E4M3"',
    b'"dtype"',
    b'"shape"',
    b"[0,0]",
    b"null",
    b"\x80\x04",
    b"PK",
)
SIZES: tuple[Any, ...] = (*VALUES, 10**9, 10**12, -5, [10**6, 10**6], [0], [0, 0], "F64", "BF16", "U8", "F4")


def prepare(folder: Path) -> Prepared:
    """Tiny encoders in both layouts, a baseline, a training checkpoint."""
    import torch

    from tessearth import Embedder
    from tessearth.encoder.weights import build_from, read_weights, save
    from tessearth.storage.foreign_weights import read_weight_file
    from tessearth.zoo import build_baseline
    from tessearth.zoo.names import load_base
    from tests.fuzz.surfaces.models import small_encoder

    torch.set_num_threads(1)
    encoder = small_encoder()
    save(encoder, folder / "ours.safetensors", provenance={"recipe": "none"})
    save(encoder, folder / "half.safetensors", dtype=torch.float16)
    save(encoder, folder / "official.safetensors", layout="official")
    build_baseline("sphereM+").save(folder / "baseline.safetensors")
    seeds = [_in_order(path.read_bytes()) for path in sorted(folder.glob("*.safetensors"))]
    official = read_weight_file(folder / "official.safetensors")
    archive = io.BytesIO()
    torch.save({"state_dict": {f"model.{name}": tensor for name, tensor in official.items()}}, archive)
    seeds.append(archive.getvalue())
    target = folder / "case.safetensors"

    def embed(encoder: Any) -> None:
        Embedder(encoder, device="cpu")(PLACES)

    def run(content: bytes) -> None:
        target.write_bytes(content)
        each(
            lambda: embed(build_from(read_weights(target))),
            lambda: embed(load_base(str(target))),
            lambda: read_weight_file(target),
        )

    return Prepared(seeds, run)


def _in_order(content: bytes) -> bytes:
    """The same file with its header sorted: safetensors writes it in an order of the moment."""
    tree, body = _parts(content)
    return _file(json.dumps(tree, sort_keys=True).encode(), body)


def _parts(content: bytes) -> tuple[Any, bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _file(header: bytes, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage bytes anywhere, or the header as JSON, at times with the checksum made right again."""
    content = random.choice(seeds)
    if content[8:9] != b"{" or random.random() < 0.3:
        return damage_bytes(random, content, seeds, TOKENS)
    tree, body = _parts(content)
    style = random.random()
    if style < 0.45 and "config" in tree.get("__metadata__", {}):
        config = damage_tree(random, json.loads(tree["__metadata__"]["config"]), SIZES)
        tree["__metadata__"]["config"] = _dump(random, config)
        tree["__metadata__"]["sha256"] = _digest(tree, body)
    else:
        for seal in SEALS if random.random() < 0.6 else ():
            tree["__metadata__"].pop(seal, None)  # files from before there were checksums have none
        settings = tree["__metadata__"].get("settings")
        if settings is not None and random.random() < 0.5:
            tree["__metadata__"]["settings"] = _dump(random, damage_tree(random, json.loads(settings), SIZES))
        else:
            tree = damage_tree(random, tree, SIZES)
    header = _dump(random, tree).encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        header += b" " * (-len(header) % 8)
    return _file(header, damage_bytes(random, body) if random.random() < 0.1 else body)


def _dump(random: Random, tree: Any) -> str:
    text = json.dumps(tree)
    if random.random() < 0.03:
        deep = random.choice((500, 5000, 100_000))
        text = text.replace(":", ":" + "[" * deep + "]" * deep + ",", 1) if random.random() < 0.5 else "[" * deep
    return text


def _digest(tree: dict[str, Any], body: bytes) -> str:
    """The checksum of our layout as its description says it, so that damage behind it is reached too."""
    import hashlib

    names = {"F32": "torch.float32", "F16": "torch.float16"}
    digest = hashlib.sha256(tree["__metadata__"]["config"].encode())
    for name in sorted(key for key in tree if key != "__metadata__"):
        entry = tree[name]
        digest.update(f"{name} {names.get(entry['dtype'], '')} {tuple(entry['shape'])}".encode())
        digest.update(body[slice(*entry["data_offsets"])])
    return digest.hexdigest()


SURFACE = Surface("weights", prepare, mutate)
