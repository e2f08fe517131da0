"""What a start of a job is taken for, from what its agents have written and what its engine says."""

import json
from dataclasses import replace

import pytest
from still_clock import Clock

from charter.artifacts.job_files import Failure, JobFiles, NodeRecord, Submission
from charter.artifacts.stage_process import PEER_EXIT
from charter.errors import StageError
from charter.launch.agent import BEAT_SECONDS, CHECKS_FAILED_EXIT
from charter.launch.job import StageJob
from charter.launch.job_handle import (
    FILES_SECONDS,
    LONGEST_LOOK_SECONDS,
    LOST_SECONDS,
    SILENT_SECONDS,
    WORD_SECONDS,
    JobHandle,
    JobTable,
    LiveJob,
)
from charter.launch.job_launcher import ArrayHandle, facts_of
from charter.launch.node_checks import FORGET_SILENCE_SECONDS
from charter.launch.scheduler import JobState

RUNNING = JobState(phase="running", nodes=("n1",))


class Scheduler:
    """Says what it is told to say; counts how often it is asked."""

    name = "made-up"

    def __init__(self):
        self.state, self.asked, self.cancelled, self.away = RUNNING, 0, [], False

    def poll(self, job_ids):
        self.asked += 1
        if self.away:
            raise StageError("controller down")
        return {job_id: self.state for job_id in job_ids}

    def cancel(self, job_id):
        if self.away:
            raise StageError("controller down")
        self.cancelled.append(job_id)


class Job:
    """One job with its files, its scheduler and a clock."""

    def __init__(self, stage_dir, *, nodes=1, processes=1, shards=(), spares=0):
        self.clock, self.scheduler = Clock(), Scheduler()
        self.files = JobFiles(stage_dir, 1)
        self.files.directory.mkdir(parents=True)
        submission = Submission(
            scheduler="made-up",
            name="charter-x",
            token="t",
            number=1,
            settings="",
            attempt=1,
            nodes=nodes,
            spares=spares,
            processes=processes,
            accelerator="",
            count=nodes,
            market="owned",
            shards=shards,
        )
        self.live = LiveJob(files=self.files, stage_dir=stage_dir, submission=submission, job_id="7", state=RUNNING)
        self.table = JobTable(self.scheduler, clock=self.clock)
        self.table.add(self.live)
        kind = ArrayHandle if shards else JobHandle
        self.handle = kind(self.live, self.table, self.scheduler, clock=self.clock)

    def agent(self, place=0, restart=0, **more):
        first = {"first_pid": 100 + place, "first_rank": more.pop("first_rank", place)}
        record = NodeRecord(place=place, restart=restart, host=f"n{place}", host_id="h", started_at=50.0, **first)
        self.files.tell(replace(record, **more))

    def ends(self, code, place=0, restart=0, **more):
        self.agent(place, restart, ended_at=60.0, exit_code=code, **more)

    def after(self, seconds):
        """The exit code after so many seconds, looked at as a supervisor does."""
        until = self.clock.now + seconds
        while self.clock.now < until and self.handle.poll() is None:
            self.clock.now += 0.1
        return self.handle.poll()


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_it_waits_until_an_agent_has_started_a_process(job):
    job.scheduler.state = JobState(phase="queued", reason="Resources")
    assert job.after(5) is None
    assert (job.handle.waits, job.handle.job, job.handle.pid) == (True, None, None)
    job.agent()
    assert job.after(1) is None
    assert (job.handle.waits, job.handle.pid, job.handle.job.started_at) == (False, 100, 50.0)


@pytest.mark.parametrize("code", [0, 1, 5, 8])
def test_an_ending_that_is_the_stages_own_needs_no_engine(job, code):
    job.agent()
    job.after(1)
    asked = job.scheduler.asked
    job.scheduler.away = True
    job.ends(code)
    assert job.after(0.5) == code
    assert job.scheduler.asked <= asked + 1
    assert job.handle.cause == ""


def test_a_stage_that_was_stopped_unasked_hears_the_engines_word(job):
    job.ends(6, stopped_by="signal")
    assert job.after(WORD_SECONDS / 2) is None
    job.scheduler.state = JobState(phase="ended", cause="cancelled")
    assert (job.after(2), job.handle.cause) == (6, "cancelled")


