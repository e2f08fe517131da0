"""Tables of strangers: each is read as it was meant, refused as a whole with one error, or row by row with its cell."""

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import DataError
from charter.validation.alarms import alarms_of
from charter.validation.rows.measurement import Measurement, read_measurements
from charter.validation.typed_rows import converted

CELLS = {
    "id": "ZZZ-1",
    "kind": "pretrain",
    "model": "Llama-3.1-8B",
    "seq": "4096",
    "gpu": "H100-SXM-80GB",
    "gpus": "8",
    "framework": "Megatron-LM",
    "dtype": "bf16",
    "mbs": "1",
    "gbs": "64",
    "metric": "step_time_s",
    "value": "3.1",
    "unit": "s",
    "notes": "as logged",
}
COUNTS = ("seq", "gpus", "mbs", "gbs", "tp", "pp", "layers")


def table(*rows, columns=None, **dialect):
    text = io.StringIO()
    writer = csv.writer(text, **dialect)
    rows = rows or (CELLS,)
    writer.writerow(columns or rows[0])
    writer.writerows(row.values() for row in rows)
    return text.getvalue()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("strange") / "rows.csv"


def read(file, text):
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_measurements(file)


def test_marks_line_ends_and_capitals_change_nothing(file):
    (plain,) = read(file, table())
    spaced = table(columns=[f" {name.upper()} " for name in CELLS])
    for text in ("\ufeff" + table(), table(lineterminator="\n"), table(lineterminator="\r"), spaced):
        assert read(file, text) == (plain,)


@pytest.mark.parametrize("notes", ["one\ntwo", "one\r\ntwo", "a\u2028b", "a\x0bb", 'a "word", and'])
def test_a_cell_may_hold_what_divides_lines_elsewhere(file, notes):
    rows = read(file, table(CELLS | {"notes": notes}, CELLS | {"id": "ZZZ-2"}))
    assert [(row.id, row.value) for row in rows] == [("ZZZ-1", 3.1), ("ZZZ-2", 3.1)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (table(columns=["value" if name == "notes" else name for name in CELLS]), "column value stands twice"),
        (table(columns=["Num-GPUs" if name == "gpus" else name for name in CELLS]), "Num-GPUs: write 'gpus'"),
        (table(delimiter=";"), "divided by ';'"),
        (table(delimiter="\t"), "divided by"),
        (table() + '"ZZZ-2,sft', "unexpected end of data"),
        (table(CELLS | {"notes": "x" * 200_000}), "field larger than field limit"),
        (table().encode("utf-16"), "not UTF-8"),
        (table(CELLS, dict(zip(CELLS, CELLS, strict=True))), "line 3, column value: 'value' is no number"),
        ("", "found none"),
    ],
    ids=["twice", "other-name", "semicolons", "tabs", "open-quote", "long-cell", "utf-16", "header-again", "empty"],
)
def test_a_table_that_cannot_be_read_is_one_error(file, text, words):
    with pytest.raises(DataError, match=words):
        read(file, text)


def test_columns_of_others_may_stand_beside_ours(file):
    (row,) = read(file, table(CELLS | {"device_name": "a board", "precision": "mixed"}))
    assert (row.gpus, row.problems) == (int(CELLS["gpus"]), ())


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1,5", "3.1 s", "1e999", "~3", ""])
def test_a_value_that_is_no_finite_number_is_an_error(file, value):
    with pytest.raises(DataError, match=r"line 2.*value"):
        read(file, table(CELLS | {"value": value}))


@settings(max_examples=60, deadline=None)
@given(
    column=st.sampled_from(COUNTS), text=st.sampled_from(["nan", "inf", "-1", "0", "1e30", "1,024", "8 GPUs", "0x8"])
)
def test_an_impossible_count_is_named_and_never_left_out(file, column, text):
    (row,) = read(file, table(CELLS | {column: text}))
    (problem,) = row.problems
    assert f"line 2, column {column}" in problem
    with pytest.raises(DataError, match=f"column {column}"):
        converted([row])


@settings(max_examples=60, deadline=None)
@given(cells=st.dictionaries(st.sampled_from(list(CELLS)), st.text(max_size=12), max_size=4))
def test_any_text_in_any_cell_is_a_row_or_one_error(file, cells):
    try:
        rows = read(file, table(CELLS | cells).encode("utf-8", "replace"))
    except DataError:
        assert {"id", "metric", "value"} & cells.keys()
        return
    (row,) = rows
    assert all(problem.startswith("line 2") for problem in row.problems)
    alarms_of(row)


def test_cells_without_a_name_refuse_their_row(file):
    (row,) = read(file, table().rstrip("\r\n") + ",7,8\r\n")
    assert row.problems == ("line 2: 2 cells more than the header has names",)


@pytest.mark.parametrize(
    ("metric", "unit"),
    [
        ("ttft", "us"),
        ("step_time_s", "min"),
        ("out_tokens_per_s", "ktok/s"),
        ("out_tokens_per_s", "tok/min"),
        ("peak_mem_gib", "MB"),
        ("step_time_min", ""),
    ],
)
def test_a_unit_that_nothing_is_predicted_in_refuses_the_row(file, metric, unit):
    (row,) = read(file, table(CELLS | {"metric": metric, "unit": unit}))
    (problem,) = row.problems
    assert metric in problem


@pytest.mark.parametrize(("metric", "unit"), [("ttft", "ms"), ("step_time_s", ""), ("peak_mem_gib", "GiB")])
def test_a_unit_that_is_read_as_it_says_refuses_nothing(file, metric, unit):
    assert read(file, table(CELLS | {"metric": metric, "unit": unit}))[0].problems == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_experts": 8}, "8 experts in .*Llama-3.1-8B"),
        ({"tp": 3}, "a layout of 3 accelerators"),
        ({"pp": 16}, "a layout of 16 accelerators"),
        ({"device_hbm_gb": 640.0}, "is said to have 640 GB"),
        ({"value": 0.01}, "implied MFU"),
        ({"value": 900.0}, "implied MFU"),
    ],
)
def test_a_row_that_cannot_be_raises_an_alarm(changes, words):
    numbers = {"seq": 4096, "gpus": 8, "mbs": 1.0, "gbs": 64.0, "value": 3.1}
    row = Measurement(**{**CELLS, **numbers})
    assert alarms_of(row) == ()
    (alarm,) = alarms_of(Measurement(**{**CELLS, **numbers, **changes}))

    assert re.search(words, alarm)
