"""A stage for MaxText: a YAML file over its base.yml, the weights that it starts from, and its start on TPUs.

Its keys, their types and bounds, the shapes of the models that it converts and the sizes of slices are recorded from
its code by tools/engine_schemas/maxtext.py.

Sources at the recorded commit: src/maxtext/configs/types.py (calculate_global_batch_sizes: rows of a device; the WSD
schedule's fractions), utils/maxtext_utils.py (create_learning_rate_schedule), utils/gradient_accumulation.py
(gradients of sums, over all tokens of the step), layers/nnx_decoders.py (get_remat_policy), optimizers/optimizers.py
(adamw_mask), input_pipeline/grain_data_processing.py (rows of one Parquet file go round the hosts; order is kept
without shuffling), input_pipeline_utils.py (shift_and_refine; apply_chat_template), common/checkpointing.py (steps,
"iter"), docs/run_maxtext/run_maxtext_via_xpk.md and docs/guides/checkpointing_solutions/convert_checkpoint.md
(commands).
"""

import functools
import json
import shlex
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from charter.catalog import accelerators
from charter.engines.common.mapping import FieldMapper, Sheet
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.maxtext.capabilities import CAPABILITIES, COMMIT
from charter.errors import UsageError
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute, ZeroStage
from charter.spec.stage import PretrainStage, SftStage
from charter.spec.stage_base import StageResources

