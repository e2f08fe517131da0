import signal
from pathlib import Path

import pytest
from still_clock import Clock

from charter.artifacts.stage_process import PEER_EXIT
from charter.launch.children import CAUSE_SECONDS, GRACE_SECONDS, GroupHandle, rank_environments
from charter.launch.launcher import StageStart


class Member:
    def __init__(self, pid):
        self.pid, self.code, self.sent = pid, None, []

    def poll(self):
        return self.code

    def send(self, number):
        self.sent.append(number)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def members():
    return [Member(10), Member(11), Member(12)]


@pytest.fixture
def group(members, clock):
    return GroupHandle(members, clock=clock)


def settled(group, members, clock, wait):
    """The group's exit code after `wait` seconds; what it kills is gone at once."""
    assert group.poll() is None
    clock.now += wait
    group.poll()
    for member in members:
        if member.code is None and signal.SIGKILL in member.sent:
            member.code = -9
    return group.poll()


def test_done_only_when_all_are(group, members):
    members[0].code = members[1].code = 0
    assert (group.poll(), group.pid, group.processes) == (None, 10, 3)
    members[2].code = 0
    assert (group.poll(), group.failed_rank) == (0, 0)


def test_one_that_fails_takes_the_others_with_it_after_a_moment(group, members, clock):
    members[1].code = 5
    assert group.poll() is None
    assert members[0].sent == []
    assert settled(group, members, clock, GRACE_SECONDS) == 5
    assert (group.failed_rank, members[0].sent) == (1, [signal.SIGKILL])
    assert members[1].sent == [], "nothing is sent to a process that has ended"


def test_the_first_cause_counts_not_what_follows_while_the_others_end(group, members, clock):
    members[2].code = -11
    group.poll()
    members[0].code = 1
    assert settled(group, members, clock, GRACE_SECONDS) == -11
    assert group.failed_rank == 2


def test_a_lost_connection_is_an_effect_whose_cause_is_waited_for(group, members, clock):
    members[0].code = PEER_EXIT
    group.poll()
    clock.now += CAUSE_SECONDS / 2
    members[1].code = -9
    assert settled(group, members, clock, 2 * GRACE_SECONDS) == -9
    assert group.failed_rank == 1


def test_a_lost_connection_without_a_cause_ends_the_group_too(group, members, clock):
    members[0].code = PEER_EXIT
    assert settled(group, members, clock, CAUSE_SECONDS) == PEER_EXIT


def test_of_several_at_once_a_signal_comes_before_an_error_and_that_before_a_lost_connection(group, members, clock):
    members[0].code, members[1].code, members[2].code = PEER_EXIT, 5, -9
    assert (group.poll(), group.failed_rank) == (-9, 2)


def test_who_stops_at_a_safe_point_ends_nobody(group, members, clock):
    members[1].code = 6
    group.poll()
    clock.now += 1000
    group.poll()
    assert members[0].sent == []
    members[0].code = members[2].code = 0
    assert group.poll() == 6


def test_requests_reach_every_process_that_runs(group, members):
    members[1].code = 0
    group.poll()
    group.stop()
    group.dump_stacks()
    assert members[0].sent == members[2].sent == [signal.SIGTERM, signal.SIGUSR1]
    assert members[1].sent == []


def test_every_process_is_told_its_place_and_every_start_has_its_own_name():
    request = StageStart(stage="a", module="m", stage_dir=Path(), attempt=2, environment={"X": "1"}, processes=2)
    first, second = list(rank_environments(request)), list(rank_environments(request))
    assert [place["RANK"] for place in first] == [place["LOCAL_RANK"] for place in first] == ["0", "1"]
    assert {place["WORLD_SIZE"] for place in first} == {place["LOCAL_WORLD_SIZE"] for place in first} == {"2"}
    assert {place["CHARTER_ATTEMPT"] + place["X"] for place in first} == {"21"}
    assert len({place["CHARTER_GROUP"] for place in first}) == 1
    assert first[0]["CHARTER_GROUP"] != second[0]["CHARTER_GROUP"]


def test_an_error_comes_before_a_lost_connection_that_is_seen_with_it(group, members, clock):
    members[0].code, members[1].code = PEER_EXIT, 5
    assert settled(group, members, clock, 2 * GRACE_SECONDS) == 5
    assert group.failed_rank == 1
