"""A plan and a measured row that describe the same training job need the same memory: both read the engine's traits."""

from dataclasses import replace

import numpy as np
import pytest

from charter.catalog import accelerators, models
from charter.engines import capabilities, rl_engines
from charter.physics.columns import Layouts
from charter.physics.constants import TrainingMemoryConstants
from charter.physics.memory import job_memory, training_memory_table
from charter.physics.memory_profiles import OF_ENGINES
from charter.physics.memory_shape import MemoryShape
from charter.physics.placement_memory import PpoJob, PpoRole, group_phases
from charter.physics.runs import RlConstants
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.rl_groups import Groups
from charter.plan.rl_work import rl_work
from charter.plan.stage_memory import training_job
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.validation.quantities.memory_cases import training_case
from charter.validation.rows.measurement import Measurement

H100 = accelerators.get("H100")
LLAMA = models.get("Llama-3.1-8B").architecture
PROMPT, ANSWER = 512, 1536
COPIES = Layout(data=8, micro_batch=4, recompute=Recompute.FULL)
SHARDED = Layout(data=8, micro_batch=4, recompute=Recompute.FULL, zero=ZeroStage.PARAMETERS)


def case_of(framework, *, kind="sft", shard="zero3"):
    """A row of a model of 3.2 billion parameters, as its source would print it."""
    shape = {"hidden": 3072, "layers": 28, "heads": 24, "kv_heads": 8, "ffn": 8192, "vocab": 128256}
    cells = {
        "gpu": "H100", "gpus": 8, "gpus_per_node": 8, "tied_embeddings": 1, "attention": "gqa", "adapter": "full",
        "seq": PROMPT + ANSWER, "dtype": "bf16", "recompute": "full",
        "memory_probe": "nvidia_smi",
    }  # fmt: skip
    row = Measurement(
        id="X-1",
        metric="peak_mem_gb",
        value=30.0,
        model="in-house",
        framework=framework,
        kind=kind,
        shard=shard,
        **shape,
        **cells,
    )
    return training_case(row)


def workload(architecture, *, kind="sft", entropy=False):
    """One trained role; of reinforcement learning the answers that it draws, too."""
    longest = PROMPT + ANSWER
    each = {"role": "policy", "steps": 10.0, "longest_tokens": float(longest)}
    phases = [
        RolePhase(
            name="train policy",
            work="train",
            batch=64,
            prompt_tokens=longest,
            entropy=entropy,
            logit_share=ANSWER / longest if kind == "ppo" else 1.0,
            **each,
        )
    ]
    if kind == "ppo":
        drawn = {"prompt_tokens": PROMPT, "new_tokens": ANSWER, "batch": 64}
        phases.insert(0, RolePhase(name="generate", work="generate", **drawn, **each))
    roles = (Role(name="policy", architecture=architecture, model="p", trained=True),)
    return Workload(roles=roles, phases=tuple(phases), counters=Counters(), together=kind == "ppo")


def need_of_job(job, layouts):
    """Bytes on the fullest device with the constants that nobody fitted."""
    total = training_memory_table(MemoryShape.of(job), Layouts.of(layouts), TrainingMemoryConstants()).total
    return np.broadcast_to(total, len(layouts))


def logits_of(job, layout):
    """Bytes of logits and loss, without the part that the allocator loses."""
    terms = job_memory(job, layout, TrainingMemoryConstants()).phases["loss"]
    return next(term.value for term in terms if term.name == "logits and loss") / TrainingMemoryConstants().logits


def groups_of(engine, architecture, *, entropy=False):
    """The tables of a stage of reinforcement learning on one node."""
    work = rl_work(workload(architecture, kind="ppo", entropy=entropy))
    return Groups(work, rl_engines()[engine], H100, sizes=[8], per_node=8, constants=RlConstants())


