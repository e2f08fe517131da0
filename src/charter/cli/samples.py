"""`charter report samples`: what the models said, to be read."""

from pathlib import Path
from typing import Annotated

import typer

from charter.cli.common import DirOption, JsonOption, console, open_project, print_json


def samples(
    stage: Annotated[str | None, typer.Argument(help="Samples of this stage alone.", show_default=False)] = None,
    directory: DirOption = Path("."),
    search: Annotated[str, typer.Option("--search", metavar="TEXT", help="Only those with this text.")] = "",
    principle: Annotated[str, typer.Option("--principle", metavar="ID", help="Only those under it.")] = "",
    disagreeing: Annotated[
        bool, typer.Option("--disagreeing", help="Only where two orders, or two models, differ.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most that are shown.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show answers, critiques with revisions, and comparisons with their verdicts."""
    from charter.errors import UsageError
    from charter.report.samples import SampleSource, Wanted, find_samples
    from charter.run.graph import build_pipeline

    project, root = open_project(directory)
    stages = build_pipeline(project, root).stages
    if stage is not None and stage not in stages:
        raise UsageError(f"there is no stage {stage!r}; this project has {', '.join(stages)}")
    sources = [
        SampleSource(stage=name, kind=planned.spec.kind, directory=planned.directory)
        for name, planned in stages.items()
    ]
    wanted = Wanted(stage=stage or "", text=search, principle=principle, disagreeing=disagreeing)
    listed = find_samples(sources, wanted, limit=limit)
    if as_json:
        print_json({"samples": [sample.to_json() for sample in listed.samples], "complete": listed.is_complete})
        return
    out = console()
    for sample in listed.samples:
        facts = [sample.principle, f"{sample.probability:.0%} preferred" if sample.probability is not None else ""]
        facts += ["the orders disagree" if sample.agreed is False else ""]
        out.rule(" · ".join(fact for fact in (sample.stage, sample.id, *facts) if fact), align="left")
        out.print(f"prompt: {sample.prompt}", markup=False, highlight=False)
        for part in sample.parts:
            out.print(f"{part.label}: {part.text}", markup=False, highlight=False)
    if not listed.samples:
        typer.echo(
            "No samples: no stage that answers, criticises, compares or evaluates has finished, or none matches."
        )
    elif not listed.is_complete:
        typer.echo(f"The first {len(listed.samples)}; -n shows more, --json prints them for machines.")
