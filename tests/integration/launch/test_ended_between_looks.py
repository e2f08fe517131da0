"""A job that ends after its stage was found unfinished and before it would be started again: nothing is paid twice."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_workplace import PROJECT, EngineWorkplace

from charter.engines.project import load_project
from charter.launch.job_launcher import JobLauncher
from charter.launch.scheduler import KEEPER, STATE_VARIABLE, SubprocessScheduler
from charter.run import runner
from charter.run.runner import PlannedWork, RunOptions, run_project

A, B = ({**PROJECT["pipeline"][name], "steps": steps} for name, steps in (("a", 3), ("b", 1)))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(directory))
    return directory


@pytest.fixture
def work(tmp_path: Path, state: Path) -> Iterator[EngineWorkplace]:
    place = EngineWorkplace(tmp_path / "project", on="subprocess")
    yield place
    place.close()
    scheduler = SubprocessScheduler(state)
    for path in state.glob(f"*/{KEEPER}"):
        scheduler.cancel(path.parent.name)


@pytest.fixture
def let_it_end(work: EngineWorkplace, state: Path) -> Callable[[], None]:
    """The first stage's job, left by a supervisor that was killed, at a gate: the call lets it come to its end."""
    work.write(held="a:2", pipeline={"a": A})
    process = work.start()
    work.wait_at_gate("a")
    work.wait_for(lambda: work.job_id("a"), "the number of its job")
    work.kill_supervisor(process)
    scheduler, job_id = SubprocessScheduler(state), work.job_id("a")

    def end() -> None:
        work.open_gate()
        work.wait_for(lambda: scheduler.poll([job_id])[job_id].phase == "ended", "the end of the job")
        assert work.outputs()["a"]

    return end


@pytest.fixture(autouse=True)
def without_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan would take seconds of every start."""
    monkeypatch.setattr(runner, "plan_work", lambda work, options: PlannedWork(work=work))


def run_again(work: EngineWorkplace, *, on: str) -> list[dict[str, Any]]:
    """A second supervisor, in this process; its events."""
    events: list[dict[str, Any]] = []
    modules = dict.fromkeys(RunOptions().modules, "counting_stage")
    options = RunOptions(modules=modules, launcher=on)
    run_project(load_project(work.root), work.root, options, [events.append])
    return events


@pytest.fixture
def ends_after_the_first_look(let_it_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stages that were to be run when the job ended."""
    looked: list[str] = []
    check = runner.check_work

    def check_and_let_it_end(ready: PlannedWork, *rest: Any) -> None:
        check(ready, *rest)
        looked.extend(stage.name for stage in ready.work.todo)
        let_it_end()

    monkeypatch.setattr(runner, "check_work", check_and_let_it_end)
    return looked


@pytest.mark.parametrize("on", ["subprocess", "local"])
def test_a_job_that_ends_before_its_engine_is_asked_is_not_submitted_again(work, state, ends_after_the_first_look, on):
    events = run_again(work, on=on)
    assert ends_after_the_first_look == ["a"]
    assert len(work.jobs("a")) == 1
    (row,) = work.ledger("a")
    assert (row["infra"], row["outcome"], row["clock"]) == ("subprocess", "done", "engine")
    (start,) = SubprocessScheduler(state).attempts(work.job_id("a"))
    assert row["duration_milliseconds"] / 1000 == pytest.approx(start.seconds, abs=0.002)
    assert [event["why"] for event in events if event["event"] == "stage_skipped"] == ["outputs verified"]
    assert [event for event in events if event["event"] in ("stage_queued", "stage_started")] == []


def test_a_job_that_the_file_no_longer_asks_for_but_that_ended_well_is_not_submitted_again(
    work, let_it_end, monkeypatch
):
    """Its engine still had it when the run began; it ended while another stage had the place."""
    work.write(stage_environment={"COUNTING_SECONDS_PER_STEP": "0.1"}, pipeline={"a": A, "b": B})
    under_way = JobLauncher.under_way

    def after_its_end(launcher: JobLauncher, request: Any) -> bool:
        if request.stage == "a":
            let_it_end()
        return under_way(launcher, request)

    monkeypatch.setattr(JobLauncher, "under_way", after_its_end)
    events = run_again(work, on="subprocess")
    assert [event["job"] for event in events if event["event"] == "job_found"] == [work.job_id("a")]
    assert len(work.jobs("a")) == 1
    (row,) = work.ledger("a")
    assert (row["outcome"], row["clock"]) == ("done", "engine")
    assert work.outputs()["b"]
