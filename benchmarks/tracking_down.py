"""A tracker that is away for a whole run, or frozen: the run is the same, and all points arrive once it is back.

The project `cai-smoke` runs without a tracker, with an MLflow address where nobody listens, and with a server that is
frozen (SIGSTOP), in turns, each several times. Output hashes must be the same. Seconds are from the start of `charter
run` to its end; the added time is the difference of medians to the runs without a tracker. Then the server comes (or
thaws), `charter status track sync` delivers, and every point of every stage's `metrics.jsonl` is looked up there.

    python benchmarks/tracking_down.py [--turns 3] [--template cai-smoke]

The last line is one JSON object. MLflow is the one of the project's own environment (`.venv`).
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parent / ".venv" / "bin" / "python"
sys.path.insert(0, str(HERE.parent / "tests" / "cases"))
EXPERIMENT = "benchmark"


def charter(*arguments: str) -> str:
    """Run a command; its standard output."""
    command = [str(PYTHON), "-m", "charter.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def project(directory: Path, template: str, tracker: str | None) -> Path:
    """A new project, with this tracker."""
    charter("init", "--template", template, str(directory))
    path = directory / "charter.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("tracking:")]
    entry = [] if tracker is None else [f"tracking: [{{mlflow: {{uri: '{tracker}', experiment: {EXPERIMENT}}}}}]"]
    path.write_text("\n".join([*lines, *entry]) + "\n")
    return directory


def run(directory: Path) -> float:
    """Run it; seconds."""
    started = time.monotonic()
    charter("run", "-C", str(directory), "--yes")
    return time.monotonic() - started


def outputs(directory: Path) -> dict[str, Any]:
    """Hashes of what every stage computed."""
    return {
        stage["name"]: stage["outputs"]
        for stage in json.loads(charter("status", "-C", str(directory), "--json"))["stages"]
    }


def points(directory: Path, server: Any) -> tuple[int, int]:
    """Points that the stages wrote, and those of them that the server has, each exactly once."""
    from tracked_runs import mlflow_points, told, written_points

    written = written_points(directory)
    stored = mlflow_points(server.client(), EXPERIMENT, told(directory, "mlflow")[""]["id"])
    total = sum(len(series) for metrics in written.values() for series in metrics.values())
    same = sum(
        len(series)
        for stage, metrics in written.items()
        for name, series in metrics.items()
        if stored.get(stage, {}).get(name) == series
    )
    return total, same


def measure(turns: int, template: str, where: Path) -> dict[str, Any]:
    """All turns, then the deliveries."""
    from mlflow_server import MlflowServer, free_port

    frozen = MlflowServer(directory=where / "frozen", backend=f"sqlite:///{where / 'frozen.db'}").start()
    away = MlflowServer(directory=where / "away", backend=f"sqlite:///{where / 'away.db'}", port=free_port())
    kinds = {"none": None, "away": away.uri, "frozen": frozen.uri}
    frozen.signal(signal.SIGSTOP)
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    runs: dict[str, list[Path]] = {kind: [] for kind in kinds}
    hashes = []
    try:
        for turn in range(turns):
            for kind, uri in kinds.items():
                directory = project(where / f"{kind}-{turn}", template, uri)
                seconds[kind].append(run(directory))
                runs[kind].append(directory)
                hashes.append(outputs(directory))
                print(f"{kind} {turn}: {seconds[kind][-1]:.2f} s", file=sys.stderr, flush=True)
        frozen.signal(signal.SIGCONT)
        away.start()
        arrived = {}
        for kind, server in (("away", away), ("frozen", frozen)):
            started = time.monotonic()
            for directory in runs[kind]:
                charter("track", "sync", "-C", str(directory))
            sync_seconds = time.monotonic() - started
            counts = [points(directory, server) for directory in runs[kind]]
            total, same = (sum(column) for column in zip(*counts, strict=True))
            arrived[kind] = {"points": total, "arrived_once": same, "sync_seconds": round(sync_seconds, 2)}
    finally:
        for server in (frozen, away):
            server.kill()
    median = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "identical": all(digest == hashes[0] for digest in hashes),
        "seconds": {kind: [round(value, 2) for value in values] for kind, values in seconds.items()},
        "added_seconds": {kind: round(median[kind] - median["none"], 2) for kind in ("away", "frozen")},
        "delivered": arrived,
    }


def main() -> None:
    """Measure; the last line is the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--template", default="cai-smoke")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="charter-tracking-") as directory:
        result = measure(options.turns, options.template, Path(directory))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(
        json.dumps(
            {**result, "turns": options.turns, "template": options.template, "machine": machine, "command": sys.argv}
        )
    )


if __name__ == "__main__":
    if Path(sys.prefix).resolve() != PYTHON.parent.parent.resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    main()
