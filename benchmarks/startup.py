"""CPU seconds of `charter --help`, all processes together. The last line is one JSON object.

CPU time rather than wall time, because machines are shared;
the best of several runs, because noise only adds.
"""

import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHARTER = ROOT / ".venv" / "bin" / "charter"
RUNS = 7
LIMIT_SECONDS = 0.3


def cpu_seconds(command: list[str]) -> float:
    """User and system seconds of one run of a command and of what it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    """Make the environment if it is not there, measure, print."""
    if not CHARTER.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    command = [str(CHARTER), "--help"]
    cpu_seconds(command)  # the first run writes the byte code
    seconds = sorted(cpu_seconds(command) for _ in range(RUNS))
    figures = {
        "cpu_seconds": round(seconds[0], 4),
        "cpu_seconds_median": round(seconds[RUNS // 2], 4),
        "limit_seconds": LIMIT_SECONDS,
        "within_limit": seconds[0] < LIMIT_SECONDS,
        "command": "charter --help",
        "runs": RUNS,
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": platform.machine(),
            "python": platform.python_version(),
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
