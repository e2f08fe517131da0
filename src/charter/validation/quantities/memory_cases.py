"""The training job behind a measured row of memory, every gap filled by a rule that holds for other sources too."""

import math
import re
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.engines import rl_engines
from charter.physics.columns import array
from charter.physics.kept_activations import every_second_product
from charter.physics.memory_profiles import (
    COMPOSER,
    DEEPSPEED,
    DEEPSPEED_ALONE,
    DEEPSPEED_DIRECT,
    FROZEN_WEIGHT_BYTES,
    FSDP,
    HUGGINGFACE,
    INTERNEVO,
    INTERNEVO_FSDP,
    LINEAR,
    LITGPT,
    MAXTEXT,
    MEGATRON_DEEPSPEED,
    MEGATRON_DEEPSPEED_BF16,
    MEGATRON_STACK,
    NANOTRON,
    NATIVE,
    OF_ENGINES,
    OWN_LOSSES,
    TORCHTITAN,
    TORCHTUNE,
    UNSLOTH,
    AdapterUse,
    CrossEntropy,
    MemoryJob,
    MemoryProfile,
)
from charter.physics.precision import (
    FP32,
    FSDP_MIXED,
    MEGATRON,
    PURE_BF16,
    ZERO_PAPER,
    TrainingPrecision,
    with_optimizer,
)
from charter.physics.shapes import count_parameters
from charter.physics.step_seconds import layers_by_cost
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.validation.quantities.training_time import COMPILED_PARTIAL, PARTIAL, micro_batch_of_habit
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import BYTES_PER_VALUE, Measurement, Refusal
from charter.validation.rows.memory_texts import optimizer_in, probe_in
from charter.validation.rows.metrics import algorithm_of, compares_pairs, needs_reference, unit_bytes
from charter.validation.stacks import printed_zero, shard_group

_BY_WORD: tuple[tuple[str, MemoryProfile], ...] = (
    (r"\bcharter\b", NATIVE),
    (r"lit-?gpt|lightning", LITGPT),
    (r"unsloth", UNSLOTH),
    (r"torchtune", TORCHTUNE),
    (r"nanotron", NANOTRON),
    (r"internevo|internlm", INTERNEVO),
    (r"maxtext|levanter", MAXTEXT),
    (r"torchtitan", TORCHTITAN),
    (r"megatron[- ]?deepspeed|gpt-neox", MEGATRON_DEEPSPEED),
    (r"megatron|nemo(?![- ]?rl)|simumax|slime", MEGATRON_STACK),
    *((rf"\b{name.replace('_', '[- ]?')}", OF_ENGINES[engine.does.memory]) for name, engine in rl_engines().items()),
    (r"areal|roll\b", FSDP),
    (r"^hf deepspeed", DEEPSPEED_ALONE),
    (r"deepspeed[- ]?chat", DEEPSPEED_DIRECT),
    (r"deepspeed|trlx|colossal", DEEPSPEED),
    (r"composer|foundry", COMPOSER),
    (r"fsdp|olmo", FSDP),
    (r"trainer|trl|peft|axolotl|llama-?factory|transformers|hugging|accelerate|swift|xtuner|firefly", HUGGINGFACE),
)


