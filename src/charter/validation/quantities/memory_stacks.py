"""Memory profile of a printed framework, and how a source like it reads memory."""

import re
from dataclasses import replace

from charter.physics.memory_profiles import (
    COMPOSER,
    DEEPSPEED,
    FSDP,
    HUGGINGFACE,
    LITGPT,
    MEGATRON_DEEPSPEED,
    MEGATRON_STACK,
    NATIVE,
    TORCHTITAN,
    TORCHTUNE,
    UNSLOTH,
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
from charter.units import GB, GIB, MIB
from charter.validation.rows.measurement import Measurement
from charter.validation.rows.typed import BYTES_PER_VALUE, probe_in

# InternEvo's hybrid ZeRO optimizer is Colossal-AI's: like DeepSpeed's it steps on flat 32-bit gradients.
_BY_WORD: tuple[tuple[str, MemoryProfile], ...] = (
    (r"\bcharter\b", NATIVE),
    (r"lit-?gpt|lightning", LITGPT),
    (r"unsloth", UNSLOTH),
    (r"torchtune", TORCHTUNE),
    (r"torchtitan|maxtext|levanter|nanotron", TORCHTITAN),
    (r"megatron[- ]?deepspeed|gpt-neox", MEGATRON_DEEPSPEED),
    (r"megatron|nemo(?![- ]?rl)|simumax", MEGATRON_STACK),
    (r"nemo[- ]?rl|verl|areal|roll\b", FSDP),
    (r"deepspeed|openrlhf|trlx|colossal|internevo|internlm", DEEPSPEED),
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
    text = row.framework.lower()
    shard = row.shard.lower()
    parallel = (row.tp or 1) > 1 or (row.pp or 1) > 1
    named = next((profile for words, profile in _BY_WORD if re.search(words, text)), None)
    if named is HUGGINGFACE and (shard.startswith("zero") or _has_master(row)):
        return DEEPSPEED
    if named is HUGGINGFACE and "fsdp" in shard:
        return FSDP
    if named is DEEPSPEED and parallel:
        return MEGATRON_DEEPSPEED
    if named is DEEPSPEED and not shard and (row.gpus or 1) == 1 and row.adapter in ("lora", "adapter"):
        return HUGGINGFACE
    if named is not None:
        return named
    if parallel or "dist" in shard:
        return MEGATRON_STACK
    if shard.startswith("zero"):
        return DEEPSPEED
    return FSDP if "fsdp" in shard or (row.gpus or 1) > 8 else HUGGINGFACE


def _has_master(row: Measurement) -> bool:
    """Return True if 16-bit weights have a 32-bit master: DeepSpeed keeps one, the Trainer's own optimizer none."""
    full = row.adapter in ("", "full") and row.kind != "lora"
    return full and row.parameter_dtype in ("bf16", "fp16") and row.master_dtype == "fp32"


def precision_of(row: Measurement, profile: MemoryProfile) -> TrainingPrecision:
    """Bytes per trained parameter, with the optimizer that the notes name.

    Copies of embedding and head that are trained beside adapters keep the 16-bit type of the model (`modules_to_save`).
    Blank: Megatron keeps fp32 gradients and a master copy, DeepSpeed 16-bit gradients, torchtune, litgpt and Unsloth
    everything in 16 bits, the rest fp32 weights under autocast.
    """
    dtype, text = row.dtype.lower(), f"{row.notes} {row.framework}".lower()
    sixteen = (
        profile.name in ("torchtune", "litgpt", "unsloth"),
        re.search(r"bf16-true|16-true|pure", dtype),
        re.search(r"\(emb\)|modules_to_save", text),
        row.adapter == "qlora" and not row.framework,
    )
    if profile.name == "megatron":
        base = MEGATRON
    elif profile.name in ("deepspeed", "megatron-deepspeed"):
        base = ZERO_PAPER
    else:
        base = PURE_BF16 if any(sixteen) else FSDP_MIXED
    if re.search(r"fp32|float32|32-true", dtype) and "16" not in dtype:
        base = FP32
    return typed_states(row, with_optimizer(base, optimizer_of(row, profile)))


def typed_states(row: Measurement, habit: TrainingPrecision) -> TrainingPrecision:
    """Bytes per trained parameter from the typed columns; each that is unknown or blank as the stack's habit has it.

    `bytes = parameter + gradient + 2 moments + master`; the frozen base of adapters is `parameter_dtype`, so what is
    trained beside it keeps the habit's weights.

    >>> columns = {"parameter_dtype": "bf16", "gradient_dtype": "none", "optimizer_dtype": "int8"}
    >>> row = Measurement(id="X-1", metric="peak_mem_gb", value=1.0, master_dtype="none", **columns)
    >>> typed_states(row, FSDP_MIXED).state_bytes
    4.0
    """
    full = row.adapter in ("", "full") and row.kind != "lora"
    parameter = BYTES_PER_VALUE.get(row.parameter_dtype) if full else None
    gradient = BYTES_PER_VALUE.get(row.gradient_dtype)
    master = BYTES_PER_VALUE.get(row.master_dtype)
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


_OPTIMIZER_BY_WORD = (
    (r"paged(?![-_ ]?(attention|kv|cache|llm))", "paged"),
    (r"8-?bit[- _]*(adam|optim)|adam\w*[- _]*8-?bit|bnb.?adam|optim\w*[ :=(]*8-?bit", "adam8bit"),
    (r"adafactor[^;|]{0,20}(momentum|beta1)", "adafactor-momentum"),
    (r"adafactor|galore|\bapollo|\bbadam|\blomo|optimi[sz]er[- ]in[- ](the[- ])?backward", "adafactor"),
    (r"\bsgd\b[^;|]{0,20}(?<!no )(?<!without )momentum", "sgd"),
    (r"\bsgd\b", "sgd-plain"),
    (r"\blion\b", "lion"),
    (r"(bf16|16-bit|bfloat16)[- ](adam|moments)|moments in bf16", "adam-bf16"),
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
    named = next((name for words, name in _OPTIMIZER_BY_WORD if re.search(words, text)), None)
    bare = row.adapter in ("", "full") and row.kind not in ("lora", "inference") and re.search(r"\b8-?bit\b", text)
    return named or ("adam8bit" if profile.name == "unsloth" or bare else "adam")


def unit_bytes(row: Measurement, profile_name: str) -> float:
    """Bytes of the row's unit: GiB and MiB, which tools print as GB and MB; litgpt divides by 1e9 and says GB."""
    if row.metric.endswith("_mb"):
        return MIB
    decimal = re.search(r"1e9|10\^9|decimal", f"{row.unit} {row.notes}".lower())
    if (profile_name == "litgpt" or decimal) and "gib" not in row.metric:
        return GB
    return GIB


def probe_of(row: Measurement, profile_name: str) -> tuple[bool, bool]:
    """Return whether a figure counts reserved memory, and whether it counts the context.

    By `memory_probe`; where that is unknown litgpt, torchtune and SimuMax read torch's allocated peak, Unsloth the
    reserved one, and the rest `nvidia-smi`.
    """
    probe = row.memory_probe or probe_in(row.unit, row.notes)
    if probe != "unknown":
        return probe in ("nvidia_smi", "reserved"), probe == "nvidia_smi"
    if profile_name in ("litgpt", "torchtune", "torchtitan"):
        return False, False
    if profile_name == "unsloth":
        return True, False
    return True, True
