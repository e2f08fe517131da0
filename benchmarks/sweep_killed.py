"""A sweep of `cai-smoke` that is killed twice: shared stages once, one budget, and the results of an undisturbed one.

Five seeds of three penalties, `charter run --sweep`, in two directories. In one the whole process group is killed by
SIGKILL when a third and two thirds of the stages are done; the same command then goes on. Compared are the hashes of
every output of every stage, by the fingerprint in its directory's name, and the figures of `charter report --sweep`;
figures that are measured times are no part of either. At last the grid grows by one seed while the sweep's budget is
less than all points have cost so far: nothing more may be done. The last line is one JSON object. `--seeds 1
--rollouts 5` is a quick look.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
PENALTIES = (0.1, 0.3, 1.0)
SWEEP = """
budget: {{limit: {budget}}}
sweeps:
  penalty:
    over: {{pipeline.ppo.kl_coefficient: {penalties}}}
    seeds: {seeds}
    metric: {{stage: eval, figure: {figure}}}
    budget: {budget}
"""
FIGURE = "win_rate.policy"
BUDGET_USD, PRICE_USD_PER_HOUR = 1000, 1
SPENT_USD = 0.0001
"""Less than the first points of every sweep have cost."""
SHARED = ("pretrain", "sft", "judge", "critique", "sl_cai", "label", "pm", "pm_shuffled", "pm_mixed", "ppo_control")
"""Stages that no point changes."""
ROLLOUT = 8
"""Answers of a rollout of the template."""
POLL_SECONDS = 0.05


def command(*arguments: str) -> list[str]:
    """Words of a command of Charter."""
    return [str(PYTHON), "-m", "charter.cli.main", *arguments]


def charter(*arguments: str) -> str:
    """Run a command; its standard output."""
    return subprocess.run(command(*arguments), check=True, stdout=subprocess.PIPE, text=True).stdout


def write_project(directory: Path, seeds: int, rollouts: int) -> None:
    """The template with its sweep."""
    charter("init", "--template", "cai-smoke", str(directory))
    file = directory / "charter.yaml"
    text = (
        file.read_text()
        .replace("episodes: 160", f"episodes: {ROLLOUT * rollouts}")
        .replace("{infra: local, ", f"{{infra: local, price: {PRICE_USD_PER_HOUR}, ")
    )
    sweep = SWEEP.format(penalties=list(PENALTIES), seeds=seeds, figure=FIGURE, budget=BUDGET_USD)
    file.write_text(text + sweep)


def finished(directory: Path) -> int:
    """Stages that are done."""
    return len(list((directory / "run" / "stages").glob("*/record.json")))


def run(directory: Path) -> int:
    """Run the sweep to its end; the exit code."""
    return subprocess.run(
        command("run", "-C", str(directory), "--sweep", "penalty", "--yes"), stdout=sys.stderr
    ).returncode


def kill_at(directory: Path, stages: int, delay_seconds: float) -> int:
    """Start the sweep and kill all its processes some time after so many stages are done; how many then were."""
    words = command("run", "-C", str(directory), "--sweep", "penalty", "--yes")
    process = subprocess.Popen(words, stdout=sys.stderr, start_new_session=True)
    while process.poll() is None and finished(directory) < stages:
        time.sleep(POLL_SECONDS)
    time.sleep(delay_seconds)
    if process.poll() is not None:
        raise SystemExit(f"the sweep ended with {process.returncode} before it could be killed")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return finished(directory)


def outputs_of(directory: Path) -> dict[str, Any]:
    """The hashes of what every stage has published, by its directory."""
    records = sorted((directory / "run" / "stages").glob("*/record.json"))
    return {path.parent.name: json.loads(path.read_text())["outputs"] for path in records}


def report_of(directory: Path) -> Any:
    """The figures of every setting."""
    return json.loads(charter("report", "-C", str(directory), "--sweep", "penalty", "--json"))["settings"]


def starts_beyond_budget(directory: Path) -> dict[str, Any]:
    """The exit code and the stages done, of one seed more under a budget that the points before have spent."""
    file, before = directory / "charter.yaml", finished(directory)
    text = file.read_text()
    seeds = next(line for line in text.splitlines() if line.strip().startswith("seeds:"))
    more = f"    seeds: {int(seeds.partition(':')[2]) + 1}"
    file.write_text(text.replace(seeds, more).replace(f"    budget: {BUDGET_USD}", f"    budget: {SPENT_USD}"))
    return {"exit_code": run(directory), "stages_done": finished(directory) - before}


def main() -> None:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=20, help="of both policies; 20 as the template has them")
    parser.add_argument("--draw", type=int, default=1, help="seed of the moments of the kills")
    arguments = parser.parse_args()
    draws, begin = random.Random(arguments.draw), datetime.now(tz=UTC)
    with tempfile.TemporaryDirectory() as temporary:
        undisturbed, killed = Path(temporary) / "undisturbed", Path(temporary) / "killed"
        for directory in (undisturbed, killed):
            write_project(directory, arguments.seeds, arguments.rollouts)
        if run(undisturbed):
            raise SystemExit("the undisturbed sweep failed")
        count = finished(undisturbed)
        done = [kill_at(killed, count * part // 3, draws.uniform(0, 5)) for part in (1, 2)]
        code = run(killed)
        ours, theirs = outputs_of(killed), outputs_of(undisturbed)
        directories = {stage: sum(name.rpartition("-")[0] == stage for name in ours) for stage in SHARED}
        result = {
            "points": len(PENALTIES) * arguments.seeds,
            "stages": count,
            "killed_after_stages": done,
            "exit_code": code,
            "shared_stages_once": set(directories.values()) == {1},
            "equal_outputs": ours == theirs,
            "different": sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)),
            "equal_figures": report_of(killed) == report_of(undisturbed),
        }
        print(json.dumps(result), file=sys.stderr, flush=True)
        result["beyond_budget"] = starts_beyond_budget(killed)
    minutes = (datetime.now(tz=UTC) - begin).total_seconds() / 60
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine()}
    provenance = {"command": " ".join(sys.argv), "date": begin.date().isoformat(), "machine": machine}
    print(json.dumps({**result, "minutes": round(minutes, 1), **provenance}))


if __name__ == "__main__":
    main()
