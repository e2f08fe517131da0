"""The event simulator of failures: its speed, and its distance from the closed forms; the last line is JSON.

Speed: hours of jobs simulated per CPU second (process time, one thread) on Llama 3's run (16,384 GPUs, 54 days), on
131,072 GPUs at Meta's projected rate, and on a heavy-tailed spot pool. Deviation: mean wall time of blocking and of
asynchronous saves against the exact closed form; both within three standard errors and 0.5 %.
"""

import json
import math
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
HOUR, DAY = 3600.0, 86400.0
RUNS = 20_000
SEED = 20_241_121
# W h, delta s, R s, M h, Q h, persist s, detection s, tau min (None: Daly)
CASES = (
    (240, 20, 600, 3.09, 0.0, 0, 0, None),
    (168, 60, 300, 7.9, 0.0, 0, 0, None),
    (48, 120, 360, 4.0, 0.5, 0, 0, None),
    (12, 180, 360, 0.5, 0.25, 0, 0, None),
    (200, 2, 480, 3.09, 0.0, 180, 60, 3.5),
    (200, 2, 480, 3.09, 0.0, 900, 60, 15),
    (200, 2, 480, 3.09, 0.0, 900, 60, 30),
    (200, 10, 600, 3.09, 0.0, 180, 1800, 7.9),
)


def deviations() -> list[dict[str, float]]:
    """Of every case: simulated over expected wall time, in percent and in standard errors."""
    from charter.resilience.scenario import Scenario
    from charter.resilience.simulate import simulate

    result = []
    for work, save, restart, mean, wait, persist, unseen, tau in CASES:
        scenario = Scenario(
            useful_seconds=work * HOUR,
            num_nodes=1,
            mean_between_failures_seconds=mean * HOUR,
            save_seconds=save,
            persist_seconds=persist,
            restart_seconds=restart,
            detection_seconds=unseen,
            capacity_wait_seconds=wait * HOUR,
        )
        interval = scenario.best_interval_seconds if tau is None else tau * 60
        outcome = simulate(scenario.job(interval), runs=RUNS, seed=SEED)
        expected = scenario.closed_form(interval).wall_seconds
        error = outcome.mean_wall_seconds - expected
        result.append(
            {
                "wall_hours": round(outcome.mean_wall_seconds / HOUR, 3),
                "closed_form_hours": round(expected / HOUR, 3),
                "percent": round(100 * error / expected, 4),
                "standard_errors": round(error / outcome.standard_error_seconds, 2),
                "ettr": round(outcome.ettr, 4),
            }
        )
    return result


def speeds() -> dict[str, dict[str, float]]:
    """Job-hours per CPU second of three jobs."""
    from charter.resilience.expected_time import daly_interval_seconds
    from charter.resilience.failures import LLAMA3_H100, META_RSC1_A100, mean_between_failures_seconds
    from charter.resilience.simulate import SimulatedJob, simulate
    from charter.resilience.spot import Exponential, heavy_tailed_market

    jobs = {}
    for name, nodes, rate, save in (
        ("llama3_16384_gpus", 2048, LLAMA3_H100, 10.0),
        ("rsc1_131072_gpus", 16_384, META_RSC1_A100, 2.0),
    ):
        mean = mean_between_failures_seconds(num_nodes=nodes, failures_per_node_day=rate.per_node_day)
        jobs[name] = SimulatedJob(
            useful_seconds=50 * DAY,
            interval_seconds=daly_interval_seconds(save_seconds=save, mean_between_failures_seconds=mean),
            save_seconds=save,
            restart_seconds=120 if nodes > 10_000 else 480,
            failures=Exponential(mean_seconds=mean),
        )
    spot = replace(
        jobs["llama3_16384_gpus"],
        useful_seconds=7 * DAY,
        interval_seconds=1100,
        save_seconds=60,
        failures=Exponential(mean_seconds=math.inf),
        spot=heavy_tailed_market(),
    )
    result = {}
    for name, job in {**jobs, "spot_8_gpus": spot}.items():
        start = time.process_time()
        outcome = simulate(job, runs=2000, seed=SEED)
        seconds = time.process_time() - start
        hours = float(outcome.wall_seconds.sum()) / HOUR
        result[name] = {
            "ettr": round(outcome.ettr, 4),
            "hours_between_interruptions": round(hours / float(outcome.interruptions.sum()), 3),
            "cpu_seconds": round(seconds, 3),
            "job_hours_per_cpu_second": round(hours / seconds),
        }
    return result


def sweep_minimum() -> float:
    """The interval with the least simulated time over Daly's, by a cubic through means on common random numbers."""
    import numpy as np

    from charter.resilience.scenario import Scenario
    from charter.resilience.simulate import simulate

    scenario = Scenario(
        useful_seconds=2000 * HOUR, num_nodes=1, mean_between_failures_seconds=3.09 * HOUR, save_seconds=300
    )
    factors = np.exp(np.linspace(-0.8, 0.8, 17))
    daly = scenario.best_interval_seconds
    walls = [simulate(scenario.job(daly * x), runs=1000, seed=SEED).mean_wall_seconds for x in factors]
    curve = np.polynomial.Polynomial.fit(np.log(factors), walls, 3)
    grid = np.linspace(-0.5, 0.5, 4001)
    return math.exp(float(grid[np.argmin(curve(grid))]))


def main() -> None:
    """Measure and print; in the environment of the repository."""
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if Path(sys.prefix) != PYTHON.parent.parent:
        sys.exit(subprocess.run([str(PYTHON), __file__], check=False).returncode)
    cases, rates = deviations(), speeds()
    figures = {
        "job_hours_per_cpu_second": rates["llama3_16384_gpus"]["job_hours_per_cpu_second"],
        "max_deviation_percent": max(abs(case["percent"]) for case in cases),
        "max_standard_errors": max(abs(case["standard_errors"]) for case in cases),
        "sweep_minimum_over_daly": round(sweep_minimum(), 4),
        "runs_per_case": RUNS,
        "cases": cases,
        "speeds": rates,
        "command": "benchmarks/simulator.py",
        "machine": {
            "cpus": os.cpu_count(),
            "architecture": platform.machine(),
            "python": platform.python_version(),
        },
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
