"""Guarantee of a run of TRL's trainers that is killed and goes on from its own checkpoint."""

from charter.engines.common.rendered import Resume
from charter.engines.huggingface.configuration import Configuration
from charter.spec.stage import PpoStage, SftStage, Stage

ROLLOUTS = "TRL 1.16.0, grpo_trainer.py and rloo_trainer.py: _prepare_inputs, RepeatSampler"
RESTORED = "weights, optimizer, schedule, step and the random states of every process are restored"
TRAINER = "transformers 5.23.0, trainer.py: _save_checkpoint, _load_rng_state; sampler of train_sampling_strategy"
MEASURED = (
    "measured with TRL 1.16.0 on processors in fp32: SFT, preference model, DPO, GRPO and RLOO went on from a "
    "checkpoint to the weights of an undisturbed run; all but RLOO also with an adapter"
)


def resume_of(configuration: Configuration) -> Resume:
    """The guarantee of this stage on these processes."""
    stage, handover = configuration.handover.stage, configuration.handover
    if isinstance(stage, PpoStage) and stage.generator == "vllm":
        return Resume(
            guarantee="best_effort",
            reason="prompts of finished rollouts are skipped; the random state of vLLM is not kept",
            source=ROLLOUTS,
        )
    if isinstance(stage, SftStage) and stage.packing:
        return Resume(
            guarantee="same_data_order",
            reason=f"{RESTORED}; the packed rows are drawn by data_seed again and the rows before are skipped",
            source=TRAINER,
        )
    if configuration.backend == "process" and handover.is_cpu and configuration.mapper.value("stage.dtype") == "fp32":
        return Resume(guarantee="bit_exact", reason=f"{RESTORED}; {_order(stage)}", source=MEASURED)
    what = {
        "process": "on an accelerator, or in 16 bits, sums in another order were not ruled out",
        "torchrun": "sums over processes in the order of an undisturbed run were not measured",
        "ddp": "gradient buckets of DDP may settle otherwise after a restart, and sums with them",
        "fsdp": "sums over processes in the order of an undisturbed run were not measured",
        "deepspeed": "DeepSpeed's own loss scale and buckets were not measured",
    }[configuration.backend]
    return Resume(
        guarantee="same_data_order",
        reason=f"{RESTORED}; {_order(stage)}; {what}",
        source=ROLLOUTS if isinstance(stage, PpoStage) else TRAINER,
    )


def _order(stage: Stage) -> str:
    if isinstance(stage, PpoStage):
        return "prompts are read in the order of the file, and checkpoints fall between rollouts"
    return "rows are read in the order of the file"
