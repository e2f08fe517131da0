"""The tutorial, word for word: its commands in their order, and the words of the lines that it shows."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
KILLED = 128 + signal.SIGKILL


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Return each command of a page's console blocks with the lines shown below it."""
    shown: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("$ "):
                shown.append((line[2:], []))
            else:
                shown[-1][1].append(line)
    return shown


def has_words(line: str, printed: str) -> bool:
    """Return True if one printed line holds the words of a shown one in their order; figures and marks may differ."""
    pattern = ".*".join(re.escape(word) for word in re.findall(r"[A-Za-z_$#.:>-]{2,}", line))
    return re.search(pattern, printed) is not None


def test_every_command_of_the_tutorial_prints_its_lines(tmp_path):
    steps = commands(PAGE.read_text())
    assert len(steps) >= 12
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command, lines in steps:
        # A run that the page kills may have ended before, on a fast machine.
        allowed = {0, KILLED, -signal.SIGKILL} if command.startswith("timeout") else {0}
        ended = subprocess.run(
            shlex.split(command), cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        printed = ended.stdout + ended.stderr
        assert ended.returncode in allowed, f"{command}\n{printed}"
        missing = [line for line in lines if not has_words(line, printed)]
        assert missing == [], f"{command}\n{printed}"
