"""A centred start: nothing in common to all places is left in the blend, and no unit of the head is off everywhere."""

import dataclasses

import pytest
import torch
from torch import Tensor

from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.sites import start_sites
from tessearth.errors import ConfigError
from tessearth.training.sites_recipe import SitesRecipe
from tessearth.training.start import build_encoder
from tests.training.fabricate import toy_recipe

SHAPES: dict[str, dict[str, object]] = {
    "as the paper's": {},
    "no tokens": {"num_tokens": 0},
    "mixtures as wide as the blend": {
        "tessellations": (TessellationConfig(num_sites=30, site_dim=10), TessellationConfig(num_sites=20, site_dim=6))
    },
    "octaves": {"coordinate_octaves": 3},
    "no block": {"num_blocks": 0},
}


def build(encoder: dict[str, object], **sites: object) -> SphericalVoronoiEncoder:
    recipe = toy_recipe(encoder={"hidden_dim": 64, **encoder})
    recipe = dataclasses.replace(recipe, sites=SitesRecipe(start="full", **sites))  # type: ignore[arg-type]
    return build_encoder(recipe, torch.Generator().manual_seed(0))


@torch.no_grad()
def look(encoder: SphericalVoronoiEncoder) -> dict[str, Tensor]:
    """What goes into the norm and comes out of every layer before a ReLU, over the sphere."""
    seen: dict[str, Tensor] = {}
    hooks = [encoder.norm.register_forward_pre_hook(lambda _, inputs: seen.__setitem__("blend", inputs[0]))]
    for name, layer in encoder.head.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "exit":
            hooks.append(layer.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out)))
    training = encoder.training
    encoder.eval().embed_xyz(start_sites("full", 8192))
    encoder.train(training)
    for hook in hooks:
        hook.remove()
    return seen


def never_on(outputs: Tensor) -> int:
    return int((outputs.max(dim=0).values <= 0).sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_centred_start_has_mean_zero_everywhere_and_no_dead_unit(shape: str) -> None:
    encoder = build(SHAPES[shape], centred=True, spread=0.5)
    for name, outputs in look(encoder).items():
        assert outputs.mean(dim=0).abs().max() < 1e-5, name
        assert name == "blend" or never_on(outputs) == 0, name
    assert encoder.training
    assert not encoder.norm._forward_pre_hooks
    assert not encoder.head.entry._forward_hooks


def test_the_papers_start_is_nearly_the_same_everywhere_and_kills_units() -> None:
    seen = look(build({}))
    common = seen["blend"].mean(dim=0).square().sum() / seen["blend"].square().sum(dim=1).mean()
    assert common > 0.95
    assert never_on(seen["entry"]) > 10


def test_centring_moves_biases_alone() -> None:
    plain, centred = build({}).state_dict(), build({}, centred=True).state_dict()
    changed = {name for name in plain if not torch.equal(plain[name], centred[name])}
    blocks = {f"head.blocks.{i}.{layer}.bias" for i in range(2) for layer in ("first", "second")}
    assert changed == {"projection.bias", "head.entry.bias", *blocks}


def test_a_blend_of_tokens_alone_is_left_as_it_is() -> None:
    plain, centred = build({"token_gate": 1.0}), build({"token_gate": 1.0}, centred=True)
    assert torch.equal(plain.projection.bias, centred.projection.bias)  # type: ignore[arg-type]
    assert never_on(look(centred)["entry"]) == 0


def test_the_spread_scales_what_is_drawn() -> None:
    usual, wide = (build({}, **sites).voronois()[0].embeddings for sites in ({}, {"spread": 1.0}))
    torch.testing.assert_close(wide, usual * 50)
    with pytest.raises(ConfigError, match=r"sites.spread is 0.0; it must be positive"):
        SitesRecipe(spread=0.0)
