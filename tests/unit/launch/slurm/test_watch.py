"""When Slurm is asked, and what its silence means: with commands that answer from a script."""

import time
from collections import Counter

import pytest
from still_clock import Clock

from charter.errors import InfeasibleError, MissingExtraError, UsageError
from charter.launch.job import StageJob
from charter.launch.slurm.commands import (
    SlurmCommands,
    SlurmRefusedError,
    SlurmUnreachableError,
    complaint,
    refused_submission,
)
from charter.launch.slurm.records import Accounts, cluster_of
from charter.launch.slurm.render import command_environment, submission_environment
from charter.launch.slurm.scheduler import LONGEST_SECONDS, SECONDS_LET_GO, SILENT, SUBMISSIONS, SlurmScheduler, Watch
from charter.spec.launching import SlurmSettings

TAIL = "N/A|365-00:00:00|N/A|N/A|"
DOWN = SlurmUnreachableError("Slurm does not answer squeue")
CONFIGURATION = """\
AccountingStorageType   = accounting_storage/slurmdbd
JobCompLoc              = /nonexistent/jobcomp
JobCompType             = jobcomp/none
MaxArraySize            = 1001
"""


class Script:
    """Stands for the commands: answers by name, counts, and breaks when told to."""

    def __init__(self, **answers):
        self.answers = {"scontrol": CONFIGURATION, "sacct": "", "squeue": "", "scancel": "", **answers}
        self.calls = Counter()
        self.asked = []

    def run(self, *command, text=None, environment=None):
        self.calls[command[0]] += 1
        self.asked.append(command)
        answer = self.answers[command[0]]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer


def job(tmp_path, **values):
    usual = {"name": "charter-x", "run": "r", "stage": "s", "kind": "sft", "attempt": 1, "command": ("true",)}
    return StageJob(**{**usual, "directory": tmp_path, "log": tmp_path / "log", **values})


def watch(script, clock):
    return Watch(script, Accounts(script), seconds_between=2.0, clock=clock)


def scheduler(script, environ=None, clock=time.monotonic):
    made = SlurmScheduler(
        SlurmSettings(seconds_between_polls=0), environ=environ or {}, pause=lambda seconds: None, clock=clock
    )
    made._commands = made._accounts._commands = made._watch._commands = script
    return made


def test_however_many_jobs_and_however_often_asked_there_is_one_call_per_interval(tmp_path):
    rows = "\n".join(f"{number}|N/A|RUNNING|0|0|n1|None|{TAIL}" for number in range(500))
    script, clock = Script(squeue=rows), Clock()
    watched = watch(script, clock)
    for number in range(500):
        watched.submitted(str(number), job(tmp_path))
    for tick in range(100):
        clock.now = tick / 10
        states = watched.look([str(number) for number in range(500)])
    assert script.calls == {"squeue": 5}
    assert {state.phase for state in states.values()} == {"running"}


def test_ended_jobs_are_not_asked_about_again(tmp_path):
    script, clock = Script(squeue=f"1|N/A|COMPLETED|0|0|n1|None|{TAIL}"), Clock()
    watched = watch(script, clock)
    for clock.now in (0.0, 10.0, 20.0):
        assert watched.look(["1"])["1"].cause == "done"
    assert script.calls["squeue"] == 1


def test_a_controller_that_is_down_is_asked_ever_less_often_and_jobs_stand_as_they_did(tmp_path):
    running = f"1|N/A|RUNNING|0|0|n1|None|{TAIL}"
    script, clock = Script(squeue=[running, *[DOWN] * 100]), Clock()
    watched = watch(script, clock)
    watched.submitted("1", job(tmp_path))
    for second in range(600):
        clock.now = float(second)
        assert watched.look(["1"])["1"].phase == "running"
    assert 600 / LONGEST_SECONDS <= script.calls["squeue"] <= 20
    script.answers["squeue"] = running
    clock.now = 700.0
    watched.look(["1"])
    clock.now = 702.0
    watched.look(["1"])
    assert script.calls["squeue"] <= 22


def test_a_job_of_another_supervisor_under_a_silent_controller_may_well_run():
    script, clock = Script(squeue=DOWN), Clock()
    assert watch(script, clock).look(["1"]) == {"1": SILENT}


def test_a_database_that_is_down_loses_no_job(tmp_path):
    script, clock = Script(squeue="", sacct=DOWN), Clock()
    watched = watch(script, clock)
    watched.submitted("1", job(tmp_path))
    for clock.now in (0.0, 10.0, 20.0, 30.0, 40.0):
        assert watched.look(["1"])["1"].phase == "queued"


