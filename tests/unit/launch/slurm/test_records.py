"""What Slurm's own records say, on texts that a real Slurm 22.05.8 has printed."""

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.launch.slurm.commands import INTERRUPTED_EXIT, cause_of, expand_hosts
from charter.launch.slurm.records import (
    attempts_of,
    file_records,
    sacct_records,
    scontrol_records,
    unix_seconds,
    with_live,
)

SACCT = """\
5|5|PREEMPTED|0:0|1795340442|1795340471|n[2-3]|billing=2,cpu=2,gres/gpu=4,mem=1000M,node=2|1795340441|charter-x
5|5|NODE_FAIL|0:0|1795340483|1795340483|n[1-2]|billing=2,cpu=2,gres/gpu=4,mem=1000M,node=2|1795340471|charter-x
5|5|CANCELLED by 0|0:15|1795340485|1795340489|n[3-4]|billing=2,cpu=2,gres/gpu=4,mem=1000M,node=2|1795340483|charter-x
"""
ARRAY = """\
8_0|9|COMPLETED|0:0|1795339570|1795339590|n1|billing=1,cpu=1,gres/gpu=1,mem=500M,node=1|1795339569|wrap
8_1|10|FAILED|3:0|1795339570|1795339571|n2|billing=1,cpu=1,gres/gpu=1,mem=500M,node=1|1795339569|wrap
8_3|12|RUNNING|0:0|1795339590|Unknown|n2|billing=1,cpu=1,gres/gpu=1,mem=500M,node=1|1795339569|wrap
8_[4,6-9%2]|8|PENDING|0:0|Unknown|Unknown|None assigned||1795339569|wrap
"""
FILE = """\
JobId=1 UserId=root(0) GroupId=root(0) Name=charter-x JobState=PREEMPTED Partition=gpu TimeLimit=UNLIMITED \
StartTime=2026-11-22T09:24:04 EndTime=2026-11-22T09:24:30 NodeList=n[1-2] NodeCnt=2 ProcCnt=2 WorkDir=/tmp/exp \
ReservationName= Tres=cpu=2,mem=32000M,node=2,billing=2 Account=root QOS=normal WcKey= Cluster=charter \
SubmitTime=2026-11-22T09:24:04 EligibleTime=2026-11-22T09:24:04 DerivedExitCode=0:0 ExitCode=0:0
JobId=1 UserId=root(0) GroupId=root(0) Name=charter-x JobState=CANCELLED Partition=gpu TimeLimit=UNLIMITED \
StartTime=2026-11-22T09:24:55 EndTime=2026-11-22T09:24:55 NodeList=(null) NodeCnt=0 ProcCnt=0 WorkDir=/tmp/exp \
ReservationName= Tres=cpu=2,node=2 Account=root QOS=normal WcKey= Cluster=charter DerivedExitCode=0:9 ExitCode=0:0
JobId=9 UserId=root(0) GroupId=root(0) Name=wrap JobState=COMPLETED Partition=gpu TimeLimit=UNLIMITED \
StartTime=2026-11-22T09:26:10 EndTime=2026-11-22T09:26:30 NodeList=n1 NodeCnt=1 ProcCnt=1 WorkDir=/tmp/exp \
ReservationName= Tres=cpu=1,mem=16000M,node=1,billing=1,gres/gpu=1 Account=root ArrayJobId=8 ArrayTaskId=0 \
DerivedExitCode=0:0 ExitCode=0:0
"""
SHOWN = (
    "JobId=1 JobName=charter-x UserId=root(0) JobState=RUNNING Reason=None Requeue=1 Restarts=2 ExitCode=0:0 "
    "RunTime=00:00:08 StartTime=1795341000 EndTime=1795344600 NodeList=n[3-4] NumNodes=2 "
    "TRES=cpu=2,mem=1000M,node=2,billing=2 StdOut=/tmp/w/a log.txt Power= TresPerNode=gres:gpu:h100:2 \n"
)


