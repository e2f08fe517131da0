"""How a node agent tells the ending of its processes, with a group that ends as it is told to."""

import signal
from types import SimpleNamespace

from charter.artifacts.job_files import JobFiles, NodeRecord
from charter.artifacts.stage_process import INTERRUPTED_EXIT
from charter.launch.agent import BEAT_SECONDS, AgentTask, NodeWatch
from charter.launch.children import NodeProcesses


class Group:
    """Ends by SIGTERM, as a process does that has not installed its handler yet."""

    pid, failed_rank = 100, 0

    def __init__(self):
        self.code = None

    def poll(self):
        return self.code

    def stop(self):
        self.code = -signal.SIGTERM


def ended(tmp_path, *, asked, nodes=1):
    """The exit code and the record of an agent whose group was started before it was asked to stop."""
    task, files, group = (
        AgentTask(stage_dir=tmp_path, module="m", job=1, token="t", nodes=nodes),
        JobFiles(tmp_path, 1),
        Group(),
    )
    files.directory.mkdir(parents=True)
    stop = SimpleNamespace(wanted=False, dumps=0)
    record = NodeRecord(place=0, restart=0, host="n", host_id="h")
    processes = SimpleNamespace(record=record, start=lambda: group, seen=lambda pid: False)

    def sleep(seconds):
        stop.wanted = asked
        if not asked:
            group.code = -signal.SIGTERM

    code = NodeWatch(task, files, processes, stop, sleep=sleep).run()
    return code, files.read_node(0, 0), files.failure(0)


def test_a_stage_that_was_asked_to_stop_before_it_could_hear_was_interrupted(tmp_path):
    code, record, _ = ended(tmp_path, asked=True)
    assert (code, record.exit_code, record.stopped_by) == (INTERRUPTED_EXIT, INTERRUPTED_EXIT, "signal")


def test_a_stage_that_somebody_else_ended_was_not(tmp_path):
    code, record, _ = ended(tmp_path, asked=False)
    assert (code, record.stopped_by) == (-signal.SIGTERM, "")


def test_other_nodes_hear_of_a_process_that_will_not_meet_them(tmp_path):
    code, _, failure = ended(tmp_path, asked=True, nodes=2)
    assert (code, failure.exit_code) == (-signal.SIGTERM, -signal.SIGTERM)


def test_agent_beside_others_counts_signs_of_life(tmp_path):
    files, group, now = JobFiles(tmp_path, 1), Group(), [0.0]
    files.directory.mkdir(parents=True)
    processes = NodeProcesses(
        record=NodeRecord(place=0, restart=0, host="n", host_id="h"),
        module="m",
        stage_dir=tmp_path,
        environments=[],
        torchrun=None,
    )
    processes.start = lambda: group
    beats = []

    def sleep(seconds):
        now[0] += BEAT_SECONDS
        beats.append(files.read_node(0, 0).beats)
        group.code = 0 if len(beats) == 4 else None

    task = AgentTask(stage_dir=tmp_path, module="m", job=1, token="t", nodes=2)
    stop = SimpleNamespace(wanted=False, dumps=0)
    assert NodeWatch(task, files, processes, stop, sleep=sleep, clock=lambda: now[0]).run() == 0
    assert beats == [0, 1, 2, 3]
