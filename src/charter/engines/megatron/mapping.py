"""A stage for Megatron-LM: the command line of pretrain_gpt.py, and what has to be made for it once.

Shapes are the decoders of Llama, Mistral, Mixtral, Qwen 2 and Qwen 3, whose weights Megatron Bridge converts. The
options of its parser are recorded from its code by tools/engine_schemas/megatron_lm.py.

Sources at the recorded commit: megatron/training/arguments.py (network size, moe, validate_args: what belongs
together), config/training_config.py, megatron/core/transformer/transformer_config.py (its dataclass options, MoE, fp8,
fp8_recipe), megatron/core/pipeline_parallel/schedules.py (micro-batches of an interleaved schedule),
megatron/core/fp8_utils.py get_fp8_recipe (which recipe needs which TransformerEngine),
megatron/core/optimizer_param_scheduler.py (get_lr), datasets/sft_dataset.py, datasets/data_samplers.py (rows in the
order of the file), checkpointing.py (--pretrained-checkpoint where nothing is in --load),
megatron/core/tokenizers/text/libraries/sft_tokenizer.py (which turns count); TransformerEngine 2.20
transformer_engine/pytorch/utils.py assert_dim_for_fp8_exec (sides of a product).
"""

import json
import shlex
from collections.abc import Iterator

from charter.engines.common.mapping import Arguments
from charter.engines.common.rendered import RenderedRun, Resume
from charter.engines.common.request import Handover
from charter.engines.megatron.capabilities import CAPABILITIES, COMMIT
from charter.spec.architecture import Architecture, MixtureOfExperts
from charter.spec.layout import Recompute, ZeroStage
from charter.spec.stage import PretrainStage, SftStage
from charter.spec.stage_base import FP8, StageResources

FORMAT, RECIPE = "hybrid", "tensorwise"
"""E4M3 forward and E5M2 for gradients; every tensor is scaled by its largest value of the moment, so that nothing has
to be known of it before: converted weights bring no history of such values, and a resumed run needs none."""
TRANSFORMER_ENGINE = "2.2"
"""The first release with that recipe."""
SIDE = 16
"""Numbers on a side of a product; TransformerEngine refuses others."""
NOTE = (
    "weights, gradients and all but the layers' products in bf16, fp32 copies in the optimizer; E4M3 forward, E5M2 for "
    "gradients, each tensor scaled by its largest value of the moment"
)


def precision_arguments(given: Arguments, model: Architecture, *, dtype: str, seq_len: int) -> None:
    """The options of the stage's `dtype`."""
    fields = given.fields
    if dtype == "fp32":
        fields.same("stage.dtype", "fp32", "neither --bf16 nor --fp16")
    elif dtype != FP8:
        given.give(f"--{dtype}")
        fields.to("stage.dtype", f"--{dtype}", note="parameters in it, fp32 copies in the optimizer")
    else:
        for reason in _odd_sides(given, model, seq_len):
            fields.refuse("stage.dtype", reason, "dtype: bf16, or another layout")
        given.give("--bf16")
        given.give("--fp8-format", FORMAT)
        given.give("--fp8-recipe", RECIPE)
        fields.to("stage.dtype", "--bf16", "--fp8-format", "--fp8-recipe", how="computed", note=NOTE)


def _odd_sides(given: Arguments, model: Architecture, seq_len: int) -> Iterator[str]:
    """Sides of products that are no multiple of 16 once tensors and sequences are divided."""
    layout = given.handover.layout
    tokens = layout.micro_batch * seq_len // (layout.context * (layout.tensor if layout.sequence_parallel else 1))
    sides = {
        "tokens of a micro-batch on an accelerator": tokens,
        "hidden_size": model.hidden_size,
        "heads x head_size / tensor": model.num_heads * model.head_size // layout.tensor,
        "queries, keys and values / tensor": (model.num_heads + 2 * model.kv_heads) * model.head_size // layout.tensor,
        "intermediate_size / tensor": model.intermediate_size // layout.tensor,
    }
    if model.mixture is not None:
        sides["expert_intermediate_size"] = model.mixture.expert_intermediate_size
        sides["width of the shared experts / tensor"] = model.mixture.shared_width // layout.tensor
    odd = ", ".join(f"{name} ({size})" for name, size in sides.items() if size % SIDE)
    if odd:
        yield f"products in 8 bits have sides of multiples of {SIDE}; {odd} is none"


FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
LLAMA_3_THETA, LLAMA_3_CONTEXT = 500_000.0, 8192
"""Llama 3.1 and later stretch their positions beyond those of Llama 3 (config.json: rope_scaling of type llama3)."""
LONG_FACTOR, SMALL_LONG_FACTOR = 8.0, 32.0
"""By 8 in Llama 3.1 and 3.3, by 32 in the small models of Llama 3.2, which alone tie their embeddings."""


def model_arguments(given: Arguments, model: Architecture, seq_len: int) -> None:
    """Options of a decoder; `impossible` says first which it cannot be."""
    given.give("--num-layers", model.num_layers)
    given.give("--hidden-size", model.hidden_size)
    given.give("--ffn-hidden-size", model.intermediate_size)
    given.give("--num-attention-heads", model.num_heads)
    given.give("--kv-channels", model.head_size)
    if model.kv_heads != model.num_heads:
        given.give("--group-query-attention")
        given.give("--num-query-groups", model.kv_heads)
    given.give("--max-position-embeddings", max(model.max_position_embeddings, seq_len))
    given.give("--position-embedding-type", "rope")
    given.give("--rotary-base", int(model.rope_theta))
    given.give("--rotary-percent", 1.0)
    _long_positions(given, model)
    given.give("--normalization", "RMSNorm")
    given.give("--norm-epsilon", model.norm_eps)
    given.give("--swiglu")
    given.give("--disable-bias-linear")
    if model.attention_bias:
        given.give("--add-qkv-bias")
    if model.qk_norm:
        given.give("--qk-layernorm")
    if not model.tied_embeddings:
        given.give("--untie-embeddings-and-output-weights")
    given.give("--vocab-size", model.vocab_size)
    if model.mixture is not None:
        _experts(given, model, model.mixture)


def impossible(model: Architecture) -> Iterator[str]:
    """Yield the traits of the model that have no option, or none that Charter knows to be the same."""
    if model.model_type not in FAMILIES:
        yield f"models of type {model.model_type} are not mapped; {', '.join(FAMILIES)} are"
        return
    if not float(model.rope_theta).is_integer():
        yield f"--rotary-base is a whole number; found {model.rope_theta}"
    yield from (words for words, lacks_option in _unlike(model) if lacks_option)
    if model.mixture is not None:
        yield from (words for words, lacks_option in _unlike_experts(model, model.mixture) if lacks_option)


def _unlike(model: Architecture) -> Iterator[tuple[str, object]]:
    yield "an MLP without a gate is not mapped", not model.gated_mlp
    yield "biases of the attention output are tied to those of all layers", model.output_bias
    yield "biases of the MLP are tied to those of all layers", model.mlp_bias
    yield "norms with a bias are not mapped", model.norm_parameters_per_feature != 1
    yield "other than two norms per layer are not mapped", model.norms_per_layer != 2
    yield "norms across the heads of queries and keys are not mapped", model.qk_norm_across_heads
    yield "learned positions are not mapped", model.learned_positions
    yield "sliding windows are not mapped", model.sliding_window_layers
    yield "chunked attention is not mapped", model.chunked_layers
    yield "layers without attention are not mapped", model.attention_layers != model.num_layers
    yield "layers without an MLP are not mapped", model.mlp_layers != model.num_layers
    yield "recurrent layers are not mapped", model.state_space
    yield "encoders are not mapped", model.encoder
    yield "an embedding of another width is not mapped", model.embedding_width != model.hidden_size
    yield "a norm on the embedding is not mapped", model.embedding_norm
    yield "a model without a final norm is not mapped", not model.final_norm
    yield "a bias of the output projection is not mapped", model.head_bias
    yield "attention sinks are not mapped", model.attention_sinks
    yield "gated attention is not mapped", model.attention_gate
    yield "latent attention is not mapped", model.latent_attention


