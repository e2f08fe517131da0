"""Record real runs of `cai-smoke` under whatever load this machine has, for `benchmarks/forecast_replay.py`.

    .venv/bin/python tools/record_runs.py benchmarks/recorded_runs.jsonl --runs 20

Each run has its own numbers of steps (1 to 6 times the template's), one or two places, and a price of $36 per hour. A
line is one run: what its plan said of every stage, and when the stage began, made each of its steps, and ended.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from charter.cost.forecast import planned_start_seconds
from charter.ledger import Ledger

CHARTER = (sys.executable, "-m", "charter.cli.main")
USD_PER_HOUR = 36
MOST_MARKS = 32
"""Of a stage's steps: a forecast follows the later half of them, to some percent."""
FACTORS = (1, 2, 3, 4, 6)


def main() -> None:
    """Run, read, append; what was recorded stays when a later run fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for number in range(options.runs):
        with tempfile.TemporaryDirectory(prefix="charter-record-") as place:
            root = Path(place) / "project"
            _project(root, random.Random(f"{options.seed}-{number}"))
            subprocess.run([*CHARTER, "run", "--yes", "-C", str(root)], check=True, stdout=subprocess.DEVNULL)
            line = json.dumps(recorded(root))
        with options.file.open("a") as file:
            file.write(line + "\n")
        print(f"{number + 1} of {options.runs} recorded", flush=True)


def _project(root: Path, draws: random.Random) -> None:
    """Write a `cai-smoke` of a size of its own."""
    subprocess.run([*CHARTER, "init", "--template", "cai-smoke", str(root)], check=True, stdout=subprocess.DEVNULL)
    text = (root / "charter.yaml").read_text()
    text = re.sub(r"\b(steps|episodes): (\d+)", lambda m: f"{m[1]}: {int(m[2]) * draws.choice(FACTORS)}", text)
    places = draws.choice((1, 2))
    line = f"max_parallel_stages: {places}, price: {USD_PER_HOUR}"
    text, changed = re.subn(r"max_parallel_stages: \d+", line, text)
    assert changed == 1, "the template names its places once"
    (root / "charter.yaml").write_text(text)


def thinned(marks: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return at most `MOST_MARKS` of some marks, the first and the last among them."""
    apart = -(-len(marks) // MOST_MARKS)
    return [*marks[:-1:apart], marks[-1]]


def recorded(root: Path) -> dict[str, Any]:
    """Return the history of a finished run: its stages in the order in which they began."""
    plan = json.loads((root / "run" / "plan.json").read_text())
    planned = {stage["name"]: stage for stage in plan["stages"]}
    with Ledger.open(root / "run" / "ledger.sqlite", create=False) as ledger:
        accounts = sorted(ledger.accounted(), key=lambda item: item.attempt.started_at)
    stages = []
    for account in accounts:
        attempt = account.attempt
        assert attempt.outcome == "done", "a history of one attempt for each stage"
        (directory,) = (root / "run" / "stages").glob(f"{attempt.stage}-{attempt.fingerprint[:8]}")
        lines = map(json.loads, (directory / "metrics.jsonl").read_text().splitlines())
        times = thinned([(line["step"], round(line["time"] - attempt.started_at, 2)) for line in lines])
        progress = json.loads((directory / "progress.json").read_text())
        stages.append(
            {
                "name": attempt.stage,
                "kind": attempt.kind,
                "planned_seconds": planned[attempt.stage]["seconds"],
                "planned_usd": planned[attempt.stage]["usd"],
                "planned_start_seconds": planned_start_seconds(planned[attempt.stage]),
                "target_step": progress["target_step"],
                "steps": times,
                "seconds": attempt.seconds,
                "usd": (account.cost_micro_usd or 0) / 1e6,
            }
        )
    return {"stages": stages}


if __name__ == "__main__":
    main()
