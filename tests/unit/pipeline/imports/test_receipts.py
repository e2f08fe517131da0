"""Receipts of imports: what comes later replaces what it wrote over, and damage is told."""

import pytest

from charter.errors import DataError
from charter.run.imports.importing import Receipt, WrittenRow, add_receipt, read_receipts, receipt_path, remove_receipt

ROW = WrittenRow(file="own.csv", row_id="IMP-1", sha256="a")
OTHER = WrittenRow(file="other.csv", row_id="IMP-1", sha256="a")
FIRST = Receipt(import_id="abc", stage="sft", curves={"x": "1", "y": "2"}, rows=(ROW, OTHER))


def test_a_second_import_of_the_same_run_adds_to_its_receipt(tmp_path):
    add_receipt(tmp_path, FIRST)
    assert read_receipts(tmp_path) == {"abc": FIRST}
    changed = WrittenRow(file="own.csv", row_id="IMP-1", sha256="b")
    add_receipt(tmp_path, Receipt(import_id="abc", stage="sft", curves={"y": "3", "z": "4"}, rows=(changed,)))
    (found,) = read_receipts(tmp_path).values()
    assert found.curves == {"x": "1", "y": "3", "z": "4"}
    assert found.rows == (OTHER, changed)
    add_receipt(tmp_path, Receipt(import_id="def", stage="dpo"))
    assert list(read_receipts(tmp_path)) == ["abc", "def"]
    remove_receipt(tmp_path, "abc")
    remove_receipt(tmp_path, "abc")
    assert list(read_receipts(tmp_path)) == ["def"]


def test_no_directory_is_no_receipts_and_none_is_made(tmp_path):
    assert read_receipts(tmp_path / "run") == {}
    remove_receipt(tmp_path / "run", "abc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"import": "abc"}', '{"import": 1, "stage": "s", "curves": {}, "rows": [1]}']
)
def test_a_damaged_receipt_is_named(tmp_path, text):
    path = receipt_path(tmp_path, "abc")
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(DataError, match=str(path)):
        read_receipts(tmp_path)
