"""Settings that all of TRL's trainers share: files and backend, steps, checkpoints, optimizer, batches, parallelism.

Read in transformers' TrainingArguments (5.23.0), TRL's ModelConfig (1.16.0), Accelerate's file for DDP, FSDP2 and HSDP
(1.15.0) and DeepSpeed's for ZeRO (0.19.8). Sequences of a layout become rows of a device, whose number has to come out
even.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from charter.engines.common.mapping import FieldMapper, How
from charter.engines.common.request import Handover
from charter.engines.huggingface.capabilities import CAPABILITIES
from charter.errors import Problem
from charter.spec.layout import WHOLE_BITS, Adapter, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import FP8, Optimization, Stage

ACCELERATE_FILE, DEEPSPEED_FILE = "accelerate.yaml", "deepspeed.json"
Backend = Literal["process", "torchrun", "ddp", "fsdp", "deepspeed"]
"""One process; several on processors; several on accelerators: copies (DDP), FSDP2, or DeepSpeed's ZeRO."""


BESIDE = "beside all linear layers but the output, as here"


@dataclass(frozen=True, kw_only=True)
class TrlTrainer:
    """TRL's trainer of a kind of stage, and its differences from the others."""

    script: str = "sft"
    """Of `trl.scripts`; that of reinforcement learning has the name of its estimator."""
    peft_task: str = "CAUSAL_LM"
    peft_saved: tuple[str, ...] | None = None
    """Modules beside the adapter that are trained whole."""
    adapter_note: str = BESIDE
    cut_note: str = "Charter cuts before"
    rate_note: str = ""
    order: str = "rows are read in the order of the file"
    shards_sequences: bool = False
    parts_pairs: bool = False
    """Both answers of a pair are rows of their own."""


AS_IT_BEGAN = f"{BESIDE}; the reference is the model without its adapter, which is where it began, as here"
TRAINERS: Mapping[type[Stage], TrlTrainer] = {
    PretrainStage: TrlTrainer(shards_sequences=True),
    SftStage: TrlTrainer(shards_sequences=True),
    PreferenceModelStage: TrlTrainer(
        script="reward",
        peft_task="SEQ_CLS",
        peft_saved=("score",),
        adapter_note=f"{BESIDE}; the head is trained whole, as here",
    ),
    DpoStage: TrlTrainer(
        script="dpo",
        adapter_note=AS_IT_BEGAN,
        cut_note="TRL cuts the end of a longer pair, here its prompt",
    ),
    PpoStage: TrlTrainer(
        adapter_note=AS_IT_BEGAN,
        rate_note="moves with every update, here with every rollout",
        order="prompts are read in the order of the file, and checkpoints fall between rollouts",
    ),
}
KTO = replace(TRAINERS[DpoStage], script="kto", parts_pairs=True)
"""Of `kind: dpo` with `loss: kto`."""


@dataclass
class Configuration:
    """The settings of TRL's trainer, of Accelerate and of DeepSpeed, and the mapping into them."""

    handover: Handover
    trainer: dict[str, object] = field(default_factory=dict)
    accelerate: dict[str, object] = field(default_factory=dict)
    deepspeed: dict[str, object] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Texts beside the settings, by their names."""
    mapper: FieldMapper = field(init=False)

    def __post_init__(self) -> None:
        self.mapper = FieldMapper(self.handover)

    @property
    def script(self) -> str:
        """Return the script of `trl.scripts` that trains the stage."""
        stage = self.handover.stage
        return stage.estimator if isinstance(stage, PpoStage) else self.kind.script

    @property
    def kind(self) -> TrlTrainer:
        """Return the facts of TRL's trainer of this kind of stage."""
        stage = self.handover.stage
        return KTO if getattr(stage, "loss", "") == "kto" else TRAINERS[type(stage)]

    @property
    def trainer_file(self) -> str:
        """The file of TRL's script."""
        return f"{self.script}.yaml"

    @property
    def backend(self) -> Backend:
        """Return the backend that spreads the model over the processes."""
        layout, engine = self.handover.layout, self.handover.engine
        if engine == "deepspeed":
            return "deepspeed"
        if layout.zero:
            only_optimizer = layout.offload_optimizer and not layout.offload_parameters
            needs_deepspeed = layout.zero is not ZeroStage.PARAMETERS or only_optimizer
            return "deepspeed" if needs_deepspeed and engine == "trl" else "fsdp"
        if self.handover.num_accelerators == 1:
            return "process"
        return "torchrun" if self.handover.is_cpu else "ddp"

    def put(self, settings: Mapping[str, object]) -> None:
        """Settings of the trainer that no field decides, or several do."""
        self.trainer.update(settings)

    def write(self, name: str, settings: Mapping[str, object], *, how: How = "as_is", note: str = "") -> None:
        """Settings of the trainer that one field decides."""
        self.put(settings)
        self.mapper.to(name, *(self.place(key) for key in settings), how=how, note=note)

    def place(self, key: str) -> str:
        """A setting of the trainer as the mapping names it."""
        return f"{self.trainer_file}: {key}"

    def refuse_engine(self, message: str, hint: str) -> None:
        """The engine cannot run the stage at all, whatever its fields say."""
        path = f"pipeline.{self.handover.name}.engine"
        self.mapper.problems.append(Problem(path=path, message=message, hint=hint))


