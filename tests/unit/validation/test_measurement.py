"""Reading tables of measurements: typed cells, and every problem told."""

from pathlib import Path

import pytest

from charter.errors import DataError
from charter.validation.alarms import bundled_measurements
from charter.validation.rows.measurement import read_measurements


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_blank_is_none_and_numbers_are_typed(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "id,metric,value,gpus,mbs,model\nABC-1,step_time_s,1.5,8,,Llama\n")
    (row,) = read_measurements(file)
    assert (row.gpus, row.mbs, row.model, row.prefix, row.kind) == (8, None, "Llama", "ABC", "pretrain")


def test_a_bad_cell_belongs_to_its_row_not_to_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "id,metric,value,tp\nA-1,step_time_s,1,2\nA-2,step_time_s,1,two\n")
    first, second = read_measurements(file)
    assert first.problems == ()
    assert "line 3, column tp" in second.problems[0]


def test_rows_without_a_value_are_all_told_at_once(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "id,metric,value\nA-1,step_time_s,\n,step_time_s,3\nA-3,,1\n")
    with pytest.raises(DataError) as found:
        read_measurements(file)
    assert str(found.value).count("missing") == 3


def test_another_table_is_refused_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found a, b"):
        read_measurements(write(tmp_path / "a.csv", "a,b\n1,2\n"))
    with pytest.raises(DataError, match="cannot be read"):
        read_measurements(tmp_path / "nothing.csv")


def test_the_classic_table_is_read_as_step_times_and_memory(tmp_path: Path) -> None:
    text = (
        "id,model_hidden,layers,heads,kv_heads,ffn,vocab,seq,gpu,gpus,tp,pp,dp,vpp,mbs,gbs,recompute,seqpar,"
        "zero_stage,dtype,measured_step_s,measured_mem_gib\n"
        "nar21-t2-zero3-175b-384,12288,96,96,96,49152,51200,2048,a100-80g,384,1,1,384,1,4,1536,full,0,3,fp16,81.6,40\n"
    )
    time, memory = read_measurements(write(tmp_path / "a.csv", text))
    assert (time.metric, time.value, time.shard, time.framework) == ("step_time_s", 81.6, "zero3", "DeepSpeed 2021")
    assert (memory.metric, memory.value, memory.hidden) == ("peak_mem_gib", 40.0, 12288)


def test_the_bundled_measurements_are_whole() -> None:
    rows = bundled_measurements()
    assert len(rows) == 1850
    assert all(row.stack and row.accelerator and row.compute_dtype for row in rows)
    assert not [row.id for row in rows if row.problems]
    assert len({row.id for row in rows}) == len(rows)
