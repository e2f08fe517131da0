"""Hostile weights: refused by their headers and names, before anything reads a tensor or opens a pickle."""

import json
import struct

import pytest

from charter.artifacts.checkpoints import damage
from charter.artifacts.safetensors_file import PICKLES, check_weight_files, read_header
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError

GOOD = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
}


def file_of(header, data=b"\0" * 11, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def with_a(**changes):
    return file_of({**GOOD, "a": {**GOOD["a"], **changes}})


HEADERS = {
    "empty file": b"",
    "half a length": b"\x10\0\0",
    "length zero": file_of(b"", length=0),
    "length beyond the file": file_of(GOOD, length=10**6),
    "length of 2**63": file_of(GOOD, length=2**63),
    "length of 2**64 - 1": file_of(GOOD, length=2**64 - 1),
    "length past the limit": file_of(GOOD, length=100_000_001),
    "length cuts the header": file_of(GOOD, length=20),
    "not json": file_of(b"{nonsense}"),
    "not utf-8": file_of(b'{"\xff": 1}'),
    "a list": file_of([]),
    "a number": file_of(b"12"),
    "null": file_of(b"null"),
    "deep nesting": file_of(b"[" * 100_000 + b"]" * 100_000),
    "a pickle": b"\x80\x04cos\nsystem\n(S'touch /tmp/x'\ntR.",
    "a zip": b"PK\x03\x04" + b"\0" * 60,
    "a name twice": file_of(b'{"a": {"dtype": "U8", "shape": [11], "data_offsets": [0, 11]}, "a": {}}'),
    "entry is a list": file_of({"a": []}),
    "entry is text": file_of({"a": "F32"}),
    "no dtype": file_of({"a": {"shape": [11], "data_offsets": [0, 11]}}),
    "no shape": file_of({"a": {"dtype": "U8", "data_offsets": [0, 11]}}),
    "no offsets": file_of({"a": {"dtype": "U8", "shape": [11]}}),
    "unknown dtype": with_a(dtype="OBJECT"),
    "dtype is a list": with_a(dtype=["F32"]),
    "shape too small": with_a(shape=[1]),
    "shape too large": with_a(shape=[2**40]),
    "shape that overflows": with_a(shape=[2**33, 2**33, 2**33]),
    "negative shape": with_a(shape=[-2]),
    "shape of two negatives": with_a(shape=[-1, -2]),
    "shape of fractions": with_a(shape=[2.0]),
    "shape of truths": with_a(shape=[True, 2]),
    "shape of texts": with_a(shape=["2"]),
    "shape is a number": with_a(shape=2),
    "offsets that overlap": file_of({**GOOD, "b": {"dtype": "U8", "shape": [3], "data_offsets": [7, 10]}}, b"\0" * 10),
    "the same place twice": file_of({**GOOD, "c": GOOD["b"]}),
    "a gap": file_of({**GOOD, "b": {"dtype": "U8", "shape": [3], "data_offsets": [9, 12]}}, b"\0" * 12),
    "offsets beyond the file": file_of(GOOD, b"\0" * 5),
    "bytes after the last tensor": file_of(GOOD, b"\0" * 40),
    "offsets backwards": with_a(data_offsets=[8, 0]),
    "negative offsets": with_a(data_offsets=[-8, 0]),
    "one offset": with_a(data_offsets=[8]),
    "three offsets": with_a(data_offsets=[0, 8, 11]),
    "offsets of fractions": with_a(data_offsets=[0.0, 8.0]),
    "offset of 1e400": file_of(b'{"a": {"dtype": "U8", "shape": [11], "data_offsets": [0, 1e400]}}'),
    "offset that is not a number": file_of(b'{"a": {"dtype": "U8", "shape": [11], "data_offsets": [0, NaN]}}'),
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_a_good_file_is_read(model):
    (model / "model.safetensors").write_bytes(file_of({"__metadata__": {"format": "pt"}, **GOOD}))
    assert {name: item.shape for name, item in read_header(model / "model.safetensors").items()} == {
        "a": (2,),
        "b": (3,),
    }
    (model / "training_args.bin").write_bytes(b"ignored beside safetensors")
    check_weight_files(model)


def refusal(model, content):
    (model / "model.safetensors").write_bytes(content)
    try:
        check_weight_files(model)
    except DataError as error:
        return str(error)
    return "taken"


def test_a_hostile_header_is_refused(model):
    said = {name: refusal(model, content) for name, content in HEADERS.items()}
    assert {
        name: text for name, text in said.items() if "model.safetensors is not a safetensors file" not in text
    } == {}


@pytest.mark.parametrize("ending", PICKLES)
def test_weights_that_are_pickles_are_refused(model, ending):
    (model / f"pytorch_model{ending}").write_bytes(HEADERS["a pickle"])
    with pytest.raises(DataError, match="may run code when it is read"):
        check_weight_files(model)


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b'{"weight_map": 1}', b"[" * 100_000, b'{"weight_map": {"a": "../../x.safetensors"}}',
     b'{"weight_map": {"a": "/x.safetensors"}}', b'{"weight_map": {"a": "gone.safetensors"}}',
     b'{"weight_map": {"a": "pytorch_model.bin"}}', b'{"weight_map": {"a": ["b"]}}'],
)  # fmt: skip
def test_an_index_that_leads_elsewhere_is_refused(model, index):
    (model / "model.safetensors.index.json").write_bytes(index)
    (model / "pytorch_model.bin").write_bytes(HEADERS["a pickle"])
    with pytest.raises(DataError, match="index"):
        check_weight_files(model)


@pytest.mark.parametrize("start", [b"", *(b"\x80" + bytes([protocol]) for protocol in (2, 3, 4, 5))])
def test_hostile_pickle_is_refused_by_its_hash_and_never_opened(make_stage, tmp_path, start):
    """Written by hand: calls `os.mkdir` when it is read."""
    stage_dir = make_stage()
    StageDir(stage_dir).save_checkpoint(1, lambda out: (out / ".metadata").write_bytes(b"good") and None)
    hostile = start + b"cos\nmkdir\n(S'" + str(tmp_path / "ran").encode() + b"'\ntR."
    (stage_dir / "state" / "step-00000001" / ".metadata").write_bytes(hostile)
    assert ".metadata" in damage(stage_dir / "state" / "step-00000001")
    assert StageDir(stage_dir).latest_checkpoint() is None
    assert not (tmp_path / "ran").exists()


def test_there_are_at_least_50_hostile_files():
    assert len(HEADERS) + len(PICKLES) + 9 + 5 >= 50
