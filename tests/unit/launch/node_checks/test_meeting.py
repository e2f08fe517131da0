import json
import threading

import pytest

from charter.errors import DataError
from charter.launch.node_checks import (
    BAD_NODES,
    FORGET_AFTER_SECONDS,
    MEETING_SECONDS,
    Assignment,
    leave_out,
    meet,
    read_bad_nodes,
    read_reports,
)
from charter.spec.launching import NodeChecks

SETTINGS = NodeChecks(disk_bytes=1, slow_rank_ratio=1e9)


class Clock:
    """Seconds that pass only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def together(stage_dir, ranks, *, needed, expected, settings=SETTINGS) -> dict[int, Assignment]:
    """Let nodes meet, each in a thread of its own."""
    found: dict[int, Assignment] = {}

    def one(rank: int) -> None:
        found[rank] = meet(
            stage_dir, settings, start="1-a", rank=rank, needed=needed, expected=expected, node=f"n{rank}"
        )

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_nodes_that_are_all_there_agree(tmp_path):
    found = together(tmp_path, [0, 1, 2], needed=2, expected=3)
    assert set(found) == {0, 1, 2}
    assert {answer.ranks for answer in found.values()} == {(0, 1)}


def test_a_node_without_room_is_left_out_by_all(tmp_path):
    found = together(tmp_path, [0, 1], needed=2, expected=2, settings=NodeChecks(disk_bytes=1 << 60))
    assert all(answer.ranks == () for answer in found.values())
    assert all(set(answer.left_out) == {"n0", "n1"} for answer in found.values())


def test_a_silent_node_is_not_waited_for_forever(tmp_path):
    clock = Clock()
    found = meet(
        tmp_path, SETTINGS, start="1-a", rank=0, needed=1, expected=2, node="n0", pause=clock.wait, clock_seconds=clock
    )
    assert MEETING_SECONDS <= clock.now < 2 * MEETING_SECONDS
    assert found == Assignment(ranks=(0,), left_out={"node 1": "said nothing"})


def test_the_late_node_takes_the_answer_of_those_that_decided(tmp_path):
    clock = Clock()
    meet(tmp_path, SETTINGS, start="1-a", rank=0, needed=1, expected=3, pause=clock.wait, clock_seconds=clock)
    late = meet(tmp_path, SETTINGS, start="1-a", rank=1, needed=1, expected=3, pause=clock.wait, clock_seconds=clock)
    assert late.ranks == (0,)
    assert late.place_of(1) is None


def test_any_node_decides_when_the_first_one_has_died_after_its_report(tmp_path):
    clock = Clock()
    report = {"node": "n0", "rank": 0, "findings": [], "rates": {}}
    (tmp_path / "check-1-a-0.json").write_text(json.dumps(report))
    found = meet(tmp_path, SETTINGS, start="1-a", rank=1, needed=2, expected=3, pause=clock.wait, clock_seconds=clock)
    assert clock.now >= 2 * MEETING_SECONDS
    assert found.ranks == (0, 1)
    again = meet(tmp_path, SETTINGS, start="1-a", rank=2, needed=2, expected=3, pause=clock.wait, clock_seconds=clock)
    assert again == found


def test_reports_of_another_start_and_torn_ones_do_not_count(tmp_path):
    (tmp_path / "check-1-b-0.json").write_text(json.dumps({"node": "n0", "rank": 0, "findings": [], "rates": {}}))
    (tmp_path / "check-1-a-0.json").write_text('{"node": "n0", "ra')
    assert read_reports(tmp_path, "1-a") == []
    assert [report.node for report in read_reports(tmp_path, "1-b")] == ["n0"]


def test_bad_nodes_are_remembered_for_a_day(tmp_path):
    leave_out(tmp_path, {"n1": "ECC"}, now=1000.0)
    leave_out(tmp_path, {"n2": "slow"}, now=2000.0)
    assert read_bad_nodes(tmp_path, now=2000.0) == {"n1": "ECC", "n2": "slow"}
    assert read_bad_nodes(tmp_path, now=1000.0 + FORGET_AFTER_SECONDS) == {"n2": "slow"}


def test_no_bad_nodes_leave_no_file(tmp_path):
    leave_out(tmp_path, {})
    assert not (tmp_path / BAD_NODES).exists()
    assert read_bad_nodes(tmp_path) == {}


def test_a_file_of_another_shape_is_refused(tmp_path):
    (tmp_path / BAD_NODES).write_text('{"n1": {}}')
    with pytest.raises(DataError, match="remove it"):
        read_bad_nodes(tmp_path)
