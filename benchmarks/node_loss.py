"""A node lost in mid-step: how soon it is noticed, what is lost, and whether the end has the bits of a quiet run.

A stage trains on two nodes of a real Slurm of four, or of a real Ray of three and a head, on this machine, started for
this: there are nodes to spare. At a random step one of the two loses power (its daemon and all its processes are
killed) or stands still (they are stopped), in turn. Nobody tells Slurm, whose own time for such a node is 300 s; Ray's
head hears of the first when the connection ends. The run goes on by itself on another node.

    python benchmarks/node_loss.py [--on slurm] [--runs 20] [--steps 40] [--price 4]

The last line is one JSON object. Slurm needs root and what `tools/system_packages.sh` installs.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
    return command("run", "-C", str(root), "--yes", "--only", STAGE, "--on", arguments.on, "--json-events", *words)


class OnSlurm:
    """Two of four nodes."""

    settings = "slurm: {seconds_between_polls: 1s, requeue: false}"

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.environment = cluster, cluster.environment
        self._stopped: list[int] = []

    def lose(self, node: str, way: str) -> None:
        """Take a node away."""
        self._stopped = self.cluster.power_off(node, frozen=way == "frozen")

    def mend(self, node: str, way: str) -> None:
        """Bring it back."""
        if way == "frozen":
            self.cluster.thaw(node, self._stopped)
        else:
            self.cluster.bring_back(node)
        self.cluster.wait_for_nodes()


class OnRay:
    """Two of three nodes."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.environment = cluster, {**os.environ, "RAY_AUTH_MODE": "disabled"}
        self.environment.pop("RAY_ADDRESS", None)
        self.settings = f"ray: {{address: '{cluster.address}'}}"

    def lose(self, node: str, way: str) -> None:
        """Take a node away."""
        if way == "frozen":
            self.cluster.freeze_node(node)
        else:
            self.cluster.lose_node(node)

    def mend(self, node: str, way: str) -> None:
        """Put another one in its place."""
        self.cluster.mend()


@contextlib.contextmanager
def started(on: str) -> Iterator[OnSlurm | OnRay]:
    """Return a cluster of its own."""
    if on == "slurm":
        from slurm_cluster import slurm_cluster

        with slurm_cluster() as cluster:
            yield OnSlurm(cluster)
        return
    from ray_cluster import RayCluster

    ray = RayCluster()
    try:
        yield OnRay(ray)
    finally:
        ray.stop()


def new_project(root: Path, place: OnSlurm | OnRay) -> None:
    """cai-smoke, whose first stage is enough here."""
    subprocess.run(command("init", "--template", "cai-smoke", str(root)), check=True, stdout=subprocess.DEVNULL)
    settings = root / "charter.yaml"
    settings.write_text(f"{settings.read_text()}\nlaunch: {{{place.settings}}}\n")


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


def is_saving(root: Path) -> bool:
    """Return True if a checkpoint is being written: its directory has no name of its own yet."""
    return any((root / "run" / "stages").glob(f"{STAGE}-*/state/.*step-*"))


def one_run(
    place: OnSlurm | OnRay, root: Path, arguments: argparse.Namespace, draws: random.Random, way: str
) -> dict[str, Any]:
    """Lose a node in mid-run; what it cost."""
    new_project(root, place)
    with (root / "events.txt").open("w") as events, (root / "errors.txt").open("w") as errors:
        run = subprocess.Popen(run_words(root, arguments), env=place.environment, stdout=events, stderr=errors)
        at = draws.randrange(2, arguments.steps - 2)
        while steps_done(root) < at:
            if run.poll() is not None:
                raise RuntimeError(f"the run ended with {run.returncode}\n{(root / 'errors.txt').read_text()[-2000:]}")
            time.sleep(0.05)
        (first,) = (event for event in lines_of(root / "events.txt") if event["event"] == "stage_started")
        lost = draws.choice(first["nodes"])
        step, saving, lost_at = steps_done(root), is_saving(root), time.time()
        place.lose(lost, way)
        code = run.wait()
    place.mend(lost, way)
    if code:
        raise RuntimeError(f"the run ended with {code}\n{(root / 'errors.txt').read_text()[-3000:]}")
    logged = lines_of(root / "run" / "events.jsonl")
    restart = next(event for event in logged if event["event"] == "stage_restart")
    starts = [event for event in logged if event["event"] == "stage_started"]
    again = starts[1]
    return {
        "way": way,
        "starts": len(starts),
        "step": step,
        "failure": restart["failure"],
        "noticed_seconds": round(restart["time"] - lost_at, 1),
        "started_again_seconds": round(again["time"] - lost_at, 1),
        "steps_lost": max(0, step - int(again["first_step"])),
        "saving": saving,
        "lost_node_used_again": lost in again["nodes"],
        "usd_lost": round((again["time"] - lost_at) / 3600 * 2 * arguments.price, 4),
        "lost": lost,
        "outputs": outputs_of(root),
    }


def main() -> None:
    """Measure; the last line is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=("slurm", "ray"), default="slurm")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoint-every", type=int, default=5)
    parser.add_argument("--price", type=float, default=4.0, help="USD an hour of a node.")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="charter-node-loss-") as name, started(arguments.on) as place:
        quiet = Path(name) / "quiet"
        new_project(quiet, place)
        subprocess.run(run_words(quiet, arguments), env=place.environment, check=True, stdout=subprocess.DEVNULL)
        if not (reference := outputs_of(quiet)):
            raise RuntimeError("the quiet run has no outputs")
        for number in range(arguments.runs):
            draws = random.Random(f"{arguments.seed}-{number}")
            runs.append(one_run(place, Path(name) / f"run-{number}", arguments, draws, WAYS[number % len(WAYS)]))
            runs[-1]["same_bits"] = runs[-1].pop("outputs") == reference
            print(json.dumps(runs[-1]), flush=True)
    print(json.dumps(summary(runs, arguments)))


def summary(runs: list[dict[str, Any]], arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of all runs."""
    noticed = [run["noticed_seconds"] for run in runs]
    beyond = [run for run in runs if run["steps_lost"] > arguments.checkpoint_every]
    return {
        "runs": len(runs),
        "same_bits": sum(run["same_bits"] for run in runs),
        "noticed_seconds": {"median": statistics.median(noticed), "max": max(noticed)},
        "started_again_seconds": {"median": statistics.median([run["started_again_seconds"] for run in runs])},
        "steps_lost": {"max": max(run["steps_lost"] for run in runs), "checkpoint_every": arguments.checkpoint_every},
        "beyond_an_interval": {"runs": len(beyond), "while_saving": sum(run["saving"] for run in beyond)},
        "usd_lost": {"median": statistics.median([run["usd_lost"] for run in runs])},
        "lost_node_used_again": sum(run["lost_node_used_again"] for run in runs),
        "command": "python benchmarks/node_loss.py "
        f"--on {arguments.on} --runs {arguments.runs} --steps {arguments.steps}",
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    main()
