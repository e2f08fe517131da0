"""`charter artifacts export --format` of a real stage; what cannot be exported so, and damaged records."""

import json
import os
import sys

import forks
import pytest
from exported_rows import PAIRS
from typer.testing import CliRunner

from charter.cli.main import app
from charter.data.dataset import selected_rows
from charter.data.rows import Row, pair_of
from charter.errors import CharterError
from charter.report.data_export import LEFT_OUT

PROJECT = """\
name: data
models:
  base:
    architecture: {hidden_size: 8, num_layers: 1, num_heads: 1, intermediate_size: 8, vocab_size: 300}
    tokenizer: {train_on: pairs, vocab_size: 300}
data: {pairs: pairs.jsonl}
pipeline:
  clean: {kind: prepare, data: pairs}
  pm: {kind: preference_model, init: base, data: clean, steps: 2}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    (root / "charter.yaml").write_text(PROJECT)
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    command = [sys.executable, "-m", "charter.cli.main", "run", str(root), "--only", "clean", "--yes"]
    done = forks.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root


def export(root, *arguments):
    done = CliRunner().invoke(app, ["artifacts", "export", *map(str, arguments), "-C", str(root)])
    code = done.exception.exit_code if isinstance(done.exception, CharterError) else done.exit_code
    return code, done.stdout, str(done.exception or "")


@pytest.mark.parametrize(
    ("format", "place"), [("jsonl", "train.jsonl"), ("parquet", ""), ("hf", "data"), ("webdataset", "")]
)
def test_records_go_out_and_come_back(project, tmp_path, format, place):
    pytest.importorskip("pyarrow")
    target = tmp_path / "out"
    code, out, error = export(project, "clean", target, "--format", format, "--license", "cc0-1.0")
    assert code == 0, error
    assert f"8 pair rows as {format}" in out
    assert [row.value for row in selected_rows(target / place)] == PAIRS
    card = (target / "README.md").read_text()
    assert "cc0-1.0" in card
    assert "`chosen_probability` | 8 |" in card
    assert pair_of(Row(where="", number=1, value=PAIRS[0]))[1] == "plain yes"
    code, _, error = export(project, "clean", target, "--format", format)
    assert (code, "exists already" in error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pm", "x", "--format", "hf"), "makes no records"),
        (("nobody", "x", "--format", "hf"), "no stage is called"),
        (("clean", "--format", "hf"), "give the directory"),
        (("clean", "x", "--format", "hf", "--engine", "trl"), "give one of them"),
    ],
)
def test_what_cannot_be_exported_so_is_refused(project, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, error = export(project, *arguments)
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert message in error


def test_what_is_left_out_of_records_is_not_in_the_files(project, tmp_path, monkeypatch):
    monkeypatch.setitem(LEFT_OUT, "prepare", frozenset({"principles"}))
    code, _, error = export(project, "clean", tmp_path / "out", "--format", "jsonl")
    assert code == 0, error
    rows = [row.value for row in selected_rows(tmp_path / "out" / "train.jsonl")]
    assert rows == [{name: value for name, value in row.items() if name != "principles"} for row in PAIRS]


def test_records_are_hashed_again_before_they_go_out(project, tmp_path):
    (records,) = (project / "run" / "stages").glob("clean-*/outputs/records.jsonl")
    before, seen = records.read_bytes(), records.stat()
    records.write_bytes(before.replace(b"plain yes", b"plain yet"))
    os.utime(records, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    try:
        code, _, error = export(project, "clean", tmp_path / "out", "--format", "jsonl")
    finally:
        records.write_bytes(before)
        os.utime(records, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (code, "damaged" in error) == (8, True)
    assert not (tmp_path / "out").exists()