def test_every_start_of_a_requeued_job_is_one_attempt():
    attempts = attempts_of(sacct_records(SACCT))
    assert [(it.restart, it.state, it.seconds, it.nodes) for it in attempts] == [
        (0, "PREEMPTED", 29.0, ("n2", "n3")),
        (1, "NODE_FAIL", 0.0, ("n1", "n2")),
        (2, "CANCELLED", 4.0, ("n3", "n4")),
    ]
    assert {(it.accelerators, it.cpus, it.job_id) for it in attempts} == {(4, 2, "5")}


def test_tasks_of_an_array_have_their_own_attempts_and_waiting_ones_none():
    attempts = attempts_of(sacct_records(ARRAY))
    assert [(it.job_id, it.shard, it.state, it.seconds) for it in attempts] == [
        ("8_0", 0, "COMPLETED", 20.0),
        ("8_1", 1, "FAILED", 1.0),
        ("8_3", 3, "RUNNING", None),
    ]


def test_a_jobcomp_file_has_every_start_that_took_place():
    records = list(file_records(FILE.replace("\\\n", "").splitlines()))
    assert [(it.job_id, it.task, it.state, it.took_place) for it in records] == [
        ("1", None, "PREEMPTED", True),
        ("1", None, "CANCELLED", False),
        ("8", 0, "COMPLETED", True),
    ]
    first, array = attempts_of(records)
    assert (first.seconds, first.nodes, array.job_id, array.accelerators) == (26.0, ("n1", "n2"), "8_0", 1)
    assert first.started_at == time.mktime(time.strptime("2026-11-22T09:24:04", "%Y-%m-%dT%H:%M:%S"))


def test_without_accounts_the_controller_says_the_running_start_and_the_gpus():
    live = list(scontrol_records(SHOWN))
    kept = list(file_records(FILE.replace("\\\n", "").splitlines()))[:1]
    first, second = attempts_of(with_live(kept, live))
    assert (first.state, first.accelerators) == ("PREEMPTED", 4)
    assert (second.state, second.restart, second.ended_at, second.accelerators) == ("RUNNING", 2, None, 4)


def test_a_start_that_file_and_controller_both_know_counts_once():
    (ended,) = scontrol_records(SHOWN.replace("JobState=RUNNING", "JobState=COMPLETED"))
    assert with_live([ended], [ended]) == [ended]


def test_a_node_that_is_lost_within_a_second_leaves_two_starts():
    (live,) = scontrol_records(SHOWN)
    lost = replace(live, state="NODE_FAIL", ended_at=live.started_at, nodes=("n1", "n2"), restarts=None)
    first, second = attempts_of(with_live([lost], [live]))
    assert (first.state, first.seconds, second.state) == ("NODE_FAIL", 0.0, "RUNNING")


@pytest.mark.parametrize(
    ("state", "cause"),
    [("FAILED", "preempted"), ("TIMEOUT", "time_limit"), ("NODE_FAIL", "node_lost"), ("CANCELLED by 0", "cancelled")],
)
def test_a_stop_at_a_checkpoint_is_no_failure_and_other_words_stand(state, cause):
    assert cause_of(state, exit_code=INTERRUPTED_EXIT) == cause


def test_lines_that_are_no_records_are_passed_over():
    assert not list(sacct_records("sacct: error: something\n\n1|2|3"))
    assert not list(file_records(["", "garbage", "Name=x JobId=7"]))
    assert not list(scontrol_records("No jobs in the system\n"))


@pytest.mark.parametrize("text", ["Unknown", "None", "", "N/A", "0"])
def test_no_time_is_none(text):
    assert unix_seconds(text) is None


@given(st.integers(1, 12), st.integers(0, 40), st.integers(1, 4))
def test_ranges_of_nodes_keep_their_width_and_count(first, more, width):
    text = f"node[{str(first).zfill(width)}-{str(first + more).zfill(width)}]"
    hosts = expand_hosts(text)
    assert len(set(hosts)) == more + 1
    assert hosts[0] == f"node{str(first).zfill(width)}"


@given(st.text(max_size=30))
def test_no_list_of_nodes_raises(text):
    expand_hosts(text)