def test_without_a_word_it_counts_as_preempted(job):
    job.ends(6, stopped_by="signal")
    assert (job.after(WORD_SECONDS + 1), job.handle.cause) == (6, "preempted")


def test_the_time_limit_is_the_agents_own(job):
    job.ends(6, stopped_by="time_limit")
    assert (job.after(0.5), job.handle.cause) == (6, "time_limit")


def test_a_start_that_the_engine_made_anew_ends_the_one_before(job):
    job.agent()
    job.after(1)
    job.scheduler.state = JobState(phase="queued", cause="preempted", restarts=1)
    assert (job.after(5), job.handle.cause) == (-9, "preempted")
    assert (job.live.goes_on, job.live.restart) == (True, 1)
    assert job.table.get(job.live.stage_dir) is job.live, "the next attempt goes on with it"


def test_why_a_start_was_made_anew_may_come_later_than_that_it_was(job):
    job.agent()
    job.after(1)
    job.scheduler.state = JobState(phase="queued", restarts=1)
    assert job.after(WORD_SECONDS / 2) is None
    job.scheduler.state = JobState(phase="queued", cause="preempted", restarts=1)
    assert (job.after(2), job.handle.cause, job.live.goes_on) == (-9, "preempted", True)


@pytest.mark.parametrize(("stopped_by", "cause"), [("", "node_lost"), ("signal", "preempted")])
def test_a_start_made_anew_by_an_engine_that_never_says_why_ends_all_the_same(job, stopped_by, cause):
    job.ends(6, stopped_by=stopped_by)
    job.scheduler.state = JobState(phase="queued", restarts=1)
    assert (job.after(WORD_SECONDS + 2), job.handle.cause, job.live.goes_on) == (6, cause, True)


def test_an_engine_that_does_not_count_is_seen_through_by_the_agents_records(job):
    job.agent()
    job.after(1)
    job.agent(restart=1)
    assert (job.after(FILES_SECONDS + 1), job.handle.cause, job.live.goes_on) == (-9, "node_lost", True)


def test_a_successor_that_writes_before_the_engine_was_asked_again_hides_no_preemption(job):
    job.agent()
    job.after(LONGEST_LOOK_SECONDS)
    job.ends(6, stopped_by="signal")
    job.agent(restart=1)
    job.scheduler.state = JobState(phase="running", cause="preempted", restarts=1)
    assert (job.after(FILES_SECONDS), job.handle.cause, job.live.goes_on) == (6, "preempted", True)


def test_a_start_that_its_successor_has_locked_out_was_not_asked_to_stop(job):
    """Two starts alive at once: the earlier one ends as if stopped, and its engine takes the job for failed."""
    job.agent()
    job.after(1)
    job.agent(restart=1)
    job.after(1)
    job.ends(6)
    job.scheduler.state = JobState(phase="ended", cause="failed", exit_code=6)
    assert (job.after(FILES_SECONDS + 2), job.handle.cause, job.live.goes_on) == (-9, "node_lost", True)


def test_a_successor_of_an_engine_that_is_away_ends_its_predecessor_all_the_same(job):
    job.agent()
    job.after(1)
    job.scheduler.away = True
    job.ends(6, stopped_by="signal")
    job.agent(restart=1)
    assert job.after(WORD_SECONDS - 1) is None
    assert (job.after(2), job.handle.cause, job.live.goes_on) == (6, "preempted", True)


def test_an_agent_that_says_nothing_any_more_is_what_the_engine_says(job):
    job.agent()
    job.after(1)
    job.scheduler.state = JobState(phase="ended", cause="node_lost", exit_code=1)
    assert (job.after(FILES_SECONDS + 2), job.handle.cause) == (-9, "node_lost")
    assert job.table.get(job.live.stage_dir) is None


def test_a_job_that_never_started_ends_with_the_engines_code(job):
    job.scheduler.state = JobState(phase="ended", cause="failed", exit_code=127)
    assert job.after(FILES_SECONDS + 2) == 127


def test_an_engine_that_is_away_loses_nothing(job):
    job.agent()
    job.scheduler.away = True
    assert job.after(600) is None
    assert "controller down" in job.table.trouble
    assert job.scheduler.asked < 600 / LONGEST_LOOK_SECONDS + 10
    job.scheduler.away = False
    job.ends(0)
    assert job.after(1) == 0


