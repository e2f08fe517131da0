"""A stage whose job its engine does not take: what runs beside it stops at a checkpoint, and is not killed."""

from pathlib import Path

import pytest
from engine_workplace import PROJECT, EngineWorkplace

from charter.engines.project import load_project
from charter.errors import StageError
from charter.launch.job import StageJob
from charter.launch.scheduler import KEEPER, STATE_VARIABLE, SubprocessScheduler
from charter.run import runner
from charter.run.runner import PlannedWork, RunOptions, run_project

LONG = {**PROJECT["pipeline"]["a"], "steps": 200}
PACE = {"COUNTING_SECONDS_PER_STEP": "0.05"}


def test_what_runs_beside_it_stops_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    monkeypatch.setattr(runner, "plan_work", lambda work, options: PlannedWork(work=work))
    work = EngineWorkplace(tmp_path / "project", on="subprocess")
    resources = {"cpus": 1, "max_parallel_stages": 2}
    work.write(held="a:4", pipeline={"a": LONG, "b": LONG}, resources=resources, stage_environment=PACE)
    submit = SubprocessScheduler.submit

    def only_the_first(scheduler: SubprocessScheduler, job: StageJob) -> str:
        if job.stage != "b":
            return submit(scheduler, job)
        work.wait_at_gate("a")
        work.open_gate()
        raise StageError("the controller does not answer")

    monkeypatch.setattr(SubprocessScheduler, "submit", only_the_first)
    events: list[dict[str, object]] = []
    modules = dict.fromkeys(RunOptions().modules, "held_stage")
    try:
        with pytest.raises(StageError, match="the controller does not answer"):
            run_project(
                load_project(work.root),
                work.root,
                RunOptions(modules=modules, launcher="subprocess"),
                [lambda event: events.append(dict(event))],
            )
    finally:
        for path in state.glob(f"*/{KEEPER}"):
            SubprocessScheduler(state).cancel(path.parent.name)
    assert [event["stage"] for event in events if event["event"] == "stage_interrupted"] == ["a"]
    assert [row["outcome"] for row in work.ledger("a")] == ["interrupted"]
