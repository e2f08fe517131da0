"""`charter plan ask`: what can be trained on some hardware, for some money, in some time."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, console, plain_table, print_json
from charter.cli.inquiry import (
    AnswerTokens,
    Budget,
    Deadline,
    Judge,
    Lora,
    Nodes,
    On,
    Pairs,
    Price,
    Prompts,
    Seq,
    Tokens,
    Turns,
    inquiry_of,
)

if TYPE_CHECKING:
    from charter.plan.ask import Inquiry, KindFile, Rung
    from charter.plan.plan import Plan

Hardware = Annotated[
    str | None, typer.Option("--hardware", metavar="GPU:N", help="The same as --on.", show_default=False)
]
DEFAULTS = {"tokens": 10**8, "pairs": 60_000, "prompts": 20_000}
"""Amounts of data that a kind begins with."""


def ask(
    kind: Annotated[
        str, typer.Option("--kind", help="pretrain, sft, pm, dpo, ppo, grpo, generate, label or cai.")
    ] = "sft",
    model: Annotated[
        str | None, typer.Option("--model", help="This model alone; else sizes from 405B down to 1B.")
    ] = None,
    hardware: Hardware = None,
    on: On = None,
    nodes: Nodes = None,
    budget: Budget = None,
    deadline: Deadline = None,
    tokens: Tokens = None,
    pairs: Pairs = None,
    prompts: Prompts = None,
    answers: AnswerTokens = None,
    turns: Turns = None,
    seq: Seq = None,
    lora: Lora = None,
    judge: Judge = None,
    price: Price = None,
    as_json: JsonOption = False,
) -> None:
    """Show which models and methods fit hardware, budget and deadline: the inverse of charter plan.

    Example: charter plan ask --budget 5k --deadline 3d --hardware H100:8. That is one machine unless --nodes says more;
    without hardware all of the price book is looked at. Exit codes: 0 something fits, 2 invalid, 3 nothing.
    """
    from charter.errors import InfeasibleError, UsageError
    from charter.plan.ask import AMOUNT, kind_of, most_data, with_amount

    meant = kind_of(kind)
    if meant is None:
        from charter.plan.ask import unknown_word

        raise unknown_word(kind)
    if hardware is not None and on is not None:
        raise UsageError("--hardware and --on say the same; give one of them")
    said = {
        "tokens": tokens,
        "pairs": pairs,
        "prompts": prompts,
        "answers": answers,
        "turns": turns,
        "seq": seq,
        "lora": lora,
    }
    said |= {"judge": judge, "on": on or hardware, "nodes": nodes, "price": price}
    inquiry = inquiry_of(meant, model, said | {"budget": budget, "deadline": deadline})
    if inquiry.accelerators is not None and inquiry.nodes is None:
        inquiry = replace(inquiry, nodes=1)
    amount = AMOUNT.get(meant)
    if amount is not None and getattr(inquiry, amount) is None:
        inquiry = with_amount(inquiry, DEFAULTS[amount])
    rows = _climbed(inquiry)
    best = next((rung for rung in rows if rung.verdict == "fits"), None)
    more = None if best is None else most_data(best, _plan)
    if as_json:
        print_json(
            {
                "schema": "charter.ask/v1",
                "rows": [_json(rung) for rung in rows],
                "best": None if best is None else _json(best),
                "most_data": None if more is None else _json(more),
            }
        )
    else:
        _show(rows, best, more)
    if best is None:
        raise InfeasibleError(
            "nothing fits; give more money, time or machines, or a cheaper --kind (dpo instead of ppo)"
        )


def _climbed(inquiry: "Inquiry") -> "list[Rung]":
    """Plan every rung, with a bar on a terminal."""
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from charter.plan.ask import rungs

    rows = []
    with Progress(console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("planning", total=None)
        for rung in rungs(inquiry, _plan):
            bar.update(task, description=f"planned {rung.size} {rung.method}")
            rows.append(rung)
    return rows


def _plan(file: "KindFile") -> "Plan":
    from charter.cli.common import project_of_text
    from charter.plan.project_plan import plan_project

    project, root = project_of_text(file.text, [])
    now = datetime.now(tz=UTC)
    return plan_project(project, root, today=now.date(), start=now.replace(tzinfo=None))


def _command(rung: "Rung") -> str:
    """The command that shows a rung's plan."""
    from charter.plan.ask import OPTION_OF

    inquiry = rung.inquiry
    words = ["charter plan", inquiry.kind, str(inquiry.model)]
    given = {OPTION_OF[name]: _short(getattr(inquiry, name)) for name in OPTION_OF if name != "model"}
    given |= {"--on": inquiry.accelerators, "--nodes": inquiry.nodes, "--price": inquiry.price}
    given |= {
        "--budget": None if inquiry.budget_usd is None else f"{inquiry.budget_usd:g}",
        "--deadline": inquiry.deadline,
    }
    return " ".join([*words, *(f"{option} {value}" for option, value in given.items() if value is not None)])