def profile_of(row: Measurement) -> MemoryProfile:
    """The nearest profile: by words in the framework, else by how the row shards.

    >>> profile_of(Measurement(id="X-1", metric="peak_mem_gb", value=1.0, framework="Axolotl 0.8")).name
    'huggingface'
    >>> profile_of(Measurement(id="X-1", metric="peak_mem_gb", value=1.0, framework="in-house", shard="zero3")).name
    'deepspeed'
    """
    text, shard = row.framework.lower(), row.shard.lower()
    parallel = (row.tp or 1) > 1 or (row.pp or 1) > 1
    named = next((profile for words, profile in _BY_WORD if re.search(words, text)), None)
    if named is MEGATRON_DEEPSPEED and row.dtype.startswith("bf16"):
        return MEGATRON_DEEPSPEED_BF16
    if named is not None and named.name == FSDP.name and parallel and _of_megatron(row):
        return MEGATRON_STACK
    if named is HUGGINGFACE and shard.startswith(("zero2", "zero3")) and _steps_on_weights(row):
        return FSDP
    if named is HUGGINGFACE and (shard.startswith("zero") or _has_master(row)):
        return DEEPSPEED
    if named is INTERNEVO and "fsdp" in shard:
        return INTERNEVO_FSDP
    if named is HUGGINGFACE and "fsdp" in shard:
        return FSDP
    if named in (DEEPSPEED, DEEPSPEED_DIRECT, DEEPSPEED_ALONE) and parallel:
        return MEGATRON_DEEPSPEED
    if named is DEEPSPEED and not shard and (row.gpus or 1) == 1 and row.adapter in ("lora", "adapter"):
        return HUGGINGFACE
    if named is not None:
        return named
    if parallel or "dist" in shard:
        return MEGATRON_STACK
    if shard.startswith("zero") and not _steps_on_weights(row):
        return DEEPSPEED
    sharded = "fsdp" in shard or shard.startswith("zero")
    return FSDP if sharded or (row.gpus or 1) > 8 else HUGGINGFACE


def _of_megatron(row: Measurement) -> bool:
    """Return True if a trainer that knows both runs Megatron: FSDP has no pipeline, and always shards weights."""
    return (row.pp or 1) > 1 or printed_zero(row.shard) in (ZeroStage.NONE, ZeroStage.OPTIMIZER)


def _steps_on_weights(row: Measurement) -> bool:
    """Return True if the optimizer updates the weights themselves, of which DeepSpeed's ZeRO keeps a 32-bit copy."""
    full = row.adapter in ("", "full") and row.kind != "lora"
    return full and row.master_dtype == "none" and row.parameter_dtype in BYTES_PER_VALUE


def _has_master(row: Measurement) -> bool:
    """Return True if 16-bit weights, or adapters with 16-bit gradients, have a 32-bit master: DeepSpeed keeps one, the
    Trainer's own optimizer none."""
    full = row.adapter in ("", "full") and row.kind != "lora"
    trained = row.parameter_dtype if full else row.gradient_dtype
    return trained in ("bf16", "fp16") and row.master_dtype == "fp32"


def precision_of(row: Measurement, profile: MemoryProfile) -> TrainingPrecision:
    """Bytes per trained parameter, with the optimizer that the notes name.

    Copies of embedding and head that are trained beside adapters keep the 16-bit type of the model (`modules_to_save`).
    Blank: Megatron keeps fp32 gradients and a master copy, DeepSpeed 16-bit gradients, torchtune, litgpt and Unsloth
    everything in 16 bits, the rest fp32 weights under autocast.
    """
    dtype = row.dtype.lower()
    sixteen = (
        profile.name in ("torchtune", "litgpt", "unsloth"),
        re.search(r"bf16-true|16-true|pure", dtype),
        row.adapter == "qlora" and not row.framework,
        _of_qlora(row),
    )
    if profile.name in ("megatron", "nanotron"):
        base = MEGATRON
    elif profile.name in ("deepspeed", "megatron-deepspeed", "internevo"):
        base = ZERO_PAPER
    else:
        base = PURE_BF16 if any(sixteen) else FSDP_MIXED
    if re.search(r"[ft]p?32|float32|32-true", dtype) and "16" not in dtype:
        base = FP32
    return typed_states(row, with_optimizer(base, optimizer_of(row, profile)))


