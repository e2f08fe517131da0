"""The counting stage with several processes, without torch: they meet at every step through small files."""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

from gate import is_held, take_time, until

from charter.artifacts import faults
from charter.artifacts.group import failure_name, rank_of_process
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import InterruptedRunError, StageError


def run(stage: StageDir) -> None:
    """Every step adds a hash of each process's own hash; a process waits at the step for all others."""
    target = stage.job.spec.steps or 6  # type: ignore[attr-defined]
    rank, world = rank_of_process(), int(os.environ["WORLD_SIZE"])
    step, value, looks = 0, str(stage.job.seed), 0
    # Rank 0 alone sweeps and cuts, as in training; nothing is written before the first meeting.
    checkpoint = stage.checkpoints.newest() if rank else stage.latest_checkpoint()
    if checkpoint is not None:
        step, value = checkpoint.step, json.loads((checkpoint.path / "value.json").read_text())["value"]
    (stage.path / f"pid-{rank}").write_text(f"{os.getpid()} {os.environ['CHARTER_GROUP']}")
    while step < target:
        stage.beat(f"step {step + 1}")
        looks += 1
        plans = _meet(stage, f"look-{looks}", _plan(stage, step), rank, world)
        if "stop" in plans:
            if rank == 0:
                _save(stage, step, value)
            raise InterruptedRunError(f"stopped at step {step}, after a checkpoint")
        if plans[0] == "hold":
            time.sleep(0.05)
            continue
        take_time()
        _misbehave(stage, rank, step + 1)
        faults.boundary(stage.job.stage, "meet", step + 1, "before")
        parts = _meet(stage, f"step-{step}", f"{rank}:{value}", rank, world)
        value = hashlib.sha256("".join(parts).encode()).hexdigest()
        step += 1
        if rank == 0:
            stage.report(step, target, "steps", {"loss": 1 / step}, {"tokens": 10})
            if step % stage.job.spec.checkpoint_every == 0 and step < target:
                _save(stage, step, value)
    if rank == 0:
        stage.publish_outputs(lambda out: _publish(out, value), step=step, target_step=target)


def _plan(stage: StageDir, step: int) -> str:
    """What this process would do next; that of process 0 counts, but for a stop."""
    if stage.should_stop():
        return "stop"
    return "hold" if is_held(stage, step) else "go"


def _meet(stage: StageDir, name: str, mine: str, rank: int, world: int) -> list[str]:
    """All processes' texts, by rank."""
    place = stage.path / "meeting" / os.environ["CHARTER_GROUP"]
    place.mkdir(parents=True, exist_ok=True)
    own = place / f".{name}-{rank}"
    own.write_text(mine)
    own.rename(place / f"{name}-{rank}")
    paths = [place / f"{name}-{other}" for other in range(world)]
    until(lambda: all(path.exists() for path in paths))
    return [path.read_text() for path in paths]


def _misbehave(stage: StageDir, rank: int, step: int) -> None:
    """`GROUP_FAIL=sft:4:1:stage`: process 1 fails there at every attempt, after the others have lost it and said so."""
    words = os.environ.get("GROUP_FAIL", "").split(":")
    if words[:3] != [stage.job.stage, str(step), str(rank)]:
        if words[:2] == [stage.job.stage, str(step)] and words[3] == "stage":
            raise ConnectionResetError("Connection reset by peer")
        return
    if words[3] == "eat":
        eaten = bytearray()
        while True:
            eaten += os.urandom(1 << 20) * 16
    if words[3] == "exit0":
        sys.exit(0)
    others = [other for other in range(int(os.environ["WORLD_SIZE"])) if other != rank]
    until(lambda: all((stage.path / failure_name(other)).exists() for other in others))
    raise StageError("the loss is not a number")


def _save(stage: StageDir, step: int, value: str) -> None:
    stage.save_checkpoint(step, lambda out: (out / "value.json").write_text(json.dumps({"value": value})) and None)


def _publish(out: Path, value: str) -> None:
    (out / "model").mkdir()
    (out / "model" / "value.txt").write_text(value)
    (out / "model" / "config.json").write_text("{}")


if __name__ == "__main__":
    stage_main(run)
