"""Settings common to the trainers of TRL: model, steps, checkpoints, logs, seeds, order of the rows."""

from charter.engines.common.request import Handover
from charter.engines.huggingface.configuration import Configuration

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
