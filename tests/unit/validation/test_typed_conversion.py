"""Free text becomes typed columns: many spellings one word, what nobody said unknown, no name of the owner."""

from itertools import product

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.validation.alarms import bundled_measurements
from charter.validation.rows.measurement import Measurement, Refusal, parse, unknowns
from charter.validation.rows.metrics import algorithm_of, compares_pairs
from charter.validation.typed_rows import converted, shared, typed_cells

SPELLINGS = {
    "framework": ("HF Trainer", "hf-trainer", "Hugging Face Trainer", "huggingface trainer"),
    "gpu": ("A100-SXM-80GB", "A100 80GB", "NVIDIA A100 SXM4 80GB", "a100-80g"),
    "dtype": ("bf16", "BF16", "bfloat16", "torch.bfloat16"),
    "shard": ("zero3", "ZeRO-3", "DeepSpeed stage 3", "fsdp full_shard"),
    "recompute": ("full", "gradient checkpointing", "yes", "Activation Checkpointing"),
}
BASE = {
    "id": "OWN-1", "kind": "sft", "model": "Llama-3.1-8B", "seq": "4096", "gpus": "8", "mbs": "1", "gbs": "64",
    "metric": "step_time_s", "value": "9.0", "notes": "rack 7 of Jane Doe", "source": "our wiki",
} | {column: words[0] for column, words in SPELLINGS.items()}  # fmt: skip


def row_of(**cells: str) -> Measurement:
    return parse([BASE | cells], "own.csv")[0]


@pytest.mark.parametrize(("column", "word"), [pair for c in SPELLINGS for pair in product([c], SPELLINGS[c][1:])])
def test_each_spelling_of_a_fact_becomes_the_same_word(column, word):
    assert typed_cells(row_of(**{column: word})) == typed_cells(row_of())


@pytest.mark.parametrize(
    ("text", "computed", "stored"),
    [
        ("bf16 + int8 KV", "bf16", "bf16"),
        ("GPTQ-Int8", "w8a16", "int8"),
        ("GPTQ-Int4", "w4a16", "int4"),
        ("bnb.nf4", "unknown", "nf4"),
        ("FP8-MX", "mxfp8", "mxfp8"),
    ],
)
def test_types_of_products_and_of_stored_weights_are_told_apart(text, computed, stored):
    cells = typed_cells(row_of(kind="inference", dtype=text))
    assert (cells["compute_dtype"], cells["parameter_dtype"]) == (computed, stored)


def test_what_nobody_said_is_unknown():
    cells = typed_cells(row_of(framework="", dtype="", shard="", recompute="", gpu=""))
    typed = ("stack", "compute_dtype", "shard_kind", "recompute_kind", "accelerator", "master_dtype")
    assert {cells[name] for name in typed} == {"unknown"}


@pytest.mark.parametrize(("flash", "kernel"), [("1", "fused"), ("0", "unfused"), ("", "unknown")])
def test_a_fused_kernel_that_nobody_names_stays_fused(flash, kernel):
    again = parse(converted([row_of(flash=flash)]).rows, "typed.csv")[0]
    assert (again.attention_kernel, again.flash) == (kernel, int(flash) if flash else None)


def test_a_converted_table_is_typed_and_converts_to_itself():
    first = converted([row_of(), row_of(id="OWN-2", kind="inference", framework="vLLM 0.6")])
    again = parse(first.rows, "typed.csv")
    assert [row.stack for row in again] == ["hf-trainer", "vllm"]
    assert converted(again).inferences == {}
    assert {name: getattr(again[0], name) for name in unknowns(vars(again[0]))}.keys() >= {"master_dtype"}


def test_every_shipped_row_converts_and_keeps_its_figure():
    rows = bundled_measurements()
    again = parse(converted(rows).rows, "typed.csv")
    assert [(row.id, row.value, row.config_id) for row in again] == [(row.id, row.value, row.config_id) for row in rows]
    assert all(row.stack and row.compute_dtype for row in again)


@pytest.mark.parametrize(
    ("kind", "notes", "printed"),
    [
        ("dpo", "", "dpo"),
        ("sft", "SimPO on pairs", "simpo"),
        ("lora", "DPO", "lora+dpo"),
        ("grpo", "", "grpo"),
        ("ppo", "RLOO", "rloo"),
        ("ppo", "", "ppo"),
        ("sft", "", "sft"),
    ],
)
def test_conversion_and_sharing_keep_the_algorithm(kind, notes, printed):
    row = row_of(kind=kind, notes=notes)
    first = converted([row])
    again = parse(first.rows, "typed.csv")
    handed = parse(shared(again, "ABC").rows, "shared.csv")
    assert first.rows[0]["kind"] == shared(again, "ABC").rows[0]["kind"] == printed
    for other in (again[0], handed[0]):
        assert other.kind == row.kind
        assert compares_pairs(other) == compares_pairs(row)
        assert algorithm_of(other).name == algorithm_of(row).name


def test_shared_rows_hold_no_name_of_their_owner():
    own = parse(
        converted([row_of(), row_of(id="OWN-2", model="Llama-3.1-8B-Acme secret"), row_of(model="Acme-7")]).rows, ""
    )
    text = shared(own, "ABC").csv()
    assert not any(word in text for word in ("OWN", "Jane", "wiki", "rack", "Acme", "secret"))
    assert [row.id for row in parse(shared(own, "ABC").rows, "shared.csv")] == ["ABC-0001", "ABC-0002", "ABC-0003"]


def test_rows_without_typed_columns_are_not_shared():
    with pytest.raises(Refusal, match="convert them first"):
        shared([row_of()], "ABC")


def test_convert_and_share_follow_each_other_on_the_command_line(tmp_path):
    file, typed, out = (tmp_path / name for name in ("own.csv", "typed.csv", "out.csv"))
    file.write_text(",".join(BASE) + "\n" + ",".join(BASE.values()) + "\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", "convert", str(file), "-o", str(typed)])
    assert result.exit_code == 0, result.output
    assert "stack = hf-trainer, from framework 'HF Trainer'" in result.output
    assert "to be filled in" in result.output
    result = CliRunner().invoke(app, ["validate", "share", str(typed), "--as", "ABC", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "Jane" not in out.read_text(encoding="utf-8")
    same = CliRunner().invoke(app, ["validate", "convert", str(file), "-o", str(file)])
    assert same.exit_code != 0
