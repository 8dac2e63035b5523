"""Mixtures of many sites by lists: how long lists and kernels take, and how far they are from the dense form.

    PYTHONPATH=src python3 benchmarks/sparse.py [--sites 8192 65536 1000000] [--places 6384] [--device cuda]

Sites lie on a lattice over the sphere, two in three crowded into a hundredth of it. Steps on a GPU are captured graphs,
with gradients that repeat from run to run and with such that do not. Floor of a step of 6,384 places, 64 numbers a site
and lists of 100: 160 MB of rows forward, the same and as many atomic additions backward, so 0.1 to 0.2 ms at 4 TB/s;
with 10^6 sites another 0.2 ms to clear 256 MB of gradients, and thrice that for sums of whole numbers.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from pretrain import captured

from tessearth.encoder import SoftVoronoi, SparseMixer, TessellationConfig
from tessearth.settings import find_device
from tessearth.sphere import fibonacci_lattice, mean_chord

COMPARED = 256


def crowded_sites(count):
    """A lattice whose points are drawn towards one place, (count, 3): a third of them stays where it was."""
    lattice = fibonacci_lattice(count)
    pole, drawn = F.normalize(torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64), dim=0), torch.arange(count) % 3 > 0
    nearer = F.normalize(pole + 0.1 * (lattice - pole), dim=-1)
    return torch.where(drawn[:, None], nearer, lattice)


def timed(work, device, rounds=20):
    """Median milliseconds."""
    taken = []
    for _ in range(rounds + 3):
        begun = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(taken[3:])


def main():
    """Measure every number of sites and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[8192, 65_536, 1_000_000])
    parser.add_argument("--places", type=int, default=6384)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    device = find_device(arguments.device)
    print(
        "| sites | cells | mean list | spacing ms | lists ms | forward ms | both ms | both, in any order, ms | error "
        "| gradient error |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for count in arguments.sites:
        print("| " + " | ".join(measure(count, arguments, device)) + " |", flush=True)


def measure(count, arguments, device):
    """One row of the table."""
    torch.manual_seed(0)
    config = TessellationConfig(
        num_sites=count, site_dim=arguments.width, sharpness="spacing", logits="chord", background=-8.0
    )
    voronoi = SoftVoronoi(config, crowded_sites(count).to(device)).to(device)
    torch.nn.init.normal_(voronoi.embeddings)
    mixer = SparseMixer()
    mixer.refresh_(voronoi)
    places = crowded_sites(arguments.places + 1)[1:].float().to(device)
    out = torch.randn(arguments.places, arguments.width, device=device)

    def step():
        voronoi.zero_grad()  # a captured step makes its gradients, not adds to them
        mixer(voronoi, places).backward(out)

    spacing = timed(lambda: mean_chord(voronoi.directions.detach(), 6), device, 2)
    lists = timed(lambda: mixer.refresh_(voronoi), device, 2)
    steps = []
    for mixer.repeatable in (False, True):
        steps.append(timed(captured(step, device), device))
    with torch.no_grad():
        forward = timed(captured(lambda: mixer(voronoi, places), device), device)
    wrong = compare(voronoi, mixer, places[:: len(places) // COMPARED][:COMPARED]) if count <= 65_536 else ("", "")
    starts = mixer.lists.starts
    cells = int((mixer.lists.keys < 2**62).sum())
    return [
        f"{count:,}",
        f"{cells:,}",
        f"{int(starts[-1]) / cells:.0f}",
        *(f"{number:.3f}" for number in (spacing, lists, forward, *steps[::-1])),
        *wrong,
    ]


def compare(voronoi, mixer, places):
    """The largest error against the dense form in float64, of mixtures and of gradients in units of the largest."""
    out = torch.randn(len(places), voronoi.config.site_dim, device=places.device)
    voronoi.zero_grad()
    sparse = mixer(voronoi, places)
    sparse.backward(out)
    gradients = [parameter.grad.double() for parameter in voronoi.parameters()]
    exact = SoftVoronoi(voronoi.config, voronoi.directions.detach()).to(places.device).double()
    exact.load_state_dict(voronoi.state_dict())
    dense = exact.mix(exact.weights(places.double()))
    dense.backward(out.double())
    errors = [
        float((mine - other.grad).abs().max() / other.grad.abs().max())
        for mine, other in zip(gradients, exact.parameters(), strict=True)
    ]
    return f"{float((sparse - dense).detach().abs().max()):.1e}", f"{max(errors):.1e}"


if __name__ == "__main__":
    main()
