"""Options that all of OpenRLHF's programs share: layout, optimizer, checkpoints, seed.

Sources, all in OpenRLHF 0.11.2: cli/train_*.py (options), utils/deepspeed/deepspeed.py (schedules, batches,
checkpoints), utils/deepspeed/deepspeed_utils.py (which parameters are decayed, what can be offloaded).
"""

from collections.abc import Iterator, Sequence

from charter.engines.common.mapping import Arguments
from charter.engines.common.request import Handover, RolesTogether
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import StageResources

CHECKPOINTS, OUTPUT, LOGS = "checkpoints", "output", "tensorboard"
"""Below the work directory: the engine's checkpoints, the final weights, what it logs."""
TRAINED_ROLES = {"policy", "value"}
CRITIC = "critic."
"""Before the options of the value model."""
ADAM_EPSILON = 1e-8
"""Charter's, and torch's own."""
FLASH = "flash_attention_2"
SCHEDULES = "OpenRLHF passes a smallest rate to cosine_with_min_lr only (utils/deepspeed/deepspeed.py)"


Trained = SftStage | PreferenceModelStage | DpoStage | PpoStage


def trained(handover: Handover) -> Trained:
    """The stage, which is of a kind that OpenRLHF trains."""
    assert isinstance(handover.stage, Trained)
    return handover.stage


def engine_wide(given: Arguments, *, sequences_per_row: int, recompute: str, micro_batch: int | None = None) -> None:
    """Everything that does not depend on the kind of stage; `recompute` names the option that turns it on.

    `micro_batch` stands in for the layout's where roles with layouts of their own share the option.
    """
    handover = given.handover
    _micro_batch(given, sequences_per_row, micro_batch or handover.layout.micro_batch)
    _layout(given, recompute=recompute)
    _attention(given)
    given.to("seed", "--train.seed", handover.seed)
    given.to("stage.checkpoint_every", "--ckpt.save_steps")
    given.give("--ckpt.output_dir", f"{handover.paths.work}/{OUTPUT}")
    given.give("--ckpt.path", f"{handover.paths.work}/{CHECKPOINTS}")
    given.give("--ckpt.max_num", handover.keep_last + 1)
    if handover.paths.resume_from is not None:
        given.give("--ckpt.load_enable")
    given.give("--logger.logging_steps", 1)
    given.give("--logger.tensorboard_dir", f"{handover.paths.work}/{LOGS}")
    given.give("--logger.wandb.run_name", handover.name)
    given.fields.same("stage.optimizer", "adamw", "its Adam keeps its moments in 32 bits (DeepSpeed's AdamW)")
    given.fields.same(
        "stage.guard",
        None,
        "it has no check of the loss; Charter looks at what is logged and at the final weights",
    )


def precision(given: Arguments) -> None:
    """bf16 and fp16 with fp32 master weights in the optimizer; there is no fp32."""
    if trained(given.handover).dtype in ("bf16", "fp16"):
        note = "gradients of micro-batches are added in 16 bits, here in 32 (--ds.grad_accum_dtype is left out)"
        given.to("stage.dtype", "--ds.param_dtype", note=note)
    else:
        given.fields.refuse("stage.dtype", "--ds.param_dtype is bf16 or fp16", "dtype: bf16")


def optimizer(given: Arguments, prefixes: Sequence[str], *, updates: int, updates_per_step: int = 1) -> None:
    """Schedule, moments, decay and clipping, the same for every model that is trained: `""`, or `actor.`, `critic.`."""
    stage = trained(given.handover)
    for prefix in prefixes:
        _every(given, "stage.beta1", f"--{prefix}adam.betas", stage.beta1, stage.beta2)
        _every(given, "stage.beta2", f"--{prefix}adam.betas", stage.beta1, stage.beta2)
        given.give(f"--{prefix}optim", "adam")
        if prefix != CRITIC:
            given.give(f"--{prefix}adam.eps", ADAM_EPSILON)
    decayed = "biases and norms are not decayed (utils/deepspeed/deepspeed_utils.py)"
    _all(given, "stage.weight_decay", [f"--{prefix}adam.weight_decay" for prefix in prefixes], note=decayed)
    note = "the value model's is divided by value_loss_weight" if CRITIC in prefixes else ""
    _all(given, "stage.gradient_clip", [f"--{prefix}max_norm" for prefix in prefixes if prefix != CRITIC], note=note)
    _schedule(given, prefixes, updates=updates, updates_per_step=updates_per_step)


def optimizers(given: Arguments, stage: PpoStage, updates: int) -> None:
    """Those of the policy and, where there is one, the value model; `updates` in a step of the stage."""
    prefixes = ("actor.", CRITIC) if stage.has_value_model else ("actor.",)
    optimizer(given, prefixes, updates=given.handover.target_steps * updates, updates_per_step=updates)
    given.to("stage.learning_rate", "--actor.adam.lr")
    if stage.has_value_model:
        given.to("stage.value_learning_rate", "--critic.adam.lr")
        _value_weight(given, stage)
    else:
        given.unused("stage.value_learning_rate", "the estimator has no value model")
    given.to("stage.ppo_epochs", "--train.max_epochs")


