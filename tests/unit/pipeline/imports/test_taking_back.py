"""What taking an import back finds: which one is meant, and which files and rows are still its own."""

import hashlib
from pathlib import Path

import pytest

from charter.errors import UsageError
from charter.run.imports.charges import csv_text, row_hash, row_hashes, without_row
from charter.run.imports.importing import PastImport, Receipt, WrittenRow, chosen, what_goes
from charter.validation.rows.measurement import Measurement

IMPORTS = [PastImport(import_id=name, stage="sft") for name in ("abcdef", "abcxyz", "abcd")]
ROW = Measurement(id="IMP-1", metric="step_time_s", value=2.0, unit="s", source="train.log", gpus=8, notes='a "b", c')
NEXT = Measurement(id="IMP-2", metric="step_time_s", value=3.0, unit="s", source="x")


@pytest.mark.parametrize(("asked", "found"), [("abcdef", "abcdef"), ("abcx", "abcxyz"), ("abcd", "abcd")])
def test_an_import_is_named_by_its_id_or_the_beginning_of_it(asked, found):
    assert chosen(IMPORTS, asked).import_id == found


@pytest.mark.parametrize(
    ("imports", "asked", "message"),
    [
        (IMPORTS, "abc", "has abcdef, abcxyz, abcd\n.*first 4 characters"),
        (IMPORTS, "zzzz", "asked for the import 'zzzz'"),
        (IMPORTS, "", "asked for the import ''"),
        (IMPORTS[:1] + IMPORTS[2:], "abcd0", "asked for"),
        ([PastImport(import_id="abcd1", stage="a"), PastImport(import_id="abcd2", stage="a")], "abcd", "give more"),
        ([], "abcd", "nothing: no run was imported"),
    ],
)
def test_what_names_none_or_several_is_refused(imports, asked, message):
    with pytest.raises(UsageError, match=message):
        chosen(imports, asked)


def test_a_row_is_known_by_its_cells_until_somebody_edits_it():
    text = csv_text([ROW, NEXT], before="id,gpu,colour\nOWN,H100,red\n")
    assert row_hashes(text)["IMP-1"] == row_hash(ROW) != row_hash(NEXT)
    assert row_hashes(text.replace("train.log", "else"))["IMP-1"] != row_hash(ROW)
    left = without_row(text, "IMP-1")
    assert list(row_hashes(left)) == ["OWN", "IMP-2"]
    assert row_hashes(left)["IMP-2"] == row_hash(NEXT)
    assert left.splitlines()[0] == text.splitlines()[0]
    assert "OWN,H100,red" in left
    assert row_hashes("") == row_hashes("id,value\n,2\n") == {}
    assert list(row_hashes("id\nA,too,many\n")) == ["A"]


def receipt(tmp_path, name="abc", *, curves="1\n", row=ROW):
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "curves").write_text(curves)
    (tmp_path / "own.csv").write_text(csv_text([row]))
    written = WrittenRow(file=str(tmp_path / "own.csv"), row_id=row.id, sha256=row_hash(row))
    sha256 = hashlib.sha256(curves.encode()).hexdigest()
    return PastImport(
        import_id=name,
        stage="sft",
        receipt=Receipt(import_id=name, stage="sft", curves={"curves": sha256}, rows=(written,)),
    )


def going(past, imports, root: Path):
    found = what_goes(past, imports, root)
    return [path.name for path in found.curves], [row.row_id for row in found.rows], list(found.stays)


def test_what_is_as_it_was_written_goes(tmp_path):
    past = receipt(tmp_path)
    assert going(past, [past], tmp_path) == (["curves"], ["IMP-1"], [])


def test_what_was_changed_since_stays_and_is_named(tmp_path):
    past = receipt(tmp_path)
    (tmp_path / "run" / "curves").write_text("2\n")
    (tmp_path / "own.csv").write_text((tmp_path / "own.csv").read_text().replace("train.log", "else"))
    curves, rows, stays = going(past, [past], tmp_path)
    assert (curves, rows) == ([], [])
    assert str(tmp_path / "run" / "curves") in stays[0]
    assert f"row IMP-1 of {tmp_path / 'own.csv'} stays" in stays[1]


def test_what_another_import_wrote_too_stays(tmp_path):
    past, other = receipt(tmp_path), receipt(tmp_path, "def")
    curves, rows, stays = going(past, [past, other], tmp_path)
    assert (curves, rows, len(stays)) == ([], [], 2)


def test_what_is_gone_already_is_no_news(tmp_path):
    past = receipt(tmp_path)
    (tmp_path / "run" / "curves").unlink()
    (tmp_path / "own.csv").unlink()
    assert going(past, [past], tmp_path) == ([], [], [])


def test_without_a_receipt_nobody_knows_what_it_wrote(tmp_path):
    past = PastImport(import_id="abc", stage="sft")
    assert "nothing here says" in going(past, [past], tmp_path)[2][0]
