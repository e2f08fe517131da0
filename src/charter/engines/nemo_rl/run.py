"""Options that all of NeMo RL's algorithms share: steps, checkpoints, logs, machines."""

from charter.engines.common.sheet import Sheet

CHECKPOINTS, LOGS = "checkpoints", "logs"
"""Below the work directory."""


def map_run(sheet: Sheet, algorithm: str, *, length_fields: tuple[str, ...]) -> None:
    """One pass over a file that holds the rows of all steps, in Charter's order; no validation."""
    handover = sheet.mapper.handover
    steps: dict[str, object] = {f"{algorithm}.max_num_steps": handover.target_steps, f"{algorithm}.max_num_epochs": 1}
    for field in length_fields:
        sheet.computed(field, steps, "steps in all; the file holds just the rows of those, as one epoch")
    sheet.put(f"{algorithm}.val_period", 0)
    for name in ("val_at_start", "val_at_end"):
        sheet.put(f"{algorithm}.{name}", False)
    sheet.as_is("seed", f"{algorithm}.seed")
    sheet.as_is("stage.checkpoint_every", "checkpointing.save_period", note="the last step is always saved")
    work = handover.paths.work
    settings: dict[str, object] = {
        "enabled": True,
        "checkpoint_dir": f"{work}/{CHECKPOINTS}",
        "metric_name": None,
        "higher_is_better": False,
        "keep_top_k": handover.keep_last + 1,
        "checkpoint_must_save_by": None,
        "save_optimizer": True,
        "model_save_format": "safetensors",
        "save_consolidated": True,
    }
    for name, value in settings.items():
        sheet.put(f"checkpointing.{name}", value)
    _logger(sheet, f"{work}/{LOGS}")
    cluster = {"gpus_per_node": handover.per_node, "num_nodes": handover.num_nodes, "segment_size": None}
    sheet.put("cluster", cluster)


def _logger(sheet: Sheet, directory: str) -> None:
    """TensorBoard files beside the console; nothing is sent anywhere."""
    handover = sheet.mapper.handover
    settings: dict[str, object] = {
        "log_dir": directory,
        "wandb_enabled": False,
        "swanlab_enabled": False,
        "tensorboard_enabled": True,
        "mlflow_enabled": False,
        "monitor_gpus": False,
        "num_val_samples_to_print": 0,
        "wandb": {"project": handover.run, "name": handover.name},
        "tensorboard": {},
        "gpu_monitoring": {"collection_interval": 10, "flush_interval": 10},
    }
    sheet.put("logger", settings)
