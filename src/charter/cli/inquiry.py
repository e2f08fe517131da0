"""Questions without a file: their options, read into the charter.yaml that they stand for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from charter.plan.ask import Inquiry, KindFile

Number = TypeVar("Number", int, float)
_PANEL = "Without a file"


def _option(names: str, metavar: str, says: str) -> object:
    return typer.Option(*names.split(), metavar=metavar, help=says, show_default=False, rich_help_panel=_PANEL)


Tokens = Annotated[str | None, _option("--tokens", "N", "With pretrain, sft: tokens in all, like 100M.")]
Pairs = Annotated[str | None, _option("--pairs", "N", "With pm, dpo, label: pairs of answers, like 60k.")]
Prompts = Annotated[str | None, _option("--prompts", "N", "With ppo, grpo, generate: prompts, like 20k.")]
AnswerTokens = Annotated[
    str | None, _option("--answers", "N", "With ppo, grpo, generate: mean tokens of an answer, like 1k.")
]
Turns = Annotated[
    str | None, _option("--turns", "N", "With grpo: turns of an answer, with a tool's reply between turns.")
]
Seq = Annotated[str | None, _option("--seq", "N", "Tokens of a row.")]
Lora = Annotated[str | None, _option("--lora", "RANK", "Train adapters of this rank, not all weights.")]
Judge = Annotated[str | None, _option("--judge", "MODEL", "With cai: who compares answers, like 70B.")]
On = Annotated[
    str | None, _option("--on --gpus", "GPU:N", "A machine, like H100:8; if left out, all of the price book.")
]
Nodes = Annotated[str | None, _option("--nodes", "N", "The most machines; 1 with --on, else no limit.")]
Price = Annotated[str | None, _option("--price", "USD", "Per hour of one accelerator of your own, like 2.")]
Budget = Annotated[str | None, _option("--budget", "USD", "The limit, like 5k.")]
Deadline = Annotated[str | None, _option("--deadline", "TIME", "The latest end from now, like 3d.")]


def question_file(
    word: Path | None, model: str | None, said: Mapping[str, str | None], save: Path | None
) -> "KindFile | None":
    """The charter.yaml that a question stands for; None where a project is named, since paths win over kinds."""
    from charter.errors import UsageError
    from charter.plan.ask import kind_file, kind_of, unknown_word

    kind = None if word is None or word.exists() else kind_of(str(word))
    if kind is not None:
        return kind_file(inquiry_of(kind, model, said))
    if word is not None and not word.exists() and word.suffix == "" and len(word.parts) == 1:
        raise unknown_word(str(word))
    given = [*([str(model)] if model else []), *(f"--{name}" for name, text in said.items() if text is not None)]
    given += ["--save"] if save is not None else []
    if given:
        raise UsageError(
            f"{', '.join(given)}: is for questions without a file, like `charter plan sft Llama-3.1-8B --tokens 100M`; "
            "in a project, say it in charter.yaml or with --set"
        )
    return None


def inquiry_of(kind: str, model: str | None, said: Mapping[str, str | None]) -> "Inquiry":
    """Return the inquiry about a kind of stage, its numbers parsed."""
    from charter.catalog.accelerators import usual_request
    from charter.errors import UsageError
    from charter.plan.ask import Inquiry
    from charter.units import parse_count, parse_seconds, parse_usd, parse_usd_per_hour

    def read(name: str, reader: Callable[[object], Number]) -> "Number | None":
        text = said[name]
        try:
            return None if text is None else reader(text)
        except ValueError as error:
            raise UsageError(f"--{name} {text}: {error}") from None

    read("price", parse_usd_per_hour)
    read("deadline", parse_seconds)
    return Inquiry(
        kind=kind,
        model=model,
        tokens=read("tokens", parse_count),
        pairs=read("pairs", parse_count),
        prompts=read("prompts", parse_count),
        answers=read("answers", parse_count),
        seq_len=read("seq", parse_count),
        lora=read("lora", parse_count),
        nodes=read("nodes", parse_count),
        turns=read("turns", parse_count),
        judge=said["judge"],
        accelerators=None if said["on"] is None else usual_request(said["on"]),
        price=said["price"],
        budget_usd=read("budget", parse_usd),
        deadline=said["deadline"],
    )


SHOWN = {"as_json", "explain", "expand", "any_engine", "probe", "output", "html", "start", "alternatives", "what_if"}
SHOWN |= {"fail_over_budget", "allow_over_budget", "fail_over_deadline", "save", "sweep"}
"""Parameters of `charter plan` that say what is shown of a plan or done with it, not what is planned."""


def going_on(context: typer.Context, template: str | None, file: "KindFile | None") -> tuple[str, str]:
    """Return the command that asks for the same plan again, and the step after it."""
    from charter.cli.common import words_of

    again = " ".join(["charter plan", *words_of(context, context.params.keys() - SHOWN)])
    if file is not None:
        return again, "--save charter.yaml"
    if template is not None:
        return again, f"charter init --template {template} my-run"
    return again, " ".join(["charter run", *words_of(context, {"config", "directory", "overrides"})])


def show_assumed(file: "KindFile", save: Path | None) -> None:
    """Say what was filled in, and write the file or say how."""
    from charter.cli.common import write_asked

    typer.echo("Assumed: " + "; ".join(file.assumed) + ".")
    if save is None:
        typer.echo("--save charter.yaml writes the file that this question stands for.")
    else:
        write_asked("--save", save, file.text)
        typer.echo(f"Written: {save}; bring the data that it names, then charter run.")
