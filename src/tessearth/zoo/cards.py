"""The baselines by name: what each is, who published it, and how it is built."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tessearth.encoder import LocationEncoder
from tessearth.errors import ConfigError
from tessearth.settings import Registry, from_plain
from tessearth.zoo.baselines.base import Network, PositionalEncoder, PositionalEncoding
from tessearth.zoo.baselines.elementary import Cartesian3d, Direct, ElementarySettings, Wrap, WrapResidualSettings
from tessearth.zoo.baselines.fourier import FourierSettings, RandomFourier, SummedCapsules
from tessearth.zoo.baselines.harmonics import HarmonicsSettings, HarmonicsSirenSettings, Siren, SphericalHarmonics
from tessearth.zoo.baselines.networks import FeedForward, ResidualNetwork
from tessearth.zoo.baselines.space2vec import Grid, GridFeedForwardSettings, Space2VecSettings, Theory
from tessearth.zoo.baselines.sphere2vec import Sphere2Vec, Sphere2VecSettings

Build = Callable[[Any, torch.Generator], LocationEncoder]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSettings:
    """For an encoder that has nothing to set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineCard:
    """A baseline by its name."""

    summary: str
    """One line for lists."""
    citation: str
    """Who published it, where and when."""
    build: Build
    """Makes one from its settings, its random parts drawn from a generator."""
    settings: type[Any] = NoSettings
    """The dataclass it is built from; defaults are ours where the authors tuned a value per data set."""
    seamless: bool = False
    """Whether it is continuous across the antimeridian; the others see a flat map with an edge there."""
    has_network: bool = False
    """Whether it has weights to train by default; the others take a `network` in their settings."""


def build_baseline(name: str, settings: Mapping[str, Any] | object | None = None, *, seed: int = 0) -> LocationEncoder:
    """A baseline by name, in evaluation mode; `settings` is its dataclass or plain values, else its defaults.

    Everything random is drawn from `seed`; PyTorch's own random state is left as it was.
    """
    card = BASELINES[name]
    kind, chosen = card.settings, settings
    if not isinstance(settings, kind):
        if settings is not None and not isinstance(settings, Mapping):
            given = f"a {type(settings).__name__}, not {kind.__name__} or plain values"
            raise ConfigError(f"the settings of {name} are {given}")
        chosen = from_plain(kind, settings or {}, f"{name}.")
    with torch.random.fork_rng(devices=[]):  # layers draw once from the global state before they are drawn anew
        encoder = card.build(chosen, torch.Generator().manual_seed(seed))
    encoder.name, encoder.settings = name, chosen
    return encoder.eval()


def positional(
    position: Callable[[Any, torch.Generator], PositionalEncoding],
    network: Callable[[int, Any], Network] = lambda width, settings: ResidualNetwork(width, settings.network),
) -> Build:
    """How a `PositionalEncoder` is built: its features, and a network behind them where `settings.network` has one.

    `network` makes it from the features' width and the settings; the default is the shared residual network.
    """

    def build(settings: Any, generator: torch.Generator) -> LocationEncoder:
        features = position(settings, generator)
        if settings.network is None:
            return PositionalEncoder(features)
        behind = network(features.output_dim, settings)
        behind.reset_parameters(generator)
        return PositionalEncoder(features, behind)

    return build


SPACE2VEC = (
    "Mai et al., Multi-scale representation learning for spatial feature distributions using grid cells, ICLR 2020"
)
GRID_CELLS = "Gao et al., Learning grid cells as vector representation of self-position, ICLR 2019"
SPHERE2VEC = (
    "Mai et al., Sphere2Vec: a general-purpose location representation learning over a spherical surface, "
    "ISPRS Journal of Photogrammetry and Remote Sensing 2023"
)
GEO_PRIOR = (
    "Mac Aodha, Cole and Perona, Presence-only geographical priors for fine-grained image classification, ICCV 2019"
)
HARMONICS = (
    "Russwurm et al., Geographic location encoding with spherical harmonics and sinusoidal representation networks, "
    "ICLR 2024"
)
SATCLIP = "Klemmer et al., SatCLIP: global, general-purpose location embeddings with satellite imagery, AAAI 2025"
GEOCLIP = "Vivanco Cepeda, Nayak and Shah, GeoCLIP: CLIP-inspired alignment between locations and images, NeurIPS 2023"
SINR = "Cole et al., Spatial implicit neural representations for global-scale species mapping, ICML 2023"
CSP = (
    "Mai et al., CSP: self-supervised contrastive spatial pre-training for geospatial-visual representations, ICML 2023"
)

