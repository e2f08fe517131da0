"""How jobs stand by rows of squeue and by the records, on texts that a real Slurm 22.05.8 has printed."""

from charter.launch.slurm.queue import array_state, by_job, rows_of, task_numbers
from charter.launch.slurm.records import sacct_records
from charter.launch.slurm.scheduler import ENDING, ROUNDS, WatchedJob, submitted, take_records, take_rows

TAIL = "N/A|365-00:00:00|N/A|N/A|"
RUNNING = f"5|N/A|RUNNING|0|0|n[2-3]|None|{TAIL}"
HELD = f"5|N/A|PENDING|0|1||BeginTime|{TAIL}"
COMPLETING = f"5|N/A|COMPLETING|0|1|n2|None|{TAIL}"
AGAIN = f"5|N/A|RUNNING|0|1|n1|None|{TAIL}"
PREEMPTED = "5|5|PREEMPTED|0:0|1795340442|1795340471|n[2-3]|cpu=2,node=2|1795340441|charter-x\n"
OPEN = "5|5|PENDING|0:0|Unknown|Unknown|None assigned||1795340471|charter-x\n"
DONE = "5|5|COMPLETED|0:0|1795340485|1795340489|n1|cpu=2,node=2|1795340471|charter-x\n"


def look(job, rows="", records=None):
    """One answer of the queue, and of the records where these are asked."""
    take_rows(job, [row for rows in by_job(rows_of(rows)).values() for row in rows])
    if job.needs_records and records is not None:
        take_records(job, list(sacct_records(records)))
    return job.state


def plain():
    return submitted(1, stop_before_seconds=120.0)


def test_a_preempted_job_waits_and_says_why_its_last_start_ended():
    job = plain()
    assert look(job, RUNNING).phase == "running"
    state = look(job, HELD, PREEMPTED + OPEN)
    assert (state.phase, state.cause, state.restarts, state.reason) == ("queued", "preempted", 1, "BeginTime")
    assert look(job, AGAIN).cause == "preempted"


def test_why_is_asked_again_while_the_database_lags_but_not_for_ever():
    job = plain()
    look(job, RUNNING)
    assert look(job, HELD, "").cause == ""
    assert look(job, HELD, PREEMPTED + OPEN).cause == "preempted"
    late = plain()
    look(late, RUNNING)
    for _ in range(ROUNDS):
        assert late.needs_records or look(late, HELD, "").cause == ""
        look(late, HELD, "")
    assert not late.needs_records


def test_what_is_left_of_a_lost_start_is_not_taken_for_the_next_one():
    job = plain()
    look(job, RUNNING)
    assert (look(job, COMPLETING, "").phase, job.state.reason) == ("queued", ENDING)
    assert look(job, COMPLETING, "").phase == "queued"
    assert look(job, HELD, "").reason == "BeginTime"
    assert look(job, AGAIN, "").phase == "running"


def test_a_job_that_simply_ends_is_running_while_it_completes():
    job = plain()
    look(job, RUNNING)
    assert look(job, COMPLETING.replace("|0|1|", "|0|0|")).phase == "running"


def test_a_job_that_left_the_queue_is_what_the_records_say():
    job = plain()
    look(job, RUNNING)
    state = look(job, "", PREEMPTED + DONE)
    assert (state.phase, state.cause, state.restarts, state.exit_code) == ("ended", "done", 1, 0)
    assert job.is_over


def test_an_old_start_in_the_records_is_not_the_end_of_the_job():
    job = plain()
    look(job, RUNNING)
    assert look(job, "", PREEMPTED + OPEN).phase == "running"


def test_only_several_answers_without_a_job_make_it_unknown():
    job = plain()
    look(job, RUNNING)
    phases = [look(job, "", "").phase for _ in range(ROUNDS)]
    assert phases == ["running"] * (ROUNDS - 1) + ["unknown"]
    assert look(job, RUNNING).phase == "running"


