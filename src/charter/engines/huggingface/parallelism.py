"""Spread of the model: DDP, FSDP2 and HSDP in Accelerate's file (1.15.0), ZeRO in DeepSpeed's (0.19.8)."""

from charter.engines.common.request import Handover
from charter.engines.huggingface.configuration import ACCELERATE_FILE, DEEPSPEED_FILE, Configuration
from charter.engines.huggingface.trainer import DEFAULT_ATTENTION, attention
from charter.spec.layout import Recompute, ZeroStage
from charter.spec.stage import FP8, PretrainStage, SftStage

NOT_SPLIT = "TRL's scripts load whole models; they split no matrices and no layers over accelerators"
PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16", FP8: "bf16"}
"""What is computed in 8 bits is refused (optimization.py)."""


def map_parallelism(configuration: Configuration) -> None:
    """Every field of the layout but the batch."""
    mapper, handover = configuration.mapper, configuration.handover
    for name in ("tensor", "pipeline", "expert", "interleave"):
        mapper.same(f"layout.{name}", 1, NOT_SPLIT)
    mapper.same("layout.sequence_parallel", False, NOT_SPLIT)
    if handover.layout.num_accelerators != handover.num_accelerators:
        mapper.refuse(
            "layout.data",
            f"{handover.layout.label} (data * tensor * pipeline * context) is for {handover.layout.num_accelerators} "
            f"accelerators, and the nodes have {handover.num_accelerators}",
        )
    _map_recompute(configuration)
    match configuration.backend:
        case "deepspeed":
            _map_deepspeed(configuration)
        case "fsdp":
            _map_fsdp(configuration)
        case _:
            _map_copies(configuration)


def launch(configuration: Configuration) -> tuple[str, ...]:
    """Return the command that a node runs."""
    handover = configuration.handover
    script = ["-m", f"trl.scripts.{configuration.script}", "--config", configuration.trainer_file]
    several = handover.num_nodes > 1
    match configuration.backend:
        case "process":
            before = []
        case "torchrun":
            before = ["-m", "torch.distributed.run", "--nnodes", str(handover.num_nodes)]
            before += ["--nproc-per-node", str(handover.per_node)]
            meet = ["--node-rank", "${NODE_RANK}", "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}"]
            before += meet if several else ["--standalone"]
        case _:
            before = ["-m", "accelerate.commands.launch", "--config_file", ACCELERATE_FILE]
            meet = ["--main_process_ip", "${MASTER_ADDR}", "--main_process_port", "${MASTER_PORT}"]
            before += ["--machine_rank", "${NODE_RANK}", *meet] if several else []
    return ("python", *before, *script)


def _map_recompute(configuration: Configuration) -> None:
    recompute = configuration.handover.layout.recompute
    if recompute is Recompute.SELECTIVE:
        reason = "TRL's selective checkpointing keeps what matrix products make, which is not what was planned"
        configuration.mapper.refuse("layout.recompute", reason, "recompute: full or none")
    configuration.write(
        "layout.recompute",
        {"activation_checkpointing": recompute is Recompute.FULL},
        how="computed",
        note="the name of gradient_checkpointing in transformers 5, which TRL would turn on",
    )


def _machines(handover: Handover, distributed_type: str) -> dict[str, object]:
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type,
        "num_machines": handover.num_nodes,
        "num_processes": handover.num_accelerators,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }


def _map_copies(configuration: Configuration) -> None:
    """Whole copies of the model: one process, or DDP."""
    mapper, backend = configuration.mapper, configuration.backend
    mapper.same("layout.zero", ZeroStage.NONE, "every process has the whole model")
    mapper.same("layout.context", 1, "context parallelism needs FSDP2: zero 3, engine accelerate")
    mapper.same("layout.replicas", 1, "hybrid sharding needs FSDP2: zero 3, engine accelerate")
    for name in ("offload_optimizer", "offload_parameters"):
        mapper.same(f"layout.{name}", False, "what is not sharded is not offloaded")
    if backend == "process":
        mapper.same("layout.data", 1, "one process, started without a launcher")
    elif backend == "torchrun":
        note = "one process each; Accelerate's launcher starts no second process on processors"
        mapper.to("layout.data", "command: --nproc-per-node", how="computed", note=note)
    else:
        configuration.accelerate |= _machines(configuration.handover, "MULTI_GPU") | _precision(configuration)
        mapper.to("layout.data", f"{ACCELERATE_FILE}: num_processes")


