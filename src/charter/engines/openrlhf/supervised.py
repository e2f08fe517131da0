"""OpenRLHF's programs of one model: train_sft, train_rm, train_dpo.

Data (`Handover.paths.data`): JSONL with lists of messages, exactly `target_steps * global_batch` rows, so that one
epoch over the file is the stage, whatever its `epochs`. OpenRLHF shuffles the file by the seed
(utils/distributed_sampler.py) and cannot be told not to.
"""

from charter.engines.common.arguments import Arguments
from charter.engines.common.request import Handover
from charter.engines.openrlhf.common import adapter, engine_wide, optimizer, precision
from charter.spec.stage import DpoStage, PreferenceModelStage, SftStage

MODULES = {"sft": "train_sft", "preference_model": "train_rm", "dpo": "train_dpo"}


def supervised_arguments(handover: Handover) -> Arguments:
    """Options of the program that trains this kind, with the mapping of every field."""
    given = Arguments(handover)
    stage = handover.stage
    assert isinstance(stage, SftStage | PreferenceModelStage | DpoStage)
    given.to("stage.init", "--model.model_name_or_path", handover.paths.models["init"])
    engine_wide(given, sequences_per_row=stage.SEQUENCES_PER_ROW, recompute="--model.gradient_checkpointing_enable")
    precision(given)
    optimizer(given, ("",), updates=handover.target_steps)
    given.to("stage.learning_rate", "--adam.lr")
    given.to("stage.seq_len", "--data.max_len", note="cut at the right, the last token becomes the end token")
    _data(given, stage)
    if isinstance(stage, SftStage):
        _sft(given, stage)
    elif isinstance(stage, PreferenceModelStage):
        _preference_model(given)
    else:
        _dpo(given, stage)
    return given


def _data(given: Arguments, stage: SftStage | PreferenceModelStage | DpoStage) -> None:
    rows = given.handover.target_steps * stage.global_batch
    given.to("stage.data", "--data.dataset", given.handover.paths.data["data"])
    given.give("--data.apply_chat_template")
    given.give("--data.max_samples", rows)
    given.give("--train.max_epochs", 1)
    note = f"{rows} rows: each as often as it is trained, in one epoch over the file"
    for field in ("stage.steps", "stage.epochs"):
        if given.fields.value(field) is None:
            given.unused(field, "steps and epochs are two ways to say one thing")
        else:
            given.fields.to(field, "--data.max_samples", how="computed", note=note)
    given.fields.same(
        "stage.dropout", 0.0, "dropout is what the model's own configuration says; only LoRA has an option"
    )


def _sft(given: Arguments, stage: SftStage) -> None:
    """Every assistant turn counts; the loss is the mean over all their tokens in a batch (trainer/sft_trainer.py)."""
    given.give("--data.input_key", "messages")
    given.give("--data.multiturn")
    adapter(given)
    reason = "it packs the rows of a micro-batch, and a batch counts conversations, not rows of seq_len tokens"
    given.fields.same("stage.packing", False, reason)


def _preference_model(given: Arguments) -> None:
    """Bradley-Terry on the score at the last token (models/loss.py PairWiseLoss, models/model.py)."""
    _pairs(given)
    given.give("--model.loss_type", "sigmoid")
    given.give("--model.compute_fp32_loss_enable")
    given.give("--ds.value_head_prefix", "score")
    given.switch("stage.use_margin", "--model.margin_loss_enable", note="from the column margin")
    fields = given.fields
    fields.same("stage.pooling", "last", "the score is read at the last token")
    fields.charter("stage.context", "Charter writes the rows with so much of the conversation")
    fields.charter("stage.shuffle_labels", "Charter permutes the labels when it writes the rows")
    fields.same("stage.head_learning_rate_ratio", 1.0, "it has one learning rate for body and head")
    fields.same("stage.label_smoothing", 0.0, "its loss of reward models has no smoothing")
    fields.same("stage.center_weight", 0.0, "its loss of reward models has no such term")
    reason = "the head of a reward model is not among an adapter's weights, and is lost when it is saved"
    fields.same("stage.adapter", None, reason)


def _dpo(given: Arguments, stage: DpoStage) -> None:
    """The reference is the model that training starts from (models/loss.py DPOLoss)."""
    _pairs(given)
    given.give("--ref.model_name_or_path", given.handover.paths.models["init"])
    given.to("stage.beta", "--model.beta")
    given.to("stage.label_smoothing", "--model.label_smoothing")
    adapter(given)


def _pairs(given: Arguments) -> None:
    given.give("--data.prompt_key", "prompt")
    given.give("--data.chosen_key", "chosen")
    given.give("--data.rejected_key", "rejected")
