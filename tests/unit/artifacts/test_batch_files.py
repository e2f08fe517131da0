"""One durable file per batch: whole or not there, and what is damaged is noticed."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.batch_files import BatchFiles, batch_key, batch_paths, damage, finished_batches
from charter.errors import DataError

ROWS = [{"id": "a", "text": "ü\u2028x\r\ny"}, {"id": "b", "p": 0.25}]


@pytest.fixture
def files(tmp_path):
    return BatchFiles(tmp_path)


def write(files, number=3, key="k" * 16, records=ROWS, set_aside=({"id": "c", "reason": "empty"},)):
    files.write(number, key, records=records, set_aside=set_aside, totals={"ties": 1}, tokens=7)
    return files.path_of(number, key)


def test_a_batch_is_read_as_it_was_written(files, tmp_path):
    write(files)
    facts = files.verified(3, "k" * 16)
    assert (facts.records, facts.set_aside, facts.tokens, facts.totals) == (2, 1, 7, {"ties": 1})
    records, aside = files.rows(3, "k" * 16)
    assert [json.loads(line) for line in records] == ROWS
    assert json.loads(aside[0])["reason"] == "empty"
    assert finished_batches(tmp_path) == 1


def test_batches_are_counted_in_order_and_asides_are_not(files, tmp_path):
    for number in (12, 2, 1):
        write(files, number=number)
    write(files, number=4).rename(tmp_path / "batches" / "00000004-kkkk.jsonl.damaged-1")
    assert [int(path.name[:8]) for path in batch_paths(tmp_path)] == [1, 2, 12]


def test_one_of_another_key_is_not_taken(files):
    write(files)
    assert files.verified(3, "l" * 16) is None


@given(st.text(), st.lists(st.text(max_size=5), max_size=4), st.integers(0, 5))
def test_keys_tell_every_batch_of_every_work_apart(fingerprint, ids, number):
    key = batch_key(fingerprint, number, ids)
    assert key == batch_key(fingerprint, number, list(ids))
    assert key != batch_key(fingerprint + "x", number, ids)
    assert key != batch_key(fingerprint, number + 1, ids)
    assert key != batch_key(fingerprint, number, [*ids, ""])


def test_every_flip_and_every_cut_is_noticed(files):
    path, draws = write(files), random.Random(7)
    whole = path.read_bytes()
    for _ in range(300):
        place = draws.randrange(len(whole))
        harmed = bytearray(whole)
        harmed[place] ^= 1 << draws.randrange(8)
        path.write_bytes(bytes(harmed))
        assert damage(path) is not None, place
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert damage(path) is not None, size
    path.write_bytes(whole)
    assert damage(path) is None


def test_a_whole_file_under_another_name_is_noticed(files):
    path = write(files)
    assert damage(path.rename(path.with_name("00000004-" + "k" * 16 + ".jsonl"))) is not None


def test_a_damaged_one_is_set_aside_and_said(files, capsys):
    path = write(files)
    path.write_bytes(path.read_bytes()[:-2])
    assert files.verified(3, "k" * 16) is None
    assert not path.exists()
    assert "damaged-1" in capsys.readouterr().out
    with pytest.raises(DataError):
        files.rows(3, "k" * 16)


def test_not_a_number_is_refused(files):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(files, records=[{"p": float("nan")}])


@pytest.mark.parametrize(
    "head",
    [b"", b"[]", b"{}", b"null", b"[" * 10_000, b'{"sha256": 1}', b"\xff\xfe", b'{"sha256":"x","number":"\\ud800"}'],
)
def test_what_is_no_batch_is_an_error_that_names_it(files, head):
    path = write(files)
    path.write_bytes(head + b"\n")
    assert str(path) in damage(path)