def test_a_submission_that_nobody_answered_is_looked_for_before_it_is_made_again(tmp_path):
    taken = Script(sbatch=[DOWN], squeue="41\n")
    assert scheduler(taken).submit(job(tmp_path)) == "41"
    assert taken.calls["sbatch"] == 1
    lost = Script(sbatch=[DOWN, "42;cluster\n"], squeue="")
    assert scheduler(lost).submit(job(tmp_path)) == "42"
    dead = Script(sbatch=DOWN, squeue=DOWN)
    with pytest.raises(SlurmUnreachableError):
        scheduler(dead).submit(job(tmp_path))
    assert dead.calls["sbatch"] + dead.calls["squeue"] == SUBMISSIONS


def test_an_array_that_is_too_large_says_what_works(tmp_path):
    script = Script(sbatch=SlurmRefusedError("sbatch: error: Invalid job array specification"))
    with pytest.raises(UsageError, match=r"resources\.shards: 1000 works"):
        scheduler(script).submit(job(tmp_path, shards=5000))


def test_a_held_job_is_let_go_as_soon_as_it_can_be(tmp_path):
    rows = [
        f"1|N/A|RUNNING|0|0|n1|None|{TAIL}",
        f"1|N/A|COMPLETING|0|1|n1|None|{TAIL}",
        *[f"1|N/A|PENDING|0|1||BeginTime|{TAIL}"] * 3,
        f"1|N/A|RUNNING|0|1|n2|None|{TAIL}",
    ]
    script, clock = Script(squeue=rows, sbatch="1\n"), Clock()
    engine = scheduler(script, clock=clock)
    engine.submit(job(tmp_path))
    engine.poll(["1"])
    assert engine.poll(["1"])["1"].reason == "Completing"
    engine.release("1")
    let_go = ("scontrol", "update", "jobid=1", "StartTime=now+2")
    assert script.asked.count(let_go) == 1
    # While its last start is ended it forgets that; seen held it is let go, and then not put off by every poll.
    for seconds, times in ((0.0, 2), (SECONDS_LET_GO - 0.1, 2), (SECONDS_LET_GO, 3)):
        clock.now = seconds
        engine.poll(["1"])
        assert script.asked.count(let_go) == times
    assert engine.poll(["1"])["1"].phase == "running"
    assert not engine._to_release


