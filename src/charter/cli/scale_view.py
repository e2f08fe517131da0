"""Views of `charter plan scale`: the fitted law with its curve, and the plan of a large run."""

from pathlib import Path
from typing import TYPE_CHECKING

from charter.cli.common import console, plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from charter.physics.scaling.study import Study
    from charter.physics.terms import Interval
    from charter.plan.scaling_plan import ScalePlan, ScaleQuestion

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
    from charter.units import format_count

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
    from charter.units import format_count

    if interval.p10 == interval.p90:
        return ""
    return f" ({format_count(interval.p10)} - {format_count(interval.p90)})"


def _schedules(out: "Console", scaled: "ScalePlan", question: "ScaleQuestion", price_source: str) -> None:
    from charter.units import format_count

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
    from charter.units import format_usd

    return f"${usd / 1e6:,.2f} M" if usd >= 1e6 else format_usd(usd)


def _settings(out: "Console", scaled: "ScalePlan") -> None:
    from charter.units import format_count

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
    from charter.units import format_count

    if scaled.serving is None:
        return
    out.print(
        f"\ncheapest in all for the same loss: {format_count(scaled.serving.num_parameters)} parameters on "
        f"{format_count(scaled.serving.num_tokens)} tokens; saves {scaled.serving.saved_share:.0%} of the accelerator "
        "time of training and answering (Sardana et al. 2023)"
    )
