"""`charter plan scale`: fit a scaling law to small runs, predict loss, and plan a large run from a budget."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from charter.cli.common import JsonOption, command_group, console, plain_table, print_json, write_asked
from charter.errors import UsageError
from charter.units import format_count, format_usd, parse_count, parse_usd_per_hour

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from charter.catalog.accelerators import Accelerator
    from charter.physics.scaling.laws import FittedLaw, Prediction
    from charter.physics.scaling.study import Study
    from charter.physics.terms import Interval
    from charter.plan.scaling_plan import ScalePlan, ScaleQuestion
    from charter.plan.training_run import Schedule


CHART_WIDTH = 56
"""Columns of the curve."""
LABELS = {
    "irreducible_loss": "E",
    "size_coefficient": "A",
    "size_exponent": "a",
    "data_coefficient": "B",
    "data_exponent": "b",
    "size_scale": "Nc",
    "data_scale": "Dc",
}


def print_study(fitted: "Study", output: Path) -> None:
    """Constants with bands, the largest runs predicted, the envelope, the curve."""
    from charter.physics.scaling.study import constants_of

    out = console()
    law = fitted.fitted.law
    shape = "L = E + A / N^a + B / D^b" if law.form == "chinchilla" else "L = [(Nc / N)^(a / b) + Dc / D]^b"
    out.print(f"{shape}, {len(fitted.runs)} runs, noise of a run {fitted.fitted.noise:.2%}")
    table = plain_table(("constant", "left"), ("value", "right"), ("p10", "right"), ("p90", "right"))
    for name in constants_of(law.form):
        band = fitted.fitted.band(lambda item, name=name: float(getattr(item, name)))  # type: ignore[misc]
        table.add_row(LABELS[name], *(f"{value:.4g}" for value in (band.p50, band.p10, band.p90)))
    out.print(table)
    if fitted.other is not None:
        out.print(f"the {fitted.other[0]} form fits them to {fitted.other[1]:.2%} (root mean square)")
    _held_back(out, fitted)
    _envelope(out, fitted)
    _curve(out, fitted)
    out.print(f"\nwritten: {output}   next: charter plan scale predict --law {output} --parameters 8e9 --tokens 2e12")


def _held_back(out: "Console", fitted: "Study") -> None:
    if not fitted.held_back:
        out.print("\ntoo few runs to hold the largest back: nothing is known of the error beyond them")
        return
    out.print("\nthe largest runs, predicted from the smaller ones:")
    heading = ("parameters", "tokens", "times the compute", "measured", "predicted", "p10 - p90", "error")
    table = plain_table(*((name, "right") for name in heading))
    for item in fitted.held_back:
        table.add_row(
            f"{item.run.num_parameters:.3g}",
            f"{item.run.num_tokens:.3g}",
            f"{item.extrapolation:.1f}",
            f"{item.run.loss:.3f}",
            f"{item.predicted:.3f}",
            f"{item.p10:.3f} - {item.p90:.3f}",
            f"{item.error:+.2%}",
        )
    out.print(table)
    inside = sum(item.inside for item in fitted.held_back)
    worst = max(abs(item.error) for item in fitted.held_back)
    out.print(f"worst error {worst:.2%}; {inside} of {len(fitted.held_back)} inside their 80 % band")


def _envelope(out: "Console", fitted: "Study") -> None:
    valleys = fitted.envelope.valleys
    if not valleys:
        out.print("\nno compute budget has four runs with a bottom between them: no IsoFLOP envelope")
        return
    out.print("\nIsoFLOP envelope (a parabola per budget):")
    heading = ("operations", "runs", "best parameters", "tokens", "loss")
    table = plain_table(*((name, "right") for name in heading), ("", "left"))
    for valley in valleys:
        table.add_row(
            f"{valley.compute_flops:.2e}",
            str(valley.num_runs),
            f"{valley.best_parameters:.3g}",
            f"{valley.best_tokens:.3g}",
            f"{valley.loss:.3f}",
            "" if valley.inside else "bottom outside the sizes that were run; not used",
        )
    out.print(table)
    if fitted.envelope.size_exponent is not None:
        out.print(f"best size grows with compute to the power {fitted.envelope.size_exponent:.3f}")


def _curve(out: "Console", fitted: "Study") -> None:
    """Loss of the best size by compute: `●` the law, `─` its band, `○` the best run of that compute."""
    from charter.physics.scaling.study import curve

    points = curve(fitted)
    ends = [value for item in points for value in (item.loss.p10, item.loss.p90, item.best_run) if value is not None]
    out.print(
        "\nbest loss by compute: ● law, ─ p10 to p90, ○ the best run near it, ◉ both; below the line no run was fitted"
    )
    drawn = False
    for item in points:
        if item.compute_flops > fitted.fitted.fitted_on.compute_flops[1] * (1 + 1e-9) and not drawn:
            out.print("          " + "┄" * (CHART_WIDTH + 16))
            drawn = True
        line = _line(item.loss, item.best_run, min(ends), max(ends))
        out.print(f" {item.compute_flops:8.1e} {item.loss.p50:6.3f} {line}")


def _line(loss: "Interval", run: float | None, least: float, most: float) -> str:
    def column(value: float) -> int:
        return round((value - least) / max(most - least, 1e-9) * (CHART_WIDTH - 1))

    cells = [" "] * CHART_WIDTH
    for index in range(column(loss.p10), column(loss.p90) + 1):
        cells[index] = "─"
    cells[column(loss.p50)] = "●"
    if run is not None:
        cells[column(run)] = "◉" if column(run) == column(loss.p50) else "○"
    return "".join(cells).rstrip()


def print_plan(scaled: "ScalePlan", question: "ScaleQuestion", price_source: str) -> None:
    """Size, loss, a schedule per number of accelerators, settings."""
    out = console()
    prediction = scaled.prediction
    out.print(
        f"{format_count(scaled.num_parameters.p50)} parameters{_band(scaled.num_parameters)}, "
        f"{format_count(scaled.num_tokens.p50)} tokens{_band(scaled.num_tokens)}: "
        f"{scaled.tokens_per_parameter:.0f} tokens per parameter, {scaled.compute_flops:.3g} operations"
    )
    if abs(scaled.best_parameters / scaled.num_parameters.p50 - 1) > 0.02:
        out.print(
            f"best for the same compute: {format_count(scaled.best_parameters)} parameters, "
            f"{format_count(scaled.best_tokens)} tokens"
        )
    out.print(
        f"loss {prediction.loss.p50:.3f} (p10 {prediction.loss.p10:.3f}, p90 {prediction.loss.p90:.3f}); "
        f"{question.law.law.source}"
    )
    if prediction.worth_tokens < scaled.num_tokens.p50:
        out.print(f"with repeats the tokens are worth {format_count(prediction.worth_tokens)} new ones")
    _schedules(out, scaled, question, price_source)
    _settings(out, scaled)
    _serving(out, scaled)
    for warning in prediction.warnings:
        out.print(f"warning: {warning}")


def _band(interval: "Interval") -> str:
    if interval.p10 == interval.p90:
        return ""
    return f" ({format_count(interval.p10)} - {format_count(interval.p90)})"


def _schedules(out: "Console", scaled: "ScalePlan", question: "ScaleQuestion", price_source: str) -> None:
    device = question.clusters[0].accelerator.name
    when = ("GPUs", "MFU", "days at work", "days p50", "p10 - p90", "failures", "useful", "GPU-hours")
    table = plain_table(*((name, "right") for name in (*when, "cost p50", "p90")))
    for item in scaled.schedules:
        table.add_row(
            f"{item.cluster.count:,}",
            f"{item.utilisation:.1%}",
            f"{item.useful_days:,.1f}",
            f"{item.days.p50:,.1f}",
            f"{item.days.p10:,.1f} - {item.days.p90:,.1f}",
            f"{item.interruptions:,.0f}",
            f"{item.effective_share:.1%}",
            format_count(item.gpu_hours.p50),
            "-" if item.usd is None else _millions(item.usd.p50),
            "-" if item.usd is None else _millions(item.usd.p90),
        )
    out.print()
    out.print(table)
    for item in scaled.schedules:
        if item.layout:
            out.print(f"{item.cluster.count:,}: {item.layout}")
    for unfit in scaled.unfit:
        out.print(f"{unfit.cluster.count:,}: infeasible, {unfit.reason}")
    usd = question.clusters[0].price_usd_per_hour
    out.print(f"{device} at ${usd:.2f} per hour ({price_source}); MFU: {scaled.schedules[0].utilisation_source}")
    basis = "kept for every number of GPUs" if question.utilisation else "planned anew for each"
    out.print(f"efficiency {basis}; days p50 hold failures, restarts and checkpoints, days at work do not")


def _millions(usd: float) -> str:
    return f"${usd / 1e6:,.2f} M" if usd >= 1e6 else format_usd(usd)


def _settings(out: "Console", scaled: "ScalePlan") -> None:
    table = plain_table(("learning rate and batch", "left"), ("learning rate", "right"), ("tokens a step", "right"))
    for rule in scaled.rules:
        rate, batch = rule.learning_rate, rule.batch_tokens
        table.add_row(
            rule.name,
            "-" if rate is None else f"{rate.p50:.1e} ({rate.p10:.1e} - {rate.p90:.1e})",
            "-"
            if batch is None
            else f"{format_count(batch.p50)} ({format_count(batch.p10)} - {format_count(batch.p90)})",
        )
    for run in scaled.nearest:
        table.add_row(f"used: {run.name}", f"{run.learning_rate:.1e}", format_count(run.batch_tokens))
    out.print()
    out.print(table)
    out.print(
        "the bands are half and twice the rule's value; rules disagree beyond their own data, so sweep around them"
    )


def _serving(out: "Console", scaled: "ScalePlan") -> None:
    if scaled.serving is None:
        return
    out.print(
        f"\ncheapest in all for the same loss: {format_count(scaled.serving.num_parameters)} parameters on "
        f"{format_count(scaled.serving.num_tokens)} tokens; saves {scaled.serving.saved_share:.0%} of the accelerator "
        "time of training and answering (Sardana et al. 2023)"
    )


LawOption = Annotated[
    str,
    typer.Option("--law", help="File of `charter plan scale fit`, or besiroglu2024, hoffmann2022, kaplan2020."),
]
UniqueOption = Annotated[
    str | None,
    typer.Option("--unique-tokens", help="Tokens that there are; more are repeats (Muennighoff et al. 2023)."),
]


def law_of(text: str) -> "FittedLaw":
    """A law by its file or by its published name."""
    from charter.physics.scaling.laws import published

    path = Path(text)
    if not path.is_file():
        return published(text)
    from charter.physics.scaling.study import read_law

    return read_law(path.read_bytes(), text)


def count_of(text: str, option: str) -> float:
    """A count above zero from `8e9`, `8B` or `2.5T`.

    >>> count_of("8e9", "-N"), count_of("1.5T", "-D")
    (8000000000.0, 1500000000000.0)
    """
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        try:
            value = float(parse_count(text))
        except ValueError:
            value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{option} {text}: give a number above zero, like 8e9, 8B or 1.4T")
    return value


def scale_plan_command(
    budget: Annotated[str | None, typer.Option("--budget", help="Money: $1_000_000 or 1M.")] = None,
    compute: Annotated[str | None, typer.Option("--compute", "-C", help="Operations: 5.76e23.")] = None,
    parameters: Annotated[
        str | None, typer.Option("--parameters", "-N", help="Parameters of the model: 70e9 or 70B.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option("--tokens", "-D", help="Tokens that it is trained on: 2e12 or 2T.")
    ] = None,
    law: LawOption = "besiroglu2024",
    accelerator: Annotated[
        str, typer.Option("--accelerator", "-a", help="Type, as in `charter catalog gpus`.")
    ] = "H100",
    gpus: Annotated[str, typer.Option("--gpus", help="How many; several with commas: 2048,4096,10240.")] = "1024",
    price: Annotated[
        str | None, typer.Option("--price", help="Per accelerator-hour; the median on-demand price when left out.")
    ] = None,
    mfu: Annotated[
        str | None,
        typer.Option("--mfu", help="Share of the dense bf16 peak: 0.4, 40%, or of a published run: llama2-70b."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Plan the step of this catalog model or config.json.")
    ] = None,
    batch_tokens: Annotated[str, typer.Option("--batch-tokens", help="Tokens of a step.")] = "4M",
    unique: UniqueOption = None,
    generated: Annotated[
        str | None,
        typer.Option(
            "--generated-tokens", help="Tokens generated over its life: says whether a smaller model is cheaper in all."
        ),
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Plan a large run: best size and tokens, loss, days and money with p10 and p90, learning rate and batch.

    Give --budget, --compute, --parameters, --tokens, or a pair of them. Days come from the planner's own step time
    (Megatron layouts), or from a stated --mfu that is kept for every number of accelerators; failures, checkpoints and
    restarts are counted in both. Exit codes: 2 invalid, 3 the model fits nowhere.
    """
    from charter.plan.scaling_plan import scale_plan

    device, usd, price_source = _priced(accelerator, price)
    clusters = tuple((device, count, usd) for count in _counts(gpus))
    question = _question(
        law=law,
        clusters=clusters,
        budget=budget,
        wishes={"compute": compute, "parameters": parameters, "tokens": tokens, "batch-tokens": batch_tokens}
        | {"unique-tokens": unique, "generated-tokens": generated},
        mfu=mfu,
        model=model,
    )
    scaled = scale_plan(question)
    report = _report(scaled, question, price_source)
    if json_:
        print_json(report)
        return

    print_plan(scaled, question, price_source)