def test_a_job_that_the_engine_has_forgotten_is_lost_only_after_a_while(job):
    job.agent()
    job.scheduler.state = JobState(phase="unknown")
    assert job.after(LOST_SECONDS / 2) is None
    job.scheduler.state = RUNNING
    assert job.after(LOST_SECONDS) is None
    job.scheduler.state = JobState(phase="unknown")
    assert (job.after(2 * LOST_SECONDS + 40), job.handle.cause) == (-9, "node_lost")


def test_the_engine_is_asked_less_often_while_nothing_changes(job):
    job.agent()
    job.after(600)
    assert job.scheduler.asked < 60


def test_a_stop_in_the_queue_takes_the_job_out_of_it(job):
    job.scheduler.state = JobState(phase="queued")
    job.after(1)
    job.handle.stop()
    assert job.scheduler.cancelled == ["7"]
    assert job.files.asked().stop
    job.scheduler.state = JobState(phase="ended", cause="cancelled")
    assert job.after(FILES_SECONDS + 2) == 6


def test_a_stop_that_the_engine_does_not_hear_is_repeated(job):
    job.scheduler.state = JobState(phase="queued", reason="Resources")
    job.after(1)
    job.scheduler.away = True
    job.handle.stop()
    assert (job.after(30), job.scheduler.cancelled) == (None, [])
    job.scheduler.away = False
    assert job.after(LONGEST_LOOK_SECONDS + 2) is None
    assert job.scheduler.cancelled == ["7"]


def test_a_kill_in_the_queue_of_an_engine_that_is_away_ends(job):
    """Whoever presses Ctrl-C twice does not wait for a controller; the job is dropped by the end of the run."""
    job.scheduler.state = JobState(phase="queued", reason="Resources")
    job.after(1)
    job.scheduler.away = True
    job.handle.kill()
    assert (job.after(1), job.handle.cause) == (-9, "cancelled")
    assert job.table.all() == [job.live]


def test_a_kill_of_a_running_job_needs_no_engine(job):
    job.agent()
    job.after(1)
    job.scheduler.away = True
    job.handle.kill()
    assert job.files.asked().kill
    assert job.after(5) is None
    job.scheduler.away = False
    job.after(LONGEST_LOOK_SECONDS)
    assert job.scheduler.cancelled == ["7"]


def test_a_stop_of_a_running_job_is_a_request_to_its_agents(job):
    job.agent()
    job.after(1)
    job.handle.stop()
    assert job.scheduler.cancelled == []
    job.ends(6, stopped_by="supervisor")
    assert (job.after(0.5), job.handle.cause) == (6, "")


def test_the_first_failure_of_any_node_is_the_jobs(tmp_path):
    job = Job(tmp_path, nodes=2, processes=4)
    for place in (0, 1):
        job.agent(place, first_rank=2 * place)
    job.after(1)
    job.files.fail(0, Failure(exit_code=-11, rank=3, host="n1"))
    job.ends(-11, place=1, failed_rank=3)
    assert job.after(1) is None, "the other node's processes still run"
    job.ends(-9, stopped_by="peer")
    job.scheduler.state = JobState(phase="ended", cause="failed")
    assert (job.after(2), job.handle.failed_rank) == (-11, 3)


def test_a_node_that_is_silent_after_a_failure_is_given_up(tmp_path):
    job = Job(tmp_path, nodes=2, processes=2)
    for place in (0, 1):
        job.agent(place)
    job.after(1)
    job.files.fail(0, Failure(exit_code=9, rank=0, host="n0"))
    job.ends(9)
    assert job.after(WORD_SECONDS + 2) is None
    assert job.scheduler.cancelled == ["7"]


def test_one_node_that_has_failed_is_left_to_its_own_agent(job):
    job.agent()
    job.files.fail(0, Failure(exit_code=9, rank=0, host="n0"))
    assert job.after(WORD_SECONDS + 2) is None
    assert job.scheduler.cancelled == []


def test_a_spare_node_may_be_the_first_of_the_stage(tmp_path):
    job = Job(tmp_path, nodes=2, processes=2, spares=1)
    job.ends(0, 0, first_pid=0)
    job.agent(1, first_rank=1)
    assert job.after(1) is None
    job.agent(2, first_rank=0)
    assert job.after(1) is None
    assert job.handle.pid == 102