def typed_states(row: Measurement, habit: TrainingPrecision) -> TrainingPrecision:
    """Bytes per trained parameter from the typed columns; each that is unknown or blank as the stack's habit has it.

    `bytes = parameter + gradient + 2 moments + master`; the frozen base of adapters is `parameter_dtype`, so what is
    trained beside it has the type of its gradient (autograd gives it no other) or, under a master copy, the habit's.

    >>> columns = {"parameter_dtype": "bf16", "gradient_dtype": "none", "optimizer_dtype": "int8"}
    >>> row = Measurement(id="X-1", metric="peak_mem_gb", value=1.0, master_dtype="none", **columns)
    >>> typed_states(row, FSDP_MIXED).state_bytes
    4.0
    """
    full = row.adapter in ("", "full") and row.kind != "lora"
    gradient = BYTES_PER_VALUE.get(row.gradient_dtype)
    master = BYTES_PER_VALUE.get(row.master_dtype)
    parameter = BYTES_PER_VALUE.get(row.parameter_dtype) if full else (gradient or None) if master == 0 else None
    moments = [BYTES_PER_VALUE.get(name) for name in row.optimizer_dtype.split("+")]
    typed = [value for value in moments if value is not None]
    if parameter is None and gradient is None and master is None and not typed:
        return habit
    states = sum(typed) * (2 if len(moments) == 1 else 1) if len(typed) == len(moments) else None
    kept_master = habit.master_bytes if master is None else master
    kept_states = habit.optimizer_bytes - habit.master_bytes if states is None else states
    return replace(
        habit,
        name="as typed",
        parameter_bytes=habit.parameter_bytes if parameter is None else parameter,
        gradient_bytes=habit.gradient_bytes if gradient is None else gradient,
        optimizer_bytes=kept_master + kept_states,
        master_bytes=kept_master,
        source="typed columns of the row",
    )


def optimizer_of(row: Measurement, profile: MemoryProfile) -> str:
    """The optimizer that notes, framework or offload name; else Adam, of 8 bits under Unsloth.

    Paged state is taken to be in host memory; projections and block-wise methods (GaLore, BAdam, LOMO) keep about as
    little as Adafactor. A bare "8-bit" means the optimizer where everything is trained; with adapters it is the base.

    >>> from charter.physics.memory_profiles import HUGGINGFACE
    >>> row = Measurement(id="X-1", metric="peak_mem_gb", value=1.0, notes="bs 2, adamw_8bit, fp16")
    >>> optimizer_of(row, HUGGINGFACE)
    'adam8bit'
    """
    text = f"{row.notes} | {row.framework} | {row.offload}".lower()
    named = optimizer_in(text)
    bare = row.adapter in ("", "full") and row.kind not in ("lora", "inference") and re.search(r"\b8-?bit\b", text)
    habit = "paged" if _of_qlora(row) else "adam8bit" if profile.name == "unsloth" or bare else "adam"
    return named or habit


def _of_qlora(row: Measurement) -> bool:
    """Return True for the script of QLoRA's paper: rank 64, no dropout, adapters in 16 bits and a paged AdamW."""
    return re.match(r"qlora\b", row.framework.lower()) is not None


def probe_of(row: Measurement, profile_name: str) -> tuple[bool, bool]:
    """Return whether a figure counts reserved memory, and whether it counts the context.

    By `memory_probe`; where that is unknown litgpt, torchtune and SimuMax read torch's allocated peak, Unsloth and
    nanotron the reserved one, and the rest `nvidia-smi`.
    """
    probe = row.memory_probe or probe_in(row.unit, row.notes)
    if probe != "unknown":
        return probe in ("nvidia_smi", "reserved"), probe == "nvidia_smi"
    if profile_name in ("litgpt", "torchtune", "torchtitan", "maxtext"):
        return False, False
    if profile_name in ("unsloth", "nanotron"):
        return True, False
    return True, True


