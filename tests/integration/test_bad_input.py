"""Bad input: one clear error each, the documented exit code, and nothing lost."""

import shutil
import subprocess
from pathlib import Path

import pytest


def stages(work):
    return sorted(path.name for path in (work.root / "run" / "stages").glob("*"))


def refused(work, code, *words):
    done = work.run()
    assert done.code == code, done.err
    assert "Traceback" not in done.err + done.out
    for word in words:
        assert word in done.err
    return done


def test_no_charter_yaml(work):
    (work.root / "charter.yaml").unlink()
    done = work.charter("run")
    assert done.code == 2
    assert "there is no charter.yaml in" in done.err
    assert "charter init" in done.err


def test_a_missing_data_file(work):
    (work.root / "other.jsonl").unlink()
    refused(work, 8, "data.other.path: no file", "other.jsonl")
    assert stages(work) == []


def test_malformed_jsonl_is_named_with_its_line(work):
    with (work.root / "chat.jsonl").open("a") as file:
        file.write('{"messages": [\n')
    refused(work, 8, "chat.jsonl:2")
    assert stages(work) == []


def test_an_empty_data_set(work):
    (work.root / "other.jsonl").write_text("")
    refused(work, 8, "other.jsonl")
    assert stages(work) == []


def test_every_problem_at_once(work):
    (work.root / "other.jsonl").unlink()
    (work.root / "chat.jsonl").write_text("nonsense\n")
    refused(work, 8, "other.jsonl", "chat.jsonl:1")


def test_a_model_path_without_config_json(work):
    (work.root / "hf").mkdir()
    text = (work.root / "charter.yaml").read_text()
    head, _, rest = text.partition("  base:\n")
    tail = rest[rest.index("data:") :]
    (work.root / "charter.yaml").write_text(f"{head}  base: {{model: ./hf}}\n{tail}")
    refused(work, 8, "models.base.model", "has no config.json")
    assert stages(work) == []


def test_a_kind_that_this_engine_cannot_run(work):
    with (work.root / "charter.yaml").open("a") as file:
        file.write("  d: {kind: prepare, data: chat}\n")
    done = work.run(COUNTING_WITHOUT="prepare")
    assert (done.code, "pipeline.d: stages of kind prepare cannot be run" in done.err) == (2, True)
    assert "charter plan" in done.err
    assert stages(work) == []


def test_a_checkpoint_directory_of_another_run(work):
    assert work.run(CHARTER_KILL="b:checkpoint:4:after:all").code == -9
    stolen = work.stage_dir("a") / "state" / "step-00000004"
    mine = work.stage_dir("b") / "state" / "step-00000004"
    shutil.rmtree(mine)
    shutil.copytree(stolen, mine)
    refused(work, 8, "checkpoint of another run: stage a", "stage b")
    assert mine.exists()
    shutil.rmtree(mine)
    assert work.run().code == 0


def test_a_corrupt_record(work):
    work.run()
    record = work.stage_dir("b") / "record.json"
    content = record.read_text()
    record.write_text(content[: len(content) // 2])
    done = refused(work, 8, "record.json is not valid JSON", "mv ")
    assert done.names("stage_started") == []
    shown = work.charter("status")
    assert shown.code == 0
    assert "damaged" in shown.out
    assert "record.json is not valid JSON" in shown.out
    record.write_text(content)
    assert work.run().names("stage_started") == []


def test_a_corrupt_job_of_an_unfinished_stage(work):
    assert work.run(CHARTER_KILL="b:checkpoint:4:after:all").code == -9
    (work.stage_dir("b") / "job.json").write_text("{")
    refused(work, 8, "job.json is not valid JSON")


def test_a_damaged_checkpoint_costs_its_steps_and_nothing_else(work, undisturbed):
    assert work.run(CHARTER_KILL="b:checkpoint:4:after:all").code == -9
    (work.stage_dir("b") / "state" / "step-00000004" / "value.json").write_text('{"value": "tampered"}')
    done = work.run()
    assert done.code == 0, done.err
    assert work.outputs() == undisturbed
    assert "step-00000004 is damaged" in (work.stage_dir("b") / "log.txt").read_text()


@pytest.fixture
def small_disk(tmp_path):
    """A real 1 MiB file system; skipped where mounting is not allowed."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here; test_runner.py fills the disk by fault injection")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def test_a_full_disk(work, undisturbed, small_disk):
    run = work.root / "run"
    work.run("--only", "a")
    shutil.copytree(run / "stages", small_disk / "stages")
    shutil.rmtree(run / "stages")
    (run / "stages").symlink_to(small_disk / "stages")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    done = work.run()
    assert done.code == 8, done.err
    assert "disk full" in done.err
    assert "are free" in done.err
    filler.unlink()
    again = work.run()
    assert again.code == 0, again.err
    assert work.outputs() == undisturbed


def test_a_value_that_cannot_be_read_as_a_project(work):
    (work.root / "charter.yaml").write_text("name: [\n")
    refused(work, 2, "charter.yaml:")


def test_errors_say_the_same_from_the_command_line(work):
    (work.root / "other.jsonl").unlink()
    done = work.charter("run")
    assert (done.code, done.err.startswith("error[data]: ")) == (8, True)
    assert Path(work.root / "run").is_dir()
