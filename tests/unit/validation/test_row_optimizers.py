"""The optimizer that a row of a source names."""

import pytest

from charter.physics import precision as kinds
from charter.physics.memory_profiles import DEEPSPEED, HUGGINGFACE, MEGATRON_STACK, UNSLOTH
from charter.validation.quantities.memory_cases import optimizer_of, precision_of
from charter.validation.rows.measurement import Measurement


def row(**cells):
    return Measurement(**{"id": "NEW-1", "metric": "peak_mem_gb", "value": 1.0, "kind": "sft", **cells})


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "adam"),
        ("AdamW, bs 4", "adam"),
        ("adamw_8bit", "adam8bit"),
        ("adamw_bnb_8bit", "adam8bit"),
        ("8-bit Adam", "adam8bit"),
        ("optim: adam 8bit", "adam8bit"),
        ("8-bit optimizer", "adam8bit"),
        ("optimizer 8-bit", "adam8bit"),
        ("paged_adamw_8bit", "paged"),
        ("PagedAdamW32bit", "paged"),
        ("paged attention", "adam"),
        ("Adafactor", "adafactor"),
        ("adafactor with momentum", "adafactor-momentum"),
        ("GaLore rank 128", "adafactor"),
        ("optimizer-in-backward", "adafactor"),
        ("SGD", "sgd-plain"),
        ("SGD, momentum 0.9", "sgd"),
        ("SGD without momentum", "sgd-plain"),
        ("Lion", "lion"),
        ("1.3 billion parameters", "adam"),
        ("moments in bf16", "adam-bf16"),
    ],
)
def test_optimizers_are_read_from_notes_framework_or_offload(text, name):
    for cells in ({"notes": text}, {"framework": text}, {"offload": text}):
        assert optimizer_of(row(**cells), HUGGINGFACE) == name


def test_a_bare_8_bit_is_the_optimizer_only_where_everything_is_trained():
    assert optimizer_of(row(notes="8-bit", adapter="full"), HUGGINGFACE) == "adam8bit"
    assert optimizer_of(row(notes="8-bit", adapter="qlora", kind="lora"), HUGGINGFACE) == "adam"


def test_unsloth_has_8_bit_adam_unless_it_says_otherwise():
    assert precision_of(row(), UNSLOTH) == kinds.with_optimizer(kinds.PURE_BF16, "adam8bit")
    assert optimizer_of(row(notes="adafactor"), UNSLOTH) == "adafactor"


def test_the_master_copy_of_a_stack_stays():
    assert precision_of(row(), HUGGINGFACE) is kinds.FSDP_MIXED
    assert precision_of(row(notes="adamw_8bit"), DEEPSPEED).optimizer_bytes == 4 + 2 + 2 * 4 / 256
    assert precision_of(row(notes="sgd"), MEGATRON_STACK).optimizer_bytes == 4
