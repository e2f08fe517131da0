"""Roles of a PPO step on devices: together, offloaded, on devices of their own."""

import pytest

from charter.catalog import accelerators, models
from charter.physics.placement_memory import PpoJob, PpoRole, group_phases
from charter.physics.shapes import count_parameters
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


NAMES = [role.name for role in ROLES]


def by_role(parts):
    sums = {}
    for role, term in parts:
        sums[role] = sums.get(role, 0.0) + term.value
    return sums


def test_colocated_roles_are_there_in_every_phase():
    phases = group_phases(JOB, NAMES, generates=True)
    assert set(phases) == {"generate", "score with reference", "score with reward", "train policy", "train value"}
    count = count_parameters(SHAPE)
    lm, scalar = count.total, count.total - count.head + SHAPE.hidden_size
    for parts in phases.values():
        sizes = by_role(parts)
        assert sizes["policy"] >= 16 * lm / 8
        assert sizes["value"] >= 16 * scalar / 8
        assert sizes["reference"] >= 2 * lm / 8


def test_generation_holds_its_own_weights_and_cache():
    size = by_role(group_phases(JOB, NAMES, generates=True)["generate"])["generator"]
    cache = 32 * 1024 * 131_072
    assert size == pytest.approx(2 * count_parameters(SHAPE).total + cache, rel=0.03)


def test_split_groups_hold_only_their_own():
    training = group_phases(JOB, ["policy", "value"], generates=False)
    scoring = group_phases(JOB, ["reference", "reward"], generates=False)
    generation = group_phases(JOB, [], generates=True)
    assert {name: set(by_role(parts)) for name, parts in generation.items()} == {"generate": {"", "generator"}}
    assert {role for parts in training.values() for role in by_role(parts)} == {"", "policy", "value"}
    assert {role for parts in scoring.values() for role in by_role(parts)} == {"", "reference", "reward"}


def test_offloading_leaves_only_the_role_at_work():
    together = group_phases(JOB, NAMES, generates=True)
    away = group_phases(JOB, NAMES, generates=True, offloaded=True)
    for phase, parts in away.items():
        assert sum(by_role(parts).values()) < sum(by_role(together[phase]).values())
    assert set(by_role(away["train value"])) == {"", "value"}
    assert set(by_role(away["generate"])) == {"", "generator"}
