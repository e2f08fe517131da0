"""The time of `charter plan`: fresh processes, from start to exit, wall and CPU seconds and peak memory.

    .venv/bin/python benchmarks/plan_time.py [--repeat N]

Plans the templates cai-8b and cai-70b as they are, and cai-70b over all hardware of the price book. Of the repeats the
least CPU time is reported (the others were slowed by something else). As in an installation the modules are compiled
before the first of them, whatever the environment says about bytecode: to compile them again each time takes a quarter
of a second. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = "import sys; sys.path.insert(0, sys.argv.pop(1)); from charter.cli.main import entry; entry()"
CASES = {
    "cai-8b": ("plan", "-t", "cai-8b", "--json"),
    "cai-70b": ("plan", "-t", "cai-70b", "--json"),
    "cai-70b, all hardware": ("plan", "-t", "cai-70b", "--all-hardware", "--json"),
}
TARGETS = {"cai-8b": 1.5, "cai-70b": 5.0, "cai-70b, all hardware": 5.0}
"""CPU seconds that each may take."""


def once(arguments: tuple[str, ...], bytecode: str) -> dict[str, float]:
    """One process: seconds, CPU seconds and peak resident memory."""
    command = [sys.executable, "-c", COMMAND, str(ROOT / "src"), *arguments]
    own = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT, env=own) as process:
        errors = process.stderr.read() if process.stderr else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - start
    if process.returncode not in (0, 4):
        raise SystemExit(f"charter {' '.join(arguments)}: exit {process.returncode}\n{errors.decode()}")
    return {
        "seconds": round(wall, 3),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "peak_rss_mib": round(used.ru_maxrss / 1024, 1),
    }


def main() -> None:
    """Run every case, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="charter-bytecode-") as bytecode:
        once(CASES["cai-8b"], bytecode)
        for name, arguments in CASES.items():
            runs = [once(arguments, bytecode) for _ in range(options.repeat)]
            figures[name] = min(runs, key=lambda run: run["cpu_seconds"]) | {"target_cpu_seconds": TARGETS[name]}
    figures |= {
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
