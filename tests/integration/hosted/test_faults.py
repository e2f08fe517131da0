"""What a stage makes of an engine that fails, stops early, or says that it is done when it is not."""

import json

import faked
import pytest

from charter.artifacts.checkpoints import damage
from charter.artifacts.job import Job, JobInput, read_hosted_facts, write_job
from charter.artifacts.record import read_record
from charter.artifacts.stage_dir import StageDir
from charter.engines.huggingface.adapter import HuggingFaceAdapter
from charter.errors import DataError, InterruptedRunError, StageError
from charter.spec.stage import PreferenceModelStage, SftStage

pytestmark = pytest.mark.torch
STEPS = 6
COMMON = {"steps": STEPS, "global_batch": 4, "seq_len": 64, "dtype": "fp32", "engine": "trl", "checkpoint_every": 2}
SFT = SftStage(init="b", data=("d",), **COMMON)


def stage_of(path, inputs, spec=SFT, **changes):
    """The directory of a hosted stage."""
    rows = "chats" if spec.kind == "sft" else "pairs"
    read = {"init": (inputs / "base", "sft"), "data": (inputs / rows, "critique" if rows == "chats" else "label")}
    job = Job(
        run="test",
        stage=spec.kind,
        kind=spec.kind,
        fingerprint="a" * 64,
        seed=7,
        spec=spec,
        inputs={
            role: (
                JobInput(name=role, role=role, source="stage", path=str(where), fingerprint="0" * 64, stage_kind=maker),
            )
            for role, (where, maker) in read.items()
        },
        constitution=None,
        frozen={"threads": 1, "device": "cpu", "engine": "trl", "trl": "1.16.0"},
        keep_last=2,
    )
    path.mkdir(exist_ok=True)
    write_job(path, job)
    return StageDir(path, **changes)


def run(stage, monkeypatch, fault="none", every=2):
    monkeypatch.setenv(faked.FAULT, fault)
    monkeypatch.setenv(faked.EVERY, str(every))
    faked.run(stage)


def lines_of(stage):
    path = stage.path / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def states(stage):
    return [str(position) for position in stage.checkpoints.positions()]


@pytest.fixture
def done(tmp_path, inputs, monkeypatch):
    """An undisturbed run."""
    stage = stage_of(tmp_path / "undisturbed", inputs)
    run(stage, monkeypatch)
    return stage


def test_a_stage_of_an_engine_has_all_that_a_native_one_has(done):
    record = read_record(done.path)
    assert (record.step, record.target_step) == (STEPS, STEPS)
    assert record.notes == ("computed by trl 1.16.0; resume: bit_exact",)
    assert {"model/model.safetensors", "model/config.json", "model/tokenizer.json"} <= set(record.outputs)
    assert states(done) == ["4", "6"]
    assert [damage(done.checkpoints.path_of(position)) for position in done.checkpoints.positions()] == [None, None]
    lines = lines_of(done)
    assert [line["step"] for line in lines] == [*range(1, STEPS + 1)]
    assert all(line["tokens"] > 0 and "gradient_norm" in line for line in lines)
    assert lines[1]["loss"] == 0.5
    progress = json.loads((done.path / "progress.json").read_text())
    assert (progress["step"], progress["target_step"]) == (STEPS, STEPS)
    assert not (done.path / "engine").exists()
    facts = read_hosted_facts(done.path)
    assert (facts.engine, facts.version, facts.guarantee) == ("trl", "1.16.0", "bit_exact")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("nothing", "ended with exit code 0 and left no weights of a known step; 6 steps were asked for, it logged 0"),
        ("other", "ended with exit code 0 and left no weights of a known step; 6 steps were asked for, it logged 6"),
        ("short", "ended with exit code 0 and left the weights of step 3; 6 steps were asked for, it logged 3"),
        ("nan", "are no model: .* is not finite"),
        ("shape", r"has the shape \["),
        ("missing", "model.unknown.weight belongs to no layer"),
        ("crash:5", r"(?s)ended with exit code 1 at step 4 of 6.*the loss is a rabbit"),
    ],
)
def test_an_engine_that_failed_has_not_done_its_stage(tmp_path, inputs, monkeypatch, fault, words):
    stage = stage_of(tmp_path / "s", inputs)
    with pytest.raises(StageError, match=words):
        run(stage, monkeypatch, fault)
    assert not stage.is_done
    assert not stage.outputs.exists()