def _unlike_experts(model: Architecture, mixture: MixtureOfExperts) -> Iterator[tuple[str, object]]:
    every = model.num_layers - mixture.num_dense_layers
    yield "experts in some of the layers after the dense ones are not mapped", model.moe_layers != every
    yield "a bias of the router is not mapped", mixture.router_bias
    yield "biases inside experts are not mapped", mixture.expert_bias
    yield "experts of another width than the model are not mapped", mixture.expert_hidden_size
    yield "a dense MLP beside the experts is not mapped", mixture.dense_residual


def _long_positions(given: Arguments, model: Architecture) -> None:
    if model.rope_theta == LLAMA_3_THETA and model.max_position_embeddings > LLAMA_3_CONTEXT:
        given.give("--use-rope-scaling")
        given.give("--rope-scaling-factor", SMALL_LONG_FACTOR if model.tied_embeddings else LONG_FACTOR)


def _experts(given: Arguments, model: Architecture, mixture: MixtureOfExperts) -> None:
    """Routing as these families have it: the best experts, softmax over them; no loss that balances them."""
    given.give("--num-experts", mixture.num_experts)
    given.give("--moe-router-topk", mixture.experts_per_token)
    given.give("--moe-ffn-hidden-size", mixture.expert_intermediate_size)
    given.give("--moe-router-load-balancing-type", "none")
    given.give("--moe-token-dispatcher-type", "alltoall")
    given.give("--moe-grouped-gemm")
    if mixture.num_dense_layers:
        given.give("--moe-layer-freq", f"[0]*{mixture.num_dense_layers}+[1]*{model.moe_layers}")
    if mixture.shared_width:
        given.give("--moe-shared-expert-intermediate-size", mixture.shared_width)
        if mixture.shared_expert_gate:
            given.give("--moe-shared-expert-gate")


def layout_arguments(given: Arguments, model: Architecture, *, batch: int, seq_len: int) -> None:
    """Every field of the layout."""
    layout, fields = given.handover.layout, given.fields
    if layout.num_accelerators == given.handover.num_accelerators:
        note = "what tensor, pipeline and context parallelism leave of all accelerators"
        fields.to("layout.data", "--global-batch-size", how="computed", note=note)
    else:
        mismatch = (
            f"it divides {given.handover.num_accelerators} accelerators, the layout is of {layout.num_accelerators}"
        )
        fields.refuse("layout.data", mismatch)
    _batch(given, batch)
    _tensor(given)
    _pipeline(given, model)
    _context(given, seq_len)
    _expert(given, model)
    _optimizer(given)
    _recompute(given)
    fields.same("layout.replicas", 1, "its sharded data parallelism (FSDP) is not mapped")
    fields.same("layout.offload_parameters", False, "parameters stay on the accelerator")


def _batch(given: Arguments, batch: int) -> None:
    layout = given.handover.layout
    given.to("layout.micro_batch", "--micro-batch-size")
    rows_per_step = layout.micro_batch * layout.accumulation * layout.data
    if rows_per_step == batch:
        given.to("stage.global_batch", "--global-batch-size")
        note = "batch over micro-batch and data parallelism"
        given.fields.to("layout.accumulation", "--global-batch-size", how="computed", note=note)
    else:
        reason = f"micro-batch x accumulation x data parallelism is {rows_per_step}, the batch {batch}"
        given.fields.refuse("stage.global_batch", reason)
        given.fields.refuse("layout.accumulation", reason)


