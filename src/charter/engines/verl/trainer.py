"""verl's `trainer` section, which PPO and SFT share: machines, checkpoints, resume, logs."""

from charter.engines.common.sheet import Sheet

CHECKPOINTS = "checkpoints"
"""Below the work directory: `global_step_N` and the file that names the last whole one."""
METRICS = "metrics"
"""Below the work directory: a JSONL file per start, since verl empties the file that it is given."""
SPARE_CHECKPOINTS = 1
"""verl removes an old checkpoint before it writes the next one (ensure_checkpoint_capacity)."""
LEAST_KEPT = 2
"""Whoever takes over the newest one has it whole while a next one is written."""


def map_trainer(sheet: Sheet, *, actor_and_critic: bool) -> None:
    """Map where checkpoints go, how many, and which one it goes on from."""
    handover = sheet.mapper.handover
    paths = handover.paths
    sheet.as_is("stage.checkpoint_every", "trainer.save_freq", note="the last step is always saved")
    checkpoints_to_keep = max(LEAST_KEPT, handover.keep_last) + SPARE_CHECKPOINTS
    names = ("max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep") if actor_and_critic else ("max_ckpt_to_keep",)
    settings: dict[str, object] = {
        "nnodes": handover.num_nodes,
        "n_gpus_per_node": handover.per_node,
        "default_local_dir": f"{paths.work}/{CHECKPOINTS}",
        **dict.fromkeys(names, checkpoints_to_keep),
        "resume_mode": "auto" if paths.resume_from is None else "resume_path",
        "resume_from_path": paths.resume_from,
        "total_epochs": 1,
        "test_freq": -1,
        "project_name": handover.run,
        "experiment_name": handover.name,
        "logger": ["console", "file"],
    }
    for name, value in settings.items():
        sheet.put(f"trainer.{name}", value)
