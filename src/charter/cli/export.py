"""`charter export`: a finished stage's model as a plain Hugging Face directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import DirOption, open_project

if TYPE_CHECKING:
    from charter.pipeline.graph import Pipeline, PlannedStage

CARD, COST = "README.md", "cost.json"


def export(
    stage: Annotated[str, typer.Argument(help="Name of a finished stage that trained a model.", show_default=False)],
    target: Annotated[Path, typer.Argument(help="Directory to write; it must not exist.", show_default=False)],
    directory: DirOption = Path("."),
    licence: Annotated[str, typer.Option("--license", help="Licence of the model, for its card.")] = "unknown",
) -> None:
    """Write a finished stage's model as a Hugging Face directory, with a model card and its cost beside it."""
    from charter.artifacts import durable
    from charter.artifacts.export import check_outputs, copy_model
    from charter.artifacts.record import read_record
    from charter.errors import UsageError
    from charter.pipeline.graph import build_pipeline
    from charter.pipeline.staleness import assess
    from charter.report.model_card import model_card

    project, root = open_project(directory)
    pipeline = build_pipeline(project, root)
    if stage not in pipeline.stages:
        raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(pipeline.stages)}")
    planned = pipeline.stages[stage]
    verdict = assess(planned, root)
    record = read_record(planned.directory)
    if not verdict.done or record is None:
        raise UsageError(f"stage {stage} is {verdict.state} ({verdict.why}); `charter run` finishes it")
    if target.exists():
        raise UsageError(f"{target} exists already; give a directory that does not")
    check_outputs(planned.directory, record)

    def write(path: Path) -> None:
        score = copy_model(planned.directory, record, path)
        card = model_card(
            record.to_json(), figures=_figures(pipeline, record.fingerprint), score=score, licence=licence
        )
        (path / CARD).write_text(card, encoding="utf-8")
        (path / COST).write_text(durable.json_text(_cost(root, planned)), encoding="utf-8")

    durable.publish_dir(target.resolve(), write)
    typer.echo(f"Wrote {stage} ({record.fingerprint[:8]}) to {target}: model, {CARD}, {COST}")


def _figures(pipeline: "Pipeline", fingerprint: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The figures of every finished evaluation that read a stage of this fingerprint."""
    from charter.artifacts import durable
    from charter.artifacts.record import OUTPUTS, read_record

    found = {}
    for name, stage in pipeline.stages.items():
        record = read_record(stage.directory) if stage.spec.kind == "eval" else None
        if record is None:
            continue
        read = {item["fingerprint"] for items in record.inputs.values() for item in items}
        path = stage.directory / OUTPUTS / "results.json"
        if fingerprint in read and path.exists():
            found[name] = durable.read_json(path).get("figures", [])
    return found


def _cost(root: Path, stage: "PlannedStage") -> Mapping[str, Any]:
    """What every attempt of the stage under its fingerprint took, from the ledger."""
    from charter.ledger.account import Accounted
    from charter.ledger.store import Ledger
    from charter.pipeline.paths import run_dir

    path = run_dir(root) / "ledger.sqlite"
    accounted: tuple[Accounted, ...] = ()
    if path.exists():
        with Ledger.open(path, create=False) as ledger:
            accounted = tuple(item for item in ledger.accounted() if item.attempt.fingerprint == stage.fingerprint)
    costs = [item.cost_micro_usd for item in accounted if item.cost_micro_usd is not None]
    return {
        "schema": "charter.export_cost/1",
        "stage": stage.name,
        "fingerprint": stage.fingerprint,
        "attempts": len(accounted),
        "seconds": sum(item.attempt.duration_milliseconds for item in accounted) / 1000,
        "lost_seconds": sum(item.lost_milliseconds for item in accounted) / 1000,
        "usd": sum(costs) / 1e6 if costs else None,
    }