OUTPUT = "output"
"""Below the work directory: checkpoints as `checkpoint-N`, and the final weights."""
DEFAULT_ATTENTION = "sdpa"
LEAST_KEPT = 2
"""While a checkpoint is written the one before it has to stay."""


def attention(handover: Handover) -> str:
    """Implementation of attention; as the native engine chooses it."""
    resources = handover.stage.resources
    return (resources.attention if resources else None) or DEFAULT_ATTENTION


def map_trainer(configuration: Configuration, *, model: str, data: str, updates: int = 1) -> None:
    """All that does not depend on the loss; `updates` optimizer steps make one step of ours."""
    handover, paths = configuration.handover, configuration.handover.paths
    resources = handover.stage.resources
    configuration.put(
        {
            "model_name_or_path": paths.models[model],
            "attn_implementation": attention(handover),
            "datasets": [{"path": "json", "data_files": paths.data[data], "split": "train"}],
            "output_dir": OUTPUT,
            "max_steps": handover.target_steps * updates,
            "save_strategy": "steps",
            "save_total_limit": max(LEAST_KEPT, handover.keep_last + 1),
            "save_only_model": False,
            "logging_strategy": "steps",
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "report_to": "none",
            "disable_tqdm": True,
            "eval_strategy": "no",
            "average_tokens_across_devices": True,
            "dataloader_drop_last": False,
            "ddp_find_unused_parameters": False,
            "torch_compile": bool(resources and resources.compile),
            "use_cpu": handover.is_cpu,
            "push_to_hub": False,
            "trust_remote_code": False,
        }
    )
    if paths.resume_from is not None:
        configuration.put({"resume_from_checkpoint": paths.resume_from})
    mapper = configuration.mapper
    mapper.charter(f"stage.{model}", "directory of its weights, which Charter writes as model_name_or_path")
    mapper.charter(f"stage.{data}", "rows in Charter's own order, all in the file that `datasets` names")
    note = f"counted in updates, {updates} for each rollout" if updates > 1 else ""
    configuration.write(
        "stage.checkpoint_every",
        {"save_steps": handover.stage.checkpoint_every * updates},
        how="computed" if note else "as_is",
        note=note,
    )
    configuration.write("seed", {"seed": handover.seed, "data_seed": handover.seed})


EPSILON = 1e-8
"""Of Adam's denominator, as in `charter.train.optimizers`."""
LOSS_SCALE_POWER, LOSS_SCALE_WINDOW = 16, 2000
"""Of fp16: the first scale as a power of 2, and the updates until it doubles, as in `charter.train.optimizers`."""
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", FP8: "bfloat16"}
"""Of weights; what is computed in 8 bits is refused."""
NO_GUARD = "TRL goes on through a loss that is not finite, and has no guard against jumps"
WARMUP = "in step s the rate is s / warm-up, here (s + 1) / warm-up: TRL's first update has rate 0 (optimization.py)"


