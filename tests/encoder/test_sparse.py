"""Mixtures by lists against the dense form: values, gradients, and the weight that lists leave out."""

import math

import pytest
import torch
from torch import Tensor

from tessearth.encoder import (
    SoftVoronoi,
    SparseMixer,
    SphericalVoronoiEncoder,
    TessellationConfig,
)
from tessearth.encoder import sparse_kernels as kernels
from tessearth.encoder.lists import EPSILON
from tessearth.encoder.sparse import Table, _ListedOnCpu
from tessearth.packages import has_kernels
from tessearth.sphere import CellLists, fibonacci_lattice

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not has_kernels(DEVICE), reason="kernels need a GPU, or Triton and TRITON_INTERPRET=1"
)


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


def gradients_of(
    sites: list[Tensor], lists: CellLists, places: Tensor, out: Tensor, background: float | None
) -> list[Tensor]:
    """Of positions, sharpness, territory and rows, by the plain path."""
    leaves = [part.detach().clone().requires_grad_() for part in sites]
    least = -math.inf if background is None else background
    plain = _ListedOnCpu.apply(places, least, *leaves, *lists)  # type: ignore[no-untyped-call]
    return list(torch.autograd.grad(plain, leaves, out))


def test_threads_change_no_bit() -> None:
    voronoi, places, threads, found = spaced(1000, 16).float(), draws(600, 14).float(), torch.get_num_threads(), []
    mixer = mixer_of(voronoi)
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            voronoi.zero_grad()
            mixer(voronoi, places).square().sum().backward()
            found.append([part.grad.clone() for part in voronoi.parameters() if part.grad is not None])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


@needs_kernels
@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(("count", "width", "background"), [(100, 6, None), (300, 40, -8.0), (60, 192, None)])
def test_kernels_give_what_a_cpu_gives(count: int, width: int, background: float | None, repeatable: bool) -> None:
    voronoi, places, out = spaced(count, width, background).eval(), draws(12, 14), draws(12 * width, 15)[:, 0]
    out = out.view(12, width)
    mixer = mixer_of(voronoi)
    mixture = mixer(voronoi, places)
    sites = [voronoi.positions(), voronoi.sharpness(), voronoi.territory, voronoi.embeddings]
    wanted = gradients_of(sites, mixer.lists, places, out, background)
    table = Table(*(part.detach().float().to(DEVICE) for part in sites), *(part.to(DEVICE) for part in mixer.lists))
    here, least = places.float().to(DEVICE), -math.inf if background is None else background
    got = kernels.forward(here, *table.find(here), table, least)
    torch.testing.assert_close(got[0].double().cpu(), mixture.detach(), rtol=1e-4, atol=1e-5)
    back = [kernels.backward(out.float().to(DEVICE), list(got), here, table, repeatable) for _ in range(2)]
    for part, reference in zip(back[0], wanted, strict=True):
        torch.testing.assert_close(part.double().cpu(), reference, rtol=1e-3, atol=1e-5 * float(reference.abs().max()))
    if repeatable:
        assert all(torch.equal(one, two) for one, two in zip(*back, strict=True))


@needs_kernels
def test_far_from_all_sites_kernels_share_gradients_as_weights() -> None:
    """Three coincident sites of a tau of 10^8 share a place so far away that float32 forgets the logarithm of three."""
    table = Table(
        *(part.to(DEVICE) for part in (
            torch.tensor([[1.0, 0, 0]] * 3), torch.full((3,), 1e8), torch.zeros(3), torch.eye(3, 8),
            torch.tensor([0]), torch.tensor([0, 3]), torch.arange(3, dtype=torch.int32),
        ))
    )  # fmt: skip
    place = torch.tensor([[-0.6, 0.8, 0]], device=DEVICE)
    mixed = kernels.forward(place, *table.find(place), table, -math.inf)
    to_rows = kernels.backward(torch.ones(1, 8, device=DEVICE), list(mixed), place, table, True)[3]
    torch.testing.assert_close(to_rows.cpu(), torch.full((3, 8), 1 / 3))


def test_an_encoder_by_lists_embeds_as_one_by_all_sites() -> None:
    from tessearth.encoder import EncoderConfig

    level = TessellationConfig(num_sites=400, site_dim=8, sharpness="spacing", logits="chord")
    encoder = SphericalVoronoiEncoder(EncoderConfig(tessellations=(level,), output_dim=16, hidden_dim=16)).eval()
    latlon = torch.rand(50, 2) * torch.tensor([180.0, 360.0]) - torch.tensor([90.0, 180.0])
    dense = encoder.from_exact(*encoder.exact(latlon))[0]
    encoder.voronois()[0].mixer = mixer_of(encoder.voronois()[0])
    torch.testing.assert_close(encoder.from_exact(*encoder.exact(latlon))[0], dense, rtol=1e-3, atol=1e-5)
