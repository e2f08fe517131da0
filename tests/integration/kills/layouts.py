"""What is killed: kinds of stages, how many processes they have, and which part of all this has its turn."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THOROUGH = "CHARTER_CHAOS_KILLS" in os.environ or os.environ.get("CHARTER_KILLS") == "all"
"""Kill at every boundary (`make chaos`). Else each class of boundaries is hit once, and the commit says where."""
LAYOUTS: dict[str, dict[str, int | str]] = {
    "1": {},
    "2 DDP": {"world_size": 2},
    "2 FSDP2": {"world_size": 2, "zero": 3},
    "3 DDP": {"world_size": 3},
    "4 DDP": {"world_size": 4},
    "4 FSDP2": {"world_size": 4, "zero": 3},
    "2 context": {"world_size": 2, "zero": 3, "context": 2},
    "2 TP SP": {"world_size": 2, "tensor": 2, "sequence_parallel": 1},
    "4 TP SP FSDP2": {"world_size": 4, "tensor": 2, "sequence_parallel": 1, "zero": 3, "recompute": "full"},
}
KINDS_TOGETHER = ("sft", "preference_model", "ppo")
KINDS_SPLIT = ("sft", "preference_model", "dpo")
"""Kinds that train with each process at its own positions of a row."""
MAKE_RECORDS = ("prepare", "generate", "critique", "label", "eval")
"""Kinds that make records or figures, with every model in their own process."""
TOGETHER = [
    (kind, name)
    for name, layout in LAYOUTS.items()
    if name != "1"
    for kind in (KINDS_SPLIT if "sequence_parallel" in layout else KINDS_TOGETHER)
    if kind != "ppo" or "context" not in layout
]
"""Kinds and layouts of several processes."""


def turn_of_the_commit() -> int:
    """Read the hash of the commit as a number, or take the number in CHARTER_KILLS to repeat the turn of another."""
    if (given := os.environ.get("CHARTER_KILLS", "")).isdecimal():
        return int(given)
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(commit.stdout, 16) if commit.returncode == 0 else 0


TURN = turn_of_the_commit()


def in_turn(cases: Sequence[Any], turn: int = TURN) -> list[Any]:
    """Pick the case whose turn it is; all of them where the kills are thorough."""
    return list(cases) if THOROUGH else [cases[turn % len(cases)]]


def processes(name: str) -> int:
    """How many processes a layout has."""
    return int(LAYOUTS[name].get("world_size", 1))