def _tensor(given: Arguments) -> None:
    layout = given.handover.layout
    given.to("layout.tensor", "--tensor-model-parallel-size")
    if layout.sequence_parallel and layout.tensor == 1:
        reason = "without tensor parallelism it is turned off (validate_args)"
        given.fields.refuse("layout.sequence_parallel", reason, "sequence_parallel: false")
    else:
        given.switch("layout.sequence_parallel", "--sequence-parallel")


def _pipeline(given: Arguments, model: Architecture) -> None:
    """Stages of as many layers; of 126 layers embedding and loss count as one each (transformer_block.py)."""
    layout = given.handover.layout
    given.to("layout.pipeline", "--pipeline-model-parallel-size")
    if layout.interleave == 1 and model.num_layers % layout.pipeline and not (model.num_layers + 2) % layout.pipeline:
        given.give("--account-for-embedding-in-pipeline-split")
        given.give("--account-for-loss-in-pipeline-split")
    elif model.num_layers % (layout.pipeline * layout.interleave):
        reason = f"{model.num_layers} layers are divided evenly over stages and their chunks"
        given.fields.refuse("layout.interleave" if layout.interleave > 1 else "layout.pipeline", reason)
    if layout.interleave == 1:
        given.fields.same("layout.interleave", 1, "one chunk of layers per stage")
    elif layout.pipeline == 1:
        given.fields.refuse("layout.interleave", "chunks belong to a pipeline of two stages or more", "interleave: 1")
    elif layout.accumulation % layout.pipeline > 0:
        reason = f"{layout.accumulation} micro-batches leave a group that is smaller than {layout.pipeline} stages"
        given.fields.refuse("layout.interleave", reason, f"accumulation that is a multiple of {layout.pipeline}")
    else:
        given.to("layout.interleave", "--num-virtual-stages-per-pipeline-rank")


def _context(given: Arguments, seq_len: int) -> None:
    context = given.handover.layout.context
    if context > 1 and seq_len % (2 * context):
        reason = f"a row of {seq_len} tokens is cut into twice as many parts as accelerators share it"
        given.fields.refuse("layout.context", reason, f"a multiple of {2 * context}")
    else:
        given.to("layout.context", "--context-parallel-size")


def _expert(given: Arguments, model: Architecture) -> None:
    layout, fields = given.handover.layout, given.fields
    experts = model.mixture.num_experts if model.mixture else 1
    if experts % layout.expert:
        fields.refuse("layout.expert", f"{experts} experts are divided evenly over accelerators")
    elif layout.expert > 1 and layout.tensor > 1 and not layout.sequence_parallel:
        fields.refuse("layout.expert", "beside tensor parallelism it needs the sequence's", "sequence_parallel: true")
    else:
        given.to("layout.expert", "--expert-model-parallel-size")
        if model.mixture is not None:
            given.give("--expert-tensor-parallel-size", 1)


def _optimizer(given: Arguments) -> None:
    """ZeRO-1 is the distributed optimizer; its communication overlaps with the backward and the forward pass."""
    layout, fields = given.handover.layout, given.fields
    if layout.zero in (ZeroStage.GRADIENTS, ZeroStage.PARAMETERS):
        fields.refuse("layout.zero", "it shards the optimizer; its FSDP saves another format", "resources: {zero: 1}")
    elif layout.zero is ZeroStage.OPTIMIZER:
        given.give("--use-distributed-optimizer")
        given.give("--overlap-grad-reduce")
        given.give("--overlap-param-gather")
        fields.to("layout.zero", "--use-distributed-optimizer")
    else:
        given.give("--overlap-grad-reduce")
        fields.same("layout.zero", ZeroStage.NONE, "--use-distributed-optimizer is left out")
    if layout.offload_optimizer and layout.zero is not ZeroStage.OPTIMIZER:
        fields.refuse("layout.offload_optimizer", "it offloads the distributed optimizer only", "resources: {zero: 1}")
    else:
        given.switch("layout.offload_optimizer", "--optimizer-cpu-offload")
        if layout.offload_optimizer:
            given.give("--use-precision-aware-optimizer")


