"""One large training run on a cluster: when it is done and what it costs, for every number of accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isinf, log, log2
from statistics import median
from types import MappingProxyType

from charter.catalog.accelerators import Accelerator
from charter.catalog.models import catalog
from charter.catalog.price_book import Market, as_of_key, offers
from charter.cost.monte_carlo import lognormal
from charter.errors import InfeasibleError, UsageError
from charter.physics.node import checkpoint_bytes
from charter.physics.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN
from charter.physics.shapes import count_parameters
from charter.physics.terms import Interval
from charter.plan.make import make_plan
from charter.plan.offers import NodeOffer, Price
from charter.plan.risk import PRICE_SIGMA, Overhead, overhead
from charter.spec.architecture import Architecture
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import PretrainStage
from charter.spec.stage_base import Engine, StageResources
from charter.units import SECONDS_PER_DAY, SECONDS_PER_HOUR

STATED_SIGMA = 0.10
"""Standard deviation of the logarithm of a stated utilisation on another model and cluster; judgement."""
ON_PREM = "on_prem"
ENGINE: Engine = "megatron"
SEQ_LEN = 4096
WIDE_HEADS = 64
SAME_SIZE = 0.01
"""Logarithm of a size over that of a known model up to which it is taken for that model."""
UTILISATIONS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "llama2-70b": (
            FLOPS_PER_PARAMETER_AND_TOKEN * 70e9 * 2e12 / (1_720_320 * SECONDS_PER_HOUR * 312e12),
            "Llama-2 70B: 1,720,320 A100-hours for 2e12 tokens (arXiv:2307.09288, table 2)",
        ),
        "llama3-405b": (0.41, "Llama 3 405B on 16,384 H100: 41 % (arXiv:2407.21783, table 4)"),
    }
)
"""Model operations over the dense bf16 peak, as published."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Model to train: size, tokens, and the shape of a step."""

    num_parameters: float
    num_tokens: float
    batch_tokens: float
    architecture: Architecture | None = None
    """A dense decoder of the size when None (`dense_shape`)."""

    @property
    def compute_flops(self) -> float:
        """`6 N D`; N counts what a token passes through."""
        return FLOPS_PER_PARAMETER_AND_TOKEN * self.num_parameters * self.num_tokens

    @property
    def stored_parameters(self) -> float:
        """Return the parameters in a checkpoint: with experts more than a token passes through."""
        return self.num_parameters if self.architecture is None else count_parameters(self.architecture).total