def _value_weight(given: Arguments, stage: PpoStage) -> None:
    """Half the squared error is its whole loss (models/loss.py ValueLoss), with an optimizer of its own; here weighted.

    Adam's update of weight x loss is that of the loss with its epsilon divided by the weight, and so is the clip.
    """
    weight = stage.value_loss_weight
    if weight > 0:
        given.give(f"--{CRITIC}adam.eps", ADAM_EPSILON / weight)
        given.give(f"--{CRITIC}max_norm", stage.gradient_clip / weight)
        note = "Adam's epsilon and the critic's clip divided by the weight make the same update"
        options = (f"--{CRITIC}adam.eps", f"--{CRITIC}max_norm")
        given.fields.to("stage.value_loss_weight", *options, how="computed", note=note)
    else:
        given.fields.refuse("stage.value_loss_weight", "a value model that does not learn cannot be told to it")


def _schedule(given: Arguments, prefixes: Sequence[str], *, updates: int, updates_per_step: int) -> None:
    stage = trained(given.handover)
    kind, warmup = stage.schedule, stage.warmup_steps * updates_per_step
    names = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine_with_min_lr"}
    ratio = max(0.0, warmup - 0.5) / updates
    for prefix in prefixes:
        given.give(f"--{prefix}lr_scheduler", names[kind])
        given.give(f"--{prefix}lr_warmup_ratio", ratio)
    given.fields.to("stage.schedule", *(f"--{prefix}lr_scheduler" for prefix in prefixes))
    note = f"a share: OpenRLHF rounds {updates} updates times it up to {warmup}; its warm-up begins at 0"
    given.fields.to(
        "stage.warmup_steps", *(f"--{prefix}lr_warmup_ratio" for prefix in prefixes), how="computed", note=note
    )
    field = "stage.min_learning_rate_ratio"
    if kind == "cosine":
        _all(given, field, [f"--{prefix}min_lr_ratio" for prefix in prefixes])
    elif kind == "constant":
        given.unused(field, "a constant learning rate has no end")
    elif stage.min_learning_rate_ratio == 0:
        given.fields.same(field, 0.0, "its linear schedule ends at 0")
    else:
        given.fields.refuse(field, f"its linear schedule ends at 0; {SCHEDULES}", "schedule: cosine, or 0")


def adapter(given: Arguments) -> None:
    """LoRA and QLoRA on every linear layer but the output projection, saved as an adapter that Charter merges."""
    chosen = trained(given.handover).adapter
    if chosen is None:
        given.fields.same("stage.adapter", None, "all parameters are trained")
    elif given.handover.layout.zero is ZeroStage.PARAMETERS:
        reason = "with ZeRO-3 it writes adapters as a pickle and removes the safetensors file (save_model)"
        given.fields.refuse("stage.adapter", reason, "resources: {zero: 2}")
    else:
        given.give("--ds.lora.rank", chosen.rank)
        given.give("--ds.lora.alpha", chosen.alpha)
        options = ["--ds.lora.rank", "--ds.lora.alpha"]
        if chosen.base_bits == 4:
            given.give("--ds.load_in_4bit")
            options.append("--ds.load_in_4bit")
        given.fields.to("stage.adapter", *options, how="computed", note="all linear layers but the output projection")


def _layout(given: Arguments, *, recompute: str) -> None:
    layout, fields = given.handover.layout, given.fields
    world = layout.data * layout.context * layout.tensor
    if world != given.handover.num_accelerators and given.handover.placement is None:
        fields.refuse("layout.data", f"the layout is of {world}, the machines have {given.handover.num_accelerators}")
    else:
        note = "accelerators over ring and tensor parallelism (setup_distributed)"
        fields.to("layout.data", "--train.batch_size", how="computed", note=note)
    given.to("layout.zero", "--ds.zero_stage", int(layout.zero))
    given.to("layout.context", "--ds.ring_attn_size", note="ring attention")
    _tensor(given)
    fields.same("layout.pipeline", 1, "it has no pipeline parallelism")
    fields.same("layout.interleave", 1, "it has no pipeline parallelism")
    fields.same("layout.expert", 1, "it has no expert parallelism")
    fields.same("layout.sequence_parallel", False, "it has no sequence parallelism beside tensor parallelism")
    fields.same("layout.replicas", 1, "ZeRO shards over all ranks; ZeRO++'s secondary copies keep the shards as well")
    fields.same("layout.offload_parameters", False, "it never offloads trained parameters (get_train_ds_config)")
    _recompute(given, recompute)
    if layout.offload_optimizer and layout.zero is ZeroStage.NONE:
        fields.refuse("layout.offload_optimizer", "DeepSpeed offloads what ZeRO shards", "zero: 1 to 3")
    else:
        given.switch("layout.offload_optimizer", "--ds.adam_offload")