def test_restarts_that_nobody_saw_are_counted_too(job):
    job.agent()
    job.after(1)
    job.scheduler.state = JobState(phase="running", cause="node_lost", restarts=3, nodes=("n1",))
    assert (job.after(LONGEST_LOOK_SECONDS), job.live.restart) == (-9, 3)


def test_a_stop_that_ends_in_a_kill_by_the_engine_is_no_checkpoint(job):
    job.agent()
    job.after(1)
    job.handle.stop()
    job.scheduler.state = JobState(phase="ended", cause="cancelled", exit_code=0)
    assert (job.after(FILES_SECONDS + LONGEST_LOOK_SECONDS), job.handle.cause) == (-9, "cancelled")


def test_an_agent_that_ended_because_of_another_does_not_decide(tmp_path):
    job = Job(tmp_path, nodes=2, processes=2)
    for place in (0, 1):
        job.ends(PEER_EXIT, place, stopped_by="peer")
    assert job.after(FILES_SECONDS) is None, "the engine is asked why"
    job.scheduler.state = JobState(phase="ended", cause="node_lost")
    assert (job.after(LONGEST_LOOK_SECONDS), job.handle.cause) == (PEER_EXIT, "node_lost")


def test_an_array_ends_when_one_of_its_tasks_has_published(tmp_path):
    job = Job(tmp_path, processes=3, shards=(0, 1, 2))
    for place in range(3):
        job.agent(place)
    job.after(1)
    assert job.handle.watched == [0, 1, 2]
    job.ends(0, 0)
    job.after(1)
    assert job.handle.watched == [1, 2]
    for place in (1, 2):
        job.ends(0, place)
    (tmp_path / "record.json").write_text("{}")
    assert job.after(1) == 0


def test_an_array_whose_tasks_all_ended_without_publishing_is_started_again(tmp_path):
    job = Job(tmp_path, processes=2, shards=(0, 1))
    for place in (0, 1):
        job.ends(0, place)
    assert job.after(FILES_SECONDS - 1) is None, "a shared disk may show what was published a little later"
    assert (job.after(3), job.handle.cause) == (-9, "node_lost")
    assert "none of them has published" in job.handle.note


def test_an_array_whose_publication_shows_late_is_done(tmp_path):
    job = Job(tmp_path, processes=2, shards=(0, 1))
    for place in (0, 1):
        job.ends(0, place)
    assert job.after(FILES_SECONDS - 1) is None
    (tmp_path / "record.json").write_text("{}")
    assert job.after(1) == 0


def test_a_failed_task_lets_the_others_end_first(tmp_path):
    job = Job(tmp_path, processes=2, shards=(0, 4))
    job.ends(5, 1, first_rank=4, failed_rank=4)
    job.agent(0)
    assert job.after(30) is None
    job.ends(0, 0)
    job.scheduler.state = JobState(phase="ended", cause="failed", exit_code=5)
    assert (job.after(FILES_SECONDS + 20), job.handle.failed_rank) == (5, 4)


def test_an_array_costs_what_its_tasks_take_together(tmp_path):
    job = Job(tmp_path, processes=2, shards=(0, 1))
    for place in (0, 1):
        job.ends(0, place)
    job.after(0.3)
    assert job.handle.job.busy_seconds == 20.0


def test_nodes_that_failed_their_checks_are_left_out_and_count_as_lost(tmp_path):
    job = Job(tmp_path)
    told = []
    job.handle = JobHandle(job.live, job.table, job.scheduler, leave_out=told.append, clock=job.clock)
    report = {"node": "n7", "rank": 0, "findings": [], "rates": {}}
    (tmp_path / "check-t-0-0.json").write_text(json.dumps(report))
    decided = {"ranks": [], "left_out": {"n7": "ECC errors", "node 1": "said nothing"}}
    (tmp_path / "chosen-t-0.json").write_text(json.dumps(decided))
    job.ends(CHECKS_FAILED_EXIT, stopped_by="checks", note="too few nodes are fit: n7: ECC errors")
    assert (job.after(1), job.handle.cause) == (-9, "node_lost")
    assert told == [{"n7": "ECC errors"}]
    assert "too few nodes are fit" in job.handle.note


