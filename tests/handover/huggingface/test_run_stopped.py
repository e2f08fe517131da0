"""A stop of the run reaches TRL, which saves where it is, and goes on from there."""

import contextlib
import signal

import hosted_case as case
import pytest
from engine_case import engine_python

EVERY, STEPS, STOPPED_AT = 100, 16, 6


def project(root, **changes):
    case.write_project(root, python=engine_python("huggingface"), steps=STEPS, every=changes.pop("every", EVERY))
    path = root / "charter.yaml"
    text = path.read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    path.write_text(text)
    return root


def run_to_the_end(root, *stages):
    ended = case.charter(root, "run", "--yes", *stages)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return case.outputs_of(root)


@pytest.mark.slow
@pytest.mark.smoke
def test_a_stopped_stage_goes_on_from_the_step_that_it_was_at(tmp_path):
    wanted = run_to_the_end(project(tmp_path / "undisturbed"), "--only", "sft")["sft"]
    root = project(tmp_path / "stopped")
    stands = case.hold(root, "sft", before_step=STOPPED_AT + 1)
    with contextlib.closing(case.Run(root, "--only", "sft")) as run:
        run.wait_for(stands.exists)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(timeout=case.HANG_SECONDS) == 6, (root / "run.log").read_text()
    case.let_go(root, "sft")
    assert case.engine_processes(root) == {}
    (state,) = (case.stage_dir(root, "sft") / "state").glob("step-*")
    assert state.name == f"step-{STOPPED_AT:08}"
    assert run_to_the_end(root, "--only", "sft")["sft"] == wanted
