"""Pretraining, SFT, preference models and DPO by TRL's SFTTrainer, RewardTrainer and DPOTrainer (1.16.0)."""

from charter.engines.huggingface.batches import map_batches
from charter.engines.huggingface.configuration import Configuration
from charter.engines.huggingface.optimization import map_optimization
from charter.engines.huggingface.trainer import attention, map_trainer
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage

FLASH = "flash_attention_2"


Supervised = PretrainStage | SftStage | PreferenceModelStage | DpoStage


def map_supervised(configuration: Configuration, stage: Supervised) -> None:
    """A stage that learns from fixed rows."""
    map_trainer(configuration, model="init", data="data")
    mapper = configuration.mapper
    map_batches(configuration, batch=stage.global_batch, field="global_batch")
    map_optimization(configuration, stage)
    configuration.deepspeed["gradient_clipping"] = stage.gradient_clip
    cut = "TRL cuts the end of a longer pair, here its prompt" if isinstance(stage, DpoStage) else "Charter cuts before"
    configuration.write("stage.seq_len", {"max_length": stage.seq_len}, note=cut)
    mapper.charter("stage.epochs", "counted in steps, which max_steps says, and written row by row in the data file")
    mapper.charter("stage.steps", "the target that max_steps says; Charter checks that it was reached")
    mapper.same("stage.dropout", 0.0, "TRL's scripts load a model with the dropout of its own config")
    configuration.put({"train_sampling_strategy": "sequential", "enable_jit_checkpoint": True})
    if isinstance(stage, PreferenceModelStage):
        _map_preference_model(configuration, stage)
    elif isinstance(stage, DpoStage):
        _map_dpo(configuration, stage)
    else:
        _map_language(configuration, stage)


def _map_language(configuration: Configuration, stage: PretrainStage | SftStage) -> None:
    """Rows hold their tokens and which of them count, so that TRL neither tokenises nor chooses."""
    is_packed = isinstance(stage, SftStage) and stage.packing
    configuration.put(
        {
            "loss_type": "nll",
            "completion_only_loss": False,
            "assistant_only_loss": False,
            "router_aux_loss_coef": 0.0,
            "packing": is_packed,
        }
    )
    context = configuration.handover.layout.context
    if context > 1:
        configuration.put({"pad_to_multiple_of": 2 * context})
    if not isinstance(stage, SftStage):
        return
    note = "packed by best fit, and drawn in TRL's own order" if is_packed else "a conversation is a row"
    configuration.write("stage.packing", {"packing": is_packed}, note=note)
    if not is_packed:
        return
    configuration.put({"packing_strategy": "bfd", "train_sampling_strategy": "random"})
    if attention(configuration.handover) != FLASH:
        reason = f"TRL keeps packed conversations apart with {FLASH} only (sft_trainer.py)"
        configuration.mapper.refuse("stage.packing", reason, f"resources: {{attention: {FLASH}}}, or packing: false")
    if context > 1:
        configuration.mapper.refuse("stage.packing", "SFTTrainer refuses packing beside context parallelism")


def _map_preference_model(configuration: Configuration, stage: PreferenceModelStage) -> None:
    """A sequence classifier with one label; its head is drawn at random, here it starts from zero."""
    mapper = configuration.mapper
    configuration.put({"disable_dropout": True})
    pooled = "transformers reads a sequence classifier at the last token that is not padding"
    mapper.same("stage.pooling", "last", pooled)
    mapper.charter("stage.context", "Charter cuts the conversation before it writes the rows")
    mapper.charter("stage.shuffle_labels", "Charter permutes the labels before it writes the rows")
    mapper.charter("stage.use_margin", "Charter writes the column `margin`, which RewardTrainer subtracts")
    mapper.same("stage.head_learning_rate_ratio", 1.0, "the Trainer has one learning rate for all weights")
    mapper.same("stage.label_smoothing", 0.0, "RewardTrainer knows hard labels only, so Charter refuses soft ones")
    configuration.write("stage.center_weight", {"center_rewards_coefficient": stage.center_weight})


def _map_dpo(configuration: Configuration, stage: DpoStage) -> None:
    configuration.put(
        {
            "loss_type": ["sigmoid"],
            "disable_dropout": True,
            "precompute_ref_log_probs": False,
            "router_aux_loss_coef": 0.0,
        }
    )
    configuration.write("stage.beta", {"beta": stage.beta})
    smoothing = "the sigmoid loss of DPOTrainer has no label smoothing, and its robust loss is another one"
    configuration.mapper.same("stage.label_smoothing", 0.0, smoothing)
