import contextlib

import pytest

from charter.artifacts import durable, fence
from charter.artifacts.group import GROUP
from charter.artifacts.lease import Lease, read_holder
from charter.errors import InterruptedRunError, UsageError


def take(directory):
    return Lease(directory, lock_name="run.lock", what="the project")


def lost(directory):
    """Somebody whose lock this process does not see takes the directory."""
    content = fence.next_content(directory, {"pid": 1, "host": "elsewhere"})
    (directory / fence.FENCE).write_text(durable.json_text(content))


def test_the_number_grows_with_every_holder_and_outlives_them(tmp_path):
    for token in (1, 2, 3):
        with take(tmp_path):
            assert fence.token_of(tmp_path / "state") == token
        assert fence.token_of(tmp_path) is None
    assert fence.read_fence(tmp_path)["token"] == 3


def test_nothing_appears_below_a_directory_that_was_lost(tmp_path):
    (tmp_path / "sub").mkdir()
    with take(tmp_path) as held:
        durable.write_file(tmp_path / "deep.json", "1")
        lost(tmp_path)
        for act in (
            lambda: durable.write_file(tmp_path / "deep.json", "2"),
            lambda: durable.append_line(tmp_path / "metrics.jsonl", {}),
            lambda: durable.write_new(tmp_path / "new", b""),
            lambda: durable.discard_dir(tmp_path / "sub"),
            lambda: durable.remove_file(tmp_path / "deep.json"),
            lambda: durable.sweep(tmp_path),
            lambda: durable.truncate(tmp_path / "deep.json", 0),
        ):
            with pytest.raises(InterruptedRunError, match="taken over by pid 1 on elsewhere"):
                act()
        assert (tmp_path / "deep.json").read_text() == "1"
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(durable.TEMPORARY)] == []
        before = (tmp_path / "lease.json").stat().st_mtime_ns
        held.touch()
        assert (tmp_path / "lease.json").stat().st_mtime_ns == before
    assert read_holder(tmp_path / "lease.json") is not None, "the one who took it over holds it still"
    durable.write_file(tmp_path / "deep.json", "of nobody's lease")


def test_directory_lost_while_waiting_for_lock_is_not_written(tmp_path, monkeypatch):
    locked = fence.locked

    @contextlib.contextmanager
    def lost_meanwhile(directory):
        lost(directory)
        with locked(directory):
            yield

    with take(tmp_path):
        durable.write_file(tmp_path / "f", "1")
        monkeypatch.setattr(fence, "locked", lost_meanwhile)
        with pytest.raises(InterruptedRunError, match="taken over by pid 1 on elsewhere"):
            durable.write_file(tmp_path / "f", "2")
    assert (tmp_path / "f").read_text() == "1"


def test_other_directories_are_not_behind_the_fence(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()
    with take(tmp_path / "a"):
        lost(tmp_path / "a")
        durable.write_file(tmp_path / "ab" / "f", "1")


def test_a_damaged_or_removed_fence_stops_the_holder_and_not_the_next_one(tmp_path):
    for spoil in (lambda: (tmp_path / fence.FENCE).write_text("{"), (tmp_path / fence.FENCE).unlink):
        with take(tmp_path):
            spoil()
            with pytest.raises(InterruptedRunError):
                durable.write_file(tmp_path / "f", "1")
    with take(tmp_path):
        durable.write_file(tmp_path / "f", "1")


def test_a_process_beside_the_holder_publishes_with_its_own_group_only(tmp_path, monkeypatch):
    monkeypatch.setenv(GROUP, "1-a")
    beside, waited = fence.join(tmp_path), []

    def holder_comes():
        """While this process waits for it, and not before."""
        waited.append(True)
        (tmp_path / fence.FENCE).write_text('{"token": 1, "group": "1-a"}')

    try:
        with monkeypatch.context() as patched:
            patched.setattr(fence.time, "sleep", lambda seconds: holder_comes())
            durable.write_file(tmp_path / "batch", "waited for the holder")
        assert waited == [True]
        (tmp_path / fence.FENCE).write_text('{"token": 2, "group": "2-b"}')
        with pytest.raises(InterruptedRunError):
            durable.write_file(tmp_path / "batch", "late")
    finally:
        fence.let_go(beside)
    assert (tmp_path / "batch").read_text() == "waited for the holder"


def test_two_leases_of_one_process_exclude_each_other(tmp_path):
    with take(tmp_path), pytest.raises(UsageError, match="in use"):
        take(tmp_path)
