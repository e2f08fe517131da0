"""CPU seconds and memory of a `prepare` stage over many rows, the ledger of calls beside it: CPU per call of the store.

    python benchmarks/prepare_rows.py [--rows 50000] [--calls 20000]

Rows are texts of about 630 characters, words drawn from a vocabulary by a seed, one in twenty a near copy of an
earlier one. The stage is a process of its own, as a run starts it; its CPU time and peak memory are the kernel's
figures. Calls are intended and settled in groups of 64 and of 8, each group in two transactions that are on disk when
they return. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
WORDS = 90


def write_rows(path: Path, count: int) -> int:
    """Rows of text; how many characters they have in the mean."""
    draws, before, characters = random.Random(7), list[list[str]](), 0
    vocabulary = ["".join(draws.choices("abcdefghijklmnopqrstuvwxyz", k=draws.randint(2, 10))) for _ in range(20_000)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            words = draws.choices(vocabulary, k=WORDS)
            if before and number % 20 == 0:
                words = [*draws.choice(before)[:-1], words[0]]
            before = [*before[-99:], words]
            text = " ".join(words)
            characters += len(text)
            file.write(json.dumps({"id": f"row-{number}", "prompt": text}) + "\n")
    return characters // count


def prepare(place: Path, rows: int) -> dict[str, float]:
    """The seconds and the memory of the stage."""
    from charter.artifacts.job import Job, JobInput, write_job
    from charter.spec.project import DataSpec
    from charter.spec.stage import PrepareStage

    characters = write_rows(place / "rows.jsonl", rows)
    data = DataSpec(path=str(place / "rows.jsonl"))
    item = JobInput(name="d", role="data", source="data", path=data.path, fingerprint="d" * 64, data=data)
    stage = place / "stage"
    stage.mkdir()
    job = Job(
        run="benchmark", stage="clean", kind="prepare", fingerprint="f" * 64, seed=1, spec=PrepareStage(data=("d",)),
        inputs={"data": (item,)}, constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip
    write_job(stage, job)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "charter.feedback.prepare", "--stage-dir", str(stage)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "rows": rows,
        "characters": characters,
        "cpu_milliseconds_per_row": round(1000 * seconds / rows, 3),
        "peak_mebibytes": round(after.ru_maxrss / 1024),
    }


def calls(place: Path, count: int, group: int) -> float:
    """CPU microseconds of one call, intended and settled."""
    from charter.ledger.calls import CallStore, NewCall, Settlement, new_call_id

    with CallStore.open(place / f"calls-{group}.sqlite", run="r", stage="s", fingerprint="f") as store:
        began = time.process_time()
        for start in range(0, count, group):
            ids = [new_call_id() for _ in range(group)]
            store.intend(
                [
                    NewCall(call_id=name, key=name, model="m", endpoint="e", attempt=1, at=1.0, most_micro_usd=9)
                    for name in ids
                ]
            )
            store.settle(
                [
                    Settlement(call_id=name, outcome="answered", at=2.0, answer='"A"', micro_usd=start % 9)
                    for name in ids
                ]
            )
        return round(1e6 * (time.process_time() - began) / count, 1)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--calls", type=int, default=20_000)
    arguments = parser.parse_args()
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-dev"], check=True, stdout=sys.stderr)
    if Path(sys.executable).resolve() != PYTHON.resolve() or sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    with tempfile.TemporaryDirectory() as temporary:
        measured = prepare(Path(temporary), arguments.rows)
        per_call = {str(group): calls(Path(temporary), arguments.calls, group) for group in (64, 8)}
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine(), "load": os.getloadavg()[0]}
    provenance = {"command": " ".join(sys.argv), "machine": machine}
    print(json.dumps({"prepare": measured, "cpu_microseconds_per_call_by_group": per_call, **provenance}))


if __name__ == "__main__":
    main()