def map_optimization(configuration: Configuration, stage: Optimization | PpoStage, *, updates: int = 1) -> None:
    """Learning rate, Adam, precision, adapter; `updates` optimizer steps make one step of ours."""
    write, mapper = configuration.write, configuration.mapper
    write("stage.learning_rate", {"learning_rate": stage.learning_rate})
    _map_schedule(configuration, stage)
    warmup = f"{updates} updates for each rollout; {WARMUP}" if updates > 1 else WARMUP
    write("stage.warmup_steps", {"warmup_steps": stage.warmup_steps * updates}, how="computed", note=warmup)
    decayed = "of all weights but norms and biases (get_decay_parameter_names), here of all but vectors"
    write("stage.weight_decay", {"weight_decay": stage.weight_decay}, note=decayed)
    write("stage.beta1", {"adam_beta1": stage.beta1})
    write("stage.beta2", {"adam_beta2": stage.beta2})
    configuration.put({"adam_epsilon": EPSILON})
    write("stage.gradient_clip", {"max_grad_norm": stage.gradient_clip})
    mapper.same("stage.guard", None, NO_GUARD)
    _map_dtype(configuration, stage.dtype)
    _map_adapter(configuration, stage.adapter, stage.dtype)
    _map_optimizer(configuration, stage)


def _map_schedule(configuration: Configuration, stage: Optimization | PpoStage) -> None:
    ratio, name = stage.min_learning_rate_ratio, "stage.min_learning_rate_ratio"
    by_update = configuration.kind.rate_note
    if stage.schedule == "constant":
        settings: dict[str, object] = {"lr_scheduler_type": "constant_with_warmup"}
        configuration.mapper.charter(name, "decides nothing here: a constant rate does not decay")
    elif stage.schedule == "linear":
        settings = {"lr_scheduler_type": "polynomial"}
        end = {"lr_end": stage.learning_rate * ratio, "power": 1.0}
        note = "learning_rate * ratio, with power 1, is the same line (optimization.py, polynomial decay)"
        if ratio < 1:
            configuration.write(name, {"lr_scheduler_kwargs": end}, how="computed", note=note)
        else:
            configuration.mapper.refuse(name, "its polynomial decay has to end below the peak", "schedule: constant")
    else:
        settings = {"lr_scheduler_type": "cosine_with_min_lr"}
        configuration.write(
            name, {"lr_scheduler_kwargs": {"min_lr_rate": ratio}}, how="computed", note="under the name min_lr_rate"
        )
    note = "; ".join(part for part in (f"{stage.schedule} in transformers' name", by_update) if part)
    configuration.write("stage.schedule", settings, how="computed", note=note)


