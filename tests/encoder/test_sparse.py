"""Mixtures by lists against the dense form: values, gradients, and the weight that lists leave out."""

import math

import pytest
import torch
from torch import Tensor

from tessearth.encoder import (
    SiteGeometry,
    Slack,
    SoftVoronoi,
    SparseMixer,
    SphericalVoronoiEncoder,
    TessellationConfig,
    list_sites,
)
from tessearth.encoder.lists import EPSILON
from tessearth.sphere import CellLists, fibonacci_lattice


def unit(xyz: Tensor) -> Tensor:
    return torch.nn.functional.normalize(xyz, dim=-1)


def draws(count: int, seed: int) -> Tensor:
    return unit(torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))


def spaced(count: int = 500, width: int = 6, background: float | None = None) -> SoftVoronoi:
    """A level in float64 whose sites lie unevenly, with territories and embeddings of their own."""
    torch.manual_seed(0)
    pole = unit(torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64))
    sites = unit(
        torch.where(torch.arange(count)[:, None] % 2 == 0, fibonacci_lattice(count), pole + 0.1 * draws(count, 1))
    )
    config = TessellationConfig(
        num_sites=count, site_dim=width, sharpness="spacing", logits="chord", background=background
    )
    voronoi = SoftVoronoi(config, sites).double().train()
    with torch.no_grad():
        voronoi.embeddings.normal_()
        voronoi.territory.normal_(std=0.3)
        voronoi.territory[::17] = -math.inf
    return voronoi


def mixer_of(voronoi: SoftVoronoi, epsilon: float = EPSILON) -> SparseMixer:
    mixer = SparseMixer(epsilon)
    mixer.refresh_(voronoi)
    return mixer


@pytest.mark.parametrize("background", [None, -8.0])
def test_mixtures_and_their_gradients_are_those_of_all_sites(background: float | None) -> None:
    voronoi = spaced(200, background=background)
    places = torch.cat((draws(150, 2), voronoi.positions().detach()[::9]))
    out = torch.randn(len(places), 6, dtype=torch.float64)
    gradients = []
    for mixture in (mixer_of(voronoi)(voronoi, places), voronoi.mix(voronoi.weights(places))):
        voronoi.zero_grad()
        mixture.backward(out)
        gradients.append([parameter.grad.clone() for parameter in voronoi.parameters() if parameter.grad is not None])
        gradients[-1].append(mixture.detach())
    for sparse, dense in zip(*gradients, strict=True):
        torch.testing.assert_close(sparse, dense, rtol=1e-5, atol=2e-5 * float(dense.abs().max()))


def test_gradients_are_those_of_finite_differences() -> None:
    voronoi, places = spaced(24, 3, background=-6.0).eval(), draws(5, 3)
    mixer = mixer_of(voronoi)
    kept = [getattr(voronoi, name) for name in ("log_sharpness", "territory", "embeddings", "directions")]

    def mixture(*tensors: Tensor) -> Tensor:
        for parameter, tensor in zip(("log_sharpness", "territory", "embeddings", "directions"), tensors, strict=True):
            del voronoi._parameters[parameter]
            setattr(voronoi, parameter, tensor)
        out = mixer(voronoi, places)
        for name, tensor in zip(("log_sharpness", "territory", "embeddings", "directions"), tensors, strict=True):
            delattr(voronoi, name)
            voronoi._parameters[name] = tensor  # type: ignore[assignment]
        return out

    starts = [torch.where(t.isinf(), 0.0, t).detach().clone().requires_grad_() for t in kept]
    assert torch.autograd.gradcheck(mixture, starts, eps=1e-6, atol=1e-5)


def left_out(geometry: SiteGeometry, lists: CellLists, places: Tensor) -> Tensor:
    """The weight of what is in no list, by all sites in float64."""
    positions, tau, territory = (part.double() for part in geometry[:3])
    logits = territory - tau / 2 * (places[:, None] - positions).square().sum(-1)
    background = -math.inf if geometry.background is None else geometry.background
    weights = torch.softmax(torch.nn.functional.pad(logits, (0, 1), value=background), dim=-1)[:, :-1]
    for row, cell in enumerate(lists.find(places).tolist()):
        weights[row, lists.sites[lists.starts[cell] : lists.starts[cell + 1]].long()] = 0
    return weights.sum(-1)


def geometry(kind: str, background: float | None) -> SiteGeometry:
    """Sites that make lists hard."""
    sites, generator = draws(300, 4), torch.Generator().manual_seed(5)
    sharpness = torch.full((300,), 200.0, dtype=torch.float64)
    territory = torch.randn(300, dtype=torch.float64, generator=generator)
    if kind == "mixed":
        sharpness = torch.logspace(math.log10(0.5), 8, 300, dtype=torch.float64)
    elif kind == "coincident":
        sites, sharpness = sites[:10].repeat(30, 1), sharpness.mul_(5)
    elif kind == "clusters":
        sites = unit(sites[:6].repeat_interleave(50, 0) + 1e-3 * draws(300, 6))
        sharpness = sharpness.fill_(1e6)
    elif kind == "absent":
        territory[::2] = -math.inf
    return SiteGeometry(sites, sharpness, territory, background)


