"""Rows of a step: sequences of a layout become rows of a device, and their number has to come out even."""

from charter.engines.huggingface.configuration import Configuration


def map_batches(configuration: Configuration, *, batch: int, field: str) -> int:
    """Rows of a device and their accumulation, so that exactly `batch` rows make an update; returns rows of a device.

    The layout counts sequences, of which a pair has two; TRL counts pairs.
    """
    handover, mapper = configuration.handover, configuration.mapper
    layout, each = handover.layout, handover.stage.SEQUENCES_PER_ROW
    rows, half = divmod(layout.micro_batch, each)
    if half:
        mapper.refuse("layout.micro_batch", "TRL never parts a pair", f"a multiple of {each}")
        rows += 1
    accumulation, rest = divmod(batch, rows * layout.data)
    if rest or accumulation != layout.accumulation:
        mapper.refuse(
            "layout.accumulation",
            f"micro_batch {layout.micro_batch} * accumulation {layout.accumulation} * data {layout.data} is not the "
            f"{batch * each} sequences of {field} {batch}, and TRL has no smaller last micro-batch",
            f"a micro_batch that divides the share of each replica, {batch * each / layout.data:g} sequences",
        )
    note = "pairs" if each > 1 else "sequences"
    configuration.write("layout.micro_batch", {"per_device_train_batch_size": rows}, how="computed", note=f"in {note}")
    configuration.write("layout.accumulation", {"gradient_accumulation_steps": layout.accumulation})
    mapper.to(
        f"stage.{field}",
        configuration.place("per_device_train_batch_size"),
        configuration.place("gradient_accumulation_steps"),
        how="computed",
        note="rows of a device * accumulation * replicas",
    )
    configuration.deepspeed |= {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": layout.accumulation,
        "train_batch_size": batch,
    }
    return rows
