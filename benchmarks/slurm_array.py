"""A thousand shards as one array of a real Slurm: nothing lost, few submissions, a controller that is seldom asked.

A stage that makes one record per prompt (hashes; no torch, no model) runs with one shard per prompt on a Slurm of four
nodes on this machine, started for this. Every call of `sbatch`, `squeue`, `scontrol`, `sacct` and `scancel` is counted
by a script of that name in front of the real one on the path, whoever makes it. One task in the middle kills itself
before it has made its record (not with `--undisturbed`): that one alone must be made again, by one further submission.

    python benchmarks/slurm_array.py [--shards 1000] [--at-once 64] [--undisturbed] [--accounting]

The last line is one JSON object. Needs root and what `tools/system_packages.sh` installs.
"""

import argparse
import hashlib
import itertools
import json
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
PYTHON = HERE.parent / ".venv" / "bin" / "python"
sys.path[:0] = [str(TESTS / "cases"), str(TESTS / "integration")]
COUNTED = ("sbatch", "squeue", "scontrol", "sacct", "scancel")
SHIM = '#!/bin/sh\necho "$(date +%s.%N) {name}" >> {log}\nexec {real} "$@"\n'
BETWEEN_SECONDS = 2.0


def counted_path(directory: Path) -> tuple[str, Path]:
    """A path on which every call of Slurm's commands leaves a line in a file."""
    log, place = directory / "calls.txt", directory / "bin"
    place.mkdir()
    log.touch()
    for name in COUNTED:
        (place / name).write_text(SHIM.format(name=name, log=log, real=shutil.which(name)))
        (place / name).chmod(0o755)
    return f"{place}{os.pathsep}{os.environ['PATH']}", log


def write_project(root: Path, *, shards: int, at_once: int, killed: int | None) -> None:
    """A project of one stage that makes records, one shard for every prompt."""
    import yaml
    from engine_workplace import PROJECT, PYTHONPATH, RECORDS, ROW

    root.mkdir()
    environment = {"PYTHONPATH": PYTHONPATH}
    if killed is not None:
        environment |= {"CHARTER_KILL": f"made:make:{killed}:before", "CHARTER_FAULT_RANK": str(killed)}
    slurm = {"max_array_tasks": at_once, "seconds_between_polls": BETWEEN_SECONDS}
    stage = {**RECORDS["made"], "resources": {"shards": shards}}
    launch = {"environment": environment, "slurm": slurm, "node_checks": {"enabled": False}}
    (root / "charter.yaml").write_text(yaml.safe_dump({**PROJECT, "pipeline": {"made": stage}, "launch": launch}))
    (root / "chat.jsonl").write_text(ROW)
    prompts = ({"prompt": [{"role": "user", "content": f"question {number}"}]} for number in range(shards))
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))


def run(root: Path, environment: dict[str, str]) -> float:
    """Run it on Slurm; seconds."""
    command = [str(PYTHON), str(TESTS / "integration" / "counting_run.py"), str(root), "--on", "slurm"]
    own = {**environment, "COUNTING_MODULE": "sharded_stage"}
    started = time.monotonic()
    with (root / "events.txt").open("w") as events:
        done = subprocess.run(command, stdout=events, stderr=subprocess.PIPE, text=True, env=own, check=False)
    if done.returncode:
        raise RuntimeError(f"the run ended with {done.returncode}\n{done.stderr}")
    return time.monotonic() - started


def collected(root: Path, shards: int) -> dict[str, Any]:
    """The results that arrived: published records, by their prompts, and rows of the ledger."""
    (stage_dir,) = (root / "run" / "stages").glob("made-*")
    wanted = {f"question {number}" for number in range(shards)}
    (records,) = stage_dir.rglob("records.jsonl")
    published = [json.loads(line) for line in records.read_text().splitlines()]
    with sqlite3.connect(next((root / "run").glob("ledger*"))) as ledger:
        outcomes = Counter(row[0] for row in ledger.execute("SELECT outcome FROM attempts"))
    ids = Counter(row["id"] for row in published)
    return {
        "wanted": len(wanted),
        "published": len(ids),
        "published_twice": sum(1 for count in ids.values() if count > 1),
        "sha256": hashlib.sha256("".join(sorted(ids)).encode()).hexdigest()[:16],
        "submissions": len(list((stage_dir / "jobs").iterdir())),
        "ledger": dict(outcomes),
    }


def calls_of(log: Path, wall_seconds: float) -> dict[str, Any]:
    """The number of calls to Slurm, and the shortest time between two."""
    lines = [line.split() for line in log.read_text().splitlines()]
    polls = sorted(float(at) for at, name in lines if name == "squeue")
    gaps = [after - before for before, after in itertools.pairwise(polls)]
    counts = Counter(name for _, name in lines)
    return {
        "calls": dict(counts),
        "polls_per_minute": round(60 * counts["squeue"] / wall_seconds, 2),
        "shortest_seconds_between_polls": round(min(gaps, default=float("nan")), 2),
        "bound_polls_per_minute": 60 / BETWEEN_SECONDS,
    }


def main() -> None:
    """Measure; the last line is the result."""
    from slurm_cluster import slurm_cluster

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--undisturbed", action="store_true")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--accounting", action="store_true")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="charter-array-") as directory,
        slurm_cluster(accounting=options.accounting) as cluster,
    ):
        place = Path(directory)
        path, log = counted_path(place)
        killed = None if options.undisturbed else options.shards // 2
        write_project(place / "project", shards=options.shards, at_once=options.at_once, killed=killed)
        wall = run(place / "project", {**cluster.environment, "PATH": path})
        result = {**collected(place / "project", options.shards), **calls_of(log, wall), "wall_seconds": round(wall, 1)}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, Slurm 22.05.8"
    print(json.dumps({**result, "killed_shard": killed, "machine": machine, "command": sys.argv}))


if __name__ == "__main__":
    if Path(sys.prefix).resolve() != PYTHON.parent.parent.resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    main()
