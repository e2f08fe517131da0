"""Needs of a stage around its accelerators: traffic, system memory, processor cores, bytes on disk."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from charter.catalog.accelerators import Accelerator
from charter.engines import rl_engines
from charter.physics.node import (
    TEXT_SECONDS_PER_TOKEN,
    TOKENISED_SECONDS_PER_TOKEN,
    VERDICT_BYTES,
    hidden_bytes_per_second,
    host_terms,
    loader_cores,
    log_bytes,
    model_checkpoint_bytes,
    network_bytes_per_step,
    retained_bytes,
    weights_bytes,
)
from charter.physics.shapes import count_parameters
from charter.physics.step_time import native_profile, training_step
from charter.physics.terms import Breakdown, Term, bytes_term
from charter.plan.knowledge import Knowledge
from charter.plan.offers import node_memory_bytes
from charter.plan.option import Option
from charter.plan.phase import Role, RolePhase, Workload
from charter.plan.stage_memory import training_precision
from charter.plan.stage_time import gathered_bytes
from charter.plan.workload import BYTES_PER_TOKEN_OF_TEXT
from charter.spec.layout import Layout, ZeroStage
from charter.spec.stage_base import NATIVE

# -------- Bytes that one accelerator of a stage sends per step of the stage, and what they may hide behind.
#
# A step of a stage is a batch of its first phase: an optimizer step, a rollout, a batch of answers. Traffic that shares
# the time of several phases is counted in each of them. Not counted: keys and values of context parallelism, which the
# planner does not choose, and weights gathered for scoring.

TOKEN_BYTES = 4.0
"""Of one token as a number, on its way from storage."""
BACKWARD_SHARE = 2 / 3
"""Of the operations of a step without recomputation: the backward pass multiplies twice."""
FORWARD_REDUCES = 2
"""All-reduces of a layer's outputs in a forward pass under tensor parallelism (Shoeybi et al. 2019, section 3)."""
VALUE_BYTES = 2.0
STORAGE = "storage"
"""The phase of traffic that goes on through all of them."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One kind of traffic of one phase, per step of the stage."""

    kind: str
    phase: str
    num_bytes: float
    """That one accelerator sends."""
    seconds: float
    """Of work that it may hide behind."""
    leaving: float = 0.0
    """Bytes that leave a node per byte that one of its accelerators sends; 0 where all of it stays inside."""
    formula: str
    source: str

    @property
    def bytes_per_second(self) -> float:
        """Of one accelerator, so that nothing waits for it."""
        return hidden_bytes_per_second(self.num_bytes, self.seconds)