BASE_BYTES: tuple[tuple[str, float], ...] = (
    (r"nf4-?dq|dq|double", FROZEN_WEIGHT_BYTES[4]),
    (r"bnb\.?nf4$|nf4$", 0.5 + 4 / 64),
    (r"int8|8-?bit(?![- ]*(adam|optim))", FROZEN_WEIGHT_BYTES[8]),
    (r"gptq|awq|int4|4-?bit|nf4|fp4|qlora", 0.5 + 2.5 / 128),
)
"""Bytes per frozen weight by how the base is stored, with scales."""
TYPED_BASES = ("fp32", "nf4", "fp8", "mxfp8", "mxfp4", "nvfp4", "fp4")
"""Typed formats of a frozen base whose bytes are known; integers have scales as their tool has them (`BASE_BYTES`)."""
SHORT_SEQUENCE, LONG_SEQUENCE = 512, 2048
"""Tokens where a source does not say: instruction data under adapters, packed text otherwise."""
SMALL_MODEL = 2e9
"""Below so many parameters full training seldom recomputes."""


@dataclass(frozen=True, kw_only=True)
class MemoryCase:
    """A row as a job and a layout."""

    job: MemoryJob
    layout: Layout
    unit: float
    """Bytes of the row's unit."""
    devices: float
    """Devices whose memory the figure adds up."""
    extra_bytes: float = 0.0
    """Weights and states of other models on the device (PPO)."""
    bound_bytes: float = 0.0
    """What the row says as an upper bound (`peak_mem_gb_upper`): any smaller need agrees with it."""
    most_bytes: float = math.inf
    """What a device of a run that printed its peak can have held."""
    first_stage: bool = False
    """Whether the figure is that of the first pipeline stage, not of the fullest (nanotron: `log_throughput`)."""


def training_case(row: Measurement) -> MemoryCase:
    """The case of a row. Raises Refusal with the reason."""
    architecture, accelerator = architecture_of(row), device_of(row)
    profile = with_kernels(row, _begun(profile_of(row), architecture, accelerator))
    if profile.name in ("huggingface", "deepspeed"):
        profile = _of_trainer(row, profile, architecture)
    adapter = adapter_of(row, profile)
    reserved, context = probe_of(row, profile.name)
    size = float(count_parameters(architecture).total)
    fp8 = profile.name == "megatron" and re.search(r"fp8|fp4|e4m3", row.dtype.lower()) is not None
    job = MemoryJob(
        architecture=architecture,
        seq_len=sequence_of(row, adapter is not None),
        precision=states_that_fit(row, profile, accelerator, size),
        profile=profile,
        adapter=adapter,
        head="scalar" if row.kind == "rm" else "lm",
        fused_attention=fused_attention(row, accelerator),
        fp8=fp8,
        fp8_copies=0.0 if not fp8 or re.search(r"nemo|bridge", row.framework.lower()) else 2.0,
        accelerator=accelerator,
        reserved=reserved,
        context=context,
        recompute_share=recompute_share(row, profile, architecture),
        cross_entropy=loss_kernel(row, profile, architecture),
        end_layers=end_layers(row, profile, architecture),
        loads_all_kernels=re.match(r"20(1\d|2[0-2])", row.stack_version) is not None,
    )
    layout = layout_of(row, profile, size, adapter is not None)
    unit = unit_bytes(row, profile.name)
    return MemoryCase(
        job=job,
        layout=layout,
        unit=unit,
        bound_bytes=row.value * unit if row.is_bound else 0.0,
        devices=float(row.gpus or 1) if row.metric.endswith("_total") else 1.0,
        extra_bytes=_other_roles(row, profile, size) if row.kind == "ppo" else _reference(row, job, layout, size),
        # An upper bound names the device, not a peak.
        most_bytes=accelerator.memory_bytes if accelerator and row.metric != "oom" and not row.is_bound else math.inf,
        first_stage=profile is NANOTRON,
    )


