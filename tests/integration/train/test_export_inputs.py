"""`charter artifacts export STAGE --engine E --data`: what a stage reads, for an engine that somebody else starts."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from hosted_case import PROJECT
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import CharterError
from charter.models.language_model import check_model_directory

DATA = Path(__file__).resolve().parents[3] / "src/charter/templates/data/preference_train.jsonl"
STEPS, BATCH = 6, 8


@pytest.fixture
def root(tmp_path):
    (tmp_path / "charter.yaml").write_text(PROJECT.format(steps=STEPS, every=2, python="python", more=""))
    shutil.copy(DATA, tmp_path / DATA.name)
    return tmp_path


def export(root, *words):
    return CliRunner().invoke(app, ["artifacts", "export", *words, "-C", str(root)], catch_exceptions=True)


def refusal(root, *words):
    """The exit code and what is told."""
    error = export(root, *words).exception
    assert isinstance(error, CharterError), error
    return error.exit_code, str(error)


def rows_of(root, name):
    return [json.loads(line) for line in (root / "exports" / name / "data" / "data.jsonl").read_text().splitlines()]


def left_in(root):
    return sorted(path.name for path in root.iterdir() if path.name.startswith(".export-"))


def test_rows_models_and_steps_are_those_of_the_stage(root):
    done = export(root, "sft", "--engine", "trl", "--data")
    assert done.exit_code == 0, done.output
    assert f"with {STEPS * BATCH} rows of data" in done.output
    rows = rows_of(root, "sft-trl")
    assert len(rows) == STEPS * BATCH
    assert all(len(row["input_ids"]) == len(row["assistant_masks"]) <= 128 for row in rows)
    assert all(any(row["assistant_masks"]) for row in rows)
    where = root / "exports" / "sft-trl"
    check_model_directory(where / "inputs" / "init")
    assert f"{STEPS * BATCH} of them" in (where / "README.md").read_text()
    assert yaml.safe_load((where / "sft.yaml").read_text())["max_steps"] == STEPS
    assert left_in(root) == []


@pytest.mark.thorough
def test_steps_follow_from_the_rows_that_were_written(root):
    """96 conversations in batches of 8, twice; the planner counts rows, the export has them."""
    words = ("--set", "pipeline.sft.steps=null", "--set", "pipeline.sft.epochs=2")
    assert export(root, "sft", "--engine", "accelerate", "--data", *words).exit_code == 0
    rows = rows_of(root, "sft-accelerate")
    steps = yaml.safe_load((root / "exports/sft-accelerate/sft.yaml").read_text())["max_steps"]
    assert len(rows) == steps * BATCH
    texts = [json.dumps(row) for row in rows]
    assert sorted(texts[: len(texts) // 2]) == sorted(texts[len(texts) // 2 :]), "each epoch has every row once"
    assert texts[: len(texts) // 2] != texts[len(texts) // 2 :]


def test_a_stage_that_reads_from_an_unfinished_one_is_refused(root):
    code, told = refusal(root, "pm", "--engine", "trl", "--data")
    assert code == 2
    assert "sft is not finished" in told
    assert not (root / "exports").exists()
    assert left_in(root) == []


def test_all_data_sets_that_are_not_there_are_named_at_once(root):
    names = {"demos_a": "nowhere.jsonl", "demos_b": "nor_there.jsonl"}
    words = [f"data.{name}={{path: {path}, rows: 96, mean_tokens: 40}}" for name, path in names.items()]
    asked = [word for given in (*words, "pipeline.sft.data=[demos_a, demos_b]") for word in ("--set", given)]
    code, told = refusal(root, "sft", "--engine", "trl", "--data", *asked)
    assert code == 8
    assert all(path in told for path in names.values()), told
    assert not (root / "exports").exists()


def test_rows_that_cannot_be_read_are_a_data_error(root):
    (root / "demos.jsonl").write_text('{"messages": [{"role": "user", "content": 3}]}\n' * 20)
    code, told = refusal(root, "sft", "--engine", "trl", "--data", "--set", "data.demos_a={path: demos.jsonl}")
    assert code == 8
    assert "demos.jsonl:1" in told
    assert not (root / "exports").exists()
    assert left_in(root) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sft", "--engine", "trl", "--data", "--print"), "--print writes nothing"),
        (("sft", "there", "--data"), "go with --engine"),
    ],
)
def test_options_that_contradict_each_other(root, words, told):
    code, message = refusal(root, *words)
    assert code == 2
    assert told in message