BASELINES: Registry[BaselineCard] = Registry(
    "baseline",
    {
        "direct": BaselineCard(
            summary="the two numbers, scaled; the only one whose longitude does not wrap",
            citation="none; the reference every comparison starts from",
            settings=ElementarySettings,
            build=positional(lambda settings, _: Direct()),
        ),
        "cartesian3d": BaselineCard(
            summary="the point on the unit sphere",
            citation="none; named so by Russwurm et al. 2024",
            settings=ElementarySettings,
            build=positional(lambda settings, _: Cartesian3d()),
            seamless=True,
        ),
        "wrap": BaselineCard(
            summary="sines and cosines of both coordinates",
            citation=GEO_PRIOR,
            settings=ElementarySettings,
            build=positional(lambda settings, _: Wrap()),
            seamless=True,
        ),
        "theory": BaselineCard(
            summary="Space2Vec-theory: waves along three directions of the flat map at many scales",
            citation=f"{GRID_CELLS}; {SPACE2VEC}",
            settings=Space2VecSettings,
            build=positional(lambda settings, _: Theory(settings)),
        ),
        "grid": BaselineCard(
            summary="Space2Vec-grid: waves along both axes of the flat map at many scales",
            citation=SPACE2VEC,
            settings=Space2VecSettings,
            build=positional(lambda settings, _: Grid(settings)),
        ),
        "sphereC": BaselineCard(
            summary="Sphere2Vec-sphereC: latitude and longitude scaled together, as points on spheres",
            citation=SPHERE2VEC,
            settings=Sphere2VecSettings,
            build=positional(lambda settings, _: Sphere2Vec(settings, one_at_a_time=False, with_grid=False)),
        ),
        "sphereC+": BaselineCard(
            summary="Sphere2Vec-sphereC+: sphereC and the grid's waves",
            citation=SPHERE2VEC,
            settings=Sphere2VecSettings,
            build=positional(lambda settings, _: Sphere2Vec(settings, one_at_a_time=False, with_grid=True)),
        ),
        "sphereM": BaselineCard(
            summary="Sphere2Vec-sphereM: latitude and longitude scaled one at a time",
            citation=SPHERE2VEC,
            settings=Sphere2VecSettings,
            build=positional(lambda settings, _: Sphere2Vec(settings, one_at_a_time=True, with_grid=False)),
        ),
        "sphereM+": BaselineCard(
            summary="Sphere2Vec-sphereM+: sphereM and the grid's waves",
            citation=SPHERE2VEC,
            settings=Sphere2VecSettings,
            build=positional(lambda settings, _: Sphere2Vec(settings, one_at_a_time=True, with_grid=True)),
        ),
        "harmonics": BaselineCard(
            summary="real spherical harmonics",
            citation=HARMONICS,
            settings=HarmonicsSettings,
            build=positional(lambda settings, _: SphericalHarmonics(settings.degrees)),
            seamless=True,
        ),
        "harmonics-siren": BaselineCard(
            summary="spherical harmonics and a sinusoidal network: SatCLIP's shape",
            citation=f"{HARMONICS}; {SATCLIP}",
            settings=HarmonicsSirenSettings,
            build=positional(
                lambda settings, _: SphericalHarmonics(settings.degrees),
                lambda width, settings: Siren(width, settings.network),
            ),
            seamless=True,
            has_network=True,
        ),
        "fourier": BaselineCard(
            summary="random Fourier features of an equal-area map at three scales, a network each: GeoCLIP's shape",
            citation=GEOCLIP,
            settings=FourierSettings,
            build=positional(
                RandomFourier,
                lambda width, settings: SummedCapsules(width, len(settings.sigmas), settings.network),
            ),
            has_network=True,
        ),
        "wrap-residual": BaselineCard(
            summary="wrapped coordinates and a residual network: SINR's shape and the geographic prior's",
            citation=f"{GEO_PRIOR}; {SINR}",
            settings=WrapResidualSettings,
            build=positional(lambda settings, _: Wrap()),
            seamless=True,
            has_network=True,
        ),
        "grid-feedforward": BaselineCard(
            summary="Space2Vec-grid and fully connected layers: the shape of CSP's released models",
            citation=CSP,
            settings=GridFeedForwardSettings,
            build=positional(
                lambda settings, _: Grid(settings), lambda width, settings: FeedForward(width, settings.network)
            ),
            has_network=True,
        ),
    },
)
