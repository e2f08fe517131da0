import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charter.artifacts import durable, faults
from charter.artifacts.checkpoints import Checkpoints, Position, damage, positions_in
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError


class Killed(BaseException):
    """Stands for SIGKILL: nothing that cleans up after errors sees it."""


def verified(path):
    return [
        position for position in positions_in(path / "state") if damage(path / "state" / position.directory) is None
    ]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["save", "kill", "resume", "pin"]), st.integers(1, 14), st.booleans()), max_size=10
    ),
    st.integers(1, 3),
)
def test_saves_kills_and_removals_always_leave_a_checkpoint(make_stage, monkeypatch, actions, keep_last):
    path = make_stage(keep_last=keep_last)
    for old in (path / "state").glob("*"):
        durable.discard_dir(old)
    stage, step, ever, most = StageDir(path), 0, False, 0
    for action, at, after in actions:
        if action in ("save", "kill"):
            step += 1
            if action == "kill":
                kill_at(monkeypatch, at, "after" if after else "before")
            try:
                stage.save_checkpoint(step, lambda out: (out / "weights.bin").write_bytes(b"x" * 64) and None)
            except Killed:
                stage = StageDir(path)
            monkeypatch.undo()
        elif action == "resume":
            stage = StageDir(path)
            found = stage.latest_checkpoint()
            assert (found is not None) == ever
            assert not list((path / "state").glob(".*"))
        elif newest := positions_in(path / "state")[-1:]:
            (path / "state" / newest[0].directory / "pinned").touch()
        left = verified(path)
        ever = ever or bool(left)
        most = max(most, len(left))
        assert len(left) >= (1 if ever else 0)
        assert len(left) >= min(keep_last, most)


def kill_at(monkeypatch, number, when):
    """Kill the next durable action of that number."""
    faults.reset_count()

    def crash(count, moment):
        if (count, moment) == (number, when):
            raise Killed

    monkeypatch.setattr(faults, "_crash_at", crash)


def test_every_kind_of_damage_of_a_manifest_is_named(make_stage):
    stage = StageDir(make_stage())
    stage.save_checkpoint(1, lambda out: (out / "weights.bin").write_bytes(b"x") and None)
    path = stage.path / "state" / "step-00000001"
    assert damage(path) is None
    moved = path.with_name("step-00000007")
    path.rename(moved)
    assert damage(moved) == "it is the checkpoint of position 1"


def test_younger_ones_are_set_aside_and_may_be_made_again(make_stage):
    stage = StageDir(make_stage(keep_last=9))
    for step in (1, 2, 3):
        stage.save_checkpoint(step, lambda out: (out / "w").write_bytes(b"x") and None)
    stage.checkpoints.set_aside_after(Position(1))
    assert stage.checkpoints.positions() == [Position(1)]
    stage.save_checkpoint(2, lambda out: (out / "w").write_bytes(b"y") and None)
    assert StageDir(stage.path).latest_checkpoint().step == 2
    names = {path.name for path in (stage.path / "state").iterdir()}
    assert names == {"step-00000001", "step-00000002", "step-00000002.undone-1", "step-00000003.undone-1"}


def test_the_refusal_says_what_differs_and_how_much_more(make_stage):
    from dataclasses import replace

    stage = StageDir(make_stage())
    job = replace(stage.job, identity={"spec": {f"field_{i}": i for i in range(9)}, "constitution": "a"})
    ours = Checkpoints(stage.path, job)
    text = ours.manifest_text(Position(1), {})
    (stage.path / "state" / "step-00000001").mkdir(parents=True)
    durable.write_file(stage.path / "state" / "step-00000001" / "manifest.json", text)
    changed = {"spec": {f"field_{i}": i + 1 for i in range(9)}, "constitution": "b"}
    other = Checkpoints(stage.path, replace(job, identity=changed, fingerprint="b" * 64))
    with pytest.raises(DataError) as caught:
        other.newest()
    assert "is expected\n  the constitution changed\n  field_0 0 -> 1\n" in str(caught.value)
    assert "  and 4 more" in str(caught.value)