def test_a_job_of_another_supervisor_is_unknown_until_something_knows_it():
    assert look(WatchedJob(), "", "").phase == "unknown"
    job = WatchedJob()
    assert look(job, "", DONE).cause == "done"
    assert job.tasks.keys() == {None}


def test_a_stop_at_a_checkpoint_is_a_preemption_or_the_time_limit():
    failed = "5|N/A|FAILED|1536|0|n1|NonZeroExitCode|{}|{}|1000|{}|"
    cases = {
        ("1795340000", "365-00:00:00", "2000"): "preempted",
        ("N/A", "1:00:00", "2000"): "preempted",
        ("N/A", "1:00:00", "4450"): "time_limit",
    }
    for values, cause in cases.items():
        state = look(plain(), failed.format(*values))
        assert (state.phase, state.cause, state.exit_code) == ("ended", cause, 6)
    early = look(plain(), "5|N/A|FAILED|36608|0|n1|NonZeroExitCode|N/A|1:00:00|1000|4450|")
    assert (early.cause, early.exit_code) == ("time_limit", -15)
    assert look(plain(), "5|N/A|FAILED|36608|0|n1|NonZeroExitCode|N/A|1:00:00|1000|1450|").cause == "failed"
    assert look(plain(), "5|N/A|FAILED|256|0|n1|NonZeroExitCode|N/A|1:00:00|1000|4450|").cause == "failed"
    assert look(plain(), "5|N/A|FAILED|36608|0|n1|NonZeroExitCode|1795340000|9:00|1000|1010|").cause == "preempted"


ARRAY = f"8|2-4,6-9%2|PENDING|0|0||JobArrayTaskLimit|{TAIL}\n8|0|RUNNING|0|0|n1|None|{TAIL}\n"
ARRAY_RECORDS = """\
8_0|9|COMPLETED|0:0|1795339570|1795339590|n1|cpu=1|1795339569|wrap
8_1|10|FAILED|3:0|1795339570|1795339571|n2|cpu=1|1795339569|wrap
8_2|11|COMPLETED|0:0|1795339570|1795339571|n2|cpu=1|1795339569|wrap
"""


def test_an_array_is_the_sum_of_its_tasks():
    job = submitted(10, stop_before_seconds=120.0)
    state = look(job, ARRAY + f"8|1|FAILED|768|0|n2|NonZeroExitCode|{TAIL}\n8|5|COMPLETED|0|0|n2|None|{TAIL}\n")
    assert (state.phase, state.nodes) == ("running", ("n1",))
    assert [task for task, it in sorted(state.tasks.items()) if it.phase == "queued"] == [2, 3, 4, 6, 7, 8, 9]
    assert (state.tasks[1].cause, state.tasks[1].exit_code) == ("failed", 3)


def test_tasks_that_ended_long_ago_come_from_the_records_once():
    job = WatchedJob()
    look(job, f"8|3|RUNNING|0|0|n1|None|{TAIL}", ARRAY_RECORDS)
    assert {task: state.phase for task, state in job.tasks.items()} == {
        0: "ended",
        1: "ended",
        2: "ended",
        3: "running",
    }
    assert not job.needs_records
    state = look(job, f"8|3|COMPLETED|0|0|n1|None|{TAIL}")
    assert (state.phase, state.cause, state.exit_code) == ("ended", "failed", 3)


def test_a_held_task_is_what_an_array_waits_for():
    text = f"8|1-3|PENDING|0|0||Resources|{TAIL}\n8|0|PENDING|0|1||BeginTime|{TAIL}"
    assert look(submitted(4, stop_before_seconds=120.0), text, "").reason == "BeginTime"


def test_a_thousand_tasks_are_one_row_or_a_thousand():
    assert task_numbers("0-999%256") == tuple(range(1000))
    rows = "\n".join(f"8|{task}|COMPLETED|0|0|n1|None|{TAIL}" for task in range(1000))
    job = submitted(1000, stop_before_seconds=120.0)
    look(job, rows)
    assert job.is_over
    assert array_state(job.tasks).cause == "done"