def _micro_batch(given: Arguments, sequences_per_row: int, micro_batch: int) -> None:
    layout, stage = given.handover.layout, trained(given.handover)
    rows, rest = divmod(micro_batch, sequences_per_row)
    if rest:
        reason = f"it counts pairs, and {micro_batch} sequences are no whole number of them"
        given.fields.refuse("layout.micro_batch", reason)
        rows = max(1, rows)
    note = "a pair is one here and two sequences of the plan" if sequences_per_row > 1 else "sequences of a rank"
    given.to("layout.micro_batch", "--train.micro_batch_size", rows, how="computed", note=note)
    batch, field = (
        (stage.minibatch, "stage.minibatch")
        if isinstance(stage, PpoStage)
        else (stage.global_batch, "stage.global_batch")
    )
    steps = layout.accumulation * layout.micro_batch // micro_batch
    if rows * steps * layout.data == batch:
        given.to(field, "--train.batch_size", batch)
        note = "batch over micro-batch and data parallelism; DeepSpeed works it out"
        given.fields.to("layout.accumulation", "--train.batch_size", how="computed", note=note)
    else:
        product = f"{rows} x {steps} x {layout.data} = {rows * steps * layout.data}"
        given.fields.refuse(field, f"DeepSpeed asks for micro-batch x accumulation x data, {product}")
        given.fields.refuse("layout.accumulation", f"the batch is {batch}, not {product}")


def _tensor(given: Arguments) -> None:
    if given.handover.layout.tensor > 1 and trained(given.handover).dtype != "bf16":
        given.fields.refuse("layout.tensor", "tensor parallelism needs bf16 (deepspeed.py)", "dtype: bf16")
    else:
        given.to("layout.tensor", "--ds.tensor_parallel_size", note="DeepSpeed's AutoTP")


def _recompute(given: Arguments, option: str) -> None:
    recompute = given.handover.layout.recompute
    if recompute is Recompute.SELECTIVE:
        given.fields.refuse("layout.recompute", "it recomputes whole layers or nothing", "recompute: full")
    elif recompute is Recompute.FULL:
        given.give(option)
        given.fields.to("layout.recompute", option)
    else:
        given.fields.same("layout.recompute", Recompute.NONE, f"{option} is left out")


def _attention(given: Arguments) -> None:
    """Micro-batches are packed without padding where flash attention runs: the same sums, fewer tokens."""
    resources = given.handover.stage.resources or StageResources()
    attention = resources.attention or FLASH
    given.give("--ds.attn_implementation", attention)
    if attention == FLASH:
        given.give("--ds.packing_samples")
    elif given.handover.layout.context > 1:
        given.fields.refuse("layout.context", f"{attention} cannot pack, and a ring must", f"attention: {FLASH}")
    if resources.compile:
        given.fields.refuse("stage.resources", "torch.compile of the forward pass is not offered", "compile: false")


def _every(given: Arguments, field: str, option: str, *values: float) -> None:
    given.give(option, *values)
    if field not in {row.field for row in given.fields.rows}:
        given.fields.to(field, option)


def _all(given: Arguments, field: str, options: Sequence[str], note: str = "") -> None:
    value = given.fields.value(field)
    assert isinstance(value, float | int)
    for option in options:
        given.give(option, value)
    given.fields.to(field, *options, note=note)


CALLER = '''
_SPECIAL = []


def _plain(query, prompt):
    """The answer in the text of prompt and answer, which OpenRLHF decodes with its special tokens."""
    if not query.startswith(prompt):
        raise ValueError(f"the answer does not follow its prompt as text: {query[:200]!r}")
    if not _SPECIAL:
        from transformers import AutoTokenizer

        _SPECIAL.extend(sorted(AutoTokenizer.from_pretrained(MODEL).all_special_tokens, key=len, reverse=True))
    answer = query[len(prompt) :]
    for token in _SPECIAL:
        answer = answer.replace(token, "")
    return answer


def reward_func(queries, prompts, labels):
    """The rewards of one answer as OpenRLHF calls them."""
    [query], [prompt], [row] = queries, prompts, labels
    total, each = rewards_of(_plain(query, prompt), row)
    return {"rewards": total, "scores": total, "extra_logs": {f"reward_{name}": item for name, item in each.items()}}
'''


def reward_caller(handover: Handover) -> str:
    """Return what OpenRLHF calls, with the model whose tokenizer knows the special tokens."""
    return f"\nMODEL = {handover.paths.models['policy']!r}\n{CALLER}"


def differing(layout: Layout, group: RolesTogether) -> Iterator[tuple[str, str]]:
    """Yield what a group of roles has otherwise than the others, as what cannot be done and what would work."""
    names, wanted = ", ".join(group.roles), group.layout
    degrees = ("tensor", "context")
    is_trained = bool(TRAINED_ROLES & set(group.roles))
    for name in (*degrees, "zero", "recompute", "offload_optimizer") if is_trained else degrees:
        if getattr(wanted, name) != getattr(layout, name):
            difference = f"{name} {getattr(wanted, name)} beside {getattr(layout, name)} of the others"
            yield f"give {names} {difference}", f"one {name} for all roles"
    if not is_trained and wanted.zero is ZeroStage.PARAMETERS and layout.zero is not ZeroStage.PARAMETERS:
        yield f"shard {names} while the trained roles have ZeRO {int(layout.zero)}", "ZeRO-3 for all roles"