def _short(value: "int | str | None") -> "int | str | None":
    """A number as people write it.

    >>> _short(100_000_000), _short(60_000), _short(1_500), _short("8B")
    ('100M', '60k', 1500, '8B')
    """
    if isinstance(value, int):
        for unit, letter in ((10**6, "M"), (10**3, "k")):
            if value >= unit and value % unit == 0:
                return f"{value // unit}{letter}"
    return value


def _json(rung: "Rung") -> dict[str, Any]:
    usd = None if rung.plan is None else rung.plan.project_usd
    seconds = None if rung.plan is None else rung.plan.seconds
    return {
        "model": rung.inquiry.model,
        "size": rung.size,
        "method": rung.method,
        "verdict": rung.verdict,
        "seconds": None if seconds is None else {"p50": seconds.p50, "p90": seconds.p90},
        "usd": None if usd is None else {"p50": usd.p50 / 1e6, "p90": usd.p90 / 1e6},
        "hardware": None if rung.plan is None else _hardware(rung.plan),
        "command": _command(rung),
        "why": rung.why or None,
    }


def _hardware(plan: "Plan") -> str:
    """The accelerators of the stage that has the most."""
    from charter.report.plan_cells import hardware

    largest = max(plan.stages, key=lambda stage: stage.option.num_nodes * stage.option.place.per_node)
    return ("up to " if len(plan.stages) > 1 else "") + hardware(largest.option)


def _show(rows: "list[Rung]", best: "Rung | None", more: "Rung | None") -> None:
    from charter.plan.ask import AMOUNT
    from charter.units import format_count, format_seconds, format_usd

    out = console()
    columns = (("model", "left"), ("method", "left"), ("verdict", "left"), ("hardware", "left"))
    table = plain_table(*columns, ("time p50-p90", "right"), ("cost p50-p90", "right"))
    for rung in rows:
        if rung.plan is None:
            table.add_row(rung.size, rung.method, rung.verdict, "", "", "")
            continue
        usd, seconds = rung.plan.project_usd, rung.plan.seconds
        money = "unpriced" if usd is None else f"{format_usd(usd.p50 / 1e6)} - {format_usd(usd.p90 / 1e6)}"
        time = f"{format_seconds(seconds.p50)} - {format_seconds(seconds.p90)}"
        table.add_row(rung.size, rung.method, rung.verdict, _hardware(rung.plan), time, money)
    out.print(table)
    if best is None and rows[-1].why:
        out.print(f"{rows[-1].size}, {rows[-1].method}: {rows[-1].why}")
    if best is not None:
        out.print(f"The largest that fits: {best.size}, {best.method}. Its plan: {_command(best)}")
    if best is not None and more is not None:
        name = AMOUNT[best.inquiry.kind]
        out.print(f"The most data for it: {format_count(getattr(more.inquiry, name))} {name}: {_command(more)}")
