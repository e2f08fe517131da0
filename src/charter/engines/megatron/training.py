"""Megatron-LM's options of training itself: data, batches, schedule, checkpoints, precision.

Sources at the recorded commit: megatron/training/arguments.py, config/training_config.py,
megatron/core/optimizer_param_scheduler.py (get_lr), datasets/sft_dataset.py, datasets/data_samplers.py (rows in the
order of the file), checkpointing.py (--pretrained-checkpoint where nothing is in --load),
megatron/core/tokenizers/text/libraries/sft_tokenizer.py (which turns count).
"""

from charter.engines.common.arguments import Arguments
from charter.engines.common.request import Handover
from charter.engines.megatron.precision import precision_arguments
from charter.spec.stage import PretrainStage, SftStage, StageResources

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
    fields.same("stage.adapter", None, "it trains all parameters")
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
        given.fields.same("stage.packing", False, "a row begins anew at a system message only, which not every one has")
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
