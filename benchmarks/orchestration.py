"""The same pipeline on this machine, on a Slurm of four nodes and on a Ray of three: same hashes, and what it costs.

    python benchmarks/orchestration.py [--engines local,slurm,ray] [--template cai-smoke]

Real clusters are started here (tests/cases). For every engine: `wall_seconds` of `charter run --on ENGINE`, and
`stage_seconds`, the sum of its attempts by the ledger, which an engine's own records have settled. Two stages may run
side by side, so the sum is no measure of how long a run must take. That is `ideal_seconds`: the same stages, as long as
they took, each started at the very moment when its inputs and one of the places are there. `overhead_seconds` is what
the run took beyond it: Python, planning, queues, the starting of jobs and the noticing of their ends. It must not be
more than 5 % of `stage_seconds` or 10 s, whichever is larger. `idle_seconds` is the part of it in which nothing ran.
The last line is one JSON object.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
ENGINES = ("local", "slurm", "ray")
SHARE, LEAST_SECONDS = 0.05, 10.0
Needs = Mapping[str, Sequence[str]]


def ideal_seconds(order: Sequence[str], needs: Needs, seconds: Mapping[str, float], slots: int) -> float:
    """The least time of stages in this order, with so many places, when nothing is lost between them.

    >>> ideal_seconds(["a", "b", "c"], {"a": [], "b": ["a"], "c": []}, {"a": 2.0, "b": 3.0, "c": 4.0}, 2)
    5.0
    """
    ended: dict[str, float] = {}
    places = [0.0] * slots
    waiting = list(order)
    while waiting:
        now = min(places)
        ready = [name for name in waiting if all(before in ended for before in needs[name])]
        begin = {name: max([now, *(ended[before] for before in needs[name])]) for name in ready}
        name = min(ready, key=lambda name: (begin[name], order.index(name)))
        waiting.remove(name)
        ended[name] = begin[name] + seconds[name]
        places[places.index(now)] = ended[name]
    return max(ended.values())


def covered_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """The time during which at least one of the spans lasted.

    >>> covered_seconds([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


@contextlib.contextmanager
def engine_environment(engine: str) -> Iterator[dict[str, str]]:
    """A running engine, as the variables by which its clients find it."""
    if engine == "slurm":
        from slurm_cluster import slurm_cluster

        with slurm_cluster(accounting=True) as cluster:
            yield {**os.environ, "SLURM_CONF": str(cluster.configuration)}
    elif engine == "ray":
        from ray_cluster import RayCluster

        cluster = RayCluster()
        try:
            yield {**os.environ, "RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "disabled"}
        finally:
            cluster.stop()
    else:
        yield dict(os.environ)


def measured(engine: str, project: Path, log: Path) -> dict[str, Any]:
    """One run on an engine that is there already."""
    with engine_environment(engine) as environment, log.open("wb") as output:
        began = time.time()
        command = [str(PYTHON), "-m", "charter.cli.main", "run", "-C", str(project), "--on", engine, "--yes"]
        code = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode
        wall = time.time() - began
    if code:
        raise SystemExit(f"{engine}: exit code {code}\n{log.read_text(errors='replace')[-3000:]}")
    return {"wall_seconds": wall, **figures_of(project, wall)}


def figures_of(project: Path, wall: float) -> dict[str, Any]:
    """The figures of ledger and records for a run that took so long."""
    from charter.engines.project import load_project
    from charter.ledger import Ledger
    from charter.run.status import status_of
    from charter.spec.graph import execution_order, inputs_of

    loaded = load_project(project)
    with Ledger.open(project / "run" / "ledger.sqlite", create=False) as ledger:
        attempts = ledger.attempts(run=loaded.name)
    spans = [(attempt.started_at, attempt.ended_at or attempt.started_at) for attempt in attempts]
    seconds: dict[str, float] = {}
    for attempt in attempts:
        seconds[attempt.stage] = seconds.get(attempt.stage, 0.0) + attempt.seconds
    order = execution_order(loaded)
    needs = {
        name: [source for sources in inputs_of(loaded, name).values() for source in sources if source in seconds]
        for name in order
    }
    ideal = ideal_seconds(order, needs, seconds, loaded.resources.max_parallel_stages)
    total = sum(seconds.values())
    allowed = max(SHARE * total, LEAST_SECONDS)
    return {
        "stage_seconds": total,
        "ideal_seconds": ideal,
        "overhead_seconds": wall - ideal,
        "idle_seconds": wall - covered_seconds(spans),
        "allowed_seconds": allowed,
        "within_limit": wall - ideal <= allowed,
        "attempts": len(attempts),
        "settled_by_engine": sum(attempt.clock == "engine" for attempt in attempts),
        "outputs": {stage["name"]: stage["outputs"] for stage in status_of(loaded, project)["stages"]},
    }


def make_ready(engines: Sequence[str]) -> None:
    """Install what is missing, and go on in the project's own environment."""
    if not PYTHON.exists() or ("ray" in engines and not any((ROOT / ".venv").glob("lib/*/site-packages/ray"))):
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-system"], check=True, stdout=sys.stderr)
    if "slurm" in engines and shutil.which("slurmctld") is None:
        subprocess.run(["bash", str(ROOT / "tools" / "system_packages.sh")], check=True, stdout=sys.stderr)
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    sys.path[:0] = [str(ROOT / "tests" / "cases")]


def main() -> None:
    """Run the project on every engine, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--template", default="cai-smoke")
    parser.add_argument("--keep", type=Path, help="Directory for the projects and logs, which then stay.")
    arguments = parser.parse_args()
    engines = arguments.engines.split(",")
    make_ready(engines)
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        place = arguments.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="charter-orchestration-"))
        )
        place.mkdir(parents=True, exist_ok=True)
        for engine in engines:
            project = place / engine
            command = [str(PYTHON), "-m", "charter.cli.main", "init", "--template", arguments.template, str(project)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            results[engine] = measured(engine, project, place / f"{engine}.log")
            shown = {name: round(value, 1) for name, value in results[engine].items() if isinstance(value, float)}
            print(engine, json.dumps(shown), file=sys.stderr)
    outputs = [figures.pop("outputs") for figures in results.values()]
    identical = all(outputs[0].values()) and all(other == outputs[0] for other in outputs)
    rounded = {
        engine: {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
        for engine, figures in results.items()
    }
    result = {
        "identical": identical,
        "engines": rounded,
        "command": f"charter run --on ENGINE ({arguments.template})",
        "machine": {"cpus": os.cpu_count(), "architecture": platform.machine(), "load_average": os.getloadavg()[0]},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
