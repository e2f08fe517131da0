"""`charter scale`: fit a scaling law to small runs, predict loss, and plan a large run from a budget."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from charter.cli.common import JsonOption, print_json, write_asked
from charter.cli.scale_options import LawOption, UniqueOption, count_of, law_of
from charter.cli.scale_plan import scale_plan_command

if TYPE_CHECKING:
    from charter.estimate.scaling.fitted import Prediction

scale_app = typer.Typer(
    help="Fit a scaling law to runs; predict loss; plan size, tokens, days and money of a large run.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
scale_app.command("plan")(scale_plan_command)


@scale_app.command("fit")
def scale_fit(
    file: Annotated[
        Path,
        typer.Argument(
            help="CSV with parameters, tokens, loss; and any of flops, learning_rate, batch_tokens, epochs, "
            "unique_tokens."
        ),
    ],
    form: Annotated[
        Literal["chinchilla", "kaplan"], typer.Option("--form", help="L = E + A/N^a + B/D^b, or Kaplan's.")
    ] = "chinchilla",
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where the law goes.")] = Path(
        "law.json"
    ),
    draws: Annotated[int, typer.Option("--bootstrap", min=0, help="Resamples of the runs, for the bands.")] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Of the resampling.")] = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also draw the law as one self-contained page.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Fit a law to finished runs: constants with bands, a test on the largest runs, the IsoFLOP envelope.

    Needs scipy (the extra `scale`). Exit codes: 7 without it, 8 when the file cannot be fitted, with every problem.
    """
    import json
    import os

    # Five constants are too little work for two threads: on a busy machine they wait for each other for seconds.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from charter.cli.scale_view import print_study
    from charter.estimate.scaling.law_file import study_json
    from charter.estimate.scaling.runs import read_runs
    from charter.estimate.scaling.study import study

    found = study(read_runs(_text(file), file.name), form=form, seed=seed, draws=draws)
    report = study_json(found, source=f"{len(found.runs)} runs of {file.name}")
    write_asked("--output", output, json.dumps(report, indent=1, allow_nan=False) + "\n")
    if html is not None:
        from charter.report.scaling_page import scaling_html

        write_asked("--html", html, scaling_html(found, source=f"{len(found.runs)} runs of {file.name}"))
    if json_:
        print_json({"output": str(output), **report})
    else:
        print_study(found, output)


@scale_app.command("predict")
def scale_predict(
    parameters: Annotated[str, typer.Option("--parameters", "-N", help="Of the model: 8e9 or 8B.")],
    tokens: Annotated[str, typer.Option("--tokens", "-D", help="It is trained on: 2e12 or 2T.")],
    law: LawOption = "besiroglu2024",
    unique: UniqueOption = None,
    json_: JsonOption = False,
) -> None:
    """Loss of a model after so many tokens, with p10 and p90; told when that is far beyond what was fitted."""
    fitted = law_of(law)
    size, seen = count_of(parameters, "--parameters"), count_of(tokens, "--tokens")
    told = fitted.predict(size, seen, None if unique is None else count_of(unique, "--unique-tokens"))
    if json_:
        print_json({"law": fitted.law.source, "parameters": size, "tokens": seen, **prediction_json(told)})
        return
    typer.echo(f"loss {told.loss.p50:.3f} nats per token (p10 {told.loss.p10:.3f}, p90 {told.loss.p90:.3f})")
    typer.echo(f"law: {fitted.law.source}")
    if told.worth_tokens < seen:
        typer.echo(
            f"{seen:.3g} tokens with repeats are worth {told.worth_tokens:.3g} new ones (Muennighoff et al. 2023)"
        )
    for warning in told.warnings:
        typer.echo(f"warning: {warning}")


def prediction_json(told: "Prediction") -> dict[str, object]:
    """A prediction as JSON."""
    return {
        "loss": asdict(told.loss),
        "worth_tokens": told.worth_tokens,
        "extrapolation": told.extrapolation,
        "warnings": list(told.warnings),
    }


def _text(file: Path) -> str:
    from charter.errors import UsageError

    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}; give a CSV of finished runs") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text; give a CSV of finished runs") from None
