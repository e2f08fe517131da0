"""YAML 1.2 scalars, line numbers, and what is refused instead of read in silence."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import SpecError
from charter.spec.yaml_source import MAX_BYTES, parse_document, parse_value, read_document, scalar

# YAML 1.2.2, section 10.3.2 (core schema), and the digits-with-underscores that people write.
SCALARS = {
    "3e-4": 3e-4,
    "1e-6": 1e-6,
    "1E6": 1e6,
    "6.02e+23": 6.02e23,
    ".5": 0.5,
    "5.": 5.0,
    "150_000": 150_000,
    "1_000.5": 1000.5,
    "-3": -3,
    "007": 7,
    "0x1F": 31,
    "0o17": 15,
    ".inf": math.inf,
    "-.inf": -math.inf,
    "true": True,
    "False": False,
    "null": None,
    "~": None,
    "": None,
    "no": "no",
    "off": "off",
    "yes": "yes",
    "1:30": "1:30",
    "2026-11-20": "2026-11-20",
    "H100:8": "H100:8",
    "$25_000": "$25_000",
    "14d": "14d",
    "80GB": "80GB",
    "1/2": "1/2",
    "1__0": "1__0",
    "_1": "_1",
    "1e": "1e",
    "e5": "e5",
}


def test_plain_scalars_follow_yaml_1_2():
    read = {text: scalar(text) for text in SCALARS}
    assert read == SCALARS
    assert {text: type(value) for text, value in read.items()} == {text: type(SCALARS[text]) for text in SCALARS}


def test_nan_is_a_number():
    assert math.isnan(scalar(".nan"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_read_back(value):
    assert scalar(repr(value)) == value


@given(st.integers(min_value=-(10**60), max_value=10**60))
def test_every_integer_is_read_back_with_or_without_underscores(value):
    assert scalar(str(value)) == value
    assert scalar(f"{value:_}") == value


def test_a_number_too_long_for_any_use_stays_text():
    assert scalar("9" * 5000) == "9" * 5000


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_but_never_breaks_the_reader(text):
    with contextlib.suppress(ValueError):
        parse_value(text)


def test_quoted_scalars_stay_text():
    document = parse_document("a: \"3e-4\"\nb: 'true'\nc: !!str 5\n", origin="x")
    assert document.value == {"a": "3e-4", "b": "true", "c": "5"}


def test_keys_are_always_text():
    assert parse_document("no: 1\n1: 2\nnull: 3\n", origin="x").value == {"no": 1, "1": 2, "null": 3}


def test_every_value_has_the_line_of_its_key():
    document = parse_document("a:\n  b:\n    - 1\n    - c: 2\n", origin="x")
    assert [document.mark(path).line for path in [("a",), ("a", "b"), ("a", "b", 0), ("a", "b", 1, "c")]] == [
        1,
        2,
        3,
        4,
    ]


def test_a_path_that_was_not_written_has_the_line_of_what_is_around_it():
    document = parse_document("a: 1\nb:\n  c: 2\n", origin="x")
    assert document.mark(("b", "c", "d")).line == 3


REFUSED = {
    "a: 1\nb: 2\na: 3\n": (3, "given twice (first on line 1)"),
    "a:\n  b: 1\n  b: 2\n": (3, "'b' is given twice"),
    "a:\n\tb: 1\n": (2, "replace the tab"),
    "a: [1, 2\nb: 3\n": (2, "not valid YAML"),
    "a: b: c\n": (1, "needs quotes"),
    "a: 1\n---\nb: 2\n": (2, "one file holds one project"),
    "a: !!python/object:os.system x\n": (1, "tag"),
    "a: &x {b: 1}\nc:\n  <<: *x\n": (3, "merge keys"),
    "a: *x\n": (1, "undefined alias"),
    "a: &x [*x]\n": (1, "contains itself"),
    "? [1]\n: 2\n": (1, "a key must be a word"),
    'a: "\\ud800"\n': (1, "surrogate"),
    "- 1\n": (1, "holds a list"),
    "just words\n": (1, "must hold `key: value` lines"),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.items())
def test_what_other_readers_accept_in_silence_is_refused_with_its_line(text, expected):
    line, words = expected
    with pytest.raises(SpecError) as caught:
        parse_document(text, origin="charter.yaml")
    assert words in str(caught.value)
    assert caught.value.problems[0].line == line
    assert str(caught.value).startswith(f"charter.yaml:{line}: ")


def test_aliases_that_unfold_without_end_are_refused():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(SpecError, match="more than 100,000 values"):
        parse_document("\n".join(lines), origin="x")


def test_a_file_nested_too_deeply_is_refused():
    with pytest.raises(SpecError, match="nested too deeply"):
        parse_document("a: " + "[" * 1500, origin="x")


@pytest.mark.parametrize("text", ["", "   \n", "# only a comment\n"])
def test_an_empty_file_says_so(text):
    with pytest.raises(SpecError, match="is empty; `charter init"):
        parse_document(text, origin="x")


def test_a_missing_file_says_what_writes_one(tmp_path):
    with pytest.raises(SpecError, match="does not exist; `charter init"):
        read_document(tmp_path / "charter.yaml")


def test_file_larger_than_any_project_is_refused_unparsed(tmp_path, monkeypatch):
    path = tmp_path / "charter.yaml"
    path.write_bytes(b"# " + b"x" * MAX_BYTES)
    monkeypatch.setattr("charter.spec.yaml_source.parse_document", lambda *_, **__: pytest.fail("parsed"))
    with pytest.raises(SpecError, match="larger than 1,048,576 bytes"):
        read_document(path)


def test_a_directory_is_no_file(tmp_path):
    with pytest.raises(SpecError, match="is a directory"):
        read_document(tmp_path)


def test_a_file_that_is_not_utf8_says_so(tmp_path):
    path = tmp_path / "charter.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    with pytest.raises(SpecError, match=r"not UTF-8 text \(byte 9\)"):
        read_document(path)


def test_a_byte_order_mark_and_crlf_are_read(tmp_path):
    path = tmp_path / "charter.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\r\nseed: 3\r\n")
    assert read_document(path).value == {"name": "x", "seed": 3}


def test_a_control_character_is_refused_with_its_line():
    with pytest.raises(SpecError) as caught:
        parse_document("a: 1\nb: \x00\n", origin="x")
    assert caught.value.problems[0].line == 2
