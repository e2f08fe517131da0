"""One data set in every format gives the same values; every kind of bad file or row is named; a choice is offered."""

import datetime
import gzip
import io
import json
import sys
import tarfile
from decimal import Decimal
from pathlib import Path

import pytest
from texts import read_texts

from charter.data.dataset import data_facts, read_conversations, read_pairs, read_prompts
from charter.data.formats import MOST_SHARDS, find_files, is_there
from charter.data.rows import REASONS_KEPT, SkippedRows
from charter.errors import DataError, MissingExtraError
from charter.spec.project import DataSpec

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def spec(**fields):
    return DataSpec(path="", **fields)


CONVERSATIONS = [{"id": f"c{i}", "messages": [user(f"Q{i} ä"), assistant(f"A{i}")]} for i in range(7)]
PROMPTS = [{"id": f"q{i}", "prompt": f"Q{i}"} for i in range(7)]
TEXTS = [{"id": f"t{i}", "text": f"some text {i} 日本"} for i in range(7)]
PAIRS = [
    {
        "id": f"p{i}",
        "prompt": [user(f"Q{i}")],
        "chosen": [assistant("good")],
        "rejected": [assistant("bad")],
        "chosen_probability": 0.5 + i / 20,
    }
    for i in range(7)
]
KINDS = {
    "conversations": (read_conversations, CONVERSATIONS),
    "prompts": (read_prompts, PROMPTS),
    "texts": (read_texts, TEXTS),
    "pairs": (read_pairs, PAIRS),
}