def _map_dtype(configuration: Configuration, dtype: str) -> None:
    if dtype == "fp16" and configuration.handover.is_cpu:
        configuration.mapper.refuse("stage.dtype", "Accelerate has no fp16 on processors", "dtype: bf16")
    if dtype == FP8:
        configuration.mapper.refuse(
            "stage.dtype", CAPABILITIES[configuration.handover.engine].without_fp8, "dtype: bf16"
        )
    note = "autocast; weights and optimizer stay in fp32, since ModelConfig's dtype is float32"
    if configuration.backend == "deepspeed":
        is_half = dtype == "fp16"
        configuration.deepspeed["bf16"] = {"enabled": dtype == "bf16"}
        configuration.deepspeed["fp16"] = {"enabled": is_half} | (
            {
                "loss_scale": 0,
                "initial_scale_power": LOSS_SCALE_POWER,
                "loss_scale_window": LOSS_SCALE_WINDOW,
                "hysteresis": 1,
                "min_loss_scale": 1,
            }
            if is_half
            else {}
        )
        if dtype != "fp32":
            note = "DeepSpeed trains 16-bit weights beside an fp32 copy, and publishes the 16-bit ones; "
            note += "gradients of micro-batches are added in 16 bits, here in 32 (grad_accum_dtype is left out)"
    precision = {"bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    configuration.write("stage.dtype", precision, how="computed", note=note)


def _map_adapter(configuration: Configuration, adapter: Adapter | None, dtype: str) -> None:
    configuration.put({"dtype": TORCH_DTYPES["fp32"]})
    if adapter is None:
        configuration.write("stage.adapter", {"use_peft": False}, how="computed", note="all weights are trained")
        return
    is_unquantised = adapter.base_bits == WHOLE_BITS
    if not is_unquantised and configuration.handover.layout.zero:
        configuration.mapper.refuse(
            "stage.adapter", "a base in 8 or 4 bits is not sharded", "zero: 0, or base_bits: 16"
        )
    if adapter.base_bits not in (4, 8, WHOLE_BITS):
        configuration.mapper.refuse("stage.adapter", "bitsandbytes has 8 and 4 bits")
    kind = configuration.kind
    if not is_unquantised:
        configuration.put({"dtype": TORCH_DTYPES[dtype]})
    configuration.write(
        "stage.adapter",
        {
            "use_peft": True,
            "lora_r": adapter.rank,
            "lora_alpha": adapter.alpha,
            "lora_dropout": 0.0,
            "lora_target_modules": ["all-linear"],
            "lora_task_type": kind.peft_task,
            "lora_modules_to_save": None if kind.peft_saved is None else list(kind.peft_saved),
            "load_in_4bit": adapter.base_bits == 4,
            "load_in_8bit": adapter.base_bits == 8,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": False,
        },
        how="computed",
        note=f"{kind.adapter_note}; TRL keeps the matrices of a quantised base in bf16",
    )


def _map_optimizer(configuration: Configuration, stage: Optimization | PpoStage) -> None:
    if stage.optimizer == "adamw":
        note = "fused AdamW of torch; DeepSpeed's own where the optimizer is offloaded"
        configuration.write("stage.optimizer", {"optim": "adamw_torch_fused"}, how="computed", note=note)
    elif configuration.backend in ("fsdp", "deepspeed"):
        reason = "bitsandbytes' 8-bit Adam works on whole parameters"
        configuration.mapper.refuse("stage.optimizer", reason, "zero: 0, or optimizer: adamw")
    else:
        configuration.write(
            "stage.optimizer", {"optim": "adamw_bnb_8bit"}, how="computed", note="AdamW8bit of bitsandbytes"
        )


def map_batches(configuration: Configuration, *, batch: int, field: str) -> int:
    """Rows of a device and their accumulation, so that exactly `batch` rows make an update; returns rows of a device.

    The layout counts sequences, of which a pair has two; TRL counts pairs, and answers where each is a row.
    """
    handover, mapper = configuration.handover, configuration.mapper
    layout, sequences = handover.layout, batch * handover.stage.SEQUENCES_PER_ROW
    each = 1 if configuration.kind.parts_pairs else handover.stage.SEQUENCES_PER_ROW
    rows, half = divmod(layout.micro_batch, each)
    if half:
        mapper.refuse("layout.micro_batch", "TRL never parts a pair", f"a multiple of {each}")
        rows += 1
    accumulation, rest = divmod(sequences // each, rows * layout.data)
    if rest or accumulation != layout.accumulation:
        mapper.refuse(
            "layout.accumulation",
            f"micro_batch {layout.micro_batch} * accumulation {layout.accumulation} * data {layout.data} is not the "
            f"{sequences} sequences of {field} {batch}, and TRL has no smaller last micro-batch",
            f"a micro_batch that divides the share of each replica, {sequences / layout.data:g} sequences",
        )
    note = "pairs" if each > 1 else "sequences"
    configuration.write("layout.micro_batch", {"per_device_train_batch_size": rows}, how="computed", note=f"in {note}")
    configuration.write("layout.accumulation", {"gradient_accumulation_steps": layout.accumulation})
    mapper.to(
        f"stage.{field}",
        configuration.place("per_device_train_batch_size"),
        configuration.place("gradient_accumulation_steps"),
        how="computed",
        note="rows of a device * accumulation * replicas",
    )
    configuration.deepspeed |= {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": layout.accumulation,
        "train_batch_size": sequences // each,
    }
    return rows


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
    if layout.context > 1 and not configuration.kind.shards_sequences:
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
