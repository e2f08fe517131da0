"""Every command of Charter on one project, each in a process of its own that lacks something.

    python tests/cases/command_matrix.py PROJECT OUT LACK [WORD...]

LACK: `nothing`; `extras` (no package but those of the core install can be imported); `rights` (the project is used
where it lies, as far as its modes allow). Only commands that begin with WORD... are called. Prints a JSON line for each
command: its words, its exit code, what it printed.
"""

import importlib.abc
import importlib.machinery
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SECONDS = 60
HERE = "-C PROJECT"
"""Of a project that is given by option."""
ARGUMENTS = {
    "init": "OUT/new --template cai-smoke",
    "plan": HERE,
    "plan ask": "--budget 5k --deadline 3d --hardware H100:8",
    "plan compare": "PROJECT PROJECT",
    "plan mem": "meta-llama/Llama-3.1-8B -a H100:8",
    "plan scale plan": "-N 8B -D 100B -a H100 --gpus 64",
    "plan scale fit": "OUT/points.csv",
    "plan scale predict": "-N 8B -D 100B",
    "plan simulate": "PROJECT",
    "check": "PROJECT",
    "check environment": HERE,
    "check versions": "",
    "check schema": "",
    "run": f"{HERE} --dry-run",
    "run resume": f"{HERE} --dry-run",
    "run again": f"sft {HERE}",
    "run serve": f"judge {HERE}",
    "submit": f"{HERE} --on slurm --print",
    "status": HERE,
    "status actions": HERE,
    "status tag": f"baseline {HERE}",
    "status track status": HERE,
    "status track sync": HERE,
    "logs": f"sft {HERE}",
    "approve": f"sft {HERE}",
    "stop": HERE,
    "ui": "PROJECT --export OUT/pages",
    "report": f"{HERE} --output OUT/report.html",
    "report samples": HERE,
    "cost": HERE,
    "cost buy-or-rent": "H100",
    "cost reconcile": f"OUT/list.csv {HERE}",
    "cost export": f"--focus OUT/focus.csv {HERE}",
    "cost check": "OUT/list.csv",
    "cost import": f"OUT/list.csv {HERE}",
    "cost report": HERE,
    "cost budget": HERE,
    "cost advise": HERE,
    "cost showback": HERE,
    "cost raise": f"500 {HERE}",
    "cost add": f"licence --usd 5 --from 2026-01-01 --to 2026-02-01 {HERE}",
    "data version": "PROJECT/charter.yaml",
    "data dvc": HERE,
    "data check": "OUT/rows.jsonl",
    "data stats": "OUT/rows.jsonl",
    "data convert": "OUT/rows.jsonl OUT/rows2.jsonl",
    "data tasks": "game OUT/tasks.jsonl",
    "data constitution list": "",
    "data constitution lint": "",
    "data constitution import": "OUT/list.csv --out OUT/constitution.yaml",
    "artifacts checkpoints list": HERE,
    "artifacts checkpoints ls": HERE,
    "artifacts checkpoints verify": HERE,
    "artifacts checkpoints pin": f"sft 40 {HERE}",
    "artifacts checkpoints unpin": f"sft 40 {HERE}",
    "artifacts checkpoints backup": f"--place OUT/copies {HERE}",
    "artifacts checkpoints restore": f"--place OUT/copies {HERE}",
    "artifacts checkpoints scrub": f"--place OUT/copies {HERE}",
    "artifacts checkpoints prune": f"--place OUT/copies {HERE}",
    "artifacts checkpoints gc": HERE,
    "artifacts fetch": f"owner/name --dry-run {HERE}",
    "artifacts export": f"sft OUT/exported {HERE}",
    "artifacts import": f"OUT {HERE}",
    "artifacts accept": f"sft {HERE}",
    "catalog gpus list": "",
    "catalog gpus show": "H100",
    "catalog gpus compare": "H100 A100",
    "catalog models": "llama",
    "catalog prices import": f"OUT/list.csv {HERE}",
    "catalog prices refresh": f"OUT/list.csv {HERE}",
    "catalog prices diff": "bundled bundled",
    "catalog prices check": "",
    "catalog prices list": HERE,
    "validate": "OUT/list.csv",
    "validate calibrate": "OUT/list.csv",
    "validate convert": "OUT/list.csv -o OUT/typed.csv",
    "validate share": "OUT/list.csv --as ABC -o OUT/shared.csv",
}
"""What each command is given; the words in capitals stand for directories."""


class CoreAlone(importlib.abc.MetaPathFinder):
    """Imports of packages that only an extra brings, refused as where they are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Raise for a package of an extra."""
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    """Return the commands below one, and itself where it does something."""
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield " ".join(words)
    for name, sub in below.items():
        yield from leaves(sub, (*words, name))


def commands() -> list[str]:
    """Return every command that can be called."""
    from charter.cli.main import COMMANDS, load

    names = (name for words in COMMANDS if COMMANDS[words] for name in leaves(load(words), tuple(words.split())))
    return sorted(set(names))


def call(words: Sequence[str], file: Path) -> int:
    """Run one command in a fork, its output in a file; return its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(SECONDS)
    with file.open("w") as out:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    sys.argv = ["charter", *words]
    from charter.cli.main import entry

    raise AssertionError(entry())


def main() -> None:
    """Call the commands."""
    project, out, lack, *only = sys.argv[1:]
    from charter.errors import EXTRAS

    if lack == "extras":
        sys.meta_path.insert(0, CoreAlone([package for packages in EXTRAS.values() for package in packages]))
    for name in commands():
        if not name.startswith(" ".join(only)):
            continue
        place = Path(out) / name.replace(" ", "-")
        place.mkdir()
        here = Path(project)
        if lack != "rights":
            here = place / "project"
            shutil.copytree(project, here)
        (place / "list.csv").write_text("a,b\n1,2\n")
        (place / "points.csv").write_text("a,b\n1,2\n")
        (place / "rows.jsonl").write_text('{"text": "one"}\n')
        arguments = ARGUMENTS[name].replace("PROJECT", str(here)).replace("OUT", str(place))
        words = [*name.split(), *arguments.split()]
        code = call(words, place / "printed.txt")
        print(json.dumps({"command": name, "code": code, "printed": (place / "printed.txt").read_text()}), flush=True)


if __name__ == "__main__":
    main()