def write_jsonl(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(folder, rows):
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def write_parquet_shards(folder, rows):
    """As hubs lay data sets out."""
    (folder / "data").mkdir()
    for index, part in enumerate((rows[:4], rows[4:])):
        pq.write_table(pa.Table.from_pylist(part), folder / "data" / f"train-{index:05d}-of-00002.parquet")
    (folder / "README.md").write_text("a card")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x.parquet").write_text("no data")
    return folder


def write_hf(folder, rows, *, turns_as_struct_of_lists=False):
    """As `save_to_disk` of datasets 4 writes it: Arrow streams, and `state.json` with their order."""
    names = []
    for index, part in enumerate((rows[:5], rows[5:])):
        names.append(f"data-{index:05d}-of-00002.arrow")
        table = pa.Table.from_pylist(part)
        with pa.OSFile(str(folder / names[-1]), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "x", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def add(archive, name, content, **changes):
    data = content if isinstance(content, bytes) else content.encode()
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in changes.items():
        setattr(member, key, value)
    archive.addfile(member, io.BytesIO(data))


def write_tars(folder, rows):
    for index, part in enumerate((rows[:4], rows[4:])):
        with tarfile.open(folder / f"shard-{index:03d}.tar", "w") as archive:
            for row in part:
                fields = {key: value for key, value in row.items() if key not in ("id", "text")}
                add(archive, f"{row['id']}.json", json.dumps(fields))
                add(archive, f"{row['id']}.jpg", b"\xff\xd8")
                if "text" in row:
                    add(archive, f"{row['id']}.txt", row["text"])
    return folder / "shard-{000..001}.tar"


WRITERS = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
    "shards": write_parquet_shards,
    "hf": write_hf,
    "tar": write_tars,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [name for name in WRITERS if name != "jsonl"])
def test_every_format_gives_the_values_of_jsonl(form, kind, tmp_path):
    read, rows = KINDS[kind]
    (tmp_path / "a").mkdir()
    expected = read(write_jsonl(tmp_path / "a", rows))
    (tmp_path / "b").mkdir()
    path = WRITERS[form](tmp_path / "b", rows)
    assert read(path) == expected
    assert read(path, spec(limit=5)) == expected[:5]
    halves = [read(path, spec(part=part)) for part in ("1/2", "2/2")]
    assert [read(tmp_path / "a" / "rows.jsonl", spec(part=part)) for part in ("1/2", "2/2")] == halves
    assert data_facts(path) == data_facts(tmp_path / "a" / "rows.jsonl")


@pytest.mark.parametrize("form", WRITERS)
def test_rows_without_an_id_are_numbered_on_over_all_files(form, tmp_path):
    path = WRITERS[form](tmp_path, PROMPTS if form == "tar" else [{"prompt": row["prompt"]} for row in PROMPTS])
    expected = [row["id"] for row in PROMPTS] if form == "tar" else [f"row-{i:06d}" for i in range(1, 8)]
    assert [prompt.id for prompt in read_prompts(path)] == expected


@pytest.mark.parametrize(
    ("form", "format"),
    [("jsonl", "jsonl"), ("parquet", "parquet"), ("shards", "hf"), ("hf", "hf"), ("tar", "webdataset")],
)
def test_a_format_can_be_said(form, format, tmp_path):
    assert len(read_prompts(WRITERS[form](tmp_path, PROMPTS), spec(format=format))) == 7


@pytest.mark.parametrize(
    ("form", "format", "message"),
    [
        ("parquet", "jsonl", r"asked to read as jsonl, but its name says parquet"),
        ("jsonl", "webdataset", r"asked to read as webdataset, but its name says jsonl"),
        ("shards", "webdataset", "holds nothing to read as webdataset"),
        ("hf", "parquet", "holds nothing to read as parquet"),
        ("shards", "jsonl", "is a directory; name one JSONL file in it"),
    ],
)
def test_a_format_that_the_files_do_not_have_is_refused(form, format, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read_prompts(WRITERS[form](tmp_path, PROMPTS), spec(format=format))


def test_a_compressed_file_says_how_to_unpack_it(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "Hi"}\n'))
    with pytest.raises(DataError, match=r"is compressed; unpack it \(`gunzip train.jsonl.gz`\)"):
        read_prompts(path, DataSpec(path=str(path), on_bad_row="skip"))


def test_a_file_with_another_suffix_is_read_as_it_is_said(tmp_path):
    write_parquet(tmp_path, PROMPTS).rename(tmp_path / "rows.dat")
    assert len(read_prompts(tmp_path / "rows.dat", spec(format="parquet"))) == 7


def test_turns_stored_as_a_struct_of_lists_are_turns(tmp_path):
    """What older versions of `datasets` make of `Sequence({"role": ..., "content": ...})`."""
    rows = [{"messages": {"role": ["user", "assistant"], "content": ["Q", "A"]}, "n": {"a": [1], "b": [2]}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (found,) = read_conversations(tmp_path / "rows.parquet")
    assert [(turn.role, turn.content) for turn in found.turns] == [("user", "Q"), ("assistant", "A")]


def test_columns_for_rewards_hold_what_json_can_say(tmp_path):
    day = datetime.datetime(2026, 1, 2, 3)
    row = {"prompt": "Q", "answer": Decimal("1.5"), "at": day, "image": {"bytes": b"\xff", "path": "a.png"}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "rows.parquet")
    [prompt] = read_prompts(tmp_path / "rows.parquet")
    assert json.loads(json.dumps(prompt.columns)) == {
        "answer": "1.5",
        "at": "2026-01-02 03:00:00",
        "image": {"bytes": None, "path": "a.png"},
    }


def test_a_null_column_is_an_absent_field(tmp_path):
    """A table has every column in every row, also where the rows are of different kinds."""
    rows = [{"text": "abc", "messages": None}, {"text": None, "messages": [user("Q"), assistant("A")]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert [len(item.turns) for item in read_texts(tmp_path / "rows.parquet")] == [1, 2]


# Which files


@pytest.mark.parametrize("pattern", ["shard-{000..001}.tar", "shard-{000,001}.tar", "shard-*.tar"])
def test_patterns_name_shards(pattern, tmp_path):
    write_tars(tmp_path, PROMPTS)
    found = find_files(tmp_path / pattern)
    assert (found.format, found.names) == ("webdataset", ("shard-000.tar", "shard-001.tar"))
    assert is_there(tmp_path / pattern)
    assert not is_there(tmp_path / pattern.replace("shard", "other"))


def test_braces_keep_their_order(tmp_path):
    write_tars(tmp_path, PROMPTS)
    assert [p.id for p in read_prompts(tmp_path / "shard-{001,000}.tar")] == ["q4", "q5", "q6", "q0", "q1", "q2", "q3"]


def test_a_missing_shard_is_named(tmp_path):
    write_tars(tmp_path, PROMPTS)
    with pytest.raises(DataError, match=r"shard-002\.tar, shard-003\.tar is missing"):
        find_files(tmp_path / "shard-{000..003}.tar")
    with pytest.raises(DataError, match="no file in"):
        find_files(tmp_path / "other-*.tar")


@pytest.mark.parametrize("braces", ["{9..1}", "{0..200000}", "{0..999}{0..999}"])
def test_braces_that_name_no_or_too_many_files_are_refused(braces, tmp_path):
    with pytest.raises(DataError, match=str(MOST_SHARDS)):
        find_files(tmp_path / f"shard-{braces}.tar")


def test_files_of_several_formats_are_refused(tmp_path):
    write_jsonl(tmp_path, PROMPTS)
    write_parquet(tmp_path, PROMPTS)
    with pytest.raises(DataError, match=r"several formats \(jsonl, parquet\)"):
        find_files(tmp_path / "rows.*")


def test_splits_are_not_mixed(tmp_path):
    write_parquet_shards(tmp_path, PROMPTS)
    pq.write_table(pa.Table.from_pylist(PROMPTS), tmp_path / "data" / "test-00000-of-00001.parquet")
    with pytest.raises(DataError, match=r"several splits: data/test\*\.parquet, data/train\*\.parquet; name one"):
        read_prompts(tmp_path)
    assert len(read_prompts(tmp_path / "data" / "train-*.parquet")) == 7


@pytest.mark.parametrize(
    ("names", "mixed"),
    [
        (("train.parquet", "test.parquet"), True),
        (("a/part-0.parquet", "b/part-0.parquet"), True),
        (("part-0.parquet", "part-1.parquet"), False),
        (("0000.parquet", "0001.parquet"), False),
        (("shard_1.parquet", "shard_10.parquet"), False),
    ],
)
def test_what_only_a_number_tells_apart_is_one_split(names, mixed, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(PROMPTS), tmp_path / name)
    if mixed:
        with pytest.raises(DataError, match="several splits"):
            find_files(tmp_path)
    else:
        assert find_files(tmp_path).names == names


def test_a_saved_dataset_of_one_split_is_that_split_and_of_several_is_refused(tmp_path):
    for name in ("train", "test"):
        (tmp_path / name).mkdir()
        write_hf(tmp_path / name, PROMPTS)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert len(read_prompts(tmp_path)) == 7
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"several splits: train, test; give the path of one, like .*/train"):
        read_prompts(tmp_path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_data_files": [{"filename": "../secret.arrow"}]}, "names no data files of its own directory"),
        ({"_data_files": []}, "names no data files"),
        ({"_data_files": [{"filename": "gone.arrow"}]}, r"gone\.arrow is missing"),
        ({"_data_files": [{"filename": "x"}], "_indices_data_files": [{"filename": "i"}]}, "flatten_indices"),
    ],
)
def test_a_saved_dataset_that_is_not_whole_is_refused(state, message, tmp_path):
    write_hf(tmp_path, PROMPTS)
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=message):
        read_prompts(tmp_path)


# Damaged files


@pytest.mark.parametrize("form", ["parquet", "hf", "tar"])
@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_file_cut_short_is_refused_under_every_policy(form, policy, tmp_path):
    path = WRITERS[form](tmp_path, [{**row, "prompt": row["prompt"] * 400} for row in PROMPTS])
    file = find_files(path).files[0]
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 100])
    with pytest.raises(DataError, match=f"{file.name} cannot be read"):
        read_prompts(path, spec(on_bad_row=policy))


@pytest.mark.parametrize("kept_bytes", [0, 100, 512, 700, 1024, 1536, 1700, 2048])
def test_a_shard_cut_anywhere_is_refused(shard, kept_bytes):
    """Two members of a header and a block each; also where exactly a member ends, which `tarfile` would accept."""
    path = shard(("1.txt", "a"), ("2.txt", "b"))
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(DataError, match=r"s\.tar cannot be read as a tar file"):
        read_texts(path)


def test_a_shard_with_a_damaged_header_is_refused(shard):
    path = shard(("1.txt", "a"), ("2.txt", "b"))
    content = bytearray(path.read_bytes())
    content[1024 + 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="no end of archive at byte 1024"):
        read_texts(path)


def test_without_pyarrow_the_command_that_installs_it_is_said(tmp_path, monkeypatch):
    path = write_parquet(tmp_path, PROMPTS)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"rows\.parquet needs pyarrow: pip install .\.\[data\]"):
        read_prompts(path)