def test_out_of_memory_is_said_as_such(tmp_path, inputs, monkeypatch):
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        run(stage_of(tmp_path / "s", inputs), monkeypatch, "memory:3")


def test_an_engine_that_was_killed_is_started_again_from_its_checkpoint(tmp_path, inputs, monkeypatch, done):
    stage = stage_of(tmp_path / "s", inputs)
    with pytest.raises(SystemExit) as ended:
        run(stage, monkeypatch, "kill:6")
    assert ended.value.code == 9
    told = json.loads((stage.path / "failure.json").read_text())
    assert (told["label"], told["message"]) == ("peer", "TRL was killed by signal 9")
    assert states(stage) == ["2", "4"]
    run(stage, monkeypatch)
    assert read_record(stage.path).outputs == read_record(done.path).outputs
    assert [line["step"] for line in lines_of(stage)] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_that_was_being_written_is_never_resumed_from(tmp_path, inputs, monkeypatch, done):
    stage = stage_of(tmp_path / "s", inputs)
    with pytest.raises(SystemExit):
        run(stage, monkeypatch, "torn:4")
    assert states(stage) == ["2"]
    run(stage, monkeypatch)
    assert read_record(stage.path).outputs == read_record(done.path).outputs
    assert [line["step"] for line in lines_of(stage)] == [1, 2, 3, 4, 5, 6]


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_resumed_from(tmp_path, inputs, monkeypatch, done):
    stage = stage_of(tmp_path / "s", inputs)
    with pytest.raises(SystemExit):
        run(stage, monkeypatch, "kill:6")
    newest = stage.checkpoints.path_of(stage.checkpoints.positions()[-1])
    data = bytearray((newest / "optimizer.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (newest / "optimizer.pt").write_bytes(bytes(data))
    run(stage, monkeypatch)
    assert read_record(stage.path).outputs == read_record(done.path).outputs
    assert [path.name for path in (stage.path / "state").glob("*damaged*")] == ["step-00000004.damaged-1"]


def test_a_stop_is_passed_on_and_the_stage_goes_on_from_there(tmp_path, inputs, monkeypatch, done):
    stopped = stage_of(tmp_path / "s", inputs, should_stop=lambda: bool(lines_of(stopped)))
    with pytest.raises(InterruptedRunError, match=r"stopped after the checkpoint of step [1-3] of 6"):
        run(stopped, monkeypatch, "told:3", every=100)
    assert len(states(stopped)) == 1
    again = stage_of(tmp_path / "s", inputs)
    run(again, monkeypatch, every=100)
    assert read_record(again.path).outputs == read_record(done.path).outputs


def test_an_engine_that_does_not_save_when_told_is_ended_at_its_next_checkpoint(tmp_path, inputs, monkeypatch, done):
    monkeypatch.setattr("charter.hosted.run.adapter_of", lambda job: HuggingFaceAdapter(saves_on_sigterm=False))
    gate = tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))

    def should_stop():
        """Only once this has been said may the engine come to its next checkpoint."""
        return bool(lines_of(stopped)) and gate.touch() is None

    stopped = stage_of(tmp_path / "s", inputs, should_stop=should_stop)
    with pytest.raises(InterruptedRunError, match=r"stopped after the checkpoint of step 2 of 6"):
        run(stopped, monkeypatch, "gate:2")
    again = stage_of(tmp_path / "s", inputs)
    run(again, monkeypatch)
    assert read_record(again.path).outputs == read_record(done.path).outputs


def test_a_checkpoint_of_another_engine_is_refused(tmp_path, inputs, monkeypatch):
    stage = stage_of(tmp_path / "s", inputs)
    with pytest.raises(SystemExit):
        run(stage, monkeypatch, "kill:6")
    from dataclasses import replace

    write_job(stage.path, replace(stage.job, spec=replace(SFT, engine="accelerate")))
    with pytest.raises(DataError, match=r"was written by the engine trl, and accelerate cannot read it"):
        run(StageDir(stage.path), monkeypatch)


def test_a_reward_model_without_a_score_is_none(tmp_path, inputs, monkeypatch):
    spec = PreferenceModelStage(init="b", data=("d",), **COMMON)
    with pytest.raises(StageError, match=r"has left no model with one score: .* has no score.weight"):
        run(stage_of(tmp_path / "s", inputs, spec), monkeypatch)
