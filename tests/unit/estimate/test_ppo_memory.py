"""Roles of a PPO step on devices, under three placements."""

from dataclasses import replace

import pytest

from charter.catalog import accelerators, models
from charter.estimate.memory.ppo import PpoJob, PpoRole, ppo_memory
from charter.estimate.shapes.parameters import count_parameters
from charter.spec.layout import Layout, ZeroStage

SHAPE = models.get("Llama-3.1-8B").architecture
ROLES = (
    PpoRole(name="policy", architecture=SHAPE, trained=True),
    PpoRole(name="value", architecture=SHAPE, trained=True, scalar_head=True),
    PpoRole(name="reference", architecture=SHAPE),
    PpoRole(name="reward", architecture=SHAPE, scalar_head=True),
)
JOB = PpoJob(
    roles=ROLES,
    layout=Layout(data=8, zero=ZeroStage.PARAMETERS),
    seq_len=1024,
    rollout_sequences=32,
    accelerator=accelerators.get("H100"),
)


def test_colocated_roles_are_there_in_every_phase():
    memory = ppo_memory(JOB)
    phases = memory.groups["all"]
    assert set(phases) == {"generate", "score with reference", "score with reward", "train policy", "train value"}
    count = count_parameters(SHAPE)
    lm, scalar = count.total, count.total - count.head + SHAPE.hidden_size
    for phase in phases:
        held = memory.by_role("all", phase)
        assert held["policy"] >= 16 * lm / 8
        assert held["value"] >= 16 * scalar / 8
        assert held["reference"] >= 2 * lm / 8
    assert memory.host_bytes == 0


def test_generation_holds_its_own_weights_and_cache():
    held = ppo_memory(JOB).by_role("all", "generate")["generator"]
    cache = 32 * 1024 * 131_072
    assert held == pytest.approx(2 * count_parameters(SHAPE).total + cache, rel=0.03)


def test_split_groups_hold_only_their_own():
    memory = ppo_memory(replace(JOB, placement="split"))
    roles = {group: set(memory.by_role(group, next(iter(memory.groups[group])))) for group in memory.groups}
    assert roles["generation"] == {"", "generator"}
    assert {"policy", "value"} <= roles["training"]
    assert "reference" not in roles["training"]
    assert {"reference", "reward"} <= roles["scoring"]


def test_offloading_moves_what_is_not_at_work():
    together, away = ppo_memory(JOB), ppo_memory(replace(JOB, placement="offloaded"))
    for phase, size in away.phase_bytes("all").items():
        assert size < together.phase_bytes("all")[phase]
    assert set(away.by_role("all", "train value")) == {"", "value"}
    states = sum(
        term.value for role, term in together.groups["all"]["generate"] if role in {role.name for role in ROLES}
    )
    assert away.host_bytes == pytest.approx(states)
    assert away.peak_bytes == max(away.phase_bytes("all").values())
