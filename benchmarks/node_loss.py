"""A node lost in mid-step: how soon it is noticed, what is lost, and whether the end has the bits of a quiet run.

A stage trains on two nodes of a real Slurm of four on this machine, started for this: two nodes to spare. At a random
step one of the two loses power (its daemon and all its processes are killed) or stands still (they are stopped), in
turn; nobody tells Slurm, whose own time for such a node is 300 s. The run goes on by itself on another node.

    python benchmarks/node_loss.py [--runs 20] [--steps 40] [--price 4]

The last line is one JSON object. Needs root and what `tools/system_packages.sh` installs.
"""

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parent / ".venv" / "bin" / "python"
sys.path[:0] = [str(HERE.parent / "tests" / "cases")]
STAGE = "pretrain"
WAYS = ("powered off", "frozen")


def command(*words: str) -> list[str]:
    """A command of the product."""
    return [str(PYTHON), "-m", "charter.cli.main", *words]


def run_words(root: Path, arguments: argparse.Namespace) -> list[str]:
    """The command that trains on two nodes."""
    settings = {
        "resources.accelerators": "cpu:1",
        "resources.num_nodes": "2",
        "resources.cpus": "1",
        "resources.price": f"${arguments.price:g}/h",
        f"pipeline.{STAGE}.steps": str(arguments.steps),
        f"pipeline.{STAGE}.checkpoint_every": str(arguments.checkpoint_every),
    }
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return command("run", "-C", str(root), "--yes", "--only", STAGE, "--on", "slurm", "--json-events", *words)


def new_project(root: Path) -> None:
    """cai-smoke, whose first stage is enough here."""
    subprocess.run(command("init", "--template", "cai-smoke", str(root)), check=True, stdout=subprocess.DEVNULL)
    settings = root / "charter.yaml"
    settings.write_text(settings.read_text() + "\nlaunch: {slurm: {seconds_between_polls: 1s, requeue: false}}\n")


def outputs_of(root: Path) -> dict[str, str]:
    """Hashes of what the stage has published, by its record."""
    (record,) = (root / "run" / "stages").glob(f"{STAGE}-*/record.json")
    return dict(json.loads(record.read_text())["outputs"])


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1] if line.strip()]


def steps_done(root: Path) -> int:
    """The last step that the stage has logged."""
    logged = [line for path in (root / "run" / "stages").glob(f"{STAGE}-*/metrics.jsonl") for line in lines_of(path)]
    return max((int(line.get("step", 0)) for line in logged), default=0)


def one_run(cluster: Any, root: Path, arguments: argparse.Namespace, draws: random.Random, way: str) -> dict[str, Any]:
    """Lose a node in mid-run; what it cost."""
    new_project(root)
    with (root / "events.txt").open("w") as events, (root / "errors.txt").open("w") as errors:
        run = subprocess.Popen(run_words(root, arguments), env=cluster.environment, stdout=events, stderr=errors)
        at = draws.randrange(2, arguments.steps - 2)
        while steps_done(root) < at:
            if run.poll() is not None:
                raise RuntimeError(f"the run ended with {run.returncode}\n{(root / 'errors.txt').read_text()[-2000:]}")
            time.sleep(0.05)
        (job,) = [event["job"] for event in lines_of(root / "events.txt") if event["event"] == "stage_started"]
        lost = draws.choice(cluster.nodes_of(job))
        step, lost_at = steps_done(root), time.time()
        pids = cluster.power_off(lost, frozen=way == "frozen")
        code = run.wait()
    if way == "frozen":
        cluster.thaw(lost, pids)
    else:
        cluster.bring_back(lost)
    if code:
        raise RuntimeError(f"the run ended with {code}\n{(root / 'errors.txt').read_text()[-3000:]}\n{cluster.tails()}")
    logged = lines_of(root / "run" / "events.jsonl")
    (restart,) = (event for event in logged if event["event"] == "stage_restart")
    starts = [event for event in logged if event["event"] == "stage_started"]
    again = starts[1]
    return {
        "way": way,
        "step": step,
        "failure": restart["failure"],
        "noticed_seconds": round(restart["time"] - lost_at, 1),
        "started_again_seconds": round(again["time"] - lost_at, 1),
        "steps_lost": max(0, step - int(again["first_step"])),
        "lost_node_used_again": lost in again["nodes"],
        "usd_lost": round((again["time"] - lost_at) / 3600 * 2 * arguments.price, 4),
        "lost": lost,
        "outputs": outputs_of(root),
    }


def main() -> None:
    """Measure; the last line is the result."""
    from slurm_cluster import slurm_cluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--price", type=float, default=4.0, help="USD an hour of a node.")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="charter-node-loss-") as name, slurm_cluster() as cluster:
        quiet = Path(name) / "quiet"
        new_project(quiet)
        subprocess.run(run_words(quiet, arguments), env=cluster.environment, check=True, stdout=subprocess.DEVNULL)
        reference = outputs_of(quiet)
        for number in range(arguments.runs):
            draws = random.Random(f"{arguments.seed}-{number}")
            runs.append(one_run(cluster, Path(name) / f"run-{number}", arguments, draws, WAYS[number % len(WAYS)]))
            print(json.dumps({key: value for key, value in runs[-1].items() if key != "outputs"}), flush=True)
            cluster.wait_for_nodes()
    print(json.dumps(summary(runs, reference, arguments)))


def summary(runs: list[dict[str, Any]], reference: dict[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of all runs."""
    noticed = [run["noticed_seconds"] for run in runs]
    return {
        "runs": len(runs),
        "same_bits": sum(run["outputs"] == reference != {} for run in runs),
        "noticed_seconds": {"median": statistics.median(noticed), "max": max(noticed)},
        "started_again_seconds": {"median": statistics.median([run["started_again_seconds"] for run in runs])},
        "steps_lost": {"max": max(run["steps_lost"] for run in runs), "checkpoint_every": arguments.checkpoint_every},
        "usd_lost": {"median": statistics.median([run["usd_lost"] for run in runs])},
        "lost_node_used_again": sum(run["lost_node_used_again"] for run in runs),
        "command": f"python benchmarks/node_loss.py --runs {arguments.runs} --steps {arguments.steps}",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    main()