def _recompute(given: Arguments) -> None:
    recompute = given.handover.layout.recompute
    if recompute is Recompute.NONE:
        given.fields.same("layout.recompute", Recompute.NONE, "--recompute-granularity is left out")
        return
    given.to("layout.recompute", "--recompute-granularity", recompute.value)
    if recompute is Recompute.FULL:
        given.give("--recompute-method", "uniform")
        given.give("--recompute-num-layers", 1)


CHECKPOINTS, START, TOKENIZER, LOGS, DATA = "checkpoints", "start", "tokenizer", "tensorboard", "megatron_data"
"""Below the work directory: its checkpoints, the weights it starts from, the tokenizer, what it logs, token files."""
BACKENDS = {"flash_attention_2": "flash", "eager": "unfused", "sdpa": "fused"}
Trained = PretrainStage | SftStage


def trained(handover: Handover) -> Trained:
    """The stage, which is of a kind that is mapped."""
    assert isinstance(handover.stage, Trained)
    return handover.stage


def training_arguments(given: Arguments) -> None:
    """Every field of the stage but its model."""
    handover, stage = given.handover, trained(given.handover)
    note = "rows are cut at the right" if stage.kind == "sft" else "texts are joined and cut into rows"
    given.to("stage.seq_len", "--seq-length", note=note)
    _length(given)
    _schedule(given, stage)
    given.to("stage.weight_decay", "--weight-decay", note="norms and biases are not decayed")
    given.to("stage.beta1", "--adam-beta1")
    given.to("stage.beta2", "--adam-beta2")
    given.give("--adam-eps", 1e-8)
    given.to("stage.gradient_clip", "--clip-grad")
    precision_arguments(given, handover.architectures["init"], dtype=stage.dtype, seq_len=stage.seq_len)
    _data(given, stage)
    _checkpoints(given)
    given.to("seed", "--seed", handover.seed)
    given.give("--optimizer", "adam")
    fields = given.fields
    fields.same("stage.optimizer", "adamw", "its Adam keeps moments in 32 bits; 8-bit ones are not mapped")
    fields.fixed("stage.adapter", CAPABILITIES)
    fields.same("stage.dropout", 0.0, "its dropout is on the output of every layer as well; both are set to 0")
    given.give("--attention-dropout", 0.0)
    given.give("--hidden-dropout", 0.0)
    given.give("--calculate-per-token-loss")
    reason = "it ends when a loss is not finite (--no-check-for-nan-in-loss-and-grad is left out), and does no more"
    fields.same("stage.guard", None, reason)
    _attention(given, stage)
    given.give("--log-interval", 1)
    given.give("--log-throughput")
    given.give("--tensorboard-dir", f"{handover.paths.work}/{LOGS}")


def _length(given: Arguments) -> None:
    steps = given.handover.target_steps
    given.give("--train-iters", steps)
    for field in ("stage.steps", "stage.epochs"):
        if given.fields.value(field) is None:
            given.unused(field, "steps and epochs are two ways to say one thing")
        else:
            given.fields.to(field, "--train-iters", how="computed", note="optimizer steps of the whole stage")
    given.give("--eval-iters", 0)


def _schedule(given: Arguments, stage: Trained) -> None:
    steps, fields = given.handover.target_steps, given.fields
    given.to("stage.learning_rate", "--lr")
    given.to("stage.schedule", "--lr-decay-style")
    given.give("--lr-decay-iters", steps)
    if stage.warmup_steps >= steps:
        fields.refuse("stage.warmup_steps", f"the warm-up ends before the last of {steps} steps", f"less than {steps}")
    else:
        given.to("stage.warmup_steps", "--lr-warmup-iters", note="its warm-up begins at 0, ours at one part of it")
    if stage.schedule == "constant":
        given.unused("stage.min_learning_rate_ratio", "a constant learning rate has no end")
    else:
        rate, note = stage.learning_rate * stage.min_learning_rate_ratio, "learning rate times this share"
        given.to("stage.min_learning_rate_ratio", "--min-lr", rate, how="computed", note=note)