@dataclass(frozen=True, kw_only=True)
class RunCluster:
    """Accelerators that a training run has."""

    accelerator: Accelerator
    count: int
    price_usd_per_hour: float | None

    @property
    def num_nodes(self) -> int:
        """Nodes of the accelerator's usual size."""
        return max(1, self.count // self.accelerator.devices_per_node)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Finish and cost of a run on a cluster."""

    cluster: RunCluster
    utilisation: float
    """Model operations over the dense peak while it works."""
    utilisation_source: str
    useful_days: float
    """Without failures, checkpoints and restarts."""
    days: Interval
    gpu_hours: Interval
    usd: Interval | None
    overhead: Overhead
    layout: str = ""

    @property
    def effective_share(self) -> float:
        """Useful time over wall-clock time (ETTR)."""
        return self.overhead.useful_seconds / self.overhead.wall_seconds

    @property
    def interruptions(self) -> float:
        """Expected number of failures."""
        mean = self.overhead.mean_between_failures_seconds
        return 0.0 if isinf(mean) else self.overhead.wall_seconds / mean


def at_utilisation(run: TrainingRun, cluster: RunCluster, utilisation: float, source: str) -> Schedule:
    """The schedule at a stated share of the peak: `6 N D / (n u peak)`, and around it failures and checkpoints.

    The same share is taken for every number of accelerators; beyond a few thousand that is optimistic.
    """
    rate = cluster.count * utilisation * cluster.accelerator.peak_flops_per_second("bf16")
    around = overhead(
        run.compute_flops / rate,
        place=_place(cluster),
        num_nodes=cluster.num_nodes,
        spot=False,
        checkpoint_bytes=checkpoint_bytes(run.stored_parameters),
    )
    return _schedule(cluster, around, (STATED_SIGMA,), utilisation, source, "")


def by_the_planner(run: TrainingRun, cluster: RunCluster) -> Schedule:
    """The schedule of the layout that the planner takes for this cluster, under Megatron.

    The planner's model has its own architecture (`dense_shape`); its time is scaled to the run's `6 N D`.
    """
    shape, like = (run.architecture, "") if run.architecture is not None else dense_shape(run.num_parameters)
    batch = _sequences(run.batch_tokens, cluster.count)
    steps = max(1, round(run.num_tokens / (batch * SEQ_LEN)))
    plan = make_plan(
        _project(shape, cluster, batch, steps),
        architectures={"model": shape},
        data_facts={},
    )
    option = plan.stages[0].option
    work = FLOPS_PER_PARAMETER_AND_TOKEN * count_parameters(shape).active * steps * batch * SEQ_LEN
    peak = cluster.count * cluster.accelerator.peak_flops_per_second("bf16")
    utilisation = work / (option.overhead.useful_seconds * peak)
    around = overhead(
        run.compute_flops / (peak * utilisation),
        place=_place(cluster),
        num_nodes=cluster.num_nodes,
        spot=False,
        checkpoint_bytes=checkpoint_bytes(run.stored_parameters),
    )
    layers = f"{shape.num_layers} layers of {shape.hidden_size}{f' (as {like})' if like else ''}"
    source = f"planned: {layers}, {batch} sequences of {SEQ_LEN}, {ENGINE}"
    return _schedule(cluster, around, option.time_sigmas, utilisation, source, option.layout_label)


def affordable_flops(usd: float, schedule: Schedule, compute_flops: float) -> float:
    """Operations that a budget buys at the efficiency of a schedule of `compute_flops` operations."""
    if schedule.usd is None:
        raise UsageError("a budget needs a price per accelerator-hour: give --price")
    return compute_flops * usd / schedule.usd.p50


LIST_PRICES = {
    "A800-SXM-80GB": (
        2.28,
        "list price: a year's rent of 5,000 for close to $100 million, as a text on training costs says (second-hand, "
        "undated); the price snapshot has no offer",
    ),
}
"""USD per accelerator-hour of accelerators that no cloud of the price snapshot offers, and where each is from."""


def snapshot_price(accelerator: Accelerator) -> tuple[float, str]:
    """Median over the clouds of each one's cheapest on-demand price per accelerator-hour, and where it is from."""
    prices = [
        (offer.cloud, price, as_of_key(offer.provenance.as_of))
        for offer in offers(accelerator.name, market=Market.ON_DEMAND)
        if offer.whole_machine and (price := offer.usd_per_accelerator_hour(Market.ON_DEMAND)) is not None
    ]
    if not prices and accelerator.name in LIST_PRICES:
        return LIST_PRICES[accelerator.name]
    if not prices:
        raise UsageError(f"the price snapshot has no on-demand offer of {accelerator.name}; give --price")
    cheapest = {cloud: min(price for other, price, _ in prices if other == cloud) for cloud, _, _ in prices}
    newest = max(as_of for _, _, as_of in prices)
    date = "-".join(f"{part:02d}" for part in newest if part)
    return median(cheapest.values()), f"median of the cheapest on-demand offers of {len(cheapest)} clouds, {date}"


def utilisation_of(text: str) -> tuple[float, str]:
    """A share of the peak from `0.435`, `43.5%` or the name of a published run, and where it is from.

    >>> round(utilisation_of("llama2-70b")[0], 3), utilisation_of("43.5%")
    (0.435, (0.435, 'stated'))
    """
    if text in UTILISATIONS:
        return UTILISATIONS[text]
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        names = ", ".join(UTILISATIONS)
        raise UsageError(f"--mfu {text}: give a share of the peak like 0.4 or 40%, or one of {names}")
    return value, "stated"


@cache
def dense_shape(num_parameters: float) -> tuple[Architecture, str]:
    """A dense decoder of a size, and the Llama whose it is: one within 1 %, so that a size and a name plan alike.

    Else one in Llama's proportions whose size comes closest: heads of 128, 8 of keys, MLP of 3.5 widths. Layers lie
    between 80 and 140 per 128 heads' width as in Llama 3 (8B: 128 widths per layer, 405B: 130). Of wide models they are
    a multiple of 8, so that pipelines divide them.

    >>> shape, like = dense_shape(6.74e9)
    >>> shape.num_layers, like
    (32, 'meta-llama/Llama-2-7b-hf')
    >>> shape, like = dense_shape(50e9)
    >>> shape.hidden_size, abs(count_parameters(shape).total / 50e9 - 1) < 0.05, like
    (8192, True, '')
    """

    def misfit(shape: Architecture) -> tuple[float, int]:
        return abs(log(count_parameters(shape).total / num_parameters)), shape.num_layers

    llamas = [model for model in catalog() if model.name.startswith("meta-llama/")]
    dense = [model for model in llamas if not (model.architecture.mixture or model.architecture.encoder)]
    nearest = min(dense, key=lambda model: misfit(model.architecture))
    if misfit(nearest.architecture)[0] < SAME_SIZE:
        return nearest.architecture, nearest.name
    shapes = [_dense(heads, layers) for heads in (*range(2, 16, 2), *range(16, 320, 8)) for layers in _layers(heads)]
    return min(shapes, key=misfit), ""


def _layers(heads: int) -> range:
    step = 8 if heads >= WIDE_HEADS else 2
    return range(max(2, round(128 * heads / 140) // step * step), round(128 * heads / 85) + step, step)


def _dense(heads: int, layers: int) -> Architecture:
    width = 128 * heads
    return Architecture(
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8 if heads % 8 == 0 else 2,
        intermediate_size=round(3.5 * width),
        vocab_size=128_256 if width >= 2048 else 32_000,
        tied_embeddings=False,
        max_position_embeddings=8192,
        model_type="llama",
    )


def _sequences(batch_tokens: float, accelerators: int) -> int:
    """Sequences of a step: near the wanted batch, a power of two times what is odd in the number of accelerators.

    >>> _sequences(4e6, 2048), _sequences(4e6, 10240)
    (1024, 1280)
    """
    odd = accelerators
    while odd % 2 == 0:
        odd //= 2
    doublings = max(5, round(log2(batch_tokens / SEQ_LEN / odd)))
    return int(odd * 2**doublings)


def _project(shape: Architecture, cluster: RunCluster, batch: int, steps: int) -> Project:
    device = cluster.accelerator
    per_node = min(device.devices_per_node, cluster.count)
    if cluster.count % per_node:
        raise UsageError(f"{cluster.count} accelerators are no whole nodes of {per_node} {device.name}")
    nodes = cluster.count // per_node
    stage = PretrainStage(
        init="model",
        data=("text",),
        steps=steps,
        global_batch=batch,
        seq_len=SEQ_LEN,
        engine=ENGINE,
        resources=StageResources(accelerators=f"{device.name}:{per_node}", num_nodes=nodes, use_spot=False),
    )
    return Project(
        name="scale",
        models={"model": ModelSpec(architecture=shape)},
        data={"text": DataSpec(path="text", rows=batch * steps, mean_tokens=float(SEQ_LEN))},
        pipeline={"train": stage},
        resources=Resources(infra=ON_PREM, max_nodes=nodes, price=cluster.price_usd_per_hour),
    )


def _place(cluster: RunCluster) -> NodeOffer:
    return NodeOffer(
        infra=ON_PREM,
        region=None,
        accelerator=cluster.accelerator,
        per_node=cluster.accelerator.devices_per_node,
        instance="node",
        price=Price(market="contract", usd_per_hour=cluster.price_usd_per_hour, source="--price", as_of=""),
    )


def _schedule(
    cluster: RunCluster, around: Overhead, sigmas: tuple[float, ...], utilisation: float, source: str, layout: str
) -> Schedule:
    if isinf(around.wall_seconds):
        raise InfeasibleError(
            f"{cluster.count} {cluster.accelerator.name} fail so often that the run never ends at this checkpoint time"
        )
    hours = lognormal(around.billed_seconds / SECONDS_PER_HOUR, *sigmas).scaled(cluster.count)
    price = cluster.price_usd_per_hour
    return Schedule(
        cluster=cluster,
        utilisation=utilisation,
        utilisation_source=source,
        useful_days=around.useful_seconds / SECONDS_PER_DAY,
        days=lognormal(around.wall_seconds / SECONDS_PER_DAY, *sigmas),
        gpu_hours=hours,
        usd=None if price is None else lognormal(hours.p50 * price, *sigmas, PRICE_SIGMA),
        overhead=around,
        layout=layout,
    )