def test_refusals_say_what_can_be_done():
    nodes = SlurmRefusedError(
        "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    )
    assert isinstance(refused_submission("ppo", nodes), InfeasibleError)
    account = refused_submission("ppo", SlurmRefusedError("sbatch: error: invalid account or account/partition"))
    assert isinstance(account, UsageError)
    assert "launch.slurm" in str(account)


def test_complaints_are_told_apart():
    down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    assert isinstance(complaint(("squeue",), down), SlurmUnreachableError)
    assert isinstance(complaint(("squeue",), "slurm_load_jobs error: Invalid job id specified"), SlurmRefusedError)


def test_a_missing_command_says_where_to_run():
    with pytest.raises(MissingExtraError, match="login node"):
        SlurmCommands(environment={"PATH": "/nonexistent"}).run("no-such-sbatch")


def test_the_configuration_says_who_keeps_records(tmp_path):
    assert (cluster_of(CONFIGURATION).keeper, cluster_of(CONFIGURATION).largest_array) == ("slurmdbd", 1000)
    (tmp_path / "jobcomp.txt").touch()
    plain = "AccountingStorageType = accounting_storage/none\nJobCompType = jobcomp/filetxt\nJobCompLoc = {}\n"
    assert cluster_of(plain.format(tmp_path / "jobcomp.txt")).keeper == "jobcomp"
    assert cluster_of(plain.format(tmp_path / "elsewhere.txt")).keeper == "controller"


def test_the_job_that_charter_itself_runs_in_changes_no_command():
    own = {"SLURM_CONF": "/c", "SLURM_JOB_ID": "3", "SQUEUE_FORMAT": "%i", "SACCT_FORMAT": "JobID", "HOME": "/h"}
    given = command_environment(own)
    assert given.keys() & {"SLURM_JOB_ID", "SQUEUE_FORMAT", "SACCT_FORMAT"} == set()
    assert (given["SLURM_CONF"], given["SLURM_TIME_FORMAT"], given["HOME"]) == ("/c", "%s", "/h")


def test_a_secret_that_is_not_set_is_said_before_anything_is_submitted(tmp_path):
    asked = job(tmp_path, secrets={"KEY": "env:JUDGE_KEY"})
    script = Script(sbatch="1\n")
    with pytest.raises(UsageError, match="JUDGE_KEY"):
        scheduler(script).submit(asked)
    assert not script.calls["sbatch"]
    sent = submission_environment(asked, {"JUDGE_KEY": "x", "OTHER_API_KEY": "y", "AWS_SECRET_ACCESS_KEY": "z"})
    assert sent == {"JUDGE_KEY": "x"}


def test_records_that_lag_behind_quick_answers_still_say_why_a_job_was_started_again(tmp_path):
    again = f"1|N/A|PENDING|0|1||BeginTime|{TAIL}"
    script, clock = Script(squeue=[f"1|N/A|RUNNING|0|0|n1|None|{TAIL}", *[again] * 100]), Clock()
    watched = Watch(script, Accounts(script), seconds_between=0.1, clock=clock)
    watched.submitted("1", job(tmp_path))
    watched.look(["1"])
    for tick in range(1, 50):
        clock.now = tick / 10
        assert watched.look(["1"])["1"].cause == ""
    script.answers["sacct"] = "1|1|PREEMPTED|0:0|100|200|n1|cpu=1|90|charter-x"
    clock.now = 5.1
    assert watched.look(["1"])["1"].cause == "preempted"


def test_records_that_lack_the_last_start_of_a_job_are_read_again():
    first, last = "1|1|PREEMPTED|0:0|100|200|n1|cpu=1|90|x", "1|1|COMPLETED|0:0|300|400|n1|cpu=1|200|x"
    sacct = ["", first, f"{first}\n{last}"]
    engine = scheduler(Script(squeue=f"1|N/A|COMPLETED|0|1|n1|None|{TAIL}", sacct=sacct))
    assert engine.poll(["1"])["1"].cause == "done"
    assert [it.state for it in engine.attempts("1")] == ["PREEMPTED", "COMPLETED"]
    assert sacct == []


def test_a_job_that_never_had_a_node_has_no_start_to_wait_for():
    script = Script(squeue=f"1|N/A|CANCELLED|0|0||None|{TAIL}")
    engine = scheduler(script)
    assert engine.poll(["1"])["1"].cause == "cancelled"
    assert engine.attempts("1") == ()
    assert script.calls["sacct"] == 1


@pytest.mark.parametrize("said", ["7\n", "7;cluster\n", "Welcome to Frontera\n7;f\nYou have used 12 % of your quota\n"])
def test_a_sites_own_words_around_a_number_do_not_matter(tmp_path, said):
    assert scheduler(Script(sbatch=said)).submit(job(tmp_path)) == "7"


def test_a_submission_without_a_number_is_looked_for_by_its_name(tmp_path):
    """A wrapper that says nothing may have submitted all the same: a second job would run beside the first."""
    script = Script(sbatch=["\n", "8\n"], squeue="7\n")
    assert scheduler(script).submit(job(tmp_path)) == "7"
    assert script.calls["sbatch"] == 1


def test_a_submitter_that_never_names_a_job_is_told(tmp_path):
    with pytest.raises(SlurmUnreachableError, match="sbatch named no job; it said 'ok'"):
        scheduler(Script(sbatch="ok")).submit(job(tmp_path))


def test_a_node_that_left_the_cluster_is_no_longer_left_out(tmp_path):
    """Its name alone would have every later job refused."""
    unknown = SlurmRefusedError("sbatch: error: Batch job submission failed: Invalid node name specified")
    script = Script(sbatch=[unknown, "7\n"])
    assert scheduler(script).submit(job(tmp_path, exclude_nodes=("n9",))) == "7"
    with pytest.raises(UsageError, match="Invalid node name"):
        scheduler(Script(sbatch=[unknown])).submit(job(tmp_path))


def test_too_few_other_nodes_submits_without_exclusion(tmp_path):
    refused = SlurmRefusedError(
        "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    )
    script, sent = Script(sbatch=[refused, "7\n"]), []
    run = script.run
    script.run = lambda *command, text=None, **more: (sent.append(text), run(*command, text=text, **more))[1]
    assert scheduler(script).submit(job(tmp_path, nodes=2, exclude_nodes=("n2",))) == "7"
    with_it, without_it = (text for text in sent if text and "#SBATCH" in text)
    assert "#SBATCH --exclude=n2" in with_it
    assert "--exclude" not in without_it


def test_impossible_job_is_refused_at_once(tmp_path):
    refused = SlurmRefusedError(
        "sbatch: error: Batch job submission failed: Requested node configuration is not available"
    )
    script = Script(sbatch=[refused])
    with pytest.raises(InfeasibleError):
        scheduler(script).submit(job(tmp_path, nodes=2))
    assert script.calls["sbatch"] == 1