def _data(given: Arguments, stage: Trained) -> None:
    handover = given.handover
    given.give("--split", "100,0,0")
    given.give("--tokenizer-model", f"{handover.paths.work}/{TOKENIZER}")
    given.give("--dataloader-type", "single")
    given.give("--num-workers", 2)
    if isinstance(stage, SftStage):
        given.to("stage.data", "--data-path", handover.paths.data["data"], note="rows in the order of the file")
        given.give("--sft")
        given.give("--tokenizer-type", "SFTTokenizer")
        given.give("--sft-tokenizer-prompt-format", "identity")
        given.give("--no-create-attention-mask-in-dataloader")
        given.fields.fixed("stage.packing", CAPABILITIES)
    else:
        prefix = f"{handover.paths.work}/{DATA}/train_text_document"
        note = "tokens of all texts end to end, each with its end token; shuffled by the seed"
        given.to("stage.data", "--data-path", prefix, how="computed", note=note)
        given.give("--data-cache-path", f"{handover.paths.work}/{DATA}/cache")
        given.give("--tokenizer-type", "HuggingFaceTokenizer")


def _checkpoints(given: Arguments) -> None:
    work = given.handover.paths.work
    given.to("stage.checkpoint_every", "--save-interval")
    given.give("--save", f"{work}/{CHECKPOINTS}")
    given.give("--load", f"{work}/{CHECKPOINTS}")
    given.give("--pretrained-checkpoint", f"{work}/{START}")
    given.give("--ckpt-format", "torch_dist")
    given.give("--exit-on-missing-checkpoint")
    given.give("--exit-signal-handler")


def _attention(given: Arguments, stage: Trained) -> None:
    resources = stage.resources or StageResources()
    if resources.attention == "flex_attention":
        given.fields.refuse("stage.resources", "flex_attention is not among its backends", "attention: sdpa")
    given.give("--attention-backend", BACKENDS.get(resources.attention or "", "auto"))
    if resources.compile:
        given.fields.refuse("stage.resources", "torch.compile of the forward pass is not offered", "compile: false")


PREPARE_SCRIPT, PROGRAM = "prepare.sh", "prepare.py"
TOKENIZER_WORKERS = 8


def _script(handover: Handover) -> str:
    work = handover.paths.work
    lines = [
        "#!/usr/bin/env bash",
        "# Once, before the first start: weights, tokenizer and tokens as Megatron-LM reads them.",
        "set -euo pipefail",
        f'"${{PYTHON:-python}}" {PROGRAM}',
    ]
    if isinstance(handover.stage, PretrainStage):
        options = {
            "--input": handover.paths.data["data"],
            "--json-keys": "text",
            "--output-prefix": f"{work}/{DATA}/train",
            "--tokenizer-type": "HuggingFaceTokenizer",
            "--tokenizer-model": f"{work}/{TOKENIZER}",
            "--workers": str(TOKENIZER_WORKERS),
        }
        words = " ".join(f"{option} {shlex.quote(value)}" for option, value in options.items())
        lines.append(f"mkdir -p {shlex.quote(f'{work}/{DATA}')}")
        lines.append(f'"${{PYTHON:-python}}" "${{MEGATRON_DIR}}/tools/preprocess_data.py" {words} --append-eod')
    return "\n".join(lines) + "\n"


def _program(handover: Handover) -> str:
    """Of fine-tuning the tokenizer also gets a name for its padding: the format identity pads with `<unk>`."""
    work, init = handover.paths.work, handover.paths.models["init"]
    lines = [
        "from megatron.bridge import AutoBridge",
        "from transformers import AutoTokenizer",
        "",
        f"INIT = {json.dumps(init)}",
        f"START = {json.dumps(f'{work}/{START}')}",
        f"TOKENIZER = {json.dumps(f'{work}/{TOKENIZER}')}",
        "tokenizer = AutoTokenizer.from_pretrained(INIT)",
    ]
    if handover.stage.kind == "sft":
        lines += [
            "if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:",
            '    raise SystemExit("the tokenizer needs a padding token that no text holds; it is masked in the loss")',
            "tokenizer.unk_token = tokenizer.pad_token",
        ]
    lines += ["tokenizer.save_pretrained(TOKENIZER)", "AutoBridge.import_ckpt(INIT, START)"]
    return "\n".join(lines) + "\n"


