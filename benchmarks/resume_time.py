"""Seconds from a SIGKILL of a stage to its first new step, by phase, as `charter run` does it.

    python benchmarks/resume_time.py [--stage ppo] [--repeats 5]

The template cai-smoke runs up to the stage once; then the stage kills itself after a step, again and again, and the
supervisor starts it anew. The last line is one JSON object with the median of every phase. Beyond import and load
is what remains of the whole without reading models and the checkpoint: noticing, back-off, fork, first step.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
PHASES = {
    "detection_and_relaunch": ("killed", "stage_begins"),
    "models": ("stage_begins", "models_loaded"),
    "checkpoint": ("models_loaded", "checkpoint_loaded"),
    "first_step": ("checkpoint_loaded", "first_step_done"),
}
LIMIT_SECONDS = 2.0


def phases(times: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every phase, of the whole, and beyond import and load.

    >>> found = phases(dict(killed=0, stage_begins=1, models_loaded=3, checkpoint_loaded=4, first_step_done=4.5))
    >>> found["whole"], found["beyond_import_and_load"]
    (4.5, 1.5)
    """
    seconds = {name: times[end] - times[begin] for name, (begin, end) in PHASES.items()}
    seconds["whole"] = times["first_step_done"] - times["killed"]
    seconds["beyond_import_and_load"] = seconds["whole"] - seconds["models"] - seconds["checkpoint"]
    return seconds


def measured(project: Path, stage: str, log: Path) -> dict[str, float]:
    """One run of the stage that is killed once."""
    log.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(HERE), "RESUME_LOG": str(log), "RESUME_STAGE": stage}
    command = [sys.executable, str(HERE / "resume_stage.py"), str(project), stage]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    times: dict[str, float] = {}
    for line in log.read_text().splitlines():
        name, when = line.split()
        times.setdefault(name, float(when))
    return phases(times)


def stage_directory(project: Path, stage: str) -> Path:
    """The directory of a stage of a project."""
    jobs = sorted((project / "run" / "stages").glob("*/job.json"))
    return next(job.parent for job in jobs if json.loads(job.read_text())["stage"] == stage)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", default="ppo")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        project = place / "project"
        for command in (["init", "--template", "cai-smoke", str(project)], ["run", "-C", str(project), "--yes"]):
            subprocess.run([sys.executable, "-m", "charter.cli.main", *command], check=True, stdout=sys.stderr)
        directory = stage_directory(project, arguments.stage)
        results = []
        for _ in range(arguments.repeats):
            shutil.rmtree(directory)
            results.append(measured(project, arguments.stage, place / "times"))
    medians = {name: round(statistics.median(run[name] for run in results), 3) for name in results[0]}
    figures = {"stage": arguments.stage, "repeats": len(results), "seconds": medians, "limit_seconds": LIMIT_SECONDS}
    load = os.getloadavg()[0]
    print(json.dumps({**figures, "within_limit": medians["beyond_import_and_load"] <= LIMIT_SECONDS, "load": load}))


if __name__ == "__main__":
    main()
