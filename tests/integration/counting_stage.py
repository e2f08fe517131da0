"""A small real stage without torch: a chain of hashes, so that any lost or repeated step changes the result."""

import hashlib
import json
import os
import sys
from pathlib import Path

from gate import hang, hold, take_time

from charter.artifacts.sample_prompts import SAMPLE_PROMPTS, append_sample_begin
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import StageError


def run(stage: StageDir) -> None:
    """Chain a hash over the inputs and `steps` steps; metrics and checkpoints as a training stage makes them."""
    target = stage.job.spec.steps or 6  # type: ignore[attr-defined]
    step, value = 0, _start(stage)
    if (checkpoint := stage.latest_checkpoint()) is not None:
        step, value = checkpoint.step, json.loads((checkpoint.path / "value.json").read_text())["value"]
    while step < target:
        hold(stage, step)
        if stage.should_stop():
            _save(stage, step, value)
            return
        value = hashlib.sha256(f"{value}:{step}".encode()).hexdigest()
        step += 1
        _misbehave(stage, step)
        take_time()
        stage.report(step, target, "steps", {"loss": 1 / step}, {"tokens": 10})
        if step % stage.job.spec.checkpoint_every == 0 and step < target:
            _save(stage, step, value)
    stage.publish_outputs(lambda out: _publish(out, value), step=step, target_step=target)


def _start(stage: StageDir) -> str:
    digest = hashlib.sha256(str(stage.job.seed).encode())
    for role in sorted(stage.job.inputs):
        for item in stage.job.inputs[role]:
            path = Path(item.path) if item.path else None
            if item.source == "stage" and path is not None:
                digest.update((path / "model" / "value.txt").read_bytes())
            elif path is not None and path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def _save(stage: StageDir, step: int, value: str) -> None:
    stage.save_checkpoint(step, lambda out: (out / "value.json").write_text(json.dumps({"value": value})) and None)


def _publish(out: Path, value: str) -> None:
    (out / "model").mkdir()
    (out / "model" / "value.txt").write_text(value)
    (out / "model" / "config.json").write_text("{}")


def _misbehave(stage: StageDir, step: int) -> None:
    """`COUNTING_FAIL=sft:4:stage` fails there at every attempt; `:defect`, `:exit0` and `:hang` likewise.

    `:answering` fails while there are prompts to answer for people to read.
    """
    name, _, rest = os.environ.get("COUNTING_FAIL", "").partition(":")
    if name != stage.job.stage or int(rest.partition(":")[0]) != step:
        return
    match rest.partition(":")[2]:
        case "stage":
            raise StageError("the loss is not a number")
        case "defect":
            raise KeyError("nobody expected this")
        case "answering" if (stage.path / SAMPLE_PROMPTS).exists():
            append_sample_begin(stage.path, step)
            raise MemoryError
        case "exit0":
            sys.exit(0)
        case "hang":
            hang()


if __name__ == "__main__":
    stage_main(run)
