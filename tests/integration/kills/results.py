"""What a kill test found, as one JSON line for the results page, when CHARTER_KILL_RESULTS names a file."""

import datetime
import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = "CHARTER_KILL_RESULTS"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of stage in one layout, disturbed again and again."""

    test: str
    """boundaries, random, actions, served, shards, flips."""
    kind: str
    layout: str
    kills: int
    runs: int
    mismatches: int
    lost: int
    """Steps that were never counted."""
    doubled: int
    """Steps that were counted twice."""
    seed: int | None = None


def record(case: Case) -> None:
    """Append one line; nothing when no file is asked for."""
    if path := os.environ.get(RESULTS):
        line = {**asdict(case), "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def lost_and_doubled(found: list[dict], expected: list[dict]) -> tuple[int, int]:
    """How many steps of the undisturbed run are missing from `metrics.jsonl`, and how many are there too often."""
    have, want = Counter(line["step"] for line in found), Counter(line["step"] for line in expected)
    return (want - have).total(), (have - want).total()