# Shards


@pytest.fixture
def shard(tmp_path):
    def write(*members):
        with tarfile.open(tmp_path / "s.tar", "w") as archive:
            for name, content, *changes in members:
                add(archive, name, content, **(changes[0] if changes else {}))
        return tmp_path / "s.tar"

    return write


def test_members_are_named_after_the_fields_they_hold(shard):
    path = shard(
        ("./a/1.prompt.txt", "Q"),
        ("./a/1.chosen.txt", "yes"),
        ("./a/1.rejected.json", json.dumps([assistant("no")])),
        ("./a/1.json", '{"chosen_probability": 0.75}'),
    )
    (pair,) = read_pairs(path)
    assert (pair.id, pair.prompt[0].content, pair.chosen, pair.rejected) == ("./a/1", "Q", "yes", "no")
    assert pair.chosen_probability == 0.75


def test_a_member_named_to_lie_elsewhere_is_read_where_it_is(shard, tmp_path):
    """Nothing is extracted, so a name cannot lead out of the archive."""
    path = shard(("../../evil.txt", "text of the archive"), ("/etc/passwd.txt", "not the file"))
    assert [item.turns[0].content for item in read_texts(path)] == ["text of the archive", "not the file"]
    assert [file.name for file in tmp_path.parent.rglob("*") if "evil" in file.name] == []


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (
            [("1.txt", "", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})],
            r"member 1\.txt: is a link or a device",
        ),
        ([("1.txt", "", {"type": tarfile.LNKTYPE, "linkname": "0.txt"})], r"member 1\.txt: is a link or a device"),
        ([("1.json", '{"text": "a"}'), ("1.txt", "b")], r"member 1\.txt: gives the field `text` a second time"),
        ([("1.jpg", "")], r"sample 1 has no \.json and no \.txt member"),
        ([("1.json", "[1]")], r"member 1\.json: expected a JSON object .*, found a list"),
        ([("1.json", '{"text": NaN}')], r"member 1\.json: NaN is not a JSON value"),
        ([("1.messages.json", '[], "id": "x"')], r"member 1\.messages\.json: not valid JSON"),
        ([("1.txt", b"\xff")], r"member 1\.txt: not UTF-8 text"),
        ([("1.json", '{"other": 1}')], r"s\.tar: sample 1: no known format"),
    ],
)
def test_a_bad_sample_is_named_or_skipped(shard, members, message):
    path = shard(("0.txt", "first"), *members, ("2.txt", "last"))
    with pytest.raises(DataError, match=message):
        read_texts(path)
    skipped = SkippedRows()
    assert [item.id for item in read_texts(path, spec(on_bad_row="skip"), skipped)] == ["0", "2"]
    assert skipped.count == 1