def _priced(accelerator: str, price: str | None) -> "tuple[Accelerator, float, str]":
    """The accelerator, what an hour of it costs, and where that is from."""
    from charter.catalog.accelerators import get
    from charter.plan.training_run import snapshot_price

    device = get(accelerator)
    if price is not None:
        return device, _usd(price, "--price"), "--price"
    return device, *snapshot_price(device)


def _question(
    *,
    law: str,
    clusters: "tuple[tuple[Accelerator, int, float], ...]",
    budget: str | None,
    wishes: "Mapping[str, str | None]",
    mfu: str | None,
    model: str | None,
) -> "ScaleQuestion":
    from charter.catalog import models
    from charter.physics.shapes import count_parameters
    from charter.plan.scaling_plan import DEFAULT_BATCH_TOKENS, ScaleQuestion
    from charter.plan.training_run import RunCluster, utilisation_of

    wanted = {name: None if text is None else count_of(text, f"--{name}") for name, text in wishes.items()}
    shape = None if model is None else models.resolve(model).architecture
    size = wanted["parameters"]
    if size is None and shape is not None:
        size = float(count_parameters(shape).active)
    return ScaleQuestion(
        law=law_of(law),
        clusters=tuple(
            RunCluster(accelerator=device, count=count, price_usd_per_hour=usd) for device, count, usd in clusters
        ),
        budget_usd=None if budget is None else _usd(budget, "--budget"),
        compute_flops=wanted["compute"],
        num_parameters=size,
        num_tokens=wanted["tokens"],
        unique_tokens=wanted["unique-tokens"],
        generated_tokens=wanted["generated-tokens"],
        utilisation=None if mfu is None else utilisation_of(mfu),
        batch_tokens=wanted["batch-tokens"] or DEFAULT_BATCH_TOKENS,
        architecture=shape,
    )


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part.replace("_", "")) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise UsageError(f"--gpus {text}: give whole numbers above zero, like 2048 or 2048,4096,10240")
    return counts


