"""Sparse mixtures: the dense form up to epsilon, its gradients too, by lists that a mixer keeps for moving sites."""

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from tessearth.encoder import (
    EncoderConfig,
    SiteGeometry,
    Slack,
    SoftVoronoi,
    SparseMixer,
    SphericalVoronoiEncoder,
    TessellationConfig,
    list_sites,
    sparse_mixture,
)
from tessearth.encoder import sparse as plain
from tessearth.encoder import sparse_kernels as kernels
from tessearth.encoder.lists import EPSILON
from tessearth.encoder.sparse_kernels import Given
from tessearth.errors import ConfigError
from tessearth.sphere import CellLists, fibonacci_lattice

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPACED = TessellationConfig(num_sites=600, site_dim=8, sharpness="spacing", logits="chord")
needs_kernels = pytest.mark.skipif(
    not kernels.are_for(torch.empty(0, device=DEVICE)), reason="kernels need a GPU, or Triton and TRITON_INTERPRET=1"
)
BACKGROUNDS = pytest.mark.parametrize("background", [None, -3.0], ids=["no background", "background"])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def places(count: int) -> Tensor:
    return normalize(random(count, 3), dim=-1)


def level(count: int = 400, width: int = 8) -> list[Tensor]:
    """Positions, log sharpness, territory and embeddings of sites of which every seventh is absent."""
    spacing = 1.07 * math.sqrt(4 * math.pi / count)
    log_sharpness = math.log(2 / spacing**2) + 0.3 * random(count, seed=1)
    territory = torch.where(torch.arange(count) % 7 > 0, 0.3 * random(count, seed=2), -math.inf)
    return [fibonacci_lattice(count), log_sharpness, territory, random(count, width, seed=3)]


def list_level(sites: list[Tensor], background: float | None) -> CellLists:
    return list_sites(SiteGeometry(sites[0], sites[1].exp(), sites[2], background))


def dense(xyz: Tensor, sites: list[Tensor], background: float | None) -> Tensor:
    """The reference, by all sites."""
    positions, log_sharpness, territory, embeddings = sites
    logits = territory - log_sharpness.exp() / 2 * (xyz[:, None] - positions).square().sum(-1)
    logits = pad(logits, (0, 1), value=-math.inf if background is None else background)
    return torch.softmax(logits, dim=-1)[:, :-1] @ embeddings


@BACKGROUNDS
def test_mixtures_and_gradients_are_the_dense_ones_up_to_epsilon(background: float | None) -> None:
    sites, xyz = level(), places(80)
    leaves = [part.clone().requires_grad_() for part in sites]
    pull, lists = random(80, 8, seed=4), list_level(sites, background)
    assert float(lists.lengths.double().mean()) < 150
    sparse, whole = sparse_mixture(xyz, *leaves, lists, background), dense(xyz, leaves, background)
    torch.testing.assert_close(sparse, whole, rtol=0, atol=10 * EPSILON)
    for got, wanted in zip(
        torch.autograd.grad(sparse, leaves, pull), torch.autograd.grad(whole, leaves, pull), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=20 * EPSILON * float(wanted.abs().max()))


@BACKGROUNDS
def test_gradients_are_those_of_finite_differences(background: float | None) -> None:
    sites, xyz = level(30, 3), places(7)
    sites[2] = sites[2].nan_to_num(neginf=-1.0)
    lists = list_level(sites, background)
    leaves = [part.clone().requires_grad_() for part in sites]
    assert torch.autograd.gradcheck(lambda *parts: sparse_mixture(xyz, *parts, lists, background), leaves)


def test_blocks_and_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    sites = [part.float() for part in level(2000, 16)]
    xyz, lists, threads = places(700).float(), list_level(sites, None), torch.get_num_threads()

    def step() -> list[Tensor]:
        leaves = [part.clone().requires_grad_() for part in sites]
        mixture = sparse_mixture(xyz, *leaves, lists)
        return [mixture.detach(), *torch.autograd.grad(mixture.square().sum(), leaves)]

    first = step()
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        assert all(torch.equal(a, b) for a, b in zip(first, step(), strict=True))
    finally:
        torch.set_num_threads(threads)
    monkeypatch.setattr(plain, "PAIRS_AT_ONCE", 1000)
    torch.testing.assert_close(step(), first)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_places_is_mixed(count: int) -> None:
    sites = level()
    xyz, lists = places(count), list_level(sites, None)
    torch.testing.assert_close(sparse_mixture(xyz, *sites, lists), dense(xyz, sites, None), rtol=0, atol=1e-5)


def test_without_sites_the_mixture_is_nothing() -> None:
    sites = level()
    sites[2] = torch.full_like(sites[2], -math.inf)
    leaves = [part.clone().requires_grad_() for part in sites]
    mixture = sparse_mixture(places(9), *leaves, list_level(sites, -3.0), -3.0)
    mixture.sum().backward()
    assert not mixture.any()
    assert not any(part.grad.any() for part in leaves if part.grad is not None)