# Bad rows


def broken(folder, form):
    """Five rows of which the second and the fifth cannot be prompts, and how a message names the second."""
    rows = [{"id": f"q{i}", "prompt": " " if i in (1, 4) else f"Q{i}"} for i in range(7)]
    return WRITERS[form](folder, rows)


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("jsonl", r"rows\.jsonl:2: "),
        ("parquet", r"rows\.parquet: row group 0, row 1: "),
        ("shards", r"data/train-00000-of-00002\.parquet: row group 0, row 1: "),
        ("hf", r"data-00000-of-00002\.arrow: record batch 0, row 1: "),
        ("tar", r"shard-000\.tar: sample q1: "),
    ],
)
def test_a_bad_row_is_named_by_its_place_or_left_out_and_counted(form, where, tmp_path):
    path = broken(tmp_path, form)
    with pytest.raises(DataError, match=where + "`prompt` must be a text that is not empty"):
        read_prompts(path)
    skipped = SkippedRows()
    found = read_prompts(path, spec(on_bad_row="skip"), skipped)
    assert [prompt.id for prompt in found] == ["q0", "q2", "q3", "q5", "q6"]
    assert (skipped.count, len(skipped.reasons)) == (2, 2)
    assert data_facts(path, spec(on_bad_row="skip")).rows == 5


