"""Every reader of a file that somebody else may have written: what it is given is read, or refused in words.

`make chaos` runs the properties of this file with 300 examples each. Seeds are small valid files; what is done to them
is what files suffer: bytes cut out, doubled or swapped, numbers made absurd, brackets nested, lines joined.
"""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import ABSURD, BINARY, ODD, READERS, content, refusal


@st.composite
def damaged(draw, seed):
    """The seed as bytes after some accidents."""
    text = seed
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        match draw(st.sampled_from(["cut", "odd", "double", "number", "nest", "join", "swap"])):
            case "cut":
                text = text[:at] + text[at + draw(st.integers(1, 40)) :]
            case "odd":
                text = text[:at] + draw(st.sampled_from(ODD)) + text[at:]
            case "double":
                text = text[:at] + text[at : at + 60] * 2 + text[at + 60 :]
            case "number" if numbers := list(re.finditer(r"-?[0-9][0-9.]*", text)):
                where = draw(st.sampled_from(numbers))
                text = text[: where.start()] + draw(st.sampled_from(ABSURD)) + text[where.end() :]
            case "nest":
                text = text[:at] + draw(st.sampled_from(["[", '{"a":', "{a: "])) * 3000 + text[at:]
            case "join":
                text = text.replace("\n", " ")
            case "swap":
                text = text[at:] + text[:at]
    damage = text.encode("latin-1" if seed in BINARY else "utf-8", errors="replace")
    at = draw(st.integers(0, len(damage)))
    return damage[:at] + draw(st.sampled_from([b"", b"", b"\x9f", b"\xff\xfe", b"\xed\xa0\x80"])) + damage[at:]


@pytest.mark.parametrize("name", sorted(READERS))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_in_words(name, tmp_path, data):
    seed, read = READERS[name]
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(seed)))
    said = refusal(read, path)
    assert said is None or said.strip()


@pytest.mark.parametrize("name", sorted(READERS))
def test_the_whole_file_is_read(name, tmp_path):
    """Seeds that nothing reads would try nothing."""
    path = tmp_path / name
    path.write_bytes(content(name))
    _, read = READERS[name]
    read(path)


@pytest.mark.parametrize("deep", ["[" * 200_000, '{"a":' * 50_000 + "}" * 50_000])
@pytest.mark.parametrize("name", sorted(name for name in READERS if name.endswith((".json", ".jsonl", ".yaml"))))
def test_what_is_nested_too_deeply_is_refused(name, deep, tmp_path):
    path = Path(tmp_path / name)
    path.write_text(deep)
    _, read = READERS[name]
    assert len(refusal(read, path) or "") < 5000