def test_a_compiled_step_is_the_plain_one() -> None:
    voronoi = tessellation()
    mixer, xyz = SparseMixer(voronoi), places(50).float()
    gradients = []
    for step in (mixer, torch.compile(mixer.__call__, fullgraph=True, backend="aot_eager")):
        voronoi.zero_grad()
        step(voronoi, xyz).square().sum().backward()
        gradients.append([part.grad.clone() for part in voronoi.parameters() if part.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def tessellation(config: TessellationConfig = SPACED) -> SoftVoronoi:
    torch.manual_seed(0)
    voronoi = SoftVoronoi(config, fibonacci_lattice(config.num_sites))
    torch.nn.init.normal_(voronoi.embeddings)
    return voronoi


def shake(voronoi: SoftVoronoi, amount: float) -> None:
    """Move every site, and change its sharpness and territory."""
    with torch.no_grad():
        voronoi.directions.add_(amount * voronoi.spacing[:, None] * torch.randn_like(voronoi.directions))
        voronoi.log_sharpness.add_(amount * torch.randn_like(voronoi.log_sharpness))
        voronoi.territory.add_(amount * torch.randn_like(voronoi.territory))
    voronoi.constrain_()


def test_a_level_mixed_by_lists_is_the_level() -> None:
    config = EncoderConfig(tessellations=(SPACED,), output_dim=8, hidden_dim=8, num_tokens=4, num_blocks=1)
    encoder = SphericalVoronoiEncoder(config).eval()
    latlon = torch.rand(60, 2) * 170 - 85
    whole = encoder.from_exact(*encoder.exact(latlon))[0]
    voronoi = encoder.voronois()[0]
    names = list(encoder.state_dict())
    voronoi.mixer = SparseMixer(voronoi)
    torch.testing.assert_close(encoder.from_exact(*encoder.exact(latlon))[0], whole, rtol=1e-4, atol=1e-5)
    assert list(encoder.state_dict()) == names


def test_held_sites_keep_the_certificate_and_free_ones_are_left_alone() -> None:
    voronoi, xyz = tessellation(), places(400).float()
    mixer = SparseMixer(voronoi)
    shake(voronoi, 1e-3)
    before = copy.deepcopy(voronoi.state_dict())
    assert float(mixer.strain(voronoi).max()) < 1
    mixer.hold_(voronoi)
    assert all(torch.equal(before[name], part) for name, part in voronoi.state_dict().items())
    shake(voronoi, 1.0)
    assert float(mixer.strain(voronoi).max()) > 1
    mixer.hold_(voronoi)
    assert float(mixer.strain(voronoi).max()) < 1.001
    assert float(mixer.left_out(voronoi, xyz).max()) <= EPSILON


def test_refreshed_lists_follow_the_sites_in_place() -> None:
    voronoi, xyz = tessellation(), places(200).float()
    mixer = SparseMixer(voronoi)
    addresses = [part.data_ptr() for part in (*mixer.lists, *mixer.anchor.values())]
    with torch.no_grad():
        voronoi.directions.copy_(normalize(random(600, 3, seed=9), dim=-1))
        voronoi.territory[::5] = -math.inf
    assert float(mixer.left_out(voronoi, xyz).max()) > 0.01
    mixer.refresh_(voronoi)
    assert float(mixer.left_out(voronoi, xyz).max()) <= EPSILON
    assert float(mixer.strain(voronoi).max()) == 0
    assert [part.data_ptr() for part in (*mixer.lists, *mixer.anchor.values())] == addresses


def test_lists_are_rebuilt_from_the_anchor_alone() -> None:
    voronoi = tessellation()
    mixer = SparseMixer(voronoi)
    shake(voronoi, 0.3)
    mixer.refresh_(voronoi)
    shake(voronoi, 0.01)
    other = SparseMixer(voronoi)
    for name, tensor in mixer.anchor.items():
        other.anchor[name].copy_(tensor)
    other.rebuild_()
    assert all(torch.equal(a, b) for a, b in zip(mixer.lists, other.lists, strict=True))


def test_sites_without_slack_stay_where_they_are() -> None:
    voronoi = tessellation()
    mixer = SparseMixer(voronoi, slack=Slack())
    shake(voronoi, 0.1)
    mixer.hold_(voronoi)
    assert torch.equal(voronoi.log_sharpness, mixer.anchor["log_sharpness"])
    torch.testing.assert_close(voronoi.directions.detach(), mixer.anchor["directions"])


def test_a_mixer_without_room_or_for_other_logits_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lists of 600 sites take .* more room or less slack"):
        SparseMixer(tessellation(), room=(10, 100))
    paper = TessellationConfig(num_sites=64, site_dim=4, sharpness=20.0)
    with pytest.raises(ConfigError, match="needs logits = 'chord'"):
        SparseMixer(SoftVoronoi(paper, fibonacci_lattice(64)))


@needs_kernels
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "deterministic"])
@BACKGROUNDS
@pytest.mark.parametrize(("width", "count"), [(8, 300), (24, 400), (192, 400)])
def test_kernels_equal_the_plain_path(width: int, count: int, background: float | None, deterministic: bool) -> None:
    sites, xyz = level(count, width), places(12)
    lists, pull = list_level(sites, background), random(12, width, seed=4)
    sites[1] = sites[1].exp()
    least = -math.inf if background is None else background
    exact = Given(xyz, *sites, lists.find(xyz), lists.starts, lists.sites, least)
    given = Given._make(
        part.to(DEVICE, torch.float32 if part.is_floating_point() else None) if isinstance(part, Tensor) else part
        for part in exact
    )
    wanted, got = plain.mix(exact), kernels.mix(given)
    for part, reference in zip(got, wanted, strict=True):
        torch.testing.assert_close(part.cpu().double(), reference, rtol=1e-5, atol=1e-5)
    back = kernels.mix_backward(pull.float().to(DEVICE), *got, given, deterministic)
    for part, reference in zip(back, plain.mix_backward(pull, *wanted, exact), strict=True):
        torch.testing.assert_close(part.cpu().double(), reference, rtol=1e-4, atol=2e-6 * float(reference.abs().max()))
    if deterministic:
        again = kernels.mix_backward(pull.float().to(DEVICE), *got, given, deterministic)
        assert all(torch.equal(a, b) for a, b in zip(back, again, strict=True))
