"""Needs of a stage around its accelerators: system memory, processor cores, bytes over the wire and on disk."""

from dataclasses import dataclass

from charter.engines import rl_engines
from charter.physics.node.host import host_terms
from charter.physics.node.loading import TEXT_SECONDS_PER_TOKEN, TOKENISED_SECONDS_PER_TOKEN, loader_cores
from charter.physics.node.storage import (
    VERDICT_BYTES,
    log_bytes,
    model_checkpoint_bytes,
    retained_bytes,
    weights_bytes,
)
from charter.physics.shapes.parameters import count_parameters
from charter.physics.terms import Breakdown, Term
from charter.plan.options.option import Option
from charter.plan.physics.knowledge import Knowledge
from charter.plan.stages.node_traffic import STORAGE, Traffic, checkpoint_traffic, loaded_tokens, stage_traffic
from charter.plan.work.phase import Workload
from charter.plan.work.phase_kinds import BYTES_PER_TOKEN_OF_TEXT

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
                source="judgement (node/loading.py)",
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
                Term(name=n, part="network", value=v, unit="bytes per second", formula=f, source="node/network.py")
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

    Engines of reinforcement learning save synchronously, so no second copy of a checkpoint is staged.
    """
    if option.place.is_cpu or not work.needs_accelerator:
        terms = (
            tuple(term for term in option.peak.terms if term.value)
            or host_terms(loading_bytes=0.0, checkpoint_bytes=0.0, offload_bytes=0.0, ranks=1).terms
        )
        return Breakdown(terms=tuple(term for term in terms if term.value))
    ranks = option.place.per_node
    loaded = max(count_parameters(role.architecture).total for role in work.roles if role.name not in work.remote)
    staged = 0.0 if option.engine in rl_engines() else full_checkpoint_bytes * ranks / option.num_accelerators
    needs = host_terms(
        loading_bytes=2.0 * loaded,
        checkpoint_bytes=staged,
        offload_bytes=option.host_bytes * ranks,
        ranks=ranks,
    )
    return Breakdown(terms=tuple(term for term in needs.terms if term.value))


def storage_terms(work: Workload, keep_last: int) -> Breakdown:
    """Bytes on disk of a stage at its fullest: what it writes, checkpoints by retention, weights, logs."""
    full = checkpoint_bytes(work)
    published = weights_bytes(work.trained[0].architecture) if work.trained else 0.0
    retained = retained_bytes(full, 0.0, keep_last=keep_last) if full else 0.0
    steps = work.phases[0].steps if work.phases else 0.0
    terms = (
        *_data_terms(work),
        _stored(
            "checkpoints",
            "checkpoints",
            retained,
            f"({keep_last} kept + 1 in writing) x {full:,.0f} B",
            "14 B per trained parameter",
        ),
        _stored(
            "weights it makes", "weights", published, "2 B x parameters of the first trained role", "16-bit weights"
        ),
        _stored(
            "metrics and logs",
            "logs",
            log_bytes(steps),
            f"64 KiB + 500 B x {steps:,.0f} steps",
            "judgement (node/storage.py)",
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
        _stored(f"text of {name}", "data", generated * weight / total, "4 B x tokens at most", "work/phase_kinds.py")
        for name, weight in weights.items()
        if total
    )
    given = work.data_bytes - sum(term.value for term in answers)
    verdicts = VERDICT_BYTES * work.counters.pairs
    return (
        *answers,
        _stored("prompts and given texts", "data", given, "4 B x tokens", "work/phase_kinds.py"),
        _stored("verdicts", "data", verdicts, f"{VERDICT_BYTES:g} B x pairs", "judgement (node/storage.py)"),
    )


def _stored(name: str, part: str, value: float, formula: str, source: str) -> Term:
    return Term(name=name, part=part, value=value, unit="bytes", formula=formula, source=source)
