"""Forward and backward of one micro-batch on the slowest pipeline stage, and what surrounds it in a step."""

from __future__ import annotations

from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.estimate.collectives import (
    PCIE_BYTES_PER_SECOND,
    Link,
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    link_between,
    reduce_scatter_seconds,
    send_seconds,
)
from charter.estimate.kernels import (
    OPS_PER_LAYER_BACKWARD,
    SECONDS_PER_OP,
    TRAFFIC_BACKWARD,
    TRAFFIC_FORWARD,
    ForwardSeconds,
    forward_seconds,
    memory_bytes_per_second,
)
from charter.estimate.parameters import adapter_parameters, num_moe_layers
from charter.estimate.precision import TrainingPrecision
from charter.estimate.states import RankParameters, layers_of_stage, rank_parameters
from charter.estimate.terms import Term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

OVERLAP = 0.8
"""Share of the compute time behind which data-parallel communication can hide. Assumption, to be calibrated."""
TENSOR_EXPOSED = 0.9
"""Share of tensor-parallel communication that delays the step (it sits between dependent products). Assumption."""


def seconds_term(name: str, part: str, value: float, formula: str, source: str) -> Term:
    """A term in seconds."""
    return Term(name=name, part=part, value=value, unit="seconds", formula=formula, source=source)