def _map_fsdp(configuration: Configuration) -> None:
    mapper, handover = configuration.mapper, configuration.handover
    layout = handover.layout
    is_accelerate = handover.engine == "accelerate"
    _refuse_processors(configuration)
    if layout.zero is not ZeroStage.PARAMETERS:
        mapper.refuse("layout.zero", "FSDP2 shards parameters too", "zero: 3 or 0, or engine: deepspeed")
    configuration.accelerate |= _machines(handover, "FSDP") | _precision(configuration)
    configuration.accelerate["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_offload_params": layout.offload_parameters,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_activation_checkpointing": False,
    }
    mapper.to(
        "layout.zero",
        f"{ACCELERATE_FILE}: fsdp_config.fsdp_reshard_after_forward",
        how="computed",
        note="FSDP2; whole weights are saved, since the Trainer publishes no sharded ones (trainer.py, save_model)",
    )
    if layout.offload_optimizer != layout.offload_parameters:
        reason = "FSDP2 offloads parameters and optimizer together"
        moved = "layout.offload_optimizer" if layout.offload_optimizer else "layout.offload_parameters"
        mapper.refuse(moved, reason, "offload: none or all, or engine: deepspeed")
    for name in ("offload_optimizer", "offload_parameters"):
        mapper.to(f"layout.{name}", f"{ACCELERATE_FILE}: fsdp_config.fsdp_offload_params", how="computed", note="both")
    sharded, rest = divmod(layout.data, layout.replicas)
    if rest:
        mapper.refuse("layout.replicas", f"{layout.replicas} copies do not divide {layout.data} replicas")
    mapper.to("layout.data", f"{ACCELERATE_FILE}: num_processes", how="computed", note="data * context")
    if layout.replicas == layout.context == 1:
        mapper.same("layout.replicas", 1, "sharded over all accelerators")
        mapper.same("layout.context", 1, "whole sequences")
        return
    degrees = "parallelism_config"
    configuration.accelerate[degrees] = {
        f"{degrees}_dp_replicate_size": layout.replicas,
        f"{degrees}_dp_shard_size": sharded,
        f"{degrees}_tp_size": 1,
        f"{degrees}_cp_size": layout.context,
    }
    for name, key in (("replicas", "dp_replicate_size"), ("context", "cp_size")):
        if is_accelerate:
            mapper.to(f"layout.{name}", f"{ACCELERATE_FILE}: {degrees}.{degrees}_{key}")
        else:
            mapper.same(f"layout.{name}", 1, "planned for the engine accelerate only")
    if layout.context > 1 and not isinstance(handover.stage, PretrainStage | SftStage):
        reason = "TRL shards sequences of its SFTTrainer only"
        mapper.refuse("layout.context", reason, "context: 1")
    if layout.context > 1 and attention(handover) != DEFAULT_ATTENTION:
        reason = f"context parallelism of torch replaces {DEFAULT_ATTENTION} (trainer.py)"
        mapper.refuse("layout.context", reason, f"resources: {{attention: {DEFAULT_ATTENTION}}}")


def _map_deepspeed(configuration: Configuration) -> None:
    mapper, layout, handover = configuration.mapper, configuration.handover.layout, configuration.handover
    _refuse_processors(configuration)
    shards_all = layout.zero is ZeroStage.PARAMETERS
    configuration.accelerate |= _machines(handover, "DEEPSPEED")
    configuration.accelerate["deepspeed_config"] = {
        "deepspeed_config_file": DEEPSPEED_FILE,
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": shards_all,
    }
    zero: dict[str, object] = {"stage": int(layout.zero), "overlap_comm": True, "contiguous_gradients": True}
    if shards_all:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    configuration.deepspeed["zero_optimization"] = zero
    configuration.deepspeed |= {"zero_allow_untested_optimizer": False, "wall_clock_breakdown": False}
    mapper.to("layout.zero", f"{DEEPSPEED_FILE}: zero_optimization.stage")
    mapper.to("layout.data", f"{ACCELERATE_FILE}: num_processes")
    mapper.same("layout.context", 1, "context parallelism needs FSDP2: engine accelerate")
    mapper.same("layout.replicas", 1, "hybrid sharding needs FSDP2: engine accelerate")
    for name, key, least in (
        ("offload_optimizer", "offload_optimizer", ZeroStage.OPTIMIZER),
        ("offload_parameters", "offload_param", ZeroStage.PARAMETERS),
    ):
        moved = bool(getattr(layout, name))
        if moved and layout.zero < least:
            mapper.refuse(f"layout.{name}", f"DeepSpeed offloads this from ZeRO-{int(least)} on", f"zero: {int(least)}")
        zero[key] = {"device": "cpu", "pin_memory": True} if moved else {"device": "none"}
        where = f"{DEEPSPEED_FILE}: zero_optimization.{key}"
        mapper.to(f"layout.{name}", where, how="computed", note="device cpu or none")


def _precision(configuration: Configuration) -> dict[str, object]:
    dtype = str(configuration.mapper.value("stage.dtype"))
    return {"mixed_precision": PRECISIONS[dtype]}


def _refuse_processors(configuration: Configuration) -> None:
    if configuration.handover.is_cpu:
        configuration.refuse_engine(
            "Accelerate starts FSDP2 and DeepSpeed on accelerators; the stage runs on processors",
            "zero: 0 with engine trl or accelerate, or accelerators",
        )
