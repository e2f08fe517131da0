"""`charter doctor`: whether this machine can do what Charter needs."""

from pathlib import Path

import typer

from charter.cli.common import DirOption, JsonOption, print_json


def doctor(directory: DirOption = Path("."), json_: JsonOption = False) -> None:
    """Check this machine: Python, packages, disk, locks, accelerators."""
    from charter.pipeline.doctor import examine

    checks = examine(directory.resolve())
    if json_:
        print_json({"checks": [{"name": c.name, "ok": c.ok, "found": c.found, "advice": c.advice} for c in checks]})
    else:
        for check in checks:
            print(f"{'✔' if check.ok else '✘'} {check.name:<14} {check.found}")
            if not check.ok:
                print(f"  {check.advice}")
    if not all(check.ok for check in checks):
        raise typer.Exit(7)
