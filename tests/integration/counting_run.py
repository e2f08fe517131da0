"""`charter run` with every stage replaced by the counting stage: `python counting_run.py DIR [--reshard]`."""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from charter.engines.project import load_project
from charter.errors import CharterError
from charter.launch.job import STAGE_MODULES
from charter.run import runner
from charter.run.runner import PlannedWork, RunOptions, run_project
from charter.run.sweep import run_sweep, sweep_points

MODULES = {
    kind: os.environ.get("COUNTING_MODULE", "counting_stage")
    for kind in STAGE_MODULES
    if kind != os.environ.get("COUNTING_WITHOUT")
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--reshard", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--grace", type=float, default=30.0)
    parser.add_argument("--on")
    parser.add_argument("--sweep")
    arguments = parser.parse_args()
    options = RunOptions(
        only=tuple(arguments.only),
        reshard=arguments.reshard,
        modules=MODULES,
        stop_grace_seconds=arguments.grace,
        launcher=arguments.on,
    )
    runner.plan_work = lambda work, options: PlannedWork(work=work)  # a plan would take seconds of every start
    try:
        project = load_project(arguments.directory, overrides=arguments.set)
        listeners = [lambda event: print(json.dumps(event), flush=True)]
        if arguments.sweep:
            points = sweep_points(arguments.directory, project, arguments.sweep, arguments.set)
            run_sweep(
                points,
                lambda item: run_project(item.project, arguments.directory, replace(options, point=item), listeners),
                print,
            )
        else:
            run_project(project, arguments.directory, options, listeners)
    except CharterError as error:
        print(f"error[{error.label}]: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
