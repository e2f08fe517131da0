"""Seconds of a stage on accelerators, as named terms: every phase over all its steps.

The phases of a stage follow each other (a synchronous loop); nothing overlaps between them.
"""

from collections.abc import Container
from dataclasses import replace
from functools import lru_cache
from math import ceil

from charter.catalog.accelerators import Accelerator
from charter.physics import serving_devices
from charter.physics.columns import array
from charter.physics.devices import DeviceColumns, group
from charter.physics.generation import forward_pass_seconds, generation
from charter.physics.shapes import count_parameters
from charter.physics.step_time import training_step
from charter.physics.terms import Term
from charter.plan.physics.cpu_time import tools_term
from charter.plan.physics.engine_knowledge import EngineKnowledge, engine_knowledge
from charter.plan.physics.fit import ServerBeside, decoded_together, server_of
from charter.plan.physics.knowledge import Knowledge
from charter.plan.work.phase import Phase, Role, Workload
from charter.spec.layout import Layout, ZeroStage
from charter.spec.stage import NATIVE

FILE_BYTES_PER_SECOND = 5e9
"""One thread that writes to, or reads from, files in memory; judgement."""
_generation = lru_cache(maxsize=4096)(generation)
_forward_pass_seconds = lru_cache(maxsize=4096)(forward_pass_seconds)
"""Places differ in price and market more often than in hardware: a search asks for the same seconds again and again."""