@dataclass(frozen=True, kw_only=True)
class TrainingPass:
    """Forward and backward of one micro-batch on the slowest pipeline stage."""

    architecture: Architecture
    layout: Layout
    accelerator: Accelerator
    precision: TrainingPrecision
    adapter: Adapter | None
    forward: ForwardSeconds
    tokens: float
    layers: int
    rank: RankParameters
    dtype: str

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        layout: Layout,
        accelerator: Accelerator,
        seq_len: float,
        dtype: str,
        precision: TrainingPrecision,
        adapter: Adapter | None,
        head_share: float,
        causal: bool,
    ) -> TrainingPass:
        """The stage whose pass takes longest: the first (most layers) or the last (which has the head)."""
        tokens = layout.micro_batch * seq_len / layout.context
        found = []
        for stage in sorted({0, layout.pipeline - 1}):
            layers = layers_of_stage(architecture, layout, stage)
            last = stage == layout.pipeline - 1
            forward = forward_seconds(
                architecture,
                accelerator,
                tokens=tokens,
                seq_len=seq_len,
                layers=layers,
                tensor=layout.tensor,
                head_positions=tokens * head_share if last else 0.0,
                dtype=dtype,
                value_bytes=precision.compute_bytes,
                causal=causal,
            )
            found.append((forward.busy, layers, stage, forward))
        _, layers, stage, slowest = max(found, key=lambda item: item[0])
        return cls(
            architecture=architecture,
            layout=layout,
            accelerator=accelerator,
            precision=precision,
            adapter=adapter,
            forward=slowest,
            tokens=tokens,
            layers=layers,
            rank=rank_parameters(architecture, layout, stage=stage, scalar_head=head_share == 0),
            dtype=dtype,
        )

    @property
    def passes(self) -> float:
        """Matrix work in units of the forward pass: 3, or 2 when the base is frozen."""
        return 2.0 if self.adapter else 3.0

    def busy_seconds(self) -> float:
        """Device time of one micro-batch, forward, backward and recomputation."""
        forward = self.forward
        memory = forward.memory * (1 + TRAFFIC_BACKWARD / TRAFFIC_FORWARD)
        again = {
            Recompute.NONE: 0.0,
            Recompute.SELECTIVE: forward.attention,
            Recompute.FULL: forward.busy - forward.head,
        }[self.layout.recompute]
        return self.passes * (forward.matmul + forward.head) + 3.5 * forward.attention + memory + again

    def compute_terms(self, micro: int) -> list[Term]:
        """Terms of the computation of all micro-batches."""
        forward, passes = self.forward, self.passes
        rate = f"{self.tokens:,.0f} tokens, {self.layers} layers, {micro} micro-batches, {self.dtype}"
        memory = forward.memory * (1 + TRAFFIC_BACKWARD / TRAFFIC_FORWARD)
        terms = [
            seconds_term(
                "matrix products",
                "compute",
                passes * forward.matmul * micro,
                f"{passes:g} x forward: {rate}",
                "roofline at the measured matmul ceiling (kernels.py)",
            ),
            seconds_term(
                "attention",
                "compute",
                3.5 * forward.attention * micro,
                "forward 1 + backward 2.5",
                "FlashAttention-2, arXiv:2307.08691, section 4.1 (5 products backward against 2)",
            ),
            seconds_term(
                "memory-bound operations",
                "compute",
                memory * micro,
                "kept bytes x 6 / bandwidth",
                "counting argument (kernels.py)",
            ),
            seconds_term(
                "output projection", "compute", passes * forward.head * micro, "2 h V per position and pass", "roofline"
            ),
        ]
        terms += self._recompute_terms(micro)
        return [*terms, self._launch_term(micro)]

    def _recompute_terms(self, micro: int) -> list[Term]:
        forward = self.forward
        if self.layout.recompute is Recompute.FULL:
            value = (forward.busy - forward.head) * micro
            return [
                seconds_term(
                    "recomputation",
                    "recompute",
                    value,
                    "one more forward pass of the layers",
                    "Korthikanti et al. 2022, section 5",
                )
            ]
        if self.layout.recompute is Recompute.SELECTIVE:
            value = forward.attention * micro
            return [
                seconds_term(
                    "recomputation",
                    "recompute",
                    value,
                    "attention scores once more",
                    "Korthikanti et al. 2022, section 5",
                )
            ]
        return []

    def _launch_term(self, micro: int) -> Term:
        """Host time that the device waits for; a processor pays all of it."""
        again = 2 if self.layout.recompute is Recompute.FULL else 1
        host = again * self.forward.launch + self.layers * OPS_PER_LAYER_BACKWARD * SECONDS_PER_OP
        waits = host if self.accelerator.kind == "cpu" else max(0.0, host - self.busy_seconds())
        formula = f"host issues {host * 1e3:.3g} ms of operations per micro-batch"
        return seconds_term("operation launch", "launch", waits * micro, formula, "eager framework (kernels.py)")

    def communication_terms(self, micro: int) -> list[Term]:
        """Exposed communication of all micro-batches."""
        terms = [self._tensor_term(micro), self._context_term(micro), self._expert_term(micro)]
        terms.append(self._pipeline_term(micro))
        if self.layout.zero >= ZeroStage.PARAMETERS:
            terms.append(self._gather_term(micro))
        return terms

    def _link(self, span: int, *, stride: int = 1) -> Link:
        return link_between(self.accelerator, span=span, stride=stride)

    def _tensor_term(self, micro: int) -> Term:
        t = self.layout.tensor
        size = self.tokens * self.architecture.hidden_size * self.precision.compute_bytes
        count = self.layers * (6 if self.layout.recompute is Recompute.FULL else 4)
        one = all_reduce_seconds(size, t, self._link(t))
        formula = f"{count} all-reduces of {size / 1e6:.1f} MB over {t}, {TENSOR_EXPOSED:.0%} exposed"
        source = "Shoeybi et al. 2019, section 3; ring: Patarasuk and Yuan 2009"
        return seconds_term("tensor parallel", "communication", TENSOR_EXPOSED * count * one * micro, formula, source)

    def _context_term(self, micro: int) -> Term:
        """Keys and values pass round the ring in the forward pass, they and their gradients in the backward pass."""
        c, a = self.layout.context, self.architecture
        width = 2 * a.kv_heads * a.head_size / self.layout.tensor
        size = self.tokens * c * width * self.precision.compute_bytes
        one = self.layers * 3 * all_gather_seconds(size, c, self._link(c * self.layout.tensor))
        exposed = max(0.0, one - OVERLAP * 3.5 * self.forward.attention)
        formula = f"3 ring passes of {size / 1e6:.1f} MB per layer over {c}, less what hides behind attention"
        return seconds_term(
            "context parallel", "communication", exposed * micro, formula, "Liu et al. 2023, arXiv:2310.01889"
        )

    def _expert_term(self, micro: int) -> Term:
        e, mixture = self.layout.expert, self.architecture.mixture
        routed = self.layers * num_moe_layers(self.architecture) / self.architecture.num_layers
        copies = mixture.experts_per_token if mixture else 0
        size = self.tokens * copies * self.architecture.hidden_size * self.precision.compute_bytes
        one = all_to_all_seconds(size, e, self._link(e * self.layout.tensor, stride=self.accelerator.devices_per_node))
        formula = f"4 all-to-alls of {size / 1e6:.1f} MB per routed layer"
        return seconds_term(
            "expert parallel", "communication", 4 * routed * one * micro, formula, "GShard, arXiv:2006.16668"
        )

    def _pipeline_term(self, micro: int) -> Term:
        layout = self.layout
        if layout.pipeline == 1:
            return seconds_term("pipeline sends", "communication", 0.0, "", "")
        size = self.tokens * self.architecture.hidden_size * self.precision.compute_bytes / layout.tensor
        one = send_seconds(
            size, self._link(2 * layout.tensor * layout.context * layout.data, stride=self.accelerator.devices_per_node)
        )
        value = 2 * micro * layout.interleave * one * (1 - OVERLAP)
        formula = f"2 x {layout.interleave} sends of {size / 1e6:.1f} MB per micro-batch, {1 - OVERLAP:.0%} exposed"
        return seconds_term("pipeline sends", "communication", value, formula, "Narayanan et al. 2021, section 2.2")

    def _gather_term(self, micro: int) -> Term:
        """ZeRO-3: weights gathered for forward and backward, gradients reduced, per micro-batch."""
        ranks = self.layout.data * self.layout.context
        link = self._link(ranks * self.layout.tensor, stride=self.layout.tensor)
        weights = self.precision.compute_bytes * self.rank.total
        one = 2 * all_gather_seconds(weights, ranks, link)
        if not self.adapter:
            one += reduce_scatter_seconds(self.precision.gradient_bytes * self.rank.total, ranks, link)
        exposed = max(0.0, one - OVERLAP * self.busy_seconds())
        formula = f"3 x {weights / 1e9:.2f} GB over {ranks} ranks = {one:.3g} s per micro-batch, less what hides"
        return seconds_term(
            "sharded weights", "communication", exposed * micro, formula, "Rajbhandari et al. 2020, section 7"
        )

    def update_terms(self, micro: int) -> list[Term]:
        """Gradient reduction that cannot hide, and the optimizer."""
        ranks = self.layout.data * self.layout.context
        trained = self._trained()
        terms = []
        if self.layout.zero < ZeroStage.PARAMETERS and ranks > 1:
            size = self.precision.gradient_bytes * trained
            one = all_reduce_seconds(size, ranks, self._link(ranks * self.layout.tensor, stride=self.layout.tensor))
            exposed = max(0.0, one - OVERLAP * self.busy_seconds() * 2 / 3)
            formula = f"all-reduce of {size / 1e9:.2f} GB over {ranks} = {one:.3g} s, less the last backward pass"
            terms.append(
                seconds_term("gradient reduction", "communication", exposed, formula, "ring: Patarasuk and Yuan 2009")
            )
        owned = trained / (ranks if self.layout.zero >= ZeroStage.OPTIMIZER else 1)
        touched = 2 * (self.precision.state_bytes) * owned
        stream = memory_bytes_per_second(self.accelerator)
        value = touched / (PCIE_BYTES_PER_SECOND if self.layout.offload_optimizer else stream)
        formula = f"2 x {self.precision.state_bytes:g} B x {owned:,.0f} parameters over the memory bandwidth"
        return [*terms, seconds_term("optimizer", "update", value, formula, "every state byte read and written once")]

    def _trained(self) -> float:
        if not self.adapter:
            return self.rank.total
        share = self.layers / self.architecture.num_layers
        return adapter_parameters(self.architecture, self.adapter) * share / self.layout.tensor
