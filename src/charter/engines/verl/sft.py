"""Supervised fine-tuning on verl's engine: `torchrun -m verl.trainer.sft_trainer`."""

from charter.engines.common.mapping import FieldMapper
from charter.engines.common.sheet import Sheet
from charter.engines.verl.fsdp import check_machine, map_layout
from charter.engines.verl.optimizer import map_adapter, map_guard, map_optimizer, map_precision
from charter.engines.verl.trainer import map_trainer
from charter.spec.stage import SftStage

FILE = "sft.yaml"
ENGINES = ("engine",)


def sft_sheet(mapper: FieldMapper, stage: SftStage) -> Sheet:
    """The file that Hydra composes over verl's `sft_trainer_engine`."""
    sheet = Sheet(mapper, FILE)
    sheet.put("defaults", ["sft_trainer_engine", "_self_"])
    check_machine(mapper)
    _data(sheet, stage)
    _batches(sheet, stage)
    sheet.as_is("stage.learning_rate", "optim.lr")
    sheet.as_is("stage.gradient_clip", "optim.clip_grad")
    map_optimizer(sheet, ("optim",))
    map_precision(sheet, ENGINES)
    map_adapter(sheet, "model")
    map_guard(sheet)
    map_layout(sheet, ENGINES, ("model",), "init")
    sheet.put("engine.param_offload", False)
    sheet.put("engine.optimizer_offload", False)
    mapper.same("stage.dropout", 0.0, "verl trains the model as it is, without dropout of its own")
    mapper.same("stage.packing", False, "its batches count conversations; padding is removed in any case")
    seed = mapper.handover.seed
    note = "the engine's seed; the rows' order in the file comes from it, verl's sampler always shuffles with seed 0"
    sheet.computed("seed", {"engine.seed": seed, "trainer.seed": seed}, note)
    for field in ("stage.epochs", "stage.steps"):
        keys: dict[str, object] = {"trainer.total_training_steps": mapper.handover.target_steps}
        sheet.computed(field, keys, "optimizer steps in all; the file holds just the rows of those, as one epoch")
    map_trainer(sheet, actor_and_critic=False)
    return sheet


def _data(sheet: Sheet, stage: SftStage) -> None:
    paths = sheet.mapper.handover.paths
    sheet.computed("stage.init", {"model.path": paths.models["init"]}, "where its weights are")
    keys: dict[str, object] = {"data.train_files": paths.data["data"], "data.val_files": None}
    sheet.computed("stage.data", keys, "one Parquet file of conversations, each as often as it is used")
    keys = {"data.max_length": stage.seq_len, "data.truncation": "right"}
    sheet.computed("stage.seq_len", keys, "longer conversations are cut at the right")


def _batches(sheet: Sheet, stage: SftStage) -> None:
    mapper, layout = sheet.mapper, sheet.mapper.handover.layout
    micro, data = layout.micro_batch, layout.data
    if stage.global_batch % (micro * data):
        reason = f"data x micro_batch ({data} x {micro}) must divide global_batch ({stage.global_batch})"
        mapper.refuse("layout.micro_batch", reason)
    else:
        sheet.as_is("layout.micro_batch", "data.micro_batch_size_per_gpu")
    sheet.put("data.use_dynamic_bsz", False)
    sheet.as_is("stage.global_batch", "data.train_batch_size")
    derived = max(1, stage.global_batch // (data * micro))
    mapper.same("layout.accumulation", derived, f"verl takes global_batch / (data x micro_batch) = {derived}")
