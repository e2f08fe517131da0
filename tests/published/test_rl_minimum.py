"""Smallest machines on which public threads and pages say reinforcement learning of a model runs, or does not.

Seen failing under mutations of production lines (tests that fail):
- physics/memory_shape.py, zero_sharded, `zero >= since` -> `>`: 7 of 11;
- physics/placement_memory.py, frozen weights of 2 bytes -> 1: 1.
"""

import ppo_case as case
import pytest

from charter.engines import rl_engines
from charter.plan.knowledge import EngineKnowledge
from charter.plan.rl_groups import Placed
from charter.plan.rl_search import Setting, host_shortage, rl_options
from charter.plan.rl_work import rl_work

# verl, docs/perf/device_tuning.rst, "Hardware Resource Needed for RL": the minimum rows of GRPO with all parameters
# trained. Lengths are not printed there; 512 + 1024 tokens are the usual ones of its example scripts.
VERL_GRPO = [
    ("Qwen/Qwen2-7B", "H800", 2, 1),
    ("Qwen/Qwen2.5-14B", "H800", 4, 1),
    ("Qwen/Qwen2.5-32B", "H20", 8, 1),
    ("Llama-3.1-70B", "H800", 8, 4),
]


def fits(work, engine, accelerator, per_node, nodes):
    options, _ = rl_options(case.question(work, engine), case.place(accelerator, per_node, nodes=(nodes,)), nodes)
    return bool(options)


@pytest.mark.parametrize(("model", "accelerator", "per_node", "nodes"), VERL_GRPO)
def test_verl_minimum_rows_fit_and_half_of_them_does_not(model, accelerator, per_node, nodes, monkeypatch):
    """By the median: a plan leaves room for its error, and 7B on two H800 needs 73.0 of 79.6 GiB."""
    monkeypatch.setattr(EngineKnowledge, "usable_bytes", lambda known, device, knowledge: device.memory_bytes)
    work = case.workload(model, critic=False, samples=1024, minibatch=256, prompt=512, new=1024)
    assert fits(work, "verl", accelerator, per_node, nodes)
    halved = (per_node, nodes // 2) if nodes > 1 else (per_node // 2, 1)
    assert not fits(work, "verl", accelerator, *halved)


@pytest.mark.parametrize("accelerator", ["A100-80GB", "H100"])
def test_70b_ppo_on_four_nodes_as_openrlhf_566_says(accelerator):
    """8 for actor and reference, 8 for critic and reward, 16 for vLLM: "yes" (OpenRLHF#566, 2024-12)."""
    work = case.workload("Llama-3.1-70B", samples=1024)
    setting = Setting(
        question=case.question(work, "openrlhf"),
        engine=rl_engines()["openrlhf"],
        work=rl_work(work),
        place=case.place(accelerator, nodes=(4,)),
    )
    groups, capacity = setting.groups, setting.capacity
    actor = groups.trainer(8, ("policy", "reference"), capacity)
    critic = groups.trainer(8, ("value", "reward"), capacity)
    generator = groups.generator(16, capacity)
    assert actor is not None
    assert critic is not None
    assert generator is not None
    assert actor.layout.offload_optimizer  # the flag that the thread's script sets: 140 GB of Adam per device else
    assert host_shortage(setting, Placed(arrangement="split", trainers=(actor, critic), generator=generator)) is None


@pytest.mark.parametrize("engine", ["native", "verl", "openrlhf"])
def test_7b_ppo_does_not_fit_one_a100_80g(engine):
    """trl#2719: out of memory while four models were loaded."""
    assert not fits(case.workload("Qwen/Qwen2-7B"), engine, "A100-80GB", 1, 1)


@pytest.mark.parametrize("engine", ["verl", "openrlhf"])
def test_7b_ppo_fits_four_h100_of_94_gb(engine):
    """open-instruct#393: "do I actually need 8?" No, but little is left."""
    options, _ = rl_options(case.question(case.workload("Qwen/Qwen2-7B"), engine), case.place("H100-NVL-94GB", 4), 1)
    assert options
    fullest = max(group.peak.total_bytes / group.capacity_bytes for option in options for group in option.groups)
    assert 0.85 < fullest <= 1