def test_the_row_of_a_later_group_is_counted_in_its_group(tmp_path):
    rows = [{"prompt": "" if i == 5 else "Q"} for i in range(7)]
    with pytest.raises(DataError, match="row group 1, row 2"):
        read_prompts(write_parquet(tmp_path, rows))


def test_lines_that_are_no_json_are_bad_rows_too(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": \n[1]\n{"prompt": "\xff"}\n{"prompt": NaN}\n{"prompt": "b"}\n')
    skipped = SkippedRows()
    found = read_prompts(path, spec(on_bad_row="skip"), skipped)
    assert [prompt.id for prompt in found] == ["row-000001", "row-000006"]
    assert [reason.split(": ")[0].rpartition(":")[2] for reason in skipped.reasons] == ["2", "3", "4", "5"]


def test_text_that_is_not_utf8_in_a_table_is_one_bad_row(tmp_path):
    column = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": column}), tmp_path / "rows.parquet")
    skipped = SkippedRows()
    found = read_texts(tmp_path / "rows.parquet", spec(on_bad_row="skip"), skipped)
    assert [item.id for item in found] == ["row-000001", "row-000003"]
    assert "row group 0, row 1: a value cannot be read" in skipped.reasons[0]


def test_a_limit_stops_before_the_rows_behind_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\nnot json\n')
    assert len(read_prompts(path, spec(limit=2))) == 2


def test_when_no_row_can_be_read_skipping_does_not_hide_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": ""}\nx\n')
    with pytest.raises(DataError, match=r"none of its 2 rows can be read; the first: .*rows\.jsonl:1: `text` must be"):
        read_texts(path, spec(on_bad_row="skip"))


def test_second_data_set_without_rows_is_named_after_bad_rows(tmp_path):
    skipped = SkippedRows()
    read_prompts(broken(tmp_path, "jsonl"), spec(on_bad_row="skip"), skipped)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match=r"empty\.jsonl holds no rows"):
        read_prompts(tmp_path / "empty.jsonl", spec(on_bad_row="skip"), skipped)


def test_what_was_left_out_is_told_in_a_few_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": ""}\n' * 8 + '{"text": "a"}\n')
    skipped = SkippedRows()
    read_texts(path, spec(on_bad_row="skip"), skipped)
    assert skipped.lines()[0] == "8 bad rows were left out (on_bad_row: skip)"
    assert len(skipped.lines()) == REASONS_KEPT + 2
    assert skipped.lines()[-1] == f"  and {8 - REASONS_KEPT} more"
    assert skipped.metrics() == {"skipped_rows": 8.0}
    assert (SkippedRows().lines(), SkippedRows().metrics()) == ([], {})


def test_the_order_of_files_does_not_depend_on_how_they_were_made(tmp_path):
    for index in (2, 0, 1):
        pq.write_table(pa.Table.from_pylist([{"prompt": str(index)}]), tmp_path / f"part-{index}.parquet")
    assert [p.turns[0].content for p in read_prompts(Path(tmp_path))] == ["0", "1", "2"]