def states_that_fit(
    row: Measurement, profile: MemoryProfile, accelerator: Accelerator | None, size: float
) -> TrainingPrecision:
    """The precision of the stack; pure 16 bits where a run of a plain stack that ran could not have held more.

    Trainer and FSDP train fp32 weights or 16-bit ones, and sources seldom say which.
    """
    precision = precision_of(row, profile)
    open_choice = precision is FSDP_MIXED and profile.name in ("huggingface", "fsdp") and row.adapter in ("", "full")
    ran = row.metric != "oom" and row.kind != "lora" and row.parameter_dtype in ("", "unknown")
    if not (open_choice and ran and accelerator):
        return precision
    shards = row.gpus or 1 if zero_of(row, profile, size, adapter=False) >= ZeroStage.PARAMETERS else 1
    return PURE_BF16 if precision.state_bytes * size / shards > accelerator.memory_bytes else precision


def offloads_activations(row: Measurement, profile: MemoryProfile) -> bool:
    """As printed; Unsloth keeps layer inputs in host memory unless told otherwise."""
    return "activations" in row.offload.lower() or (profile.name == "unsloth" and row.recompute in ("", "unsloth"))


def device_of(row: Measurement) -> Accelerator | None:
    """The accelerator; memory hardly depends on it, so an unknown one is no reason to refuse."""
    try:
        return accelerator_of(row)
    except Refusal:
        return None


def sequence_of(row: Measurement, adapter: bool) -> float:
    """Tokens of a padded or packed sequence; of a policy's answers the longest decides, which their limit cuts."""
    if row.seq:
        return float(row.seq)
    if row.kind == "ppo" and row.response_tokens_cap:
        return float((row.isl or 0) + row.response_tokens_cap)
    if row.isl or row.osl:
        return float((row.isl or 0) + (row.osl or 0))
    return float(SHORT_SEQUENCE if adapter else LONG_SEQUENCE)


def fused_attention(row: Measurement, accelerator: Accelerator | None) -> bool:
    """Return True if attention is fused; blank: yes, on devices whose kernels exist (not V100, T4) and since 2023."""
    if row.flash is not None:
        return bool(row.flash)
    old = accelerator is not None and accelerator.year < 2020
    return not old and not re.search(r"20(19|20|21|22)", row.framework)


def _begun(profile: MemoryProfile, architecture: Architecture, accelerator: Accelerator | None) -> MemoryProfile:
    """The profile of a model that is divided as it is made, where it would not stand whole on a device."""
    room = 0.9 * accelerator.memory_bytes if accelerator else 0.0
    divided = 2.0 * count_parameters(architecture).total > room
    return replace(profile, starts_whole=False) if profile.starts_whole and divided else profile


def with_kernels(row: Measurement, profile: MemoryProfile) -> MemoryProfile:
    """A chunked loss over Hugging Face's classes is Liger's, which by default also fuses norms, rotary embedding and
    the gated MLP (linkedin/Liger-Kernel, `apply_liger_kernel_to_*`).
    """
    has_liger = row.logits_kernel == "chunked" and profile.cross_entropy not in ("chunked", *OWN_LOSSES)
    fused = has_liger and profile.implementation == "huggingface"
    return replace(profile, implementation="triton", cross_entropy="liger") if fused else profile


KEEP_SIXTEEN = ("opt", "gpt2", "gpt_neox", "bloom", "falcon", "mpt", "qwen")
"""Model types whose classes hand 16-bit logits to the loss (modeling files of transformers before 4.45, and Qwen's of
2023); those of the Llama family upcast them. Autocast upcasts in any case, DeepSpeed's 16-bit training does not."""


def _of_trainer(row: Measurement, profile: MemoryProfile, architecture: Architecture) -> MemoryProfile:
    """The Trainer's profile by the class of the model and the year of torch.

    Classes that do not upcast make a 16-bit copy of the logits, shifted by a position, before a loss in 32 bits casts
    it. Adam of torch 2.0 makes a second list of what it divides by (`_multi_tensor_adamw`, `denom`); later releases add
    in place.
    """
    copied = 2.0 * (architecture.model_type in KEEP_SIXTEEN)
    old = profile.name == "huggingface" and re.match(r"20(1\d|2[0-3])", row.stack_version)
    lists = 2 if old else 1
    return replace(profile, freed_logits=copied, step_bytes=lists * profile.step_bytes)


