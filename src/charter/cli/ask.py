"""`charter plan ask`: what can be trained on some hardware, for some money, in some time."""

from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, SetOption, console, open_project, plain_table, print_json, project_of_text
from charter.cli.inquiry import (
    AnswerTokens,
    Budget,
    Deadline,
    Judge,
    JudgePrice,
    Lora,
    Market,
    Nodes,
    On,
    Pairs,
    Price,
    Prompts,
    Seq,
    Tokens,
    Turns,
    inquiry_of,
    said_in,
    said_in_options,
)
from charter.errors import InfeasibleError, UsageError
from charter.units import format_count, format_seconds, format_usd, parse_seconds, short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from charter.plan.ask import Inquiry, Rung
    from charter.plan.plan import Plan

Hardware = Annotated[
    str | None, typer.Option("--hardware", metavar="GPU:N", help="The same as --on.", show_default=False)
]
Pilot = Annotated[
    Path | None,
    typer.Option(
        "-C", "--directory", metavar="DIR", help="A project: what its finished sweeps say.", show_default=False
    ),
]
DEFAULTS = {"tokens": 10**8, "pairs": 60_000, "prompts": 20_000}
"""Amounts of data that a kind begins with."""


def ask(
    context: typer.Context,
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
    judge_price: JudgePrice = None,
    price: Price = None,
    market: Market = None,
    directory: Pilot = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which models and methods fit hardware, budget and deadline: the inverse of charter plan.

    Example: `charter plan ask --budget 5k --deadline 3d --hardware H100:8`. That is one machine unless --nodes says
    more; without hardware all offers of the price book count. With -C the finished sweeps of a project rank more
    labels, a larger judge or another method by expected gain. Exit codes: 0 something fits, 2 invalid, 3 nothing.
    """
    from charter.plan.ask import AMOUNT, kind_file, kind_of, most_data, rungs, with_amount

    if directory is not None:
        _ask_pilot(context, directory, overrides or [], as_json=as_json)
        return
    if overrides:
        raise UsageError("--set: is of a project; give it with -C, or ask in the options of the question")
    meant = kind_of(kind)
    if meant is None:
        from charter.plan.ask import unknown_word

        raise unknown_word(kind)
    if hardware is not None and on is not None:
        raise UsageError("--hardware and --on say the same; give one of them")
    question = inquiry_of(meant, model, said_in(context) | {"on": on or hardware})
    amount = AMOUNT.get(meant)
    is_filled = amount is not None and getattr(question, amount) is None
    if amount is not None and is_filled:
        question = with_amount(question, DEFAULTS[amount])
    with planner(is_quiet=as_json) as plan_of:
        rows = list(rungs(question, plan_of))
        best = next((rung for rung in rows if rung.verdict == "fits"), None)
        more = None if best is None else most_data(best, plan_of)
    shown = best or rows[-1]
    assumed = kind_file(with_amount(shown.inquiry, None) if is_filled else shown.inquiry).assumed
    if as_json:
        print_json(
            {
                "schema": "charter.ask/v1",
                "rows": [_json(rung) for rung in rows],
                "best": None if best is None else _json(best),
                "most_data": None if more is None else _json(more),
                "assumed": list(assumed),
            }
        )
    else:
        _show(rows, best, more)
        console().print(f"Assumed of {shown.size}, {shown.method}: {'; '.join(assumed)}.")
    if best is None:
        raise InfeasibleError(f"nothing fits; {_instead(rows[-1], amount, is_one=model is not None)}")


def _ask_pilot(context: typer.Context, directory: Path, overrides: list[str], *, as_json: bool) -> None:
    """Rank what a project's pilot says of the next purchase, within budget and deadline of the command or the file."""
    import os

    from charter.plan.ask import Inquiry
    from charter.report.pilot import PilotQuestion, print_pilot, read_pilot

    said = {name: text for name, text in said_in(context).items() if text is not None}
    others = [f"--{name}" for name in ("kind", "model", "hardware") if _is_given(context, name)]
    others += [f"--{name.replace('_', '-')}" for name in said if name not in ("budget", "deadline")]
    if others:
        raise UsageError(
            f"{', '.join(others)}: the project of -C says it; only --budget, --deadline and --set go with -C"
        )
    if not directory.exists():
        raise UsageError(
            f"{directory}: ask takes options, like charter plan ask --hardware H100:8 --budget 5k --deadline 3d; "
            "the only word that it takes is the directory of a project"
        )
    given: Inquiry = inquiry_of("sft", None, said_in(context))
    project, root = open_project(directory, overrides)
    limit = None if project.budget is None else project.budget.limit
    pilot = read_pilot(
        PilotQuestion(
            path=directory,
            project=project,
            root=root,
            overrides=overrides,
            env=os.environ,
            budget_usd=limit if given.budget_usd is None else given.budget_usd,
            deadline_seconds=project.deadline if given.deadline is None else parse_seconds(given.deadline),
        )
    )
    if as_json:
        print_json(pilot.to_json())
    else:
        print_pilot(pilot, console())
    if not any(ranking.fitting for ranking in pilot.rankings):
        raise InfeasibleError("nothing that fits has a gain with an interval; run more sizes of a sweep, or give more")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _instead(least: "Rung", amount: str | None, *, is_one: bool) -> str:
    """Return what could be asked instead, where the least that was planned is too much."""
    from charter.plan.ask import OPTION_OF

    ways = {
        "over budget": ["a larger --budget"],
        "no price": ["--price"],
        "late": ["a later --deadline", "more --nodes"],
        "does not fit": ["larger machines (--on)", "more of them (--nodes)"],
    }[least.verdict]
    ways += [f"fewer {OPTION_OF[amount]}"] if amount is not None and least.plan is not None else []
    ways += ["a smaller --model"] if is_one else []
    ways += ["--kind dpo in place of ppo"] if least.inquiry.kind == "ppo" else []
    *others, last = ways
    return f"give {', '.join(others)} or {last}" if others else f"give {last}"


@contextmanager
def planner(*, is_quiet: bool) -> "Iterator[Callable[[Inquiry], Plan]]":
    """Plan an inquiry; a line on stderr says which one, where that is a terminal."""
    import sys

    from rich.console import Console

    screen = Console(file=sys.stderr, quiet=is_quiet)
    if not screen.is_terminal:
        yield _plan
        return
    with screen.status("planning") as line:
        numbers = count(1)

        def told(inquiry: "Inquiry") -> "Plan":
            line.update(f"plan {next(numbers)}: {_command(inquiry)}")
            return _plan(inquiry)

        yield told


def _plan(inquiry: "Inquiry") -> "Plan":
    from charter.plan.ask import kind_file
    from charter.plan.project_plan import plan_project

    file = kind_file(inquiry)
    with said_in_options(file):
        project, root = project_of_text(file.text, [])
        now = datetime.now(tz=UTC)
        return plan_project(project, root, today=now.date(), start=now.replace(tzinfo=None))


def _command(inquiry: "Inquiry") -> str:
    """The command that shows the plan of an inquiry."""
    from charter.plan.ask import OPTION_OF, SPOKEN

    words = ["charter plan", SPOKEN[inquiry.kind], str(inquiry.model)]
    given = {OPTION_OF[name]: short(getattr(inquiry, name)) for name in OPTION_OF if name != "model"}
    given |= {"--on": inquiry.accelerators, "--nodes": inquiry.nodes, "--price": inquiry.price}
    given |= {"--market": inquiry.market}
    given |= {
        "--budget": None if inquiry.budget_usd is None else f"{inquiry.budget_usd:g}",
        "--deadline": inquiry.deadline,
    }
    return " ".join([*words, *(f"{option} {value}" for option, value in given.items() if value is not None)])


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
        "command": _command(rung.inquiry),
        "why": rung.why or None,
    }


def _hardware(plan: "Plan") -> str:
    """The accelerators of the stage that has the most."""
    from charter.report.plan_cells import hardware

    largest = max(plan.stages, key=lambda stage: stage.option.num_nodes * stage.option.place.per_node)
    return ("up to " if len(plan.stages) > 1 else "") + hardware(largest.option)


def _show(rows: "list[Rung]", best: "Rung | None", more: "Rung | None") -> None:
    from charter.plan.ask import AMOUNT

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
        out.print(f"The largest that fits: {best.size}, {best.method}. Its plan: {_command(best.inquiry)}")
    if best is not None and more is not None:
        name = AMOUNT[best.inquiry.kind]
        out.print(f"The most data for it: {format_count(getattr(more.inquiry, name))} {name}: {_command(more.inquiry)}")
