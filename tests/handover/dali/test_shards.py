"""Exported records as other projects read them: row for row, by datasets, webdataset and DALI without a GPU."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
from engine_case import ask_engine
from exported_rows import PAIRS, RECORD, TEXTS, counted

from charter.report import data_export
from charter.report.data_export import data_card, write_files

PROBE = Path(__file__).parent / "probe_shards.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the probe has found in one export per format."""
    root = tmp_path_factory.mktemp("exports")
    exports = {name: (name, PAIRS) for name in ("jsonl", "parquet", "hf", "webdataset")} | {
        "texts": ("webdataset", TEXTS)
    }
    for folder, (format, rows) in exports.items():
        target = root / folder
        target.mkdir()
        with patch.object(data_export, "ROWS_PER_SHARD", 4):
            write_files(lambda rows=rows: rows, target, format, count=len(rows))
        columns, kinds = counted(rows)
        card = data_card(RECORD, format=format, columns=columns, kinds=kinds, licence="mit")
        (target / "README.md").write_text(card, encoding="utf-8")
    ask_engine("dali", PROBE, str(root), timeout_seconds=600.0)
    return json.loads((root / "found.json").read_text())


def without_nulls(row):
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize("format", ["jsonl", "parquet", "hf"])
def test_datasets_reads_every_row_as_the_card_says(found, format):
    made = found["datasets"][format]
    assert made["splits"] == ["train"]
    assert [without_nulls(row) for row in made["rows"]] == PAIRS


def test_webdataset_reads_every_row_over_all_shards(found):
    assert found["webdataset"] == PAIRS
    assert found["texts"] == TEXTS


@pytest.mark.smoke
def test_dali_reads_the_bytes_of_every_row_on_a_processor(found):
    for name in ("dali", "dali_without_index"):
        made = found[name]
        assert made["size"] == len(PAIRS)
        assert [json.loads(sample[0]) for sample in made["samples"][: len(PAIRS)]] == PAIRS


def test_dali_gives_plain_text_as_a_component_of_its_own(found):
    samples = found["dali_texts"]["samples"][: len(TEXTS)]
    assert [{**json.loads(fields), "text": text} for fields, text in samples] == TEXTS


def test_dali_divides_the_rows_among_processes_by_the_index(found):
    ids = [{json.loads(sample[0])["id"] for sample in half["samples"]} for half in found["dali_halves"]]
    assert ids[0] | ids[1] == {row["id"] for row in PAIRS}
    assert len(ids[0] & ids[1]) <= 1, "at most the row that fills the last batch"
