"""`charter import`: a run that somebody else started, read into the ledger, the curves and the measurements."""

from pathlib import Path
from typing import TYPE_CHECKING

from charter.cli import import_options as options
from charter.cli.common import DirOption, JsonOption, SetOption, open_project, print_json
from charter.cli.import_view import import_json, print_import

if TYPE_CHECKING:
    from charter.calibration.rows.measurement import Measurement
    from charter.pipeline.imports.charges import Machines
    from charter.pipeline.imports.found import FoundRun
    from charter.pipeline.imports.importing import Imported
    from charter.spec.project import Project


def import_run(
    run: options.RunArgument = None,
    stage: options.AsOption = None,
    directory: DirOption = Path("."),
    format: options.FormatOption = "auto",
    tracking_uri: options.UriOption = None,
    accelerators: options.AcceleratorsOption = None,
    nodes: options.NodesOption = 1,
    usd_per_hour: options.PriceOption = None,
    market: options.MarketOption = "on_demand",
    infra: options.InfraOption = "imported",
    started_at: options.StartOption = None,
    hours: options.HoursOption = None,
    target_step: options.TargetOption = None,
    measurements: options.RowsOption = None,
    fact: options.FactOption = None,
    another: options.AnotherOption = False,
    list_: options.ListOption = False,
    take_back: options.TakeBackOption = None,
    yes: options.YesOption = False,
    dry_run: options.DryRunOption = False,
    set_: SetOption = None,
    json_: JsonOption = False,
) -> None:
    """Read a finished run of another engine into the ledger (--as) and into measurements (--measurements).

    Without either, what was found is shown. Importing the same run again counts nothing twice; --take-back removes it.
    """
    from charter.cli.import_back import past_imports_asked
    from charter.pipeline.imports.charges import Machines

    _refuse_mixed(run, list_=list_, take_back=take_back)
    if run is None:
        past_imports_asked(directory, set_, take_back, yes=yes, dry_run=dry_run, as_json=json_)
        return
    machines = Machines(
        accelerators=accelerators,
        nodes=nodes,
        usd_per_hour=usd_per_hour,
        started_at=options.moment_of(started_at),
        hours=hours,
        infra=infra,
        market=market,
    )
    machines.check()
    found = _found(run, format=format, tracking_uri=tracking_uri, target_step=target_step)
    project = None if stage is None else open_project(directory, set_)
    done, row = _import(
        found, machines, project, stage or "", measurements, facts=fact, another=another, dry_run=dry_run
    )
    if json_:
        print_json(import_json(done, row))
    else:
        print_import(done, row, measurements, stage=stage, dry_run=dry_run)


def _refuse_mixed(run: str | None, *, list_: bool, take_back: str | None) -> None:
    """One thing at a time."""
    from charter.errors import UsageError

    asked = {"RUN": run is not None, "--list": list_, "--take-back": take_back is not None}
    names = [name for name, given in asked.items() if given]
    if len(names) != 1:
        found = " and ".join(names) or "none of them"
        raise UsageError(f"give RUN, --list or --take-back ID; found {found}")


def _found(run: str, *, format: options.RunFormat, tracking_uri: str | None, target_step: int | None) -> "FoundRun":
    from dataclasses import replace

    from charter.pipeline.imports.reading import read_run

    found = read_run(run, format=None if format == "auto" else format, tracking_uri=tracking_uri)
    return found if target_step is None else replace(found, target_step=target_step)


def _import(
    found: "FoundRun",
    machines: "Machines",
    into: "tuple[Project, Path] | None",
    stage: str,
    measurements: Path | None,
    *,
    facts: list[str] | None,
    another: bool,
    dry_run: bool,
) -> "tuple[Imported, Measurement | None]":
    """Write what was found where it was asked for; nothing in a dry run."""
    import time

    from charter.pipeline.imports.importing import Imported, import_into, row_of, write_rows, written_row

    given, row = options.facts_of(facts), None
    project, root = into or (None, Path("."))
    if measurements is not None:
        row = row_of(found, machines, given, project=project, root=root, stage=stage)
    rows = [] if measurements is None or row is None else [written_row(measurements, row)]
    done = Imported(found=found)
    if project is not None:
        done = import_into(
            project, root, found, stage=stage, machines=machines, another=another,
            now=time.time(), rows=rows, dry_run=dry_run,
        )  # fmt: skip
    if measurements is not None and row is not None and not dry_run:
        write_rows(measurements, [row])
    return done, row
