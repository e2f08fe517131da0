"""Stages of every kind, handed over to TRL, Accelerate and DeepSpeed on layouts of all sorts."""

from charter.engines.common.request import Handover, HandoverPaths, RlPlacement
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage

PATHS = HandoverPaths(
    work=".",
    models={role: f"models/{role}" for role in ("init", "policy", "reward")},
    data={role: f"data/{role}.jsonl" for role in ("data", "prompts")},
)
BATCH = 32
NONE, OPTIMIZER, GRADIENTS, PARAMETERS = ZeroStage


def stage_of(kind, **changes):
    common = {"global_batch": BATCH, "steps": 20, "dtype": "bf16"}
    match kind:
        case "pretrain":
            return PretrainStage(**{"init": "base", "data": ("texts",), **common, **changes})
        case "sft":
            return SftStage(**{"init": "base", "data": ("chat",), **common, **changes})
        case "preference_model":
            return PreferenceModelStage(**{"init": "base", "data": ("pairs",), **common, **changes})
        case "dpo":
            return DpoStage(**{"init": "base", "data": ("pairs",), **common, **changes})
        case "kto":
            return stage_of("dpo", **{"loss": "kto", **changes})
    rollouts = {"episodes": 640, "rollout_batch": BATCH, "minibatch": BATCH, "samples_per_prompt": 4}
    estimator = {"estimator": kind, "policy": "base", "reward": "pm", "prompts": ("asked",)}
    return PpoStage(**{**estimator, **rollouts, "loss_aggregation": "token", **changes})


def layout_of(kind, *, data=1, micro_rows=2, **changes):
    """A layout whose batch comes out even; a pair counts two sequences, and by kto a micro-batch is the batch."""
    each = 2 if kind in ("preference_model", "dpo", "kto") else 1
    micro_rows = BATCH // data if kind == "kto" else micro_rows
    accumulation = BATCH // (data * micro_rows)
    return Layout(**{"data": data, "micro_batch": micro_rows * each, "accumulation": accumulation, **changes})


def handover(engine, kind, *, nodes=1, layout=None, accelerator="H100", paths=PATHS, placement=None, seed=7, **changes):
    stage = stage_of(kind, **changes)
    layout = layout or layout_of(kind)
    return Handover(
        engine=engine,
        run="run",
        name="stage",
        stage=stage,
        seed=seed,
        layout=layout,
        num_nodes=nodes,
        per_node=layout.num_accelerators // nodes,
        accelerator=accelerator,
        target_steps=20,
        architectures={},
        paths=paths,
        placement=placement,
    )


def every_layout(kind):
    """Engine, label and how to lay out: everything that the engines run."""
    one = {"layout": layout_of(kind)}
    for engine in ("trl",) if kind in ("grpo", "rloo") else ("trl", "accelerate"):
        if engine == "trl" and kind == "pretrain":
            continue
        yield engine, "cpu", {**one, "accelerator": "cpu", "dtype": "fp32"}
        yield engine, "cpus", {"layout": layout_of(kind, data=4), "accelerator": "cpu"}
        yield engine, "one", one
        yield engine, "fp16", {**one, "dtype": "fp16"}
        yield engine, "ddp", {"layout": layout_of(kind, data=8, recompute=Recompute.FULL), "nodes": 2}
        yield engine, "fsdp", {"layout": layout_of(kind, data=8, zero=PARAMETERS), "nodes": 2}
        whole = {"zero": PARAMETERS, "offload_optimizer": True, "offload_parameters": True}
        yield engine, "fsdp offload", {"layout": layout_of(kind, data=4, **whole)}
    if kind in ("grpo", "rloo"):
        yield from _zero("trl", kind)
        vllm = {"generator": "vllm", "placement": RlPlacement(arrangement="offloaded", generator_tensor=2)}
        yield "trl", "vllm", {"layout": layout_of(kind, data=4), **vllm}
        return
    yield "accelerate", "hsdp", {"layout": layout_of(kind, data=8, zero=PARAMETERS, replicas=2), "nodes": 2}
    if kind in ("sft", "pretrain"):
        yield "accelerate", "context", {"layout": layout_of(kind, data=4, zero=PARAMETERS, context=2)}
    yield from _zero("deepspeed", kind)
    yield "deepspeed", "zero 0", {"layout": layout_of(kind, data=4)}


def _zero(engine, kind):
    for zero in (OPTIMIZER, GRADIENTS, PARAMETERS):
        if engine == "deepspeed" or zero < PARAMETERS:
            yield engine, f"zero {int(zero)}", {"layout": layout_of(kind, data=8, zero=zero), "nodes": 2}
    moved = {"zero": PARAMETERS, "offload_optimizer": True}
    yield engine, "zero 3 optimizer", {"layout": layout_of(kind, data=4, **moved), "dtype": "fp16"}
    moved = {"zero": GRADIENTS, "offload_optimizer": True}
    yield engine, "zero 2 optimizer", {"layout": layout_of(kind, data=4, **moved), "dtype": "fp32"}
    if engine == "deepspeed":
        moved = {"zero": PARAMETERS, "offload_optimizer": True, "offload_parameters": True}
        yield engine, "zero 3 all", {"layout": layout_of(kind, data=4, **moved)}


KINDS = ("pretrain", "sft", "preference_model", "dpo", "kto", "grpo", "rloo")
