"""Options of `charter import`, and how their texts are read."""

from pathlib import Path
from typing import Annotated, Literal

import typer

RunFormat = Literal["auto", "transformers", "trl", "verl", "openrlhf", "nemo_rl", "megatron", "mlflow"]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A trainer_state.json or its directory, the log of an engine, an mlruns directory; or an MLflow run id.",
        show_default=False,
    ),
]
AsOption = Annotated[str | None, typer.Option("--as", metavar="STAGE", help="Stage of the project that it counts as.")]
FormatOption = Annotated[RunFormat, typer.Option("--format", help="What wrote it.")]
UriOption = Annotated[str | None, typer.Option("--tracking-uri", help="MLflow server or database that holds RUN.")]
AcceleratorsOption = Annotated[
    str | None, typer.Option("--accelerators", metavar="H100:8", help="What one node had; cpu for none.")
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="How many nodes.")]
PriceOption = Annotated[
    float | None, typer.Option("--usd-per-hour", min=0, help="Price of one accelerator; of a node for cpu.")
]
MarketOption = Annotated[str, typer.Option("--market", help="on_demand, spot, reserved or owned.")]
InfraOption = Annotated[str, typer.Option("--infra", help="Where it ran: aws, gcp, on_prem, ...")]
StartOption = Annotated[
    str | None, typer.Option("--started-at", metavar="2026-07-01T09:00", help="Where the log has no clock; UTC.")
]
HoursOption = Annotated[
    float | None, typer.Option("--hours", min=0, help="Of the whole run, where the log does not tell.")
]
TargetOption = Annotated[
    int | None, typer.Option("--target-step", min=1, help="Step at which it is done, where the log does not tell.")
]
RowsOption = Annotated[
    Path | None,
    typer.Option("--measurements", metavar="FILE.csv", help="Add the run's row to a file for `charter calibrate`."),
]
FactOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fact", metavar="COLUMN=VALUE", help="A cell of the row (docs/reference/measurements.md); repeatable."
    ),
]
AnotherOption = Annotated[
    bool, typer.Option("--another", help="Not the run with the same first step that is in the ledger.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be written or removed; change nothing.")]
ListOption = Annotated[bool, typer.Option("--list", help="Show what was imported into the project.")]
TakeBackOption = Annotated[
    str | None, typer.Option("--take-back", metavar="ID", help="Remove an import of --list, with all that it wrote.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Take back without asking.")]


def moment_of(text: str | None) -> float | None:
    """Unix seconds of a time in ISO form; UTC where it names no zone."""
    from datetime import UTC, datetime

    from charter.errors import UsageError

    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--started-at {text!r} is not a time; write 2026-07-01T09:00, or +02:00 after it") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def facts_of(options: list[str] | None) -> dict[str, str]:
    """Cells of a row by their columns."""
    from charter.errors import UsageError

    wrong = [text for text in options or () if "=" not in text]
    if wrong:
        raise UsageError(f"--fact {', '.join(wrong)}: write COLUMN=VALUE, such as --fact seq=4096")
    return {name.strip(): value.strip() for name, _, value in (text.partition("=") for text in options or ())}