@pytest.mark.parametrize(
    ("engine", "framework"),
    [
        ("verl", "verl"),
        ("skyrl", "SkyRL"),
        ("nemo_rl", "NeMo-RL"),
        ("prime_rl", "prime-rl"),
        ("openrlhf", "OpenRLHF"),
    ],
)
def test_a_policy_needs_the_same_in_rows_and_plans(engine, framework):
    case = case_of(framework, kind="ppo")
    groups = groups_of(engine, case.job.architecture)
    # Between roles gradients are counted as staying, which those of a single micro-batch do not.
    several = np.array([layout.accumulation > 1 for layout in groups.layouts])
    assert several.any()
    planned, needed = groups.memory.peak(["policy"]), need_of_job(case.job, groups.layouts)
    assert planned[several] == pytest.approx(needed[several])


@pytest.mark.parametrize(
    ("engine", "framework", "shard", "layout"),
    [
        ("trl", "TRL", "ddp", COPIES),
        ("trl", "TRL", "fsdp", SHARDED),
        ("accelerate", "Accelerate", "ddp", COPIES),
        ("accelerate", "Accelerate", "fsdp", SHARDED),
        ("deepspeed", "DeepSpeed", "zero3", SHARDED),
        ("fsdp", "PyTorch FSDP", "fsdp", SHARDED),
        ("megatron", "Megatron-Core", "distopt", Layout(data=4, tensor=2, zero=ZeroStage.OPTIMIZER)),
        ("verl", "verl", "fsdp", SHARDED),
        ("nemo_rl", "NeMo-RL", "fsdp", SHARDED),
        ("openrlhf", "OpenRLHF", "zero3", SHARDED),
        ("maxtext", "MaxText", "fsdp", SHARDED),
    ],
)
def test_fine_tuning_needs_the_same_in_rows_and_plans(engine, framework, shard, layout):
    case = case_of(framework, shard=shard)
    work = workload(case.job.architecture)
    job = training_job(work, work.trained[0], H100, "bf16", engine)
    assert need_of_job(job, [layout]) == pytest.approx(need_of_job(case.job, [layout]))


def test_verl_learns_from_entropy_with_all_its_copies():
    job = case_of("verl", kind="ppo").job
    groups = groups_of("verl", job.architecture, entropy=True)
    several = np.array([layout.accumulation > 1 for layout in groups.layouts])
    needed = need_of_job(replace(job, cross_entropy="eager"), groups.layouts)
    assert groups.memory.peak(["policy"])[several] == pytest.approx(needed[several])


def test_a_reference_of_verl_is_read_without_copies():
    """Flash-attn's loss reads tokens' probabilities from the 16-bit logits; others write all in 32 bits."""
    phases = [
        group_phases(
            PpoJob(
                roles=(
                    PpoRole(name="policy", architecture=LLAMA, trained=True),
                    PpoRole(name="reference", architecture=LLAMA),
                ),
                layout=SHARDED,
                seq_len=2048,
                rollout_sequences=8,
                profile=OF_ENGINES[capabilities(engine).memory],
            ),
            ["policy", "reference"],
            generates=False,
        )
        for engine in ("verl", "nemo_rl")
    ]
    read = [term.value for parts in phases for _, term in parts["score with reference"] if term.name == "logits"]
    assert read == [each * 4 * 2048 * LLAMA.vocab_size for each in (2, 6)]


def test_prime_rl_makes_its_logits_in_blocks():
    """However long the sequences: 18 bytes a logit of a block, and 16-bit gradients of the projection and its input."""
    jobs = [case_of("prime-rl", kind="ppo").job, case_of("NeMo-RL", kind="ppo").job]
    layouts = [replace(SHARDED, micro_batch=micro) for micro in (4, 16)]
    blocks, whole = ([logits_of(job, layout) for layout in layouts] for job in jobs)
    a = jobs[0].architecture
    beside = [2 * a.hidden_size * (a.vocab_size + micro * (PROMPT + ANSWER)) for micro in (4, 16)]
    assert blocks == pytest.approx([18 * 8192**2 + size for size in beside])
    assert whole == pytest.approx([14 * micro * (PROMPT + ANSWER) * a.vocab_size for micro in (4, 16)])