@pytest.mark.parametrize("background", [None, -10.0])
@pytest.mark.parametrize("kind", ["even", "mixed", "coincident", "clusters", "absent"])
def test_lists_leave_out_at_most_epsilon_wherever_a_place_is(kind: str, background: float | None) -> None:
    given = geometry(kind, background)
    lists = list_sites(given)
    corners = torch.tensor([(1, 1, 1), (1, -1, 1), (0, 0, 1), (0, 0, -1), (-1, 0, 0), (1, 1, 0)], dtype=torch.float64)
    near = unit(given.positions + given.sharpness[:, None] ** -0.5 * draws(300, 7))
    between = unit(given.positions + given.positions.roll(1, 0))
    places = torch.cat((draws(2000, 8), unit(corners), given.positions, near, between))
    assert float(left_out(given, lists, places).max()) <= EPSILON
    assert not torch.isin(lists.sites.long(), given.territory.isinf().nonzero()[:, 0]).any()


def test_lists_hold_for_sites_that_move_within_their_slack() -> None:
    given, slack = geometry("even", None), Slack(shift=0.2, log_sharpness=0.15, territory=0.1)
    lists, generator = list_sites(given, slack=slack), torch.Generator().manual_seed(9)
    sign = lambda: torch.randint(0, 2, (300,), generator=generator).double() * 2 - 1  # noqa: E731
    step = slack.shift * given.sharpness[:, None] ** -0.5 * draws(300, 10)
    moved = SiteGeometry(
        unit(given.positions + 0.999 * (step - (step * given.positions).sum(-1, keepdim=True) * given.positions)),
        given.sharpness * (slack.log_sharpness * sign()).exp(),
        given.territory + 0.1 * sign(),
    )
    assert float(left_out(moved, lists, draws(3000, 11)).max()) <= EPSILON


def test_the_anchor_gives_the_same_lists_again() -> None:
    voronoi = spaced(background=-8.0)
    mixer = mixer_of(voronoi)
    first = [part.clone() for part in mixer.lists]
    with torch.no_grad():
        voronoi.directions.add_(0.05 * draws(500, 12))
    mixer.refresh_(voronoi)
    assert not all(torch.equal(a, b) for a, b in zip(first, mixer.lists, strict=True))
    mixer.anchor[0].copy_(spaced().positions().detach())
    mixer.rebuild_(-8.0)
    assert all(torch.equal(a, b) for a, b in zip(first, mixer.lists, strict=True))


def test_sites_are_held_within_the_slack() -> None:
    voronoi = spaced(background=-8.0)
    mixer = mixer_of(voronoi)
    start = [part.clone() for part in mixer.anchor]
    with torch.no_grad():
        voronoi.directions.add_(draws(500, 13))
        voronoi.log_sharpness.add_(1.0)
        voronoi.territory.sub_(1.0)
    mixer.hold_(voronoi)
    here = voronoi.territory.isfinite()
    moved = (voronoi.directions - start[0]).norm(dim=-1) * (start[1] / 2).exp()
    assert 0.15 < float(moved.detach().max()) <= 0.2
    assert float((voronoi.log_sharpness - start[1]).detach().abs().max()) <= 0.15 + 1e-12
    assert float((voronoi.territory - start[2])[here].detach().abs().max()) <= 0.1 + 1e-12
    assert bool(voronoi.territory[~here].isinf().all())


def test_kernels_of_a_gpu_give_what_a_cpu_gives() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    voronoi = spaced(2000, 40, background=-8.0).float()
    places, out = draws(500, 14).float(), torch.randn(500, 40)
    found = []
    for device in ("cpu", "cuda"):
        level, here = voronoi.to(device), places.to(device)
        level.zero_grad()
        mixture = mixer_of(level)(level, here)
        mixture.backward(out.to(device))
        found.append([mixture.detach().cpu(), *(p.grad.cpu() for p in level.parameters() if p.grad is not None)])
    for cpu, gpu in zip(*found, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=1e-3, atol=1e-5 * float(cpu.abs().max()))


def test_an_encoder_by_lists_embeds_as_one_by_all_sites() -> None:
    from tessearth.encoder import EncoderConfig

    level = TessellationConfig(num_sites=400, site_dim=8, sharpness="spacing", logits="chord")
    encoder = SphericalVoronoiEncoder(EncoderConfig(tessellations=(level,), output_dim=16, hidden_dim=16)).eval()
    latlon = torch.rand(50, 2) * torch.tensor([180.0, 360.0]) - torch.tensor([90.0, 180.0])
    dense = encoder.from_exact(*encoder.exact(latlon))[0]
    encoder.voronois()[0].mixer = mixer_of(encoder.voronois()[0])
    torch.testing.assert_close(encoder.from_exact(*encoder.exact(latlon))[0], dense, rtol=1e-3, atol=1e-5)
