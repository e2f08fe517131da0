"""Hand-over of weights from training to a generator, and the bytes that cross the host link where both take turns."""

from __future__ import annotations

from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import array
from charter.physics.constants import TrainingConstants
from charter.physics.devices import DeviceColumns, group
from charter.physics.precision import TrainingPrecision
from charter.physics.shapes import count_parameters, dense_mlp_layers
from charter.spec.architecture import Architecture

GENERATOR_BYTES = 2.0
"""Of a weight as a generator holds it."""
PAGED_BYTES_PER_SECOND = 4e9
"""Of copies between a device and host memory that is not pinned, out and back: one thread of the host stages them
however wide the link, and on the way out lands in new pages, which the kernel clears first. Judgement, not measured."""


@dataclass(frozen=True, kw_only=True)
class HostPasses:
    """Times per rollout that what a rank holds of a trained model crosses the host link, in one direction each."""

    weights: float = 0.0
    optimizer: float = 0.0

    def seconds(
        self,
        accelerator: Accelerator,
        *,
        parameters: float,
        trained: float,
        ranks: int,
        precision: TrainingPrecision,
        pins_optimizer: bool,
    ) -> float:
        """Seconds per rollout of a model that is sharded over `ranks`; `trained` parameters have an optimizer.

        >>> from charter.catalog.accelerators import get
        >>> from charter.physics.precision import FSDP_MIXED
        >>> HostPasses(weights=2).seconds(get("H100"), parameters=8e9, trained=8e9, ranks=32, precision=FSDP_MIXED,
        ...                               pins_optimizer=False)
        0.5
        """
        weights = self.weights * precision.parameter_bytes * parameters / ranks
        optimizer = self.optimizer * precision.optimizer_bytes * trained / ranks
        rate = host_link(accelerator) if pins_optimizer else PAGED_BYTES_PER_SECOND
        return weights / PAGED_BYTES_PER_SECOND + optimizer / rate


STAY = HostPasses()


@dataclass(frozen=True, kw_only=True)
class PhaseTurns:
    """Bytes and calls by which a stack hands the policy's weights over, and makes room for the next phase.

    Read from the code that the source names. All per rollout.
    """

    source: str
    calls_per_tensor: float = 1.0
    """Calls that all ranks wait for, one tensor after the other."""
    switches: float = 4.0
    """Times that memory is collected, unmapped or mapped, each with a call of the controller to all ranks."""
    generator_passes: float = 0.0
    """Times that the generator's weights cross the host link: 2 where it sleeps with a copy (vLLM's level 1), 0 where
    it drops them (level 2)."""
    pins_optimizer: bool = False
    """Whether optimizer states are copied to pinned memory, at the rate of the link; weights are not, in any stack."""
    policy: HostPasses = STAY
    """Of a policy on the same accelerators as the generator."""
    offloaded_policy: HostPasses = STAY
    """Of a policy that waits in host memory while others compute."""
    offloaded_value: HostPasses = STAY

    def passes(self, *, policy: bool, offloaded: bool) -> HostPasses:
        """Passes of a trained role."""
        if offloaded:
            return self.offloaded_policy if policy else self.offloaded_value
        return self.policy if policy else STAY


def weight_tensors(architecture: Architecture, *, expert: int = 1) -> float:
    """Named tensors of a decoder that are gathered one after the other: matrices, biases, norms, every expert's.

    Ranks that share the experts gather theirs together, one of each.

    >>> from charter.catalog import models
    >>> weight_tensors(models.get("meta-llama/Llama-3.1-8B").architecture)
    291.0
    """
    a, experts = architecture, 0.0
    mlp = 2 + a.gated_mlp
    if a.mixture is not None:
        shared = a.mixture.num_shared_experts > 0
        experts = a.moe_layers * (1 + mlp * (a.mixture.num_experts / expert + shared))
    attention = 4 + 3 * a.attention_bias + a.output_bias + 2 * a.qk_norm
    if a.latent_attention is not None:
        attention = 7 if a.latent_attention.q_lora_rank else 5
    each = attention + a.norms_per_layer
    return float(a.num_layers * each + dense_mlp_layers(a) * mlp + experts + 2 + (not a.tied_embeddings))


def gather_seconds(accelerator: Accelerator, ranks: int, num_bytes: float, *, small: bool = False) -> float:
    """Seconds of an all-gather to `num_bytes` on each of `ranks`, or of a broadcast to them.

    Source: ring, Patarasuk and Yuan 2009, over the links of the data sheet with the usual shares. Parts that are too
    `small` to be spread over all network cards of a node travel at the rate of one.
    """
    shares = TrainingConstants()
    links = group(
        DeviceColumns.of(accelerator),
        array(ranks),
        array(1),
        scaleup_share=shares.scaleup_share,
        scaleout_share=shares.scaleout_share,
        latency=shares.latency_seconds,
    )
    if small:
        return float(num_bytes * (ranks - 1) / ranks / links.message)
    return float(links.gather_seconds(array(num_bytes)))


def host_link(accelerator: Accelerator) -> float:
    """Bytes per second of one accelerator to and from the memory of its host."""
    return float(DeviceColumns.of(accelerator).host_link)


def handover_seconds(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    ranks: int,
    sharded: bool,
    precision: TrainingPrecision,
    receivers: int = 0,
) -> float:
    """Seconds on the links: shards become whole on `ranks`, then travel to `receivers` of their own, if any.

    The stacks that were read cast to 16 bits what is whole already, so shards travel as they are kept.
    """
    parameters = float(count_parameters(architecture).total)
    seconds = gather_seconds(accelerator, ranks, precision.parameter_bytes * parameters) if sharded else 0.0
    weight_bytes = GENERATOR_BYTES * parameters
    return seconds + (gather_seconds(accelerator, ranks + receivers, weight_bytes) if receivers else 0.0)


def shared_seconds(
    turns: PhaseTurns,
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    ranks: int,
    generator_tensor: int,
    precision: TrainingPrecision,
) -> float:
    """Seconds in which a policy and its generator make room for each other on the same accelerators."""
    parameters = float(count_parameters(architecture).total)
    policy = turns.policy.seconds(
        accelerator,
        parameters=parameters,
        trained=parameters,
        ranks=ranks,
        precision=precision,
        pins_optimizer=turns.pins_optimizer,
    )
    return policy + sleep_seconds(turns, GENERATOR_BYTES * parameters, accelerator, tensor=generator_tensor)


def sleep_seconds(turns: PhaseTurns, weight_bytes: float, accelerator: Accelerator, *, tensor: int) -> float:
    """Seconds per rollout in which a generator's weights leave for pinned memory and come back."""
    return turns.generator_passes * weight_bytes / tensor / host_link(accelerator)
