"""`charter plan simulate`: a job under failures, preemptions and waits, by closed form and by simulation."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, JsonOption, SetOption, print_json

if TYPE_CHECKING:
    from charter.cli.simulate_view import SimulatedScenario

GPUS_PER_NODE = 8


def simulate(
    stage: Annotated[str | None, typer.Argument(help="A stage of the project, as planned.", show_default=False)] = None,
    directory: DirOption = Path("."),
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="Accelerators of the job.")] = None,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=1, help="Accelerators of a node.")
    ] = GPUS_PER_NODE,
    work: Annotated[str | None, typer.Option("--work", help="Useful time without any failure, 54d.")] = None,
    save: Annotated[str, typer.Option("--save", help="What a save blocks the job.")] = "60s",
    persist: Annotated[
        str | None, typer.Option("--persist", help="Asynchronous saves: until one is durable; --save is the stall.")
    ] = None,
    restart: Annotated[str, typer.Option("--restart", help="Rescheduling, loading and warm-up.")] = "5m",
    detection: Annotated[str, typer.Option("--detection", help="slurm, kubernetes, nccl, watchdog, or a time.")] = "0s",
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
    from charter.cli.simulate_view import given, planned, seconds, spot_pool
    from charter.errors import UsageError

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
    from charter.cli.simulate_view import answer_json, print_answer, write_page
    from charter.resilience.scenario import sweep
    from charter.resilience.simulate import simulate as run_simulation

    simulated = run_simulation(question.scenario.job(question.interval_seconds), runs=runs, seed=seed)
    points = sweep(question.scenario, question.interval_seconds, runs=max(2, min(runs, 200)), seed=seed)
    if html is not None:
        write_page(question, simulated, points, seed=seed, path=html)
    if as_json:
        print_json(answer_json(question, simulated, points, seed=seed))
    else:
        print_answer(question, simulated, points, seed=seed)
