"""Learning rates, the optimiser and its steps: plain, or compiled and replayed as one CUDA graph.

Between two log lines the host never waits for the device: a step's inputs (pairs, learning rates, the temperature's
progress) are written into tensors that stay in place, and the terms of the loss add up on the device.
"""

import contextlib
import dataclasses
import fnmatch
import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError
from tessearth.sphere import latlon_to_xyz
from tessearth.training.data import BatchOrder, Rows, TrainingData
from tessearth.training.growth import Births, Growth
from tessearth.training.levels import Levels
from tessearth.training.model import PretrainingModel
from tessearth.training.objective import TERMS, is_distributed
from tessearth.training.recipe import GroupRecipe, GroupsRecipe, Precision, TrainingRecipe
from tessearth.training.sites_recipe import SitesRecipe


def count_steps(training: TrainingRecipe, places: int) -> tuple[int, int, int]:
    """Steps in an epoch, in the whole run, and of rising learning rates, which are at most half of the run.

    An epoch's last places that fill no batch wait for the next shuffle.
    """
    per_epoch = places // training.batch_size
    if per_epoch == 0:
        raise DataError(
            f"there are {places} training places, fewer than the batch of {training.batch_size}; "
            f"make a larger store, or --set training.batch_size={places}"
        )
    steps = training.steps or max(1, round(training.epochs * per_epoch))
    return per_epoch, steps, min(round(training.warmup_epochs * per_epoch), steps // 2)


def learning_rate(peak: float, final: float, step: int, warmup: int, steps: int) -> float:
    """The rate of one step: peak (step + 1) / warmup while rising, then final + (peak - final) (1 + cos(pi t)) / 2.

    t goes from 0 at the first step after the warm-up to 1 at the last of all. A peak below the final rate stays level.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / max(1, steps - 1 - warmup)
    final = min(final, peak)
    return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * min(t, 1.0)))


GROUP_OF = {
    "encoder.tessellations.*.directions": "sites",
    "encoder.tessellations.*.log_sharpness": "sharpness",
    "encoder.tessellations.*.territory": "sharpness",
    "encoder.tessellations.*.embeddings": "head",
    "encoder.head.*": "head",
    "encoder.network.*": "head",
    "encoder.tokens.*": "tokens",
    "encoder.projection.*": "tokens",
    "encoder.norm.*": "tokens",
    "encoder.*": "head",  # of any other encoder
    "bridge.*": "head",
    "image_head.*": "image",
    "logit_scale": "image",
    "decoder.*": "decoder",
    "prefix_decoders.*": "decoder",
}
"""Parameter names to groups of the recipe."""

GROUPS = tuple(field.name for field in dataclasses.fields(GroupsRecipe))


def group_of(name: str) -> str:
    """The group of a parameter."""
    found = next((group for pattern, group in GROUP_OF.items() if fnmatch.fnmatchcase(name, pattern)), None)
    if found is None:
        raise ConfigError(f"parameter {name} belongs to no optimiser group")
    return found


def build_optimiser(model: nn.Module, recipe: GroupsRecipe, rates: Tensor) -> torch.optim.AdamW:
    """AdamW over the groups; those with learning rate 0 are frozen.

    On a GPU the groups' learning rates are elements of `rates`, in the order of GROUPS, which a captured step reads
    anew each time. The optimiser's state is made at once, not at the first step, so that it can be saved and restored
    at any time.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        settings: GroupRecipe = getattr(recipe, group_of(name))
        parameter.requires_grad_(settings.learning_rate > 0)
        if settings.learning_rate > 0:
            groups.setdefault(group_of(name), []).append(parameter)
    if not groups:
        raise ConfigError("every learning rate is 0: there is nothing to train")
    optimiser = torch.optim.AdamW(
        [
            {
                "params": parameters,
                "name": name,
                "weight_decay": getattr(recipe, name).weight_decay,
                "lr": rates[GROUPS.index(name)] if rates.is_cuda else 0.0,
            }
            for name, parameters in groups.items()
        ],
        fused=True,
        capturable=rates.is_cuda,
    )
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            step = torch.zeros((), dtype=torch.float32, device=parameter.device)
            optimiser.state[parameter] = {"step": step, **moments}
    return optimiser


NAMES = ("total", *TERMS, "gradient_norm")
"""The numbers every step reports."""
WARM_UPS = 3
"""Steps before a graph is captured, in which kernels are compiled and memory is allocated."""


class Stepper:
    """Takes the steps of a run; step n does the same whether it follows step n - 1 or a restart."""

    def __init__(
        self, model: PretrainingModel, data: TrainingData, training: TrainingRecipe, sites: SitesRecipe | None = None
    ) -> None:
        self.model, self.data, self.training = model, data, training
        self.per_epoch, self.steps, self._warmup = count_steps(training, len(data.training))
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)
        if training.batch_size % self.world:
            raise ConfigError(f"training.batch_size {training.batch_size} cannot be shared by {self.world} processes")
        self.order = BatchOrder(data.training, data.views, training.batch_size, training.seed)
        self.batch = data.empty_batch(training.batch_size // self.world)
        self._rates_now = torch.zeros(len(GROUPS), device=data.device)
        self.optimiser = build_optimiser(model, training.groups, self._rates_now)
        sites = sites or SitesRecipe()
        self.levels = Levels(model.encoder, sites, moving=training.groups.sites.learning_rate > 0)
        self.growth = Growth(self.levels, sites.growth, self.steps, self.optimiser) if sites.growth else None
        self.births: list[Births] = []
        """What the last step began with."""
        self._sums = torch.zeros(len(NAMES), device=data.device, dtype=model.logit_scale.dtype)
        self._not_finite = torch.zeros_like(self._sums)  # the report of the first step with a number that is not finite
        self._rates: Tensor | None = None
        if data.device.type == "cuda":
            rates = [list(self.rates(step).values()) for step in range(self.steps)]
            self._rates = torch.tensor(rates, dtype=torch.float32, device=data.device)
        self._counted = 0
        # Messages between processes stay out of graphs: one that captures while another replays would hang both.
        compiled = training.compiled and data.device.type == "cuda" and self.world == 1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._terms = torch.compile(model, dynamic=False) if compiled else model
        if compiled:
            self._graph = self._capture()

    def take(self, step: int) -> None:
        """Step number `step`, counted from 0."""
        self._change_sites(step)
        self.data.begin(step // self.per_epoch)
        rows, following = self._rows(step), self._rows(step + 1) if step + 1 < self.steps else None
        self.data.fill(self.batch, rows, following)
        if self._rates is not None:
            self._rates_now.copy_(self._rates[step])
        else:
            rates = self.rates(step)
            for group in self.optimiser.param_groups:
                group["lr"] = rates[group["name"]]
        tokens = self.model.encoder.tokens
        if self.training.anneal_temperature and tokens is not None:
            tokens.temperature_progress.fill_(step / max(1, self.steps - 1))
        seeds = np.random.SeedSequence([self.training.seed, step, self.rank])
        torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]) >> 1)  # below 2^63, which the seed must be
        if self._graph is not None:
            self._graph.replay()
        else:
            self._work()
        self._counted += 1
        if self.growth is not None and self.growth.wants(step):
            self._add_up_residual(self.growth)

    def reported(self) -> dict[str, float]:
        """The mean report of the steps since the last call; waits for the device."""
        if self.world > 1:
            dist.all_reduce(self._sums)
        means = (self._sums.double() / max(1, self._counted * self.world)).tolist()
        self._sums.zero_()
        self._counted = 0
        return dict(zip(NAMES, means, strict=True))

    def first_not_finite(self) -> list[str]:
        """Names of the numbers that were not finite in the first step with any; one step later all are."""
        finite = self._not_finite.isfinite().tolist()
        return [name for name, fine in zip(NAMES, finite, strict=True) if not fine]

    def rates(self, step: int) -> dict[str, float]:
        """The learning rate of every group at a step."""
        peaks = {name: getattr(self.training.groups, name).learning_rate for name in GROUPS}
        final = self.training.final_learning_rate
        return {name: learning_rate(peaks[name], final, step, self._warmup, self.steps) for name in GROUPS}

    def sites_report(self) -> dict[str, dict[str, float]]:
        """What the log says of every spaced tessellation, by its number."""
        grown = self.growth.report() if self.growth is not None else {}
        return {i: values | grown.get(i, {}) for i, values in self.levels.report().items()}

    def state(self) -> dict[str, Tensor]:
        """The live tensors that a step changes, by name."""
        tensors = self.levels.state() | (self.growth.state() if self.growth is not None else {})
        tensors |= {f"model.{name}": tensor for name, tensor in self.model.state_dict(keep_vars=True).items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{name}.{key}"] = value
        return {name: tensor.detach() for name, tensor in tensors.items()}

    @torch.no_grad()
    def restore_(self, state: dict[str, Tensor]) -> None:
        """Copy a state into the live tensors, which a captured graph keeps reading."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self.rebuild_lists_()

    def rebuild_lists_(self) -> None:
        """Make the lists of near sites that belong to the live tensors."""
        self._recapture_if(self.levels.rebuild_())

    def _recapture_if(self, moved: bool) -> None:
        """Capture the step anew when what it reads has moved to another memory."""
        if moved and self._graph is not None:
            self._graph = self._capture()

    def _rows(self, step: int) -> Rows:
        """The share of a step's pairs that this process takes."""
        size = self.training.batch_size // self.world
        return self.order(step)[self.rank * size : (self.rank + 1) * size]

    def _change_sites(self, step: int) -> None:
        """Births, deaths and new measurements that are due before a step; between them steps follow what lies ready."""
        self.births = self.growth.change_(step) if self.growth is not None else []
        if self.levels.is_due(step):
            every = self.growth.recipe.every if self.growth is not None else 1
            self._recapture_if(self.levels.refresh_(drifting=every - step % every))

    @torch.no_grad()
    def _add_up_residual(self, growth: Growth) -> None:
        """Give the sites their share in the residual of the batch, without jitter and dropout."""
        self.model.eval()
        residual = self.model.residual(self.model.sides(*self.batch))
        growth.accumulate_(latlon_to_xyz(self.batch.latlon), residual)
        self.model.train()

    def _work(self) -> None:
        """Loss, gradients, one step of the optimiser, constraints: all on the device."""
        self.optimiser.zero_grad(set_to_none=True)
        latlon = self.batch.latlon
        if self.training.jitter_degrees:
            latlon = latlon + self.training.jitter_degrees * (2 * torch.rand_like(latlon) - 1)
        terms = self._terms(latlon, self.batch.features)
        terms.total.backward()
        if self.world > 1:
            self._average_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm or float("inf"))
        before = self.levels.positions()
        self.optimiser.step()
        self.levels.follow_(before)
        self.model.constrain_()
        self.levels.hold_()
        values = torch.stack([*(term.detach() for term in terms), norm.detach()])
        self._sums += values
        self._not_finite.copy_(torch.where(self._not_finite.isfinite().all(), values, self._not_finite))

    def _average_gradients(self) -> None:
        """Average in one message; DistributedDataParallel would need every parameter to take part in every recipe."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.world
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):  # type: ignore[no-untyped-call]
            gradient.copy_(part.view_as(gradient))

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture the step as a graph; the steps of the warm-up are undone."""
        kept = {name: tensor.clone() for name, tensor in self.state().items()}
        reports = [(report, report.clone()) for report in (self._sums, self._not_finite)]
        self.data.fill(self.batch, self._rows(0))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._work()
        self.restore_(kept)
        for report, before in reports:
            report.copy_(before)
        return graph


@contextlib.contextmanager
def numerics(precision: Precision, device: torch.device) -> Iterator[None]:
    """Set the precision of matrix products; the caller's settings and random state are restored afterwards."""
    before = torch.get_float32_matmul_precision()
    on_gpu = device.type == "cuda"
    torch.set_float32_matmul_precision("high" if on_gpu and precision in ("tf32", "bf16") else "highest")
    try:
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
