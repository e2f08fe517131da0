"""`charter check environment`: whether this machine, and what a project needs beside it, can do the work."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, JsonOption, open_project, print_json, project_root
from charter.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from charter.run.cluster_checks import Check

OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="LAUNCHER", help="Also look at this launcher: slurm, ray, kubernetes, skypilot."),
]


BitsOption = Annotated[
    bool, typer.Option("--bits", help="Also train a small model twice and compare every bit: under a minute.")
]


def doctor(
    directory: DirOption = Path("."), on: OnOption = None, bits: BitsOption = False, json_: JsonOption = False
) -> None:
    """Check this machine and, in a project, its launcher, packages, network and credentials; say how to mend faults."""
    from charter.errors import UsageError
    from charter.run.cluster_checks import LOOKS
    from charter.run.doctor import examine

    root = project_root(directory)
    has_project = (root / "charter.yaml").is_file() or directory.is_file()
    if on is not None and on not in (*LOOKS, "local"):
        raise UsageError(f"--on {on}: no such launcher; Charter can look at local, {', '.join(LOOKS)}")
    if on is not None and not has_project:
        raise UsageError(f"--on {on} needs a project, and there is no charter.yaml in {root}; give one with -C DIR")
    project = open_project(directory)[0] if has_project else None
    infra = project.resources.infra if project else None
    checks = examine(root, project, launcher=on or (infra if infra in LOOKS else None) or "local")
    if bits:
        from charter.run.doctor import bit_test

        checks = (*checks, bit_test())
    if json_:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    if not all(check.ok for check in checks):
        raise typer.Exit(ExitCode.MISSING_EXTRA)


def _show(checks: "Sequence[Check]") -> None:
    width = max(len(check.name) for check in checks)
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            print(group)
        mark = ("✔" if check.is_known else "?") if check.ok else "✘"
        print(f"  {mark} {check.name:<{width}}  {check.found}")
        if not check.ok:
            print(f"    {check.advice}")