FILE, RUN = "maxtext.yml", "maxtext"
CHECKPOINTS, ITEMS = f"{RUN}/checkpoints", "items"
"""Below the work directory, and below a step: the weights and the optimizer."""
START, PREPARE, ON_XPK, ON_SLICE = "start", "prepare.sh", "on_xpk.sh", "on_slice.sh"
Trained = PretrainStage | SftStage
MODULES = {"pretrain": "maxtext.trainers.pre_train.train", "sft": "maxtext.trainers.post_train.sft.train_sft_native"}
"""Both are one loop: its second entry, on Tunix, weighs micro-batches alike whatever tokens they hold."""
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
REMAT = {Recompute.NONE: "minimal_with_context", Recompute.SELECTIVE: "minimal", Recompute.FULL: "full"}
"""Its `none` is no policy, with which JAX computes everything again. The least that it does keeps products of weights
and the output of attention, and computes norms and activations again."""
REMAT_NOTE = "norms and activations are always computed again, attention too where it is selective"
ATTENTION = {"eager": "dot_product", "flash_attention_2": "flash"}
UNDECAYED = ("norm", "scale", "bias")
"""Parts of its names of vectors, which are not decayed."""
BLOCKS = {"llama": "llama2", "mixtral": "mixtral", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3_moe"}
LLAMA_3_CONTEXT = 8192
"""Llama 3.1 stretches its positions, and MaxText does so for every model of that name; Llama 3 does not."""
TWO_DEVICES = ("tpu7x",)
"""Generations whose chips are two devices to JAX."""
CORES = ("v4", "v5p", "tpu7x")
"""Generations whose slices are named by cores, two on a chip."""


@functools.cache
def recorded() -> Mapping[str, Any]:
    """Return the record of MaxText's configuration, models and slices."""
    document: Mapping[str, Any] = json.loads(
        files("charter.engines.maxtext").joinpath("schema.json").read_text(encoding="utf-8")
    )
    return document


def render_maxtext(handover: Handover) -> RenderedRun:
    """The stage as a file and a command; a `SpecError` holds every field that MaxText cannot express as it is run."""
    mapper = FieldMapper(handover)
    sheet, stage, work = Sheet(mapper, FILE), handover.stage, _absolute(handover.paths.work)
    assert isinstance(stage, Trained)
    slices, chips = _machines(mapper)
    sheet.put("base_config", "base.yml")
    sheet.put("run_name", RUN)
    sheet.put("hardware", "tpu")
    name = _model(sheet, stage.seq_len)
    _layout(sheet, stage.global_batch, slices)
    _optimization(sheet, stage)
    _data(sheet, stage)
    _checkpoints(sheet)
    mapping = mapper.finish()
    return RenderedRun(
        files={
            FILE: sheet.text(),
            PREPARE: _prepare(handover, name),
            ON_XPK: _on_xpk(handover, slices, chips),
            ON_SLICE: _on_slice(handover, chips),
        },
        command=(
            "python", "-m", MODULES[stage.kind], FILE, f"base_output_directory={work}",
            f"load_parameters_path={work}/{START}/0/{ITEMS}", *_unbalanced(handover.architectures["init"]),
        ),
        mapping=mapping,
        resume=RESUME,
        notes=_notes(stage, slices),
        slices=None if _generation(handover) is None else (slice_name(handover.accelerator, chips), slices),
    )  # fmt: skip


# -------- Machines: a slice of so many chips, or several slices with a copy of the model on each.


def generation(accelerator: str) -> str | None:
    """Return MaxText's name of a TPU's generation; None of another accelerator.

    >>> generation("TPU-v5e"), generation("TPU7x"), generation("H100")
    ('v5e', 'tpu7x', None)
    """
    device = accelerators.get(accelerator)
    return device.name.removeprefix("TPU-").replace("TPU7x", "tpu7x") if device.kind == "tpu" else None


def slice_name(accelerator: str, chips: int) -> str:
    """Return the name of a slice, as Google Cloud calls it.

    >>> slice_name("TPU-v5p", 64), slice_name("TPU-v5e", 16), slice_name("TPU7x", 8)
    ('v5p-128', 'v5litepod-16', 'tpu7x-16')
    """
    kind = generation(accelerator)
    if kind is None:
        raise UsageError(f"{accelerator} comes in no slices")
    return f"{'v5litepod' if kind == 'v5e' else kind}-{chips * 2 if kind in CORES else chips}"


def _machines(mapper: FieldMapper) -> tuple[int, int]:
    """Slices and the chips of one."""
    handover = mapper.handover
    layout, count = handover.layout, handover.num_accelerators
    kind = _generation(handover)
    sizes = recorded()["slices"].get(kind, ())
    if not sizes:
        generations = ", ".join(sorted(recorded()["slices"]))
        mapper.refuse("stage.resources", f"it is written for TPUs ({generations}); found {handover.accelerator}")
        return 1, count
    if count in sizes or layout.replicas == 1 or count % layout.replicas:
        slices = 1
    else:
        slices = layout.replicas
    chips = count // slices
    if chips not in sizes:
        near = [str(size) for size in (max((s for s in sizes if s < chips), default=None), _next(sizes, chips)) if size]
        reason = f"{chips} chips are no slice of {handover.accelerator}; {' and '.join(near)} are"
        mapper.refuse("stage.resources", reason, "another number of nodes, or replicas, each on a slice of its own")
    return slices, chips


def _next(sizes: list[int], chips: int) -> int | None:
    return min((size for size in sizes if size > chips), default=None)


def _layout(sheet: Sheet, batch: int, slices: int) -> None:
    """Axes of its mesh: `ici` within a slice, `dcn` between slices; their product is the number of devices."""
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    each = 2 if _generation(mapper.handover) in TWO_DEVICES else 1
    shards, copies = layout.data // layout.replicas // layout.expert * each, layout.replicas
    sharded = layout.zero is ZeroStage.PARAMETERS
    inside = 1 if slices > 1 else copies
    axes = {
        "dcn_data_parallelism": slices,
        "ici_data_parallelism": inside if sharded else shards * inside,
        "ici_fsdp_parallelism": shards if sharded else 1,
    }
    for name, size in axes.items():
        sheet.put(name, size)
    if layout.num_accelerators != mapper.handover.num_accelerators:
        count = mapper.handover.num_accelerators
        mapper.refuse("layout.data", f"the layout is of {layout.num_accelerators} accelerators, there are {count}")
    else:
        note = "what replicas and experts leave of all devices"
        mapper.to("layout.data", *(f"{FILE}: {name}" for name in list(axes)[1:]), how="computed", note=note)
    if layout.data % (layout.replicas * layout.expert):
        mapper.refuse("layout.expert", f"{layout.data} data ranks are not divided by it and the replicas")
    else:
        sheet.as_is("layout.expert", "ici_expert_parallelism")
    if sharded or layout.replicas == 1:
        sheet.computed("layout.replicas", {"dcn_data_parallelism": slices}, "a copy on each slice, or within one")
    else:
        mapper.refuse("layout.replicas", "copies of a model that is not sharded are data parallelism", "replicas: 1")
    if layout.zero in (ZeroStage.NONE, ZeroStage.PARAMETERS):
        note = "all is sharded (fsdp) or nothing (data)"
        mapper.to("layout.zero", f"{FILE}: ici_fsdp_parallelism", how="computed", note=note)
    else:
        mapper.refuse("layout.zero", "it shards everything or nothing", "resources: {zero: 3}")
    _batch(sheet, batch, each)
    sheet.computed("layout.recompute", {"remat_policy": REMAT[layout.recompute]}, REMAT_NOTE)
    for field, only, why in (
        ("tensor", 1, "several devices would share a row, of which it counts whole ones"),
        ("sequence_parallel", False, "it belongs to tensor parallelism"),
        ("context", 1, "several devices would share a row, of which it counts whole ones"),
        ("pipeline", 1, "its pipeline counts micro-batches in another way"),
        ("interleave", 1, "its pipeline counts micro-batches in another way"),
        ("offload_optimizer", False, "its optimizer stays on the accelerator"),
        ("offload_parameters", False, "its parameters stay on the accelerator"),
    ):
        mapper.same(f"layout.{field}", only, why)


def _generation(handover: Handover) -> str | None:
    return None if handover.is_cpu else generation(handover.accelerator)


def _batch(sheet: Sheet, batch: int, each: int) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    rows = layout.micro_batch * layout.accumulation * layout.data
    if rows != batch:
        reason = f"micro-batch x accumulation x data parallelism is {rows}, the batch {batch}"
        mapper.refuse("stage.global_batch", reason)
    else:
        note = "rows of a device x devices x accumulation"
        keys = (f"{FILE}: per_device_batch_size", f"{FILE}: gradient_accumulation_steps")
        mapper.to("stage.global_batch", *keys, how="computed", note=note)
    if layout.micro_batch % each:
        mapper.refuse("layout.micro_batch", "a chip is two devices, each with as many rows", "an even micro_batch")
    else:
        rows_of_device = layout.micro_batch // each
        note = "rows of a device, of which a chip of the seventh generation has two"
        sheet.computed("layout.micro_batch", {"per_device_batch_size": float(rows_of_device)}, note)
    sheet.as_is("layout.accumulation", "gradient_accumulation_steps", note="a mean over all tokens of the step")


# -------- The model by its name, since its own scripts convert those alone.


def model_name(model: Architecture) -> str | None:
    """Return MaxText's name of a model of this shape that it converts both ways; None where there is none.

    >>> from charter.catalog import models
    >>> model_name(models.get("Llama-3.1-8B").architecture), model_name(models.get("Llama-2-7B").architecture)
    ('llama3.1-8b', None)
    """
    if model.model_type == "llama" and model.max_position_embeddings <= LLAMA_3_CONTEXT:
        return None
    shape = _shape(model)
    for name, values in recorded()["models"].items():
        if all(values[key] == value for key, value in shape.items()):
            return str(name)
    return None


def _shape(model: Architecture) -> dict[str, Any]:
    mixture = model.mixture
    shape: dict[str, Any] = {
        "decoder_block": BLOCKS.get(str(model.model_type)),
        "base_emb_dim": model.hidden_size,
        "base_num_decoder_layers": model.num_layers,
        "base_num_query_heads": model.num_heads,
        "base_num_kv_heads": model.kv_heads,
        "head_dim": model.head_size,
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied_embeddings,
        "attention_bias": model.attention_bias,
        "use_qk_norm": model.qk_norm,
        "rope_max_timescale": model.rope_theta,
        "num_experts": mixture.num_experts if mixture else 1,
    }
    if mixture is None:
        return shape | {"base_mlp_dim": model.intermediate_size}
    return shape | {
        "num_experts_per_tok": mixture.experts_per_token,
        "base_moe_mlp_dim": mixture.expert_intermediate_size,
    }


def _model(sheet: Sheet, seq_len: int) -> str:
    mapper, model = sheet.mapper, sheet.mapper.handover.architectures["init"]
    name = model_name(model)
    if name is None:
        names = ", ".join(recorded()["models"])
        mapper.refuse("stage.init", f"its scripts convert no model of this shape; they do {names}", "another engine")
    else:
        note = "converted by its own script (prepare.sh); its shape is its name's"
        sheet.computed("stage.init", {"model_name": name, "scan_layers": True}, note)
    sheet.as_is("stage.seq_len", "max_target_length", note="longer rows are cut at the right, shorter ones filled up")
    return name or ""


def _unbalanced(model: Architecture) -> tuple[str, ...]:
    """Return the words that leave out a loss which balances experts, as here.

    A model's own file goes before the stage's, and that of Qwen3-235B-A22B has such a loss; only the command line goes
    before both (configs/pyconfig.py).
    """
    return () if model.mixture is None else ("override_model_config=true", "load_balance_loss_weight=0.0")


# -------- What a step does, and what it reads.


def _optimization(sheet: Sheet, stage: Trained) -> None:
    mapper, steps = sheet.mapper, sheet.mapper.handover.target_steps
    sheet.put("steps", steps)
    sheet.put("learning_rate_schedule_steps", steps)
    for field in ("stage.steps", "stage.epochs"):
        if mapper.value(field) is None:
            sheet.idle(field, "steps and epochs are two ways to say one thing")
        else:
            mapper.to(field, f"{FILE}: steps", how="computed", note="optimizer steps of the stage")
    sheet.as_is("stage.learning_rate", "learning_rate")
    _schedule(sheet, stage)
    sheet.as_is("stage.weight_decay", "adam_weight_decay", note="norms and biases are not decayed")
    sheet.put("adamw_mask", list(UNDECAYED))
    sheet.as_is("stage.beta1", "adam_b1")
    sheet.as_is("stage.beta2", "adam_b2")
    sheet.put("adam_eps", 1e-8)
    sheet.as_is("stage.gradient_clip", "gradient_clipping_threshold")
    sheet.put("opt_type", "adamw")
    mapper.same("stage.optimizer", "adamw", "its moments are of 32 bits; 8-bit ones are not mapped")
    mapper.fixed("stage.adapter", CAPABILITIES)
    mapper.same("stage.dropout", 0.0, "dropout_rate is 0, and some of its models turn it off for good")
    sheet.put("dropout_rate", 0.0)
    reason = "it ends when a loss is not finite (abort_on_nan_loss, abort_on_inf_loss), and does no more"
    mapper.same("stage.guard", None, reason)
    if stage.dtype in DTYPES:
        values: dict[str, object] = {"dtype": DTYPES[stage.dtype], "weight_dtype": "float32", "grad_dtype": "float32"}
        exact = {"matmul_precision": "highest"} if stage.dtype == "fp32" else {}
        sheet.computed("stage.dtype", values | exact, "of the products; weights, gradients and moments are of 32 bits")
    else:
        mapper.refuse("stage.dtype", "TPUs multiply in bfloat16", "dtype: bf16")
    resources = stage.resources or StageResources()
    if resources.attention == "flex_attention":
        mapper.refuse("stage.resources", "flex_attention is not among its kernels", "attention: sdpa")
    sheet.put("attention", ATTENTION.get(resources.attention or "", "autoselected"))
    sheet.computed("seed", {"init_weights_seed": mapper.handover.seed}, "nothing is drawn: weights and order are given")


def _schedule(sheet: Sheet, stage: Trained) -> None:
    """Shares of the steps, a part of one too long, since it cuts their products to whole steps.

    Warm-up and decay may not be more than all, so that one step at the full rate stays between them.
    """
    mapper, steps, warmup = sheet.mapper, sheet.mapper.handover.target_steps, stage.warmup_steps
    if warmup >= steps:
        mapper.refuse("stage.warmup_steps", f"the warm-up ends before the last of {steps} steps", f"less than {steps}")
    else:
        share = {"warmup_steps_fraction": (warmup + 0.5) / steps if warmup else 0.0}
        sheet.computed("stage.warmup_steps", share, "a share of the steps; it begins at 0, ours at one part of it")
    kinds: Mapping[str, dict[str, object]] = {
        "cosine": {"lr_schedule_type": "cosine"},
        "linear": {
            "lr_schedule_type": "wsd",
            "wsd_decay_style": "linear",
            "wsd_decay_steps_fraction": (max(0, steps - warmup - 1) + 0.25) / steps if warmup else 1.0,
        },
        "constant": {"lr_schedule_type": "wsd", "wsd_decay_steps_fraction": 0.0},
    }
    sheet.computed("stage.schedule", kinds[stage.schedule], "warm-up, stable part and decay (wsd), or a cosine")
    if stage.schedule == "constant":
        sheet.idle("stage.min_learning_rate_ratio", "a constant learning rate has no end")
    else:
        sheet.as_is("stage.min_learning_rate_ratio", "learning_rate_final_fraction")


def _data(sheet: Sheet, stage: Trained) -> None:
    """Rows in the order of the file, which is Charter's: each batch is the one that the native engine would take."""
    handover = sheet.mapper.handover
    fixed: dict[str, object] = {
        "dataset_type": "grain", "grain_file_type": "parquet", "grain_worker_count": 1, "enable_data_shuffling": False,
        "num_epoch": 1, "packing": False, "tokenizer_type": "huggingface",
        "tokenizer_path": handover.paths.models["init"], "add_bos": False, "add_eos": False,
    }  # fmt: skip
    for key, value in fixed.items():
        sheet.put(key, value)
    if stage.kind == "sft":
        columns, note = ["messages"], "conversations in the order of the file; answers count, each by the chat template"
        sheet.mapper.fixed("stage.packing", CAPABILITIES)
        sheet.put("use_sft", True)
        sheet.put("sft_train_on_completion_only", True)
        sheet.put("use_tunix_gradient_accumulation", False)
    else:
        columns, note = ["input_ids"], "rows of tokens in the order of the file"
    values: dict[str, object] = {
        "grain_train_files": handover.paths.data["data"],
        "train_data_columns": columns,
        "tokenize_train_data": stage.kind == "sft",
    }
    sheet.computed("stage.data", values, note)


def _checkpoints(sheet: Sheet) -> None:
    note = "after the first step that is a multiple of it, counted from 0, and at the end"
    sheet.as_is("stage.checkpoint_every", "checkpoint_period", note=note)
    for key, value in (
        ("enable_checkpointing", True),
        ("async_checkpointing", True),
        ("save_checkpoint_on_start", False),
        ("save_checkpoint_on_completion", True),
        ("max_num_checkpoints_to_keep", sheet.mapper.handover.keep_last),
        ("enable_tensorboard", False),
    ):
        sheet.put(key, value)


# -------- Scripts: weights once, then the same command on every host of the slices.


def conversion(module: str, name: str, *, source: str | None, target: str, hf: str) -> list[str]:
    """Return the words, after the interpreter's, of one of its two scripts that convert weights, on processors."""
    loads = () if source is None else (f"load_parameters_path={source}", "weight_dtype=float32")
    saves = ("--save_dtype=float32",) if source is None else ()
    return [
        "-m", f"maxtext.checkpoint_conversion.{module}", f"model_name={name}", *loads,
        f"base_output_directory={target}", "scan_layers=True", "use_multimodal=False", "hardware=cpu",
        "skip_jax_distributed_system=True", f"--hf_model_path={hf}", *saves,
    ]  # fmt: skip


def _absolute(path: str) -> str:
    """A path that Orbax takes: it knows none that is relative.

    >>> _absolute("/stage"), _absolute("."), _absolute("gs://bucket/stage")
    ('/stage', '${PWD}', 'gs://bucket/stage')
    """
    if path.startswith("/") or "://" in path:
        return path
    return "${PWD}" if path == "." else f"${{PWD}}/{path}"


def _prepare(handover: Handover, name: str) -> str:
    init, work = handover.paths.models["init"], _absolute(handover.paths.work)
    words = conversion("to_maxtext", name, source=None, target=f"{work}/{START}", hf=init)
    shown = " ".join(f'"{word}"' if "${" in word else shlex.quote(word) for word in words)
    return (
        "#!/usr/bin/env bash\n"
        "# Once, before the first start, on one host or on any machine with as much memory as the weights take.\n"
        "set -euo pipefail\n"
        'cd "$(dirname "${BASH_SOURCE[0]}")"\n'
        f'"${{PYTHON:-python}}" {shown}\n'
    )


def _on_xpk(handover: Handover, slices: int, chips: int) -> str:
    name = _label(handover)
    return (
        "#!/usr/bin/env bash\n"
        "# On a cluster of GKE, by XPK. DIRECTORY: this directory as the pods see it (a mounted bucket, or NFS).\n"
        "set -euo pipefail\n"
        'xpk workload create --cluster "${GKE_CLUSTER:?}" --docker-image "${IMAGE:?image that holds MaxText}" \\\n'
        f"    --workload {name} --tpu-type {_slice(handover, chips)} --num-slices {slices} \\\n"
        '    --command "cd ${DIRECTORY:?} && bash run.sh"\n'
    )


def _on_slice(handover: Handover, chips: int) -> str:
    kind = _slice(handover, chips)
    return (
        "#!/usr/bin/env bash\n"
        f"# On the hosts of a slice (gcloud compute tpus tpu-vm create NAME --accelerator-type {kind} ...).\n"
        "# DIRECTORY is this directory as every host sees it.\n"
        "set -euo pipefail\n"
        'gcloud compute tpus tpu-vm ssh "${TPU_NAME:?}" --zone "${ZONE:?}" --worker all \\\n'
        '    --command "cd ${DIRECTORY:?} && bash run.sh"\n'
    )


def _slice(handover: Handover, chips: int) -> str:
    return slice_name(handover.accelerator, chips)


def _label(handover: Handover) -> str:
    """A name of a job of Kubernetes."""
    words = "".join(letter if letter.isalnum() else "-" for letter in f"{handover.run}-{handover.name}".lower())
    return words.strip("-")[:40]


def _notes(stage: Trained, slices: int) -> tuple[str, ...]:
    notes = [
        "run prepare.sh once before the first start: it converts the weights",
        "every host runs run.sh; JAX finds the others by itself, so no address is given",
        "this directory has to be one that every host sees, since checkpoints of all hosts are one",
        "nobody here has run MaxText on a TPU: its keys are checked by a recorded schema",
    ]
    if stage.kind == "sft":
        notes.append(
            "the chat template is given one exchange at a time: a system message that it adds itself is added to each"
        )
    if slices > 1:
        notes.append(f"{slices} slices, each with a copy of the model: on_slice.sh is for one")
    return tuple(notes)


RESUME = Resume(
    guarantee="same_data_order",
    reason="weights, optimizer and the place in the data of every host come back; the same numbers need the same "
    "slice, versions and XLA flags as well",
    source=f"MaxText {COMMIT[:7]}: src/maxtext/common/checkpointing.py (items, iter), common/grain_utility.py; not "
    "measured, since it was not run",
)