def loss_kernel(row: Measurement, profile: MemoryProfile, architecture: Architecture) -> CrossEntropy | None:
    """The loss by `logits_kernel`, in the stack's own form where that is of this kind; None: the stack's habit.

    `full` says that the logits of a micro-batch are there at once, as they are where a stack's loss overwrites them
    (Composer: else all but the largest of MPT's published batches would not fit), or one 32-bit copy of them (Megatron,
    `_VocabParallelCrossEntropy`). litgpt's `chunked` is a list of chunks that are all there until the backward pass.
    """
    own: dict[str, tuple[CrossEntropy, ...]] = {
        "full": ("eager", "released", "sharded", "native", "inplace", "compiled", "scaled"),
        "fused": ("fused", "inplace", "compiled", "native"),
        "chunked": ("chunked", "liger", "blocks", *OWN_LOSSES) + (("native",) if profile is LITGPT else ()),
    }
    sixteen = profile.name == "deepspeed" and _has_master(row) and architecture.model_type in KEEP_SIXTEEN
    if sixteen and row.logits_kernel == "full":
        return "shifted"
    kinds = own.get("fused" if profile.name == "megatron" and row.logits_kernel == "full" else row.logits_kernel)
    return None if kinds is None or profile.cross_entropy in kinds else kinds[0]


def adapter_of(row: Measurement, profile: MemoryProfile) -> AdapterUse | None:
    """Adapters of a row: rank 16, all linear layers and dropout where neither source nor habit of the stack says."""
    text = f"{row.dtype} {row.notes} {row.adapter}".lower()
    if row.adapter in ("", "full") and row.kind != "lora":
        return None
    printed = re.search(r"trainable params:? ([\d,]+)", text)
    second = "norms" in row.extras or re.search(r"adapter_?v2|ia3", row.adapter) is not None
    first = row.adapter == "adapter" and not second
    lean = profile.name in ("native", "unsloth", "torchtune", "megatron", "torchtitan", "maxtext")
    factory = re.search(r"llama-?factory", row.framework.lower()) is not None  # its `lora_dropout` is 0, its rank 8
    narrow = profile.name == "litgpt" or re.search(r"q_proj[^a-z]+v_proj|\bq,? ?v\b|attention only", text)
    rank = 64 if _of_qlora(row) else 8 if narrow or factory else 16
    targets = frozenset(("norms",)) if second else frozenset(("q", "v")) if narrow else LINEAR
    return AdapterUse(
        rank=row.lora_rank or rank,
        base_bytes=base_bytes(row, profile),
        targets=frozenset() if first else targets,
        dropout=not (lean or factory or _of_qlora(row)) and row.adapter != "adapter",
        trains_ends="ends" in row.extras,
        quantises_head=profile.name == "litgpt",
        trained=float(printed[1].replace(",", "")) if printed else None,
        scaled_outputs=second,
        prefixed=profile.name == "litgpt" and row.adapter.startswith("adapter"),
    )


def base_bytes(row: Measurement, profile: MemoryProfile) -> float:
    """Bytes per frozen weight: by the dtype as printed; QLoRA without one is nf4 with double quantisation.

    So is the typed `nf4`, as in QLoRA's paper and in torchao's NF4 tensors, but for litgpt, whose `bnb.nf4` is plain.
    """
    if row.parameter_dtype in TYPED_BASES and not (row.parameter_dtype == "nf4" and profile is LITGPT):
        return BYTES_PER_VALUE[row.parameter_dtype]
    dtype = row.dtype.lower()
    for words, size in BASE_BYTES:
        if re.search(words, dtype):
            return size
    return FROZEN_WEIGHT_BYTES[4 if row.adapter == "qlora" else 16]