BRIDGE = "0.3.1"
"""Megatron Bridge, which converts weights there and back."""
SCRIPT = "${MEGATRON_DIR}/pretrain_gpt.py"


def render_megatron(handover: Handover) -> RenderedRun:
    """The stage as a command line; a `SpecError` holds every field that Megatron-LM cannot express."""
    given, stage, model = Arguments(handover), trained(handover), handover.architectures["init"]
    note = "converted by Megatron Bridge; its shape is told option by option"
    given.fields.to("stage.init", "--pretrained-checkpoint", how="computed", note=note)
    for reason in impossible(model):
        given.fields.refuse("stage.init", reason, "another engine")
    layout_arguments(given, model, batch=stage.global_batch, seq_len=stage.seq_len)
    model_arguments(given, model, stage.seq_len)
    training_arguments(given)
    words, mapping = given.finish()
    return RenderedRun(
        files={PREPARE_SCRIPT: _script(handover), PROGRAM: _program(handover)},
        command=(*_start(handover), SCRIPT, *words),
        mapping=mapping,
        resume=RESUME,
        environment=_environment(handover),
        notes=_notes(handover),
    )


def _start(handover: Handover) -> tuple[str, ...]:
    nodes = (
        ("--standalone",)
        if handover.num_nodes == 1
        else ("--node-rank", "${NODE_RANK}", "--master-addr", "${MASTER_ADDR}", "--master-port", "${MASTER_PORT}")
    )
    sizes = ("--nnodes", str(handover.num_nodes), "--nproc-per-node", str(handover.per_node))
    return ("python", "-m", "torch.distributed.run", *sizes, *nodes)


def _environment(handover: Handover) -> dict[str, str]:
    """Up to Hopper its checks ask for one queue of work where tensors or sequences are divided (validate_args)."""
    layout = handover.layout
    variables = {"HF_DATASETS_CACHE": f"{handover.paths.work}/datasets"}
    return variables | ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if layout.tensor > 1 or layout.context > 1 else {})


def _notes(handover: Handover) -> tuple[str, ...]:
    notes = [
        "MEGATRON_DIR is a checkout at the version above; PYTHONPATH has to hold it",
        f"run prepare.sh once, on one node, before the first start; it needs megatron-bridge {BRIDGE}",
        "checkpoints are never removed by Megatron-LM; a start goes on from the newest in --load",
    ]
    if handover.stage.kind == "sft":
        notes.append(
            "its own chat templates count every token (sft_tokenizer.py, format default), so that contents of messages "
            "hold the template's text already and the format is identity: system and user messages are masked"
        )
    if trained(handover).dtype == FP8:
        notes.append(
            f"fp8 needs TransformerEngine {TRANSFORMER_ENGINE} or newer on Ada, Hopper or Blackwell; for scales "
            "from a history instead: --fp8-recipe delayed --fp8-amax-history-len 1024 --fp8-amax-compute-algo max"
        )
    if handover.architectures["init"].rope_theta == 500_000.0:
        notes.append("positions of Llama 3.1 and later are stretched (--use-rope-scaling); compare with config.json")
    return tuple(notes)


RESUME = Resume(
    guarantee="same_data_order",
    reason="weights, optimizer, schedule, random states of every rank and the number of samples read come back; the "
    "same numbers need --deterministic-mode and the same layout as well",
    source=f"Megatron-LM {COMMIT[:7]}: megatron/training/checkpointing.py get_rng_state, save_checkpoint; "
    "data_samplers.py; "
    "not measured, since it does not run without a GPU",
)