def of_two_nodes(tmp_path, **silent):
    """A job of two nodes that both beat once; then only the first does."""
    job = Job(tmp_path, nodes=2, processes=2)
    for place in (0, 1):
        job.agent(place, beats=1, node=f"node-{place}")
    left_out = {}

    def leave_out(nodes, seconds=0.0):
        left_out.update(dict.fromkeys(nodes, seconds))

    job.handle = JobHandle(job.live, job.table, job.scheduler, leave_out=leave_out, clock=job.clock)
    assert job.after(1) is None
    return job, left_out


def beating(job, seconds, places=(0,), start=2):
    """Agents that beat every four seconds for so long."""
    for beat in range(start, start + int(seconds / BEAT_SECONDS)):
        for place in places:
            job.agent(place, beats=beat, node=f"node-{place}")
        if (code := job.after(BEAT_SECONDS)) is not None:
            return code
    return None


def test_nodes_have_the_schedulers_names_before_it_says_them(tmp_path):
    """Its agents know them; two nodes of one host are two nodes."""
    job, _ = of_two_nodes(tmp_path)
    job.scheduler.state = JobState(phase="running")
    for place in (0, 1):
        job.agent(place, host="one-host", node=f"one-host/{place}")
    job.after(LONGEST_LOOK_SECONDS)
    assert job.handle.job.nodes == ("one-host/0", "one-host/1")


def test_silent_node_ends_job_as_lost_and_is_left_out(tmp_path):
    job, left_out = of_two_nodes(tmp_path)
    assert beating(job, SILENT_SECONDS - BEAT_SECONDS) is None
    assert not job.scheduler.cancelled
    beating(job, 2 * BEAT_SECONDS, start=20)
    assert job.files.asked().kill
    assert not job.scheduler.cancelled, "a scheduler may kill the other agent before it has said how it ended"
    job.ends(-9, place=0, stopped_by="supervisor", node="node-0")
    assert (job.after(1), job.handle.cause) == (-9, "node_lost")
    assert job.scheduler.cancelled == ["7"], "though its scheduler still thinks that it runs"
    assert left_out == {"node-1": FORGET_SILENCE_SECONDS}
    assert "node-1 fell silent" in job.handle.note


def test_job_with_all_agents_silent_is_left_alone(tmp_path):
    job, left_out = of_two_nodes(tmp_path)
    assert job.after(10 * SILENT_SECONDS) is None
    assert beating(job, BEAT_SECONDS, places=(0, 1), start=30) is None
    assert (job.scheduler.cancelled, left_out) == ([], {})


def test_lost_node_ends_job_though_the_other_agent_hangs(tmp_path):
    job, _ = of_two_nodes(tmp_path)
    beating(job, SILENT_SECONDS + 2 * BEAT_SECONDS)
    assert (job.after(WORD_SECONDS + 1), job.handle.cause) == (-9, "node_lost")


def test_node_that_ended_is_not_silent(tmp_path):
    job, left_out = of_two_nodes(tmp_path)
    job.ends(0, place=1, node="node-1")
    assert beating(job, 3 * SILENT_SECONDS) is None
    assert (job.scheduler.cancelled, left_out) == ([], {})


def test_node_silent_after_a_failure_is_lost(tmp_path):
    job, left_out = of_two_nodes(tmp_path)
    job.files.fail(0, Failure(exit_code=PEER_EXIT, rank=0, host="n0"))
    job.ends(PEER_EXIT, place=0, node="node-0")
    assert (job.after(SILENT_SECONDS + 2), job.handle.cause) == (-9, "node_lost")
    assert (job.scheduler.cancelled, list(left_out)) == (["7"], ["node-1"])


def test_a_look_at_a_node_whose_job_was_lost_is_given_up(tmp_path):
    """Its scheduler knows nothing of it any more, and may have no records."""
    job = StageJob(
        name="j", run="r", stage="facts", kind="facts", attempt=1, command=("python",), directory=tmp_path,
        log=tmp_path / "log.txt",
    )  # fmt: skip
    scheduler, slept = Scheduler(), []
    scheduler.submit, scheduler.state = lambda job: "7", JobState(phase="unknown")
    with pytest.raises(StageError, match=r"job 7, which looks what the nodes .* its scheduler lost it"):
        facts_of(scheduler, job, tmp_path, sleep=slept.append)
    assert LOST_SECONDS < sum(slept) < 2 * LOST_SECONDS