def training_terms(
    work: Workload,
    layout: Layout,
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> tuple[Term, ...]:
    """Terms of a stage that trains: its updates, and for PPO and DPO also generation and scoring on the same layout."""
    terms: list[Term] = []
    for phase in work.phases:
        role = work.role(phase.role)
        if phase.work == "train":
            terms += _updates(role, phase, layout, accelerator, dtype, engine_knowledge(engine, knowledge))
        else:
            together = 0
            if phase.work == "generate":
                together = decoded_together(
                    work, phase, layout, accelerator=accelerator, dtype=dtype, knowledge=knowledge, engine=engine
                )
            terms += _other(role, phase, layout, together, accelerator, knowledge, engine)
    return tuple(terms)


def other_seconds(
    role: Role,
    phase: Phase,
    layout: Layout,
    together: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> float:
    """Seconds of a phase that generates (`together` sequences of a replica at once) or scores."""
    return sum(term.value for term in _other(role, phase, layout, together, accelerator, knowledge, engine))


def _other(
    role: Role,
    phase: Phase,
    layout: Layout,
    together: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: str,
) -> list[Term]:
    if server := server_of(phase, engine):
        terms = _served_rollouts(server, role, phase, layout, together, accelerator, knowledge)
    elif phase.work == "generate":
        terms = _rollouts(role, phase, layout, together, accelerator, knowledge)
    else:
        return _scoring(role, phase, phase.steps / layout.data, layout.tensor, accelerator, knowledge)
    return [*terms, tools_term(phase, layout.data)] if phase.call_seconds else terms


def answering_terms(
    work: Workload,
    *,
    tensor: int,
    replicas: int,
    batches: dict[str, float],
    accelerator: Accelerator,
    knowledge: Knowledge,
    alone: Container[str] = (),
) -> tuple[Term, ...]:
    """Terms of a stage that only answers: replicas take whole batches in turn, one model after another.

    Roles that are `alone` compute in the stage's own process, as one replica.
    """
    terms: list[Term] = []
    for phase in work.phases:
        if phase.role in work.remote:
            continue
        role, turns = work.role(phase.role), ceil(phase.steps / (1 if phase.role in alone else replicas))
        if phase.work == "generate":
            together = max(1, int(batches[phase.name]))
            terms += _decoding(role, phase, turns, phase.batch, together, tensor, 1, accelerator, knowledge)
            if phase.call_seconds:
                terms.append(tools_term(phase))
        else:
            terms += _scoring(role, phase, turns, tensor, accelerator, knowledge)
    return tuple(terms)


def _updates(
    role: Role, phase: Phase, layout: Layout, accelerator: Accelerator, dtype: str, engine: EngineKnowledge
) -> list[Term]:
    packed = engine.does.packs and phase.ragged
    step = training_step(
        role.architecture,
        layout,
        accelerator,
        seq_len=phase.prompt_tokens if packed else phase.padded_tokens(layout.micro_batch),
        dtype=dtype,
        precision=engine.precision(dtype, accelerator),
        stack=engine.profile(accelerator),
        adapter=role.adapter,
        head_share=0.0 if role.scalar_head else phase.logit_share,
        constants=engine.training,
    )
    return over_steps(phase, phase.steps, step.terms)


def _rollouts(
    role: Role, phase: Phase, layout: Layout, together: int, accelerator: Accelerator, knowledge: Knowledge
) -> list[Term]:
    """The batch is split over the replicas; sharded weights are gathered once per rollout."""
    terms = _decoding(
        role, phase, phase.steps, phase.batch, together, layout.tensor, layout.data, accelerator, knowledge
    )
    if layout.zero >= ZeroStage.PARAMETERS:
        terms += over_steps(phase, phase.steps, (_gather(role, layout, accelerator, knowledge),))
    return terms


def _served_rollouts(
    server: ServerBeside,
    role: Role,
    phase: Phase,
    layout: Layout,
    together: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
) -> list[Term]:
    """The batch is split over the servers, which take the policy's weights before every rollout."""
    replicas = server.replicas(layout.data)
    engine = serving_devices.SERVER
    terms = _decoding(
        role, phase, phase.steps, phase.batch, together, 1, replicas, accelerator, knowledge, engine=engine
    )
    moved = [_gather(role, layout, accelerator, knowledge)] if layout.zero >= ZeroStage.PARAMETERS else []
    if not server.everywhere:
        moved.append(_through_files(role, accelerator))
    return [*terms, *over_steps(phase, phase.steps, tuple(moved))]


def _through_files(role: Role, accelerator: Accelerator) -> Term:
    """16-bit weights of the policy to vLLM: off the device, into files in memory, out of them, onto the device."""
    size, link = gathered_bytes(role, Layout()), float(DeviceColumns.of(accelerator).host_link)
    return Term(
        name="weights to vLLM",
        part="transfer",
        value=2 * size / link + 2 * size / FILE_BYTES_PER_SECOND,
        unit="seconds",
        formula=f"2 x {size / 1e9:.1f} GB / {link / 1e9:g} GB/s + 2 x {size / 1e9:.1f} GB / "
        f"{FILE_BYTES_PER_SECOND / 1e9:g} GB/s",
        source="inference/vllm_generator.py: device, /dev/shm and back; the rate of files is judgement, not measured",
    )


def _gather(role: Role, layout: Layout, accelerator: Accelerator, knowledge: Knowledge) -> Term:
    """16-bit weights of the policy, from shards to a whole tensor-parallel rank."""
    size, constants = gathered_bytes(role, layout), knowledge.training
    ranks = group(
        DeviceColumns.of(accelerator),
        array(layout.data),
        array(layout.tensor),
        scaleup_share=constants.scaleup_share,
        scaleout_share=constants.scaleout_share,
        latency=constants.latency_seconds,
    )
    return Term(
        name="gather weights",
        part="communication",
        value=float(ranks.gather_seconds(array(size))),
        unit="seconds",
        formula=f"all-gather of {size / 1e9:.1f} GB over {layout.data} at {float(ranks.ring) / 1e9:.3g} GB/s",
        source="ring: Patarasuk and Yuan 2009; fitted shares of the links (physics/devices.py)",
    )


def gathered_bytes(role: Role, layout: Layout) -> float:
    """Bytes of a model in 16 bits on one tensor-parallel rank."""
    return 2.0 * count_parameters(role.architecture).total / layout.tensor


def _decoding(
    role: Role,
    phase: Phase,
    turns: float,
    sequences: float,
    together: int,
    tensor: int,
    replicas: int,
    accelerator: Accelerator,
    knowledge: Knowledge,
    engine: serving_devices.Engine = serving_devices.NATIVE,
) -> list[Term]:
    one = _generation(
        role.architecture,
        accelerator,
        sequences=sequences,
        prompt_tokens=phase.prompt_tokens,
        new_tokens=phase.new_tokens,
        concurrency=together,
        tensor=tensor,
        replicas=replicas,
        engine=engine,
        constants=knowledge.serving,
    )
    return over_steps(phase, turns, one.terms)


def _scoring(
    role: Role, phase: Phase, turns: float, tensor: int, accelerator: Accelerator, knowledge: Knowledge
) -> list[Term]:
    width = phase.padded_tokens(phase.batch)
    tokens = phase.batch * width
    share = 0.0 if role.scalar_head else phase.logit_share
    seconds = _forward_pass_seconds(
        role.architecture,
        accelerator,
        tokens=tokens,
        seq_len=width,
        tensor=tensor,
        head_positions=share * tokens,
        constants=knowledge.serving,
    )
    term = Term(
        name="forward pass",
        part="prefill",
        value=seconds,
        unit="seconds",
        formula=f"{tokens:,.0f} tokens, {share:.3g} of the positions with logits",
        source="roofline at the measured matmul ceiling (physics/serving_passes.py)",
    )
    return over_steps(phase, turns, (term,))


def over_steps(phase: Phase, steps: float, terms: tuple[Term, ...]) -> list[Term]:
    """Terms of one step as terms of the phase."""
    return [
        replace(
            term,
            name=f"{phase.name}: {term.name}",
            part=phase.name,
            value=term.value * steps,
            formula=f"{steps:,.6g} x ({term.formula})",
        )
        for term in terms
    ]
