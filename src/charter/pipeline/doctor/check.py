"""One thing that the doctor looked at."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

COMMAND_SECONDS = 20.0
"""Longest wait for a command of an engine; a controller that is down may take this long to say so."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing looked at, and how to mend it."""

    name: str
    ok: bool
    found: str
    advice: str = ""
    group: str = "machine"
    """machine, packages, drivers, engine, network, credentials or disk."""


@dataclass(frozen=True, kw_only=True)
class Said:
    """What a command printed, and whether it succeeded."""

    ok: bool
    text: str


def ask(command: Sequence[str], *, seconds: float = COMMAND_SECONDS) -> Said:
    """Run a command that only looks; one that is missing, fails or hangs is told, never raised."""
    try:
        done = subprocess.run(
            list(command), capture_output=True, text=True, errors="replace", timeout=seconds, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        return Said(ok=False, text=f"{command[0]} is not installed here")
    except subprocess.TimeoutExpired:
        return Said(ok=False, text=f"{command[0]} did not answer within {seconds:g} s")
    except OSError as error:
        return Said(ok=False, text=f"{command[0]}: {error.strerror}")
    lines = (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip().splitlines()
    # What went wrong is told last, after what it led to.
    return Said(ok=done.returncode == 0, text=lines[0 if done.returncode == 0 else -1][:200] if lines else "")