def _usd(text: str, option: str) -> float:
    try:
        value = parse_usd_per_hour(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if value <= 0:
        raise UsageError(f"{option} {text}: give an amount above zero, like $2.50")
    return value


def _report(scaled: "ScalePlan", question: "ScaleQuestion", price_source: str) -> dict[str, object]:
    return {
        "law": question.law.law.source,
        "parameters": asdict(scaled.num_parameters),
        "tokens": asdict(scaled.num_tokens),
        "tokens_per_parameter": scaled.tokens_per_parameter,
        "compute_flops": scaled.compute_flops,
        "optimal": {"parameters": scaled.best_parameters, "tokens": scaled.best_tokens},
        "loss": asdict(scaled.prediction.loss),
        "worth_tokens": scaled.prediction.worth_tokens,
        "warnings": list(scaled.prediction.warnings),
        "price": {"usd_per_accelerator_hour": question.clusters[0].price_usd_per_hour, "source": price_source},
        "schedules": [_schedule(item) for item in scaled.schedules],
        "infeasible": [
            {"accelerator": item.name, "accelerators": item.cluster.count, "reason": item.reason}
            for item in scaled.unfit
        ],
        "settings": [
            {
                "rule": rule.name,
                "source": rule.source,
                "learning_rate": None if rule.learning_rate is None else asdict(rule.learning_rate),
                "batch_tokens": None if rule.batch_tokens is None else asdict(rule.batch_tokens),
            }
            for rule in scaled.rules
        ],
        "published_runs": [
            {
                "name": run.name,
                "learning_rate": run.learning_rate,
                "batch_tokens": run.batch_tokens,
                "source": run.source,
            }
            for run in scaled.nearest
        ],
        "serving_aware": None
        if scaled.serving is None
        else vars(scaled.serving) | {"saved_share": scaled.serving.saved_share},
    }


def _schedule(item: "Schedule") -> dict[str, object]:
    return {
        "accelerator": item.cluster.accelerator.name,
        "count": item.cluster.count,
        "utilisation": item.utilisation,
        "utilisation_source": item.utilisation_source,
        "layout": item.layout,
        "useful_days": item.useful_days,
        "days": asdict(item.days),
        "gpu_hours": asdict(item.gpu_hours),
        "usd": None if item.usd is None else asdict(item.usd),
        "effective_share": item.effective_share,
        "interruptions": item.interruptions,
        "checkpoint_interval_seconds": item.overhead.interval_seconds,
    }


scale_app = command_group("Fit a scaling law to runs; predict loss; plan size, tokens, days and money of a large run.")
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
    seed: Annotated[int, typer.Option("--seed", help="Seed of the resampling.")] = 0,
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
    from charter.physics.scaling.fit import read_runs
    from charter.physics.scaling.study import study, study_json

    fitted = study(read_runs(_text(file), file.name), form=form, seed=seed, draws=draws)
    report = study_json(fitted, source=f"{len(fitted.runs)} runs of {file.name}")
    write_asked("--output", output, json.dumps(report, indent=1, allow_nan=False) + "\n")
    if html is not None:
        from charter.report.study_pages import scaling_html

        write_asked("--html", html, scaling_html(fitted, source=f"{len(fitted.runs)} runs of {file.name}"))
    if json_:
        print_json({"output": str(output), **report})
    else:
        print_study(fitted, output)


@scale_app.command("predict")
def scale_predict(
    parameters: Annotated[str, typer.Option("--parameters", "-N", help="Parameters of the model: 8e9 or 8B.")],
    tokens: Annotated[str, typer.Option("--tokens", "-D", help="Tokens that it is trained on: 2e12 or 2T.")],
    law: LawOption = "besiroglu2024",
    unique: UniqueOption = None,
    json_: JsonOption = False,
) -> None:
    """Predict a model's loss after so many tokens, with p10 and p90; say so when that is far beyond the fit."""
    fitted = law_of(law)
    size, seen = count_of(parameters, "--parameters"), count_of(tokens, "--tokens")
    prediction = fitted.predict(size, seen, None if unique is None else count_of(unique, "--unique-tokens"))
    if json_:
        print_json({"law": fitted.law.source, "parameters": size, "tokens": seen, **prediction_json(prediction)})
        return
    typer.echo(
        f"loss {prediction.loss.p50:.3f} nats per token (p10 {prediction.loss.p10:.3f}, p90 {prediction.loss.p90:.3f})"
    )
    typer.echo(f"law: {fitted.law.source}")
    if prediction.worth_tokens < seen:
        typer.echo(
            f"{seen:.3g} tokens with repeats are worth {prediction.worth_tokens:.3g} new ones (Muennighoff et al. 2023)"
        )
    for warning in prediction.warnings:
        typer.echo(f"warning: {warning}")


def prediction_json(prediction: "Prediction") -> dict[str, object]:
    """A prediction as JSON."""
    return {
        "loss": asdict(prediction.loss),
        "worth_tokens": prediction.worth_tokens,
        "extrapolation": prediction.extrapolation,
        "warnings": list(prediction.warnings),
    }


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}; give a CSV of finished runs") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text; give a CSV of finished runs") from None
