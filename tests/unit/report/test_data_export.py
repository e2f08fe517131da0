"""Exported rows come back row for row, whatever their texts are; shards, their index and the card say what is there."""

import json
import subprocess
import sys
import tarfile
from unittest.mock import patch

import pytest
import yaml
from exported_rows import PAIRS, RECORD, TEXTS, counted
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import read_texts

from charter.data.dataset import read_pairs, selected_rows
from charter.report import data_export
from charter.report.data_export import LEFT_OUT, data_card, exported_row, write_files
from charter.spec.project import DataSpec

FORMATS = ("jsonl", "parquet", "hf", "webdataset")
PLACES = {"jsonl": "train.jsonl", "parquet": "", "hf": "", "webdataset": ""}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TURNS = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}), max_size=3)


def written(folder, rows, format, per_shard=3):
    target = folder / format
    target.mkdir(exist_ok=True)
    with patch.object(data_export, "ROWS_PER_SHARD", per_shard):
        write_files(lambda: iter(rows), target, format, count=len(rows))
    return target


def read_back(target, format):
    return [row.value for row in selected_rows(target / PLACES[format], DataSpec(path=""))]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [PAIRS, TEXTS], ids=["pairs", "texts"])
def test_rows_come_back_as_they_were(tmp_path, rows, format):
    pytest.importorskip("pyarrow")
    target = written(tmp_path, rows, format)
    assert read_back(target, format) == rows
    if rows is TEXTS:
        assert [text.id for text in read_texts(target / PLACES[format])] == [row["id"] for row in rows]
        return
    made = read_pairs(target / PLACES[format])
    assert [(pair.id, pair.rejected, pair.margin) for pair in made] == [
        (row["id"], "no", row.get("margin", 0.0)) for row in rows
    ]


@settings(max_examples=25)
@given(
    rows=st.lists(
        st.fixed_dictionaries({"messages": TURNS.filter(bool)}, optional={"source": TEXT, "round": st.integers(0, 9)}),
        min_size=1,
        max_size=7,
    ),
    per_shard=st.integers(1, 4),
)
def test_any_texts_come_back_in_every_format(tmp_path_factory, rows, per_shard):
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("rows")
    numbered = [{"id": f"r{number}", **row} for number, row in enumerate(rows)]
    for format in FORMATS:
        assert read_back(written(folder, numbered, format, per_shard), format) == numbered


def test_shards_have_the_rows_in_order_and_one_schema(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    target = written(tmp_path, PAIRS, "hf", per_shard=3)
    files = sorted((target / "data").iterdir())
    assert [path.name for path in files] == [f"train-{number:05d}-of-00003.parquet" for number in range(3)]
    assert [parquet.ParquetFile(path).metadata.num_rows for path in files] == [3, 3, 2]
    assert len({str(parquet.ParquetFile(path).schema_arrow) for path in files}) == 1, "a column of one row is in all"


def test_equal_rows_are_equal_bytes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, two = (written(tmp_path / name, PAIRS, "webdataset") for name in ("a", "b"))
    names = sorted(path.name for path in one.iterdir())
    assert names == [f"train-00000{n}.{end}" for n in range(3) for end in ("idx", "tar")]
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_the_index_points_at_every_member(tmp_path):
    target = written(tmp_path, [*TEXTS, *PAIRS], "webdataset", per_shard=5)
    keys = []
    for path in sorted(target.glob("*.tar")):
        first, *lines = path.with_suffix(".idx").read_text().splitlines()
        assert first == f"v1.2 {len(lines)}"
        content = path.read_bytes()
        with tarfile.open(path) as archive:
            members = {member.name: archive.extractfile(member).read() for member in archive}
        named = set()
        for line in lines:
            cells = line.split()
            for extension, offset, size, name in zip(cells[::4], cells[1::4], cells[2::4], cells[3::4], strict=True):
                assert name.endswith(f".{extension}")
                assert content[int(offset) : int(offset) + int(size)] == members[name]
                named.add(name)
            keys.append(cells[3].split(".")[0])
        assert named == set(members)
    assert keys == [f"{number:09d}" for number in range(len(TEXTS) + len(PAIRS))], "keys go on over the shards"


def test_plain_text_is_a_member_of_its_own(tmp_path):
    target = written(tmp_path, TEXTS[:1], "webdataset")
    with tarfile.open(target / "train-000000.tar") as archive:
        assert archive.getnames() == ["000000000.json", "000000000.txt"]
        assert json.loads(archive.extractfile("000000000.json").read()) == {"id": "t0"}


def test_what_says_how_a_record_was_made_is_left_out():
    record = {"id": "a", "prompt": [], "chosen": [], "seed": 7, "judgements": [1], "margin": 0.5, "both_orders": {}}
    assert exported_row(record, "label") == {"id": "a", "prompt": [], "chosen": [], "margin": 0.5}
    assert exported_row(record, "prepare") == record
    assert set(LEFT_OUT) == {"critique", "label", "generate", "prepare"}


def test_the_card_says_what_is_there(tmp_path):
    columns, kinds = counted(PAIRS)
    text = data_card(RECORD, format="hf", columns=columns, kinds=kinds, licence="mit")
    front = yaml.safe_load(text.split("---")[1])
    assert front["license"] == "mit"
    assert front["size_categories"] == ["n<1K"]
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": "data/train-*.parquet"}]
    for wanted in (
        "# label (label)", "8 rows (8 pair)", f"`{'ab' * 32}`", "| `margin` | 1 | By how much",
        "| `chosen_probability` | 8 | Soft label", f"| judge | judge | stage | `{'ef' * 32}` |", f"`{'cd' * 32}`",
        "| pairs | 8 |", "| seed | 7 |", "mit, as given", "Left out of the stage's records: `both_orders`",
    ):  # fmt: skip
        assert wanted in text, wanted
    unknown = data_card(RECORD, format="jsonl", columns=columns, kinds=kinds)
    assert "Not known." in unknown
    assert yaml.safe_load(unknown.split("---")[1])["configs"][0]["data_files"][0]["path"] == "train.jsonl"


def test_jsonl_and_shards_need_no_pyarrow(tmp_path):
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from charter.report.data_export import write_files\n"
        "for name in ('jsonl', 'webdataset'):\n"
        f"    target = Path({str(tmp_path)!r}) / name; target.mkdir()\n"
        "    write_files(lambda: [{'text': 'a'}], target, name, count=1)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