@dataclass(frozen=True, kw_only=True)
class Wires:
    """Share of a group's traffic that leaves a node; ranks are numbered tensor, data, pipeline, the fastest first."""

    per_node: int
    domain: int

    @classmethod
    def of(cls, option: Option) -> "Wires":
        """The node of an option; accelerators that share a scale-up domain across nodes stay inside."""
        return cls(per_node=option.place.per_node, domain=max(1, option.place.accelerator.scaleup_domain))

    def near(self, size: int, stride: int) -> int:
        """Ranks of a group in one node or scale-up domain."""
        return min(max(max(self.domain, self.per_node) // stride, 1), size)

    def ring(self, size: int, stride: int) -> float:
        """A ring leaves a node once, whatever its ranks there: every byte of a rank leaves through one of `near`."""
        near = self.near(size, stride)
        return self.per_node / near if size > near else 0.0

    def exchange(self, size: int, stride: int) -> float:
        """Of an all-to-all, what goes to ranks outside."""
        near = self.near(size, stride)
        return self.per_node * (size - near) / (size - 1) if size > near else 0.0

    def pipeline(self, layout: Layout) -> float:
        """Every rank sends to its neighbour stage, which is in another node where a stage fills one."""
        stride = layout.tensor * layout.context * layout.data
        return float(self.per_node) if stride * layout.pipeline > max(self.domain, self.per_node) else 0.0


def stage_traffic(work: Workload, option: Option, *, dtype: str, knowledge: Knowledge) -> tuple[Traffic, ...]:
    """All traffic of a stage on accelerators; nothing on one process without a network."""
    if option.place.is_cpu or not work.needs_accelerator:
        return ()
    traffic: list[Traffic] = []
    steps = work.phases[0].steps
    for phase in work.phases:
        if phase.role in work.remote or (option.groups and phase.work != "train"):
            continue
        role = work.role(phase.role)
        flows = (
            _update(role, phase, option, dtype, knowledge) if phase.work == "train" else _forward(work, phase, option)
        )
        traffic += [_per_step(item, phase, steps) for item in flows]
    traffic += [*_weight_sync(work, option), *_storage(work, option)]
    return tuple(item for item in traffic if item.num_bytes > 0)


def _per_step(traffic: Traffic, phase: RolePhase, steps: float) -> Traffic:
    times = phase.steps / steps
    return replace(traffic, num_bytes=traffic.num_bytes * times, seconds=traffic.seconds * times)


def _update(role: Role, phase: RolePhase, option: Option, dtype: str, knowledge: Knowledge) -> Iterator[Traffic]:
    """One optimizer step; gradients of ZeRO 0 to 2 exist in the last backward pass only."""
    layout, accelerator = option.layout, option.place.accelerator
    precision = training_precision(dtype, accelerator)
    seq_len = phase.padded_tokens(layout.micro_batch)
    compute = _compute_seconds(role, phase, layout, accelerator, dtype, knowledge)
    gradients = compute if layout.zero >= ZeroStage.PARAMETERS else BACKWARD_SHARE * compute / layout.accumulation
    windows = {"data parallel": gradients}
    wires, shards = Wires.of(option), layout.data * layout.context // layout.replicas
    leaving = {
        "data parallel": wires.ring(shards, layout.tensor),
        "between copies": wires.ring(layout.replicas, layout.tensor * shards),
        "tensor parallel": wires.ring(layout.tensor, 1),
        "pipeline parallel": wires.pipeline(layout),
        "expert parallel": wires.exchange(layout.expert, layout.tensor),
    }
    sent = network_bytes_per_step(
        role.architecture,
        layout,
        seq_len=seq_len,
        stack=native_profile(accelerator),
        precision=precision,
        adapter=role.adapter,
    )
    for term in sent.terms:
        yield Traffic(
            kind=term.name,
            phase=phase.name,
            num_bytes=term.value,
            seconds=windows.get(term.name, compute),
            leaving=leaving[term.name],
            formula=term.formula,
            source=term.source,
        )


def _compute_seconds(
    role: Role, phase: RolePhase, layout: Layout, accelerator: Accelerator, dtype: str, knowledge: Knowledge
) -> float:
    step = training_step(
        role.architecture,
        layout,
        accelerator,
        seq_len=phase.padded_tokens(layout.micro_batch),
        dtype=dtype,
        precision=training_precision(dtype, accelerator),
        adapter=role.adapter,
        head_share=0.0 if role.scalar_head else phase.logit_share,
        constants=knowledge.training,
    )
    return step.part("compute", "recompute")


def _forward(work: Workload, phase: RolePhase, option: Option) -> Iterator[Traffic]:
    """Scoring or generating one batch; sharded weights are gathered once for it."""
    layout, a = option.layout, work.role(phase.role).architecture
    role, replicas = work.role(phase.role), layout.data
    turns = phase.steps / replicas if work.trained else ceil(phase.steps / replicas)
    seconds = sum(term.value for term in option.time_terms if term.part == phase.name) / phase.steps
    tokens = phase.batch * (phase.padded_tokens(phase.batch) + phase.new_tokens) * turns / phase.steps
    ring = 2 * (layout.tensor - 1) / layout.tensor
    wires = Wires.of(option)
    yield Traffic(
        kind="tensor parallel",
        phase=phase.name,
        num_bytes=FORWARD_REDUCES * a.num_layers * ring * tokens * a.hidden_size * VALUE_BYTES,
        seconds=seconds,
        leaving=wires.ring(layout.tensor, 1),
        formula=f"{FORWARD_REDUCES} all-reduces of tokens x h per layer",
        source="Shoeybi et al. 2019, section 3",
    )
    if work.trained and phase.work == "generate" and layout.zero >= ZeroStage.PARAMETERS:
        yield Traffic(
            kind="weights for generation",
            phase=phase.name,
            num_bytes=gathered_bytes(role, layout) * (replicas - 1) / replicas,
            seconds=seconds,
            leaving=wires.ring(replicas, layout.tensor),
            formula=f"all-gather over {replicas}, behind one rollout",
            source="ring: Patarasuk and Yuan 2009",
        )


def _weight_sync(work: Workload, option: Option) -> Iterator[Traffic]:
    """Of a step whose roles are placed in groups: the generator takes the policy's new weights, bucket by bucket."""
    if not option.groups:
        return
    role = next(role for role in work.roles if role.trained)
    steps = work.phases[0].steps
    yield Traffic(
        kind="weight sync",
        phase="weight sync",
        num_bytes=2.0 * count_parameters(role.architecture).total,
        seconds=sum(term.value for term in option.time_terms if term.part == "weight sync") / steps,
        leaving=float(option.place.per_node) if option.num_nodes > 1 or option.beside else 0.0,
        formula="2 B x parameters, once per rollout",
        source="physics/runs.py",
    )


def _storage(work: Workload, option: Option) -> Iterator[Traffic]:
    """Yield what comes from storage and goes there: tokens, and checkpoints where something is trained."""
    steps, accelerators = work.phases[0].steps, option.num_accelerators
    seconds = option.overhead.useful_seconds / steps if steps else 0.0
    tokens = loaded_tokens(work) / steps / accelerators if steps else 0.0
    per_node = float(option.place.per_node)
    yield Traffic(
        kind="data loading",
        phase=STORAGE,
        num_bytes=TOKEN_BYTES * tokens,
        seconds=seconds,
        leaving=per_node,
        formula=f"{TOKEN_BYTES:g} B x {tokens:,.0f} tokens",
        source="counting",
    )


def checkpoint_traffic(checkpoint_bytes: float, work: Workload, option: Option) -> tuple[Traffic, ...]:
    """Saves, spread over the interval between them: `bytes / accelerators` per interval, while the stage computes."""
    interval = option.overhead.interval_seconds
    if not checkpoint_bytes or not interval or option.place.is_cpu or not work.phases[0].steps:
        return ()
    seconds = option.overhead.useful_seconds / work.phases[0].steps
    return (
        Traffic(
            kind="checkpoints",
            phase=STORAGE,
            num_bytes=checkpoint_bytes / option.num_accelerators * seconds / interval,
            seconds=seconds,
            leaving=float(option.place.per_node),
            formula=f"{checkpoint_bytes / 1e9:,.3g} GB every {interval:,.0f} s",
            source="Daly 2006 (resilience/expected_time.py)",
        ),
    )


def loaded_tokens(work: Workload) -> float:
    """Tokens of text that the processors of a stage read or write: training data once, prompts and answers once."""
    generated = [phase for phase in work.phases if phase.work == "generate"]
    if generated:
        read = [] if work.trained else [phase for phase in work.phases if phase.work == "score"]
        return sum(phase.tokens for phase in (*generated, *read))
    trained = [phase for phase in work.phases if phase.work == "train"]
    return sum(phase.tokens for phase in trained or work.phases)


# -------- Needs of a stage around its accelerators: system memory, processor cores, bytes over the wire and on disk.

STORED = {"data": "data_bytes", "checkpoints": "checkpoint_bytes", "weights": "weights_bytes", "logs": "log_bytes"}
"""Part of the storage terms -> field of `charter plan --json`."""


@dataclass(frozen=True, kw_only=True)
class NodeNeeds:
    """One stage; memory, cores and bandwidth of one node, bytes on disk of the whole stage."""

    memory: Breakdown
    storage: Breakdown
    traffic: tuple[Traffic, ...]
    tokens_per_second: float
    """Text that the processors of one node read or write while the stage computes."""

    @property
    def loader_cores(self) -> float:
        """Cores where text is tokenised as it is read."""
        return loader_cores(self.tokens_per_second)

    @property
    def loader_cores_tokenised(self) -> float:
        """Cores where it was tokenised and packed before."""
        return loader_cores(self.tokens_per_second, seconds_per_token=TOKENISED_SECONDS_PER_TOKEN)

    @property
    def bytes_per_step(self) -> dict[str, float]:
        """That one accelerator sends per step of the stage, by kind."""
        sums: dict[str, float] = {}
        for item in self.traffic:
            sums[item.kind] = sums.get(item.kind, 0.0) + item.num_bytes
        return sums

    @property
    def bytes_per_second(self) -> float:
        """Of one accelerator over all its links, so that nothing waits: the phase that asks for most."""
        return _busiest([(item.phase, item.bytes_per_second) for item in self.traffic])

    @property
    def node_bytes_per_second(self) -> float:
        """The same of one node to the outside."""
        return _busiest([(item.phase, item.bytes_per_second * item.leaving) for item in self.traffic])

    @property
    def terms(self) -> tuple[Term, ...]:
        """Everything, for `--explain`."""
        return (*self.memory.terms, *self._cores(), *self._wires(), *self.storage.terms)

    def to_json(self) -> dict[str, object]:
        """The object `node` of a stage in `charter plan --json`."""
        stored = self.storage.by_part()
        return {
            "system_memory_bytes": round(self.memory.total),
            "loader_cores": round(self.loader_cores, 4),
            "loader_cores_tokenised": round(self.loader_cores_tokenised, 4),
            "network_bytes_per_step": {kind: round(value) for kind, value in self.bytes_per_step.items()},
            "network_bytes_per_second_to_hide": round(self.bytes_per_second),
            "node_network_bytes_per_second_to_hide": round(self.node_bytes_per_second),
            "storage": {field: round(stored.get(part, 0.0)) for part, field in STORED.items()},
        }

    def _cores(self) -> tuple[Term, ...]:
        ways = (
            ("cores, text tokenised as it is read", self.loader_cores, TEXT_SECONDS_PER_TOKEN),
            ("cores, tokenised and packed before", self.loader_cores_tokenised, TOKENISED_SECONDS_PER_TOKEN),
        )
        return tuple(
            Term(
                name=name,
                part="processor",
                value=cores,
                unit="cores",
                formula=f"{self.tokens_per_second:,.0f} tokens per second and node x {seconds * 1e6:g} us",
                source="judgement (physics/node.py)",
            )
            for name, cores, seconds in ways
        )

    def _wires(self) -> tuple[Term, ...]:
        sent = tuple(
            Term(
                name=f"{item.phase}: {item.kind}",
                part="network",
                value=item.bytes_per_second,
                unit="bytes per second",
                formula=f"{item.num_bytes / 1e9:,.3g} GB per step and accelerator"
                f" / {item.seconds:,.3g} s: {item.formula}",
                source=item.source,
            )
            for item in self.traffic
        )
        totals = (
            ("to hide all of it, per accelerator", self.bytes_per_second, "storage + the phase that asks for most"),
            (
                "to hide it, out of a node",
                self.node_bytes_per_second,
                "the same of groups that span nodes, and storage",
            ),
        )
        return (
            *sent,
            *(
                Term(name=n, part="network", value=v, unit="bytes per second", formula=f, source="physics/node.py")
                for n, v, f in totals
                if sent
            ),
        )


def checkpoint_bytes(work: Workload) -> float:
    """Bytes of one full checkpoint: 14 per trained parameter; none for a stage that writes records."""
    return sum(model_checkpoint_bytes(role.architecture, adapter=role.adapter) for role in work.trained)


def node_needs(work: Workload, option: Option, storage: Breakdown, *, dtype: str, knowledge: Knowledge) -> NodeNeeds:
    """The needs of a stage under the option that was taken."""
    seconds = option.overhead.useful_seconds
    tokens = loaded_tokens(work) / seconds / option.num_nodes if seconds > 0 else 0.0
    full = checkpoint_bytes(work)
    traffic = stage_traffic(work, option, dtype=dtype, knowledge=knowledge)
    return NodeNeeds(
        memory=_memory(work, option, full),
        storage=storage,
        traffic=(*traffic, *checkpoint_traffic(full, work, option)) if traffic else (),
        tokens_per_second=tokens,
    )


def _busiest(rates: list[tuple[str, float]]) -> float:
    """Kinds of one phase share its time; storage traffic comes on top of every phase."""
    phases: dict[str, float] = {}
    for phase, rate in rates:
        phases[phase] = phases.get(phase, 0.0) + rate
    storage = phases.pop(STORAGE, 0.0)
    return storage + max(phases.values(), default=0.0)


def _memory(work: Workload, option: Option, full_checkpoint_bytes: float) -> Breakdown:
    """Without accelerators the stage's own peak; else processes, loaders, loading or staging, offloaded state.

    Engines of reinforcement learning save synchronously, so no second copy of a checkpoint is staged; the native engine
    saves in the background only where the node has room for the copy.
    """
    if option.place.is_cpu or not work.needs_accelerator:
        terms = (
            tuple(term for term in option.peak.terms if term.value)
            or host_terms(loading_bytes=0.0, checkpoint_bytes=0.0, offload_bytes=0.0, ranks=1).terms
        )
        return Breakdown(terms=tuple(term for term in terms if term.value))
    ranks = option.place.per_node
    loaded = max(count_parameters(role.architecture).total for role in work.roles if role.name not in work.remote)

    def needs(staged_bytes: float) -> Breakdown:
        return host_terms(
            loading_bytes=2.0 * loaded,
            checkpoint_bytes=staged_bytes,
            offload_bytes=option.host_bytes * ranks,
            ranks=ranks,
        )

    staged = 0.0 if option.engine in rl_engines() else full_checkpoint_bytes * ranks / option.num_accelerators
    memory = needs(staged)
    if option.engine == NATIVE and memory.total > node_memory_bytes(option.place):
        memory = needs(0.0)
    return Breakdown(terms=tuple(term for term in memory.terms if term.value))


def storage_terms(work: Workload, keep_last: int) -> Breakdown:
    """Bytes on disk of a stage at its fullest: what it writes, checkpoints by retention, weights, logs."""
    full = checkpoint_bytes(work)
    published = weights_bytes(work.trained[0].architecture) if work.trained else 0.0
    retained = retained_bytes(full, keep_last=keep_last) if full else 0.0
    steps = work.phases[0].steps if work.phases else 0.0
    terms = (
        *_data_terms(work),
        *work.records,
        bytes_term(
            "checkpoints",
            "checkpoints",
            retained,
            f"({keep_last} kept + 1 in writing) x {full:,.0f} B",
            "14 B per trained parameter",
        ),
        bytes_term(
            "weights it makes", "weights", published, "2 B x parameters of the first trained role", "16-bit weights"
        ),
        bytes_term(
            "metrics and logs",
            "logs",
            log_bytes(steps),
            f"64 KiB + 500 B x {steps:,.0f} steps",
            "judgement (physics/node.py)",
        ),
    )
    return Breakdown(terms=tuple(term for term in terms if term.value))


def _data_terms(work: Workload) -> tuple[Term, ...]:
    """Texts that the stage writes: of every generating phase, what they were given, and verdicts on pairs."""
    if work.trained:
        return ()
    phases = [phase for phase in work.phases if phase.work == "generate"]
    weights = {phase.name: phase.sequences * phase.new_tokens for phase in phases}
    total = sum(weights.values())
    generated = work.counters.generated_tokens * BYTES_PER_TOKEN_OF_TEXT if work.data_bytes else 0.0
    answers = tuple(
        bytes_term(f"text of {name}", "data", generated * weight / total, "4 B x tokens at most", "plan/workload.py")
        for name, weight in weights.items()
        if total
    )
    given = work.data_bytes - sum(term.value for term in answers)
    verdicts = VERDICT_BYTES * work.counters.pairs
    return (
        *answers,
        bytes_term("prompts and given texts", "data", given, "4 B x tokens", "plan/workload.py"),
        bytes_term("verdicts", "data", verdicts, f"{VERDICT_BYTES:g} B x pairs", "judgement (physics/node.py)"),
    )
