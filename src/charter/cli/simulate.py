"""`charter plan simulate`: a job under failures, preemptions and waits, by closed form and by simulation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import (
    DirOption,
    JsonOption,
    SetOption,
    console,
    open_project,
    plain_table,
    print_json,
    write_asked,
)
from charter.errors import UsageError
from charter.plan.project_plan import plan_project
from charter.plan.stage_risk import stage_scenario
from charter.report.study_pages import FIGURES, WORDS, figure_rows, simulation_page
from charter.resilience.failures import (
    BY_NAME,
    PUBLISHED,
    SPOT_NOTICE,
    NodeFailureRate,
    mean_between_failures_seconds,
    notice_success,
)
from charter.resilience.failures import detection as delay
from charter.resilience.scenario import Scenario, SpotPool, sweep
from charter.resilience.simulate import BUCKETS, SimulationOutcome
from charter.resilience.simulate import simulate as run_simulation
from charter.resilience.spot import SPOT_SOURCE, find_trace, first_wait_seconds, heavy_tailed_market, trace_statistics
from charter.units import SECONDS_PER_HOUR, format_pace, format_seconds, format_usd, parse_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from charter.resilience.expected_time import ExpectedTime
    from charter.resilience.scenario import IntervalPoint


PoolOf = Callable[[int], tuple[SpotPool | None, str]]
"""The pool for a gang of so many nodes, and a line about it."""


@dataclass(frozen=True, kw_only=True)
class SimulatedScenario:
    """A scenario, what it was made from in words, and the interval that was asked for."""

    scenario: Scenario
    title: str
    notes: tuple[str, ...]
    interval_seconds: float
    accelerators: int
    usd_per_accelerator_hour: float | None


def seconds(flag: str, text: str) -> float:
    """The duration that an option gives."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def given(
    *,
    work: float,
    gpus: int,
    per_node: int,
    mtbf: str | None,
    rate: str | None,
    price: float | None,
    interval: str,
    times: dict[str, float],
    unseen: str,
    shape: float,
    spares: int | None,
    repair_days: float,
    pool: PoolOf,
    notice_seconds: float,
) -> SimulatedScenario:
    """A scenario from options; `times` are fields of `Scenario`."""
    nodes = max(1, -(-gpus // per_node))
    mean, failing = _mean_between_failures(mtbf, rate, nodes)
    detection = delay(
        unseen if unseen in BY_NAME else seconds(f"--detection ({', '.join(BY_NAME)}, or a time)", unseen)
    )
    market, about = pool(nodes)
    saved = notice_success(save_seconds=times["save_seconds"], notice_seconds=notice_seconds)
    scenario = Scenario(
        useful_seconds=work,
        num_nodes=nodes,
        mean_between_failures_seconds=mean,
        detection_seconds=detection.seconds,
        preemption_detection_seconds=SPOT_NOTICE.seconds,
        shape=shape,
        spares=spares,
        repair_days=repair_days,
        spot=market,
        notice_success=saved,
        **times,
    )
    notes = [failing]
    notes += [f"noticed after {format_seconds(detection.seconds)}: {detection.source}"] if detection.seconds else []
    notes += [about] if about else []
    notes += [] if spares is None else ["spares: all nodes are sound at the start; the closed form is the long run"]
    return SimulatedScenario(
        scenario=scenario,
        title=f"{gpus:,} accelerators on {nodes:,} node{'s' if nodes > 1 else ''}, {format_seconds(work)} of work",
        notes=tuple(notes),
        interval_seconds=_interval(interval, scenario),
        accelerators=gpus,
        usd_per_accelerator_hour=price,
    )


def _mean_between_failures(mtbf: str | None, rate: str | None, nodes: int) -> tuple[float, str]:
    """Mean seconds between failures of the job, and where they come from."""
    if mtbf is not None:
        if rate is not None:
            raise UsageError("give --mtbf or --failures-per-node-day, not both")
        mean = seconds("--mtbf", mtbf)
        if mean <= 0:
            raise UsageError("--mtbf: must be above zero")
        return mean, f"{format_pace('failure', mean)}: your own"
    name = rate or "llama3"
    if name in PUBLISHED:
        failure_rate = PUBLISHED[name]
    else:
        try:
            failure_rate = NodeFailureRate(per_node_day=float(name), source="your own")
        except ValueError:
            raise UsageError(f"--failures-per-node-day {name}: a number, or one of {', '.join(PUBLISHED)}") from None
        if not 0 <= failure_rate.per_node_day < float("inf"):
            raise UsageError(f"--failures-per-node-day {name}: must be 0 or more")
    mean = mean_between_failures_seconds(num_nodes=nodes, failures_per_node_day=failure_rate.per_node_day)
    often = format_pace("failure", mean)
    return mean, f"{often}: {1000 * failure_rate.per_node_day:.3g} per 1,000 node-days; {failure_rate.source}"


def spot_pool(spot: bool, up: str, availability: float, trace: str | None, nodes: int) -> tuple[SpotPool | None, str]:
    """The spot pool that was asked for, and a line about it."""
    if trace is not None:
        record = find_trace(trace)
        most = max(record.available)
        gang = max(1, min(nodes, most))
        pool = SpotPool.of_periods(record.periods(gang))
        share = "always" if pool.mean_down_seconds == 0 else f"{trace_statistics(record, gang).availability:.0%}"
        stands = f" (stands for {nodes:,} nodes)" if nodes > most else ""
        return pool, (
            f"trace {record.name}: gang of {gang}{stands}, available {share} of the time, "
            f"mean time up {format_seconds(min(pool.mean_up_seconds, record.length_seconds))}"
        )
    if not spot:
        return None, ""
    mean = seconds("--spot-up", up)
    if mean <= 0:
        raise UsageError("--spot-up: must be above zero")
    shares = {"mean_up_seconds": mean, "availability": min(availability, 0.999)}
    market = heavy_tailed_market(**shares)
    line = f"spot: mean time up {format_seconds(mean)}, available {availability:.0%} of the time"
    return SpotPool.of_market(market, first_wait_seconds(**shares)), f"{line}; defaults: {SPOT_SOURCE}"


def _interval(text: str, scenario: Scenario) -> float:
    wanted = scenario.best_interval_seconds if text == "auto" else seconds("--interval", text)
    if wanted <= 0:
        raise UsageError("--interval: must be above zero, or auto; and --work must be above zero")
    return min(wanted, scenario.useful_seconds)


def planned(name: str, directory: Path, overrides: list[str] | None, interval: str) -> SimulatedScenario:
    """A stage as it is planned: its machines, useful time, checkpoints and rates."""
    project, root = open_project(directory, overrides)
    plan = plan_project(project, root)
    stage = plan.stage(name)
    if stage is None:
        raise UsageError(f"there is no stage {name!r}; this project has {', '.join(item.name for item in plan.stages)}")
    option = stage.option
    scenario, notes = stage_scenario(option, project.risk)
    hourly = option.usd_per_hour
    return SimulatedScenario(
        scenario=scenario,
        title=f"stage {name} on {option.label}, {option.layout_label}",
        notes=notes,
        interval_seconds=option.overhead.interval_seconds if interval == "auto" else _interval(interval, scenario),
        accelerators=max(1, option.num_accelerators),
        usd_per_accelerator_hour=None if hourly is None else hourly / max(1, option.num_accelerators),
    )


BAR = 40
BLOCKS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = BAR) -> str:
    """A horizontal bar of a share of the width, to an eighth of a character.

    >>> bar(0.5, 4), bar(0.3, 4)
    ('██', '█▎')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def answer_json(
    question: "SimulatedScenario", simulated: SimulationOutcome, points: "Sequence[IntervalPoint]", *, seed: int
) -> dict[str, object]:
    """Everything that is printed, in seconds; null for what has no number."""
    scenario = question.scenario
    form = scenario.closed_form(question.interval_seconds)
    job = scenario.interruptions
    return {
        "title": question.title,
        "notes": list(question.notes),
        "inputs": {
            "accelerators": question.accelerators,
            "num_nodes": scenario.num_nodes,
            "useful_seconds": scenario.useful_seconds,
            "interval_seconds": question.interval_seconds,
            "save_seconds": scenario.save_seconds,
            "persist_seconds": scenario.persist_seconds,
            "restart_seconds": scenario.restart_seconds,
            "detection_seconds": job.detection_seconds,
            "mean_between_interruptions_seconds": _finite(job.mean_between_failures_seconds),
            "seed": seed,
        },
        "closed_form": {
            "wall_seconds": _finite(form.wall_seconds),
            "billed_seconds": _finite(form.billed_seconds),
            "interruptions": _finite(form.interruptions),
            "ettr": form.useful_share,
            "buckets_seconds": {name: _finite(getattr(form, f"{name}_seconds")) for name in BUCKETS},
        },
        "simulation": simulated.to_json(),
        "usd": _usd(question, simulated),
        "histogram": [{"from_seconds": a, "to_seconds": b, "runs": n} for a, b, n in simulated.histogram()],
        "sweep": [
            {"interval_seconds": p.interval_seconds, "ettr": p.ettr, "closed_form_ettr": p.closed_form} for p in points
        ],
    }


def write_page(
    question: "SimulatedScenario",
    simulated: SimulationOutcome,
    points: "Sequence[IntervalPoint]",
    *,
    seed: int,
    path: Path,
) -> None:
    """The same as one HTML page."""
    page = simulation_page(
        title=question.title,
        notes=question.notes,
        found=simulated,
        expected=question.scenario.closed_form(question.interval_seconds),
        points=points,
        interval_seconds=question.interval_seconds,
        seed=seed,
    )
    write_asked("--html", path, page)


def print_answer(
    question: "SimulatedScenario", simulated: SimulationOutcome, points: "Sequence[IntervalPoint]", *, seed: int
) -> None:
    """Tables and bars."""
    out = console()
    form = question.scenario.closed_form(question.interval_seconds)
    out.print(question.title)
    for note in question.notes:
        out.print(f"  {note}")
    save = f"save {format_seconds(question.scenario.save_seconds)}"
    if question.scenario.persist_seconds:
        save += f" of stall, durable {format_seconds(question.scenario.persist_seconds)} later"
    out.print(f"  a checkpoint every {format_seconds(question.interval_seconds)} of work, {save}")
    out.print(f"  {simulated.runs:,} runs, seed {seed}\n")
    _print_figures(out, question, simulated, form)
    _print_buckets(out, simulated, form)
    _print_histogram(out, simulated)
    _print_sweep(out, points, question.interval_seconds)


def _print_figures(
    out: "Console", question: "SimulatedScenario", simulated: SimulationOutcome, form: "ExpectedTime"
) -> None:
    table = plain_table(("", "left"), *((name, "right") for name in FIGURES))
    for row in figure_rows(simulated, form):
        table.add_row(*row)
    money = _usd(question, simulated)
    if money is not None:
        table.add_row("bill", "", format_usd(money["mean"]), *(format_usd(money[q]) for q in ("p50", "p90", "p99")))
    out.print(table)


FIGURES_WIDTH = 58


def _bar_width(out: "Console") -> int:
    """Return the characters that a terminal has left beside the columns of figures, at most `BAR`."""
    return max(8, min(BAR, out.width - FIGURES_WIDTH))


def _print_buckets(out: "Console", simulated: SimulationOutcome, form: "ExpectedTime") -> None:
    out.print("\nWhere the time goes")
    table = plain_table(
        ("", "left"), ("closed form", "right"), ("simulated", "right"), ("share", "right"), ("", "left")
    )
    for name, seconds in simulated.buckets().items():
        share = seconds / simulated.mean_wall_seconds if simulated.mean_wall_seconds else 0.0
        expected = format_seconds(getattr(form, f"{name}_seconds"))
        table.add_row(WORDS[name], expected, format_seconds(seconds), f"{share:.1%}", bar(share, _bar_width(out)))
    out.print(table)


def _print_histogram(out: "Console", simulated: SimulationOutcome) -> None:
    bins = simulated.histogram()
    if len(bins) == 1:
        return
    out.print("\nWall time, runs")
    most = max(count for _, _, count in bins)
    table = plain_table(("", "right"), ("", "right"), ("", "left"))
    for start, _, count in bins:
        table.add_row(format_seconds(start), f"{count:,}", bar(count / most, _bar_width(out)))
    out.print(table)


def _print_sweep(out: "Console", points: "Sequence[IntervalPoint]", chosen: float) -> None:
    if len(points) < 2:
        return
    out.print("\nUseful share over the interval between checkpoints")
    best = max((point.ettr or 0.0 for point in points), default=0.0)
    table = plain_table(("interval", "right"), ("closed form", "right"), ("simulated", "right"), ("", "left"))
    for point in points:
        mark = " <- chosen" if math.isclose(point.interval_seconds, chosen) else ""
        shown = "no progress" if point.ettr is None else f"{point.ettr:.1%}"
        length = bar((point.ettr or 0.0) / best, _bar_width(out)) if best else ""
        table.add_row(format_seconds(point.interval_seconds), f"{point.closed_form:.1%}", shown, length + mark)
    out.print(table)


def _usd(question: "SimulatedScenario", simulated: SimulationOutcome) -> dict[str, float] | None:
    price = question.usd_per_accelerator_hour
    if price is None:
        return None
    hourly = price * question.accelerators / SECONDS_PER_HOUR
    levels = simulated.quantiles(simulated.billed_seconds)
    return {"mean": hourly * simulated.mean_billed_seconds} | {name: hourly * value for name, value in levels.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


GPUS_PER_NODE = 8


def simulate(
    stage: Annotated[str | None, typer.Argument(help="A stage of the project, as planned.", show_default=False)] = None,
    directory: DirOption = Path("."),
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="Accelerators of the job.")] = None,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=1, help="Accelerators of a node.")
    ] = GPUS_PER_NODE,
    work: Annotated[str | None, typer.Option("--work", help="Useful time without any failure, 54d.")] = None,
    save: Annotated[str, typer.Option("--save", help="How long a save blocks the job.")] = "60s",
    persist: Annotated[
        str | None, typer.Option("--persist", help="Asynchronous saves: until one is durable; --save is the stall.")
    ] = None,
    restart: Annotated[str, typer.Option("--restart", help="Rescheduling, loading and warm-up.")] = "5m",
    detection: Annotated[
        str, typer.Option("--detection", help="slurm, ray, kubernetes, nccl, watchdog, agents, or a time.")
    ] = "0s",
    mtbf: Annotated[str | None, typer.Option("--mtbf", help="Mean time between failures of the whole job.")] = None,
    failures_per_node_day: Annotated[
        str | None,
        typer.Option("--failures-per-node-day", help="A rate, or llama3, rsc1, rsc2, opt, bloom.  [default: llama3]"),
    ] = None,
    weibull: Annotated[float, typer.Option("--weibull", min=0.2, max=5, help="Shape; below 1 failures cluster.")] = 1.0,
    wait: Annotated[str, typer.Option("--wait", help="Mean wait for another machine after a failure.")] = "0s",
    spares: Annotated[int | None, typer.Option("--spares", min=0, help="Own spare nodes.")] = None,
    repair_days: Annotated[float, typer.Option("--repair-days", min=0.01, help="With --spares.")] = 3.0,
    spot: Annotated[bool, typer.Option("--spot", help="A heavy-tailed spot pool.")] = False,
    spot_up: Annotated[str, typer.Option("--spot-up", help="Its mean time up.")] = "2.75h",
    availability: Annotated[float, typer.Option("--availability", min=0.01, max=1.0, help="Its share of time up.")] = (
        0.65
    ),
    trace: Annotated[
        str | None, typer.Option("--trace", help="Replay a spot trace: a file in spot-traces format, or synthetic-*.")
    ] = None,
    notice: Annotated[str, typer.Option("--notice", help="Warning before a preemption, used to save.")] = "0s",
    interval: Annotated[str, typer.Option("--interval", help="Work between checkpoints, or auto (Daly).")] = "auto",
    price: Annotated[float | None, typer.Option("--price", min=0, help="usd per accelerator and hour.")] = None,
    runs: Annotated[int, typer.Option("--runs", min=2, max=1_000_000, help="Simulated runs.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draws; the same seed prints the same.")] = 0,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write one HTML page.")] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate a job whose machines fail: closed form beside simulation, quantiles, and where the time goes.

    Either a stage of the project in DIR, with what its plan says; or --work and --gpus with the other options.
    """
    if (stage is None) == (work is None):
        raise UsageError(
            "simulate what? a stage: `charter plan simulate -C DIR ppo`\n"
            "  or numbers: `charter plan simulate --gpus 16384 --work 54d --save 10s --restart 8m`"
        )
    if stage is not None:
        if gpus or mtbf or failures_per_node_day or trace or spot or spares is not None:
            raise UsageError(
                f"stage {stage} is simulated as it is planned; its machines and failures come from charter.yaml\n"
                "  change them there or with --set, for instance --set risk.restart=8m --set resources.use_spot=true"
            )
        question = planned(stage, directory, overrides, interval)
    else:
        question = given(
            work=seconds("--work", work or ""),
            gpus=gpus or GPUS_PER_NODE,
            per_node=gpus_per_node,
            mtbf=mtbf,
            rate=failures_per_node_day,
            price=price,
            interval=interval,
            times={
                "save_seconds": seconds("--save", save),
                "persist_seconds": seconds("--persist", persist) if persist else 0.0,
                "restart_seconds": seconds("--restart", restart),
                "capacity_wait_seconds": seconds("--wait", wait),
            },
            unseen=detection,
            shape=weibull,
            spares=spares,
            repair_days=repair_days,
            pool=lambda nodes: spot_pool(spot, spot_up, availability, trace, nodes),
            notice_seconds=seconds("--notice", notice),
        )
    _show(question, runs=runs, seed=seed, as_json=as_json, html=html)


def _show(question: "SimulatedScenario", *, runs: int, seed: int, as_json: bool, html: Path | None) -> None:
    simulated = run_simulation(question.scenario.job(question.interval_seconds), runs=runs, seed=seed)
    points = sweep(question.scenario, question.interval_seconds, runs=max(2, min(runs, 200)), seed=seed)
    if html is not None:
        write_page(question, simulated, points, seed=seed, path=html)
    if as_json:
        print_json(answer_json(question, simulated, points, seed=seed))
    else:
        print_answer(question, simulated, points, seed=seed)