def layout_of(row: Measurement, profile: MemoryProfile, size: float, adapter: bool) -> Layout:
    """Parallel degrees of a row; the data-parallel one from the number of devices where it is blank."""
    tensor, pipeline, context = row.tp or 1, row.pp or 1, row.cp or 1
    data = row.dp or max(1, (row.gpus or 1) // (tensor * pipeline * context))
    habit = micro_batch_of_habit(profile.name, pipeline, row.gbs / data) if row.gbs else None
    read = max(1.0, row.mbs or habit or 1.0)
    micro = read * (2 if row.kind == "rm" or compares_pairs(row) else 1)
    steps = row.gbs / (read * data) if row.gbs else (8.0 * (pipeline > 1) or 1.0)
    offload = row.offload.lower()
    return Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert_parallel(row, data * context),
        sequence_parallel=_sequence_parallel(row, profile),
        zero=zero_of(row, profile, size, adapter),
        replicas=max(1, int(data * context * tensor / shard_group(row, device_of(row)))),
        micro_batch=max(1, round(micro)),
        accumulation=max(1, round(steps)),
        recompute=recompute_of(row, profile, size, adapter),
        interleave=row.vpp or 1,
        offload_optimizer="optim" in offload,
        offload_parameters="param" in offload,
        offload_activations=offloads_activations(row, profile),
    )


