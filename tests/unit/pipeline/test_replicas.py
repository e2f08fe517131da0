import threading
from types import SimpleNamespace

import pytest

from charter.artifacts.store.place import PlaceError
from charter.run import copies as replicas
from charter.run.copies import Replicas
from charter.run.events import Events


class Copier:
    """Stands for the copies of a run: down for a while, then up."""

    def __init__(self, failures):
        self.failures, self.passes, self.flushes = failures, 0, []
        self.worked = threading.Event()

    def copy_new(self, *, flush):
        self.passes += 1
        self.flushes.append(flush)
        if self.passes <= self.failures:
            raise PlaceError("the place cannot be used now")
        yield f"list {self.passes}"
        self.worked.set()


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "LOOK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(replicas, "LONGEST_PAUSE_SECONDS", 0.02)
    seen = []
    project = SimpleNamespace(storage=SimpleNamespace(artifacts="somewhere", replicate_every=1), name="test")

    def start(copier, **options):
        def replicator(pipeline, tell):
            copier.tell = tell
            return copier

        monkeypatch.setattr(replicas, "_replicator_of", replicator)
        return Replicas(SimpleNamespace(project=project, root=tmp_path), Events(tmp_path, [seen.append]), **options)

    start.seen = seen
    start.project = project
    return start


def test_a_place_that_is_down_is_told_tried_again_and_caught_up_with(run):
    copier, ticks = Copier(failures=3), []
    with run(copier, tick=lambda: ticks.append(1)) as copies:
        assert copier.worked.wait(30)
        copies.tick()
    failed = [event for event in run.seen if event["event"] == "replica_failed"]
    assert [event["failures"] for event in failed] == [1, 2, 3]
    assert {event["message"] for event in failed} == {"the place cannot be used now"}
    assert "replica_copied" in {event["event"] for event in run.seen}
    assert copier.flushes[-1] is True, "the end of a run copies what is left"
    assert ticks


def test_what_a_place_does_not_do_is_told_and_is_no_failure(run):
    copier = Copier(failures=0)
    with run(copier) as copies:
        copier.tell("no tags there")
        assert copier.worked.wait(30)
        copies.tick()
    assert [event["message"] for event in run.seen if event["event"] == "replica_note"] == ["no tags there"]
    assert "replica_failed" not in {event["event"] for event in run.seen}


def test_a_defect_in_copying_does_not_reach_the_run(run):
    copier = Copier(failures=0)
    copier.copy_new = lambda flush: 1 / 0
    with run(copier):
        pass
    assert "ZeroDivisionError" in run.seen[-1]["message"]


def test_a_stopped_run_does_not_wait_long(run, monkeypatch):
    monkeypatch.setattr(replicas, "LEAVE_SECONDS", 0.05)
    release, copier = threading.Event(), Copier(failures=0)

    def slow(*, flush):
        release.wait(30)
        yield "late"

    copier.copy_new = slow
    with pytest.raises(KeyError), run(copier):
        raise KeyError("the run failed")
    release.set()
    assert "`charter artifacts checkpoints backup` copies the rest" in run.seen[-1]["message"]


def test_without_a_second_place_nothing_is_started(run):
    run.project.storage.artifacts = None
    before = threading.active_count()
    with run(Copier(failures=0)) as copies:
        assert threading.active_count() == before
        copies.tick()
    assert run.seen == []
