"""Parquet files with verl's column names."""

from pathlib import Path

from pyarrow import parquet

from charter.data.dataset import Turn
from charter.engines.verl.adapter import VerlAdapter
from charter.hosted import data_files

TURNS = (Turn(role="user", content="a"), Turn(role="assistant", content="b"))


def test_prompts_have_verls_columns(tmp_path: Path) -> None:
    rows = [VerlAdapter().prompt_row(TURNS[:1], kind="red", index=index) for index in range(3)]
    assert data_files.write_parquet(rows, tmp_path / "ppo.parquet") == 3
    read = parquet.read_table(tmp_path / "ppo.parquet").to_pylist()
    assert [row["extra_info"]["index"] for row in read] == [0, 1, 2]
    assert read[0]["prompt"] == [{"role": "user", "content": "a"}]
    assert read[0]["data_source"] == "red"
    assert read[0]["reward_model"] == {"style": "model", "ground_truth": ""}


def test_rows_are_written_in_groups_and_in_order(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(data_files, "ROWS_PER_GROUP", 2)
    rows = [VerlAdapter().prompt_row(TURNS[:1], kind="red", index=index) for index in range(5)]
    assert data_files.write_parquet(iter(rows), tmp_path / "ppo.parquet") == 5
    with parquet.ParquetFile(tmp_path / "ppo.parquet") as file:
        assert file.metadata.num_row_groups == 3
        assert [row["extra_info"]["index"] for row in file.read().to_pylist()] == [0, 1, 2, 3, 4]