def end_layers(row: Measurement, profile: MemoryProfile, architecture: Architecture) -> tuple[int, int] | None:
    """Layers of the first and the last pipeline stage where embedding and head count as layers of theirs.

    Megatron-DeepSpeed does so under `--pp-partition-method 'type:transformer|embedding'`: then two more than the number
    of layers, and not that number, can be divided among the stages.
    """
    stages, layers = row.pp or 1, architecture.num_layers
    if profile is NANOTRON and stages > 1:
        return _by_cost(architecture, stages)
    counted = profile.name == "megatron-deepspeed" and stages > 1 and layers % stages and not (layers + 2) % stages
    return ((layers + 2) // stages - 1,) * 2 if counted else None


def _by_cost(a: Architecture, stages: int) -> tuple[int, int]:
    """Layers of the first and the last stage as nanotron divides them (`get_block_compute_costs`)."""
    layer = 4 * a.num_heads * a.head_size * a.hidden_size + 3 * a.intermediate_size * a.hidden_size
    first, last = layers_by_cost(array(a.num_layers), array(stages), array(a.vocab_size * a.hidden_size / layer))
    return int(first), int(last)


def expert_parallel(row: Measurement, group: int) -> int:
    """Ranks over which experts are spread; a degree beyond the data-parallel group takes the tensor-parallel one in
    (experts are then not split by tensor parallelism, so the degree is written per tensor-parallel rank)."""
    degree = row.ep or 1
    return degree if degree <= group else max(1, min(degree // (row.tp or 1), group))


def _sequence_parallel(row: Measurement, profile: MemoryProfile) -> bool:
    if row.seqpar is not None:
        return bool(row.seqpar)
    habit = profile.name in ("megatron", "nanotron") and (row.tp or 1) > 1
    return "sp" in row.recompute.split("+") or habit


def zero_of(row: Measurement, profile: MemoryProfile, size: float, adapter: bool) -> ZeroStage:
    """Return the ZeRO stage; blank: all under FSDP, the optimizer under Megatron, under DeepSpeed what a job needs.

    On one device nothing is shared, whatever the stage; DeepSpeed's buffers are those of its usual one, the second.
    """
    printed = printed_zero(row.shard)
    if printed is ZeroStage.NONE and profile.name == "deepspeed" and (row.gpus or 1) == 1:
        return ZeroStage.GRADIENTS
    if printed is not None:
        return printed
    if profile.name in ("fsdp", "composer", "torchtitan", "maxtext", "torchtune"):
        return ZeroStage.PARAMETERS
    if profile.name == "deepspeed":
        return ZeroStage.PARAMETERS if not adapter and size > SMALL_MODEL else ZeroStage.GRADIENTS
    modern = profile.name == "megatron" and not re.search(r"20(19|20|21|22)", row.framework)
    return ZeroStage.OPTIMIZER if modern or profile.name == "megatron-deepspeed" else ZeroStage.NONE


def recompute_of(row: Measurement, profile: MemoryProfile, size: float, adapter: bool) -> Recompute:
    """Return the recomputation, by the column or the habit of the stack.

    Blank: everything in fine-tuning of all but small models (as the scripts of Trainer, TRL, axolotl, LLaMA-Factory,
    torchtune and Unsloth ship) and in updates of reinforcement learning (verl, slime), attention where Megatron
    pre-trains, nothing in litgpt on one device.
    """
    mode = row.recompute.lower()
    if re.search(r"full|partial|block|uniform|layer|checkpoint|^yes|true|unsloth|^1$", mode):
        return Recompute.FULL
    if "selective" in mode or "attn" in mode:
        return Recompute.FULL if profile.name in ("torchtitan", "maxtext") else Recompute.SELECTIVE
    if mode:
        return Recompute.NONE
    if profile.name == "megatron" and row.kind != "ppo":
        return Recompute.SELECTIVE
    if profile.name == "litgpt":
        return Recompute.FULL if row.shard else Recompute.NONE
    small = not adapter and size < SMALL_MODEL
    return Recompute.NONE if small else Recompute.FULL


def recompute_share(row: Measurement, profile: MemoryProfile, architecture: Architecture) -> float:
    """Share of the layers recomputed where a block of them is named: `block 4`, `full (10 layers)`.

    torchtitan's selective policies repeat every n-th layer (`selective 2`), or all of every layer but attention and
    every second product (`every_second_product`).
    """
    every = re.search(r"selective[-_ :]*(\d+)?", row.recompute.lower())
    if every and re.search(r"torchtitan", row.framework.lower()):
        return 1 / int(every[1]) if every[1] else every_second_product(architecture)
    if row.recompute == "partial":
        return COMPILED_PARTIAL if profile is MAXTEXT else PARTIAL
    block = re.search(r"(?:block|full|layers?)\D{0,6}(\d+)", row.recompute.lower())
    if not block or not re.search(r"block|layer", row.recompute.lower()):
        return 1.0
    return min(1.0, int(block[1]) * (row.pp or 1) * (row.vpp or 1) / architecture.num_layers)


def _reference(row: Measurement, job: MemoryJob, layout: Layout, size: float) -> float:
    """A frozen copy that scores answers (DPO, KTO), as large and as divided as the weights; beside adapters none."""
    if not needs_reference(row) or job.adapter is not None:
        return 0.0
    shards = layout.data * layout.context // layout.replicas if layout.zero >= ZeroStage.PARAMETERS else 1
    return job.precision.parameter_bytes * size / (layout.tensor * layout.pipeline * shards)


def _other_roles(row: Measurement, profile: MemoryProfile, size: float) -> float:
    """Reference and reward model in 16 bits, value model trained, an average of the policy where the notes name one.

    Where nobody says how large they are, an algorithm with a value model has all of the policy's size, another neither.
    """
    usual = size if algorithm_of(row).critic else 0.0
    critic = usual if row.critic_params_b is None else 1e9 * row.critic_params_b
    reward = critic if row.reward_params_b is None else 1e9 * row.reward_params_b
    split = (row.tp or 1) * (row.pp or 1) * (row.ep or 1)
    data = max(1, row.dp or (row.gpus or 1) // split)
    stage = zero_of(row, profile, size, adapter=False)
    weights, gradients, moments = (
        bytes_each / split / (data if stage >= once else 1)
        for bytes_each, once in ((2.0, ZeroStage.PARAMETERS), (2.0, ZeroStage.GRADIENTS), (12.0, ZeroStage.OPTIMIZER))
    )
    average = weights * size if "average" in row.extras else 0.0
    return weights * (size + critic + reward) + (gradients + moments) * critic + average
