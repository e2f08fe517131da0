"""Notes below the table of a plan: what decides it, the alternatives, the uncertainties."""

from collections.abc import Iterator
from itertools import chain

from rich.text import Text

from charter.engines import capabilities
from charter.engines.common.capabilities import refused_fields
from charter.plan.assemble import NO_NATIVE_ROW
from charter.plan.offers import known_memory_bytes, node_memory_bytes
from charter.plan.option import Option, Rejected
from charter.plan.plan import Plan
from charter.plan.project_plan import MODEL
from charter.plan.purchase import shared_servers
from charter.plan.rl_work import AGE_OF_TOKENS
from charter.plan.stage_plan import StagePlan
from charter.plan.stage_risk import StageRisk
from charter.plan.timeline import finish_date
from charter.report.plan_cells import VERDICT_WORDS, layout, median_usd, short_date
from charter.spec.stage_base import NATIVE
from charter.units import GIB, format_bytes, format_ratio, format_seconds, format_usd


def placement_lines(plan: Plan) -> Iterator[str]:
    """One line per stage that has something to place, then one per pause between two stages that serve one model."""
    for stage in plan.stages:
        if len(stage.option.groups) > 1:
            yield _groups(stage)
        if stage.serving_reason:
            yield f"Serving for {stage.name}: {stage.serving_reason}."
    largest = {
        (shared.earlier, shared.later): shared
        for shared in sorted(shared_servers(plan.stages, plan.timeline()), key=lambda shared: shared.gap.load_seconds)
    }
    for shared in largest.values():
        yield f"Servers of {shared.line}."


def generator_lines(plan: Plan) -> Iterator[str]:
    """A line for each stage of which most accelerators wait while one server answers the rollout."""
    for stage in plan.stages:
        option = stage.option
        question = None if stage.searched is None else stage.searched.question
        asks = question is not None and getattr(question.stage, "generator", "") == "vllm"
        does = capabilities(option.engine)
        if asks and does.vllm_share and not does.vllm_everywhere and option.layout.data > 1 and not option.groups:
            share = sum(term.value for term in option.time_terms if term.part == "generate") / sum(
                term.value for term in option.time_terms
            )
            yield (
                f"vLLM of {stage.name}: the {does.name} engine starts one, on the first of {option.num_accelerators} "
                f"accelerators, and the others wait while it answers, {share:.0%} of the work; without "
                f"`generator: vllm` each answers a part."
            )


def memory_lines(plan: Plan) -> Iterator[str]:
    """A line for each stage whose nodes have less system memory than it is planned to need, or may have."""
    for stage in plan.stages:
        place, need = stage.option.place, stage.node.memory.total
        if place.is_cpu or need <= node_memory_bytes(place):
            continue
        begin = f"System memory of {stage.name}: a node needs about {format_bytes(need)}, and"
        have = known_memory_bytes(place)
        if have is None:
            guess = format_bytes(node_memory_bytes(place))
            yield (
                f"{begin} nobody says how much {place.label} has: {guess} is assumed, which holds what waits there but "
                f"no copies of a checkpoint (`memory` in its resources says it)."
            )
        else:
            yield (
                f"{begin} {place.label} has {format_bytes(have)}; its job would wait for a larger one (`memory` in its "
                f"resources asks for less)."
            )


def sample_lines(plan: Plan) -> Iterator[str]:
    """Yield what answers for people to read cost at most, and which stages give none."""
    drawn = [stage for stage in plan.stages if stage.samples is not None and stage.samples.share]
    refused: dict[str, list[str]] = {}
    for stage in plan.stages:
        if stage.samples is not None and stage.samples.why_none:
            refused.setdefault(stage.samples.why_none, []).append(stage.name)
    none = "; ".join(f"none at {', '.join(names)}: {why}" for why, names in refused.items())
    if drawn and drawn[0].samples is not None:
        first, most = drawn[0].samples, [stage.sample_usd for stage in drawn]
        priced = [part for part in most if part is not None]
        money = f", {format_usd(sum(priced))}" if len(priced) == len(most) else ""
        time = format_seconds(sum(stage.sample_seconds for stage in drawn))
        names = ", ".join(stage.name for stage in drawn)
        text = (
            f"Samples to read: {first.prompts} answers at each checkpoint of {names}, for at "
            f"most {100 * first.share:g} % of the time on top: {time}{money}"
        )
        yield f"{text}{f'; {none}' if none else ''} (samples: {{count: 0}} draws none)."
    elif none:
        yield f"Samples to read: {none}."


def _groups(stage: StagePlan) -> str:
    """`Roles of ppo, async: trainers 7 x H100-SXM-80GB 88 % busy, ...; 12 % of the paid time waits ($23)`."""
    option = stage.option
    groups = ", ".join(
        f"{group.name} {group.num_accelerators} x {group.hardware} {100 * group.busy_share:.0f} % busy"
        for group in option.groups
    )
    waits = "" if option.idle_usd is None else f" ({format_usd(option.idle_usd)})"
    share = f"{100 * option.idle_share:.0f} % of the accelerators' time"
    return f"Roles of {stage.name}, {option.placement}: {groups}; {share}{waits} waits for other groups."


VERDICT_STYLE = {"ok": "green", "p90 over": "yellow", "over": "red", "unpriced": "dim"}
TIES_NAMED = 3
NEXT = ("--alternatives 3", "--html plan.html", "--json")
"""What else the same command can be asked."""
WORTH_NAMING = 1.02
"""An alternative must be at least this much cheaper or faster; judgement, well inside the width of any estimate."""


def note_groups(plan: Plan) -> Iterator[tuple[str, tuple[Text, ...]]]:
    """Yield the notes below the table under their headings, what decides about a run first; no group is empty."""
    groups: tuple[tuple[str, Iterator[Text]], ...] = (
        ("Before you start", chain(_inexpressible(plan), _models(plan), _in_yellow(memory_lines(plan)))),
        ("Limits and dates", chain(_limits(plan), _advice(plan), _dates(plan))),
        ("What decides time and cost", chain([_pole_line(plan)], _alternatives(plan), _engines(plan), _details(plan))),
        ("Also in this plan", chain(_plain(placement_lines(plan)), _plain(generator_lines(plan)), _beside(plan))),
        ("How far to trust it", chain(_uncertain(plan), _sources(plan))),
    )
    for heading, notes in groups:
        if lines := tuple(notes):
            yield heading, lines


def next_line(plan: Plan, *, command: str, then: str) -> Text:
    """Say how to go on from `command`."""
    steps = (f"{command} --explain {longest_pole(plan).name}", *NEXT, then)
    return Text("Next: " + " \N{MIDDLE DOT} ".join(steps), style="dim")


def _plain(lines: Iterator[str]) -> Iterator[Text]:
    return (Text(line) for line in lines)


def _in_yellow(lines: Iterator[str]) -> Iterator[Text]:
    return (Text(line, style="yellow") for line in lines)


def _details(plan: Plan) -> Iterator[Text]:
    yield from _market_and_risk(plan)
    yield from _why_not(plan)
    yield from _ties(plan)


def _engines(plan: Plan) -> Iterator[Text]:
    if line := engine_line(plan):
        yield Text(line)


def _beside(plan: Plan) -> Iterator[Text]:
    for item in plan.assumptions:
        if item.name == AGE_OF_TOKENS:
            yield Text(f"Updates behind what PPO learns from, by token: {item.value}.")
    yield from _plain(sample_lines(plan))


def _sources(plan: Plan) -> Iterator[Text]:
    if NO_NATIVE_ROW in plan.assumptions:
        yield Text(f"Native engine on accelerators: {NO_NATIVE_ROW.source}.")
    yield from _price_lines(plan)


def _dates(plan: Plan) -> Iterator[Text]:
    """Yield the dates on which the plan ends."""
    if plan.start is None:
        return
    median, high = (
        f"{finish_date(value, plan.start):%Y-%m-%d %H:%M}" for value in (plan.seconds.p50, plan.seconds.p90)
    )
    yield Text(f"Dates: started on {plan.start:%Y-%m-%d %H:%M} UTC, the run ends on {median} (p50) to {high} (p90).")


def _inexpressible(plan: Plan) -> Iterator[Text]:
    """A line for each stage that its engine cannot do as it is written: it has a price, and does not run so."""
    for stage in plan.stages:
        if stage.searched is None or stage.searched.question is None:
            continue
        engine = stage.option.engine
        lacking = "; ".join(refused_fields(stage.searched.question.stage, capabilities(engine)))
        if lacking:
            yield Text(f"{stage.name} does not run as it is written: engine {engine}, {lacking}.", style="red")


def longest_pole(plan: Plan) -> StagePlan:
    """The stage that takes longest of those that decide the end of the run."""
    path = plan.timeline().critical_path
    return max((stage for stage in plan.stages if stage.name in path), key=lambda stage: stage.option.seconds.p50)


def dominant_phase(stage: StagePlan) -> tuple[str, float] | None:
    """The part of a stage's work that takes longest, and its share of it."""
    parts: dict[str, float] = {}
    for term in stage.option.time_terms:
        parts[term.part] = parts.get(term.part, 0.0) + term.value
    total = sum(parts.values())
    if total <= 0:
        return None
    name = max(parts, key=lambda key: parts[key])
    return name, parts[name] / total


def alternatives(stage: StagePlan) -> list[tuple[str, Option]]:
    """The cheapest option that is cheaper than the chosen one, and the fastest that is faster, both at the median.

    Nothing is named that saves less than 2 %. Without prices only the faster one is known.
    """
    chosen = stage.option
    others: list[tuple[str, Option]] = []
    priced = [option for option in stage.options if option.usd is not None]
    cheapest = min(priced, key=lambda option: (median_usd(option), option.seconds.p50), default=None)
    if cheapest is not None and chosen.usd is not None and median_usd(cheapest) * WORTH_NAMING < median_usd(chosen):
        others.append(("Cheaper", cheapest))
    fastest = min(stage.options, key=lambda option: (option.seconds.p50, median_usd(option)), default=None)
    if fastest is not None and fastest.seconds.p50 * WORTH_NAMING < chosen.seconds.p50:
        others.append(("Faster", fastest))
    return others


def _limits(plan: Plan) -> Iterator[Text]:
    if plan.budget_usd is not None and plan.budget_verdict is not None:
        limit = format_usd(plan.budget_usd)
        yield Text.assemble(f"Budget {limit}: ", _verdict(plan.budget_verdict), _left(plan), ".")
    if plan.deadline_seconds is not None and plan.deadline_verdict is not None:
        limit = format_seconds(plan.deadline_seconds)
        yield Text.assemble(f"Deadline {limit}: ", _verdict(plan.deadline_verdict), ".")


def _models(plan: Plan) -> Iterator[Text]:
    """Yield the assumptions behind reading a model, and parts of it that are not planned."""
    for item in plan.assumptions:
        if item.name.startswith(MODEL):
            yield Text(f"Assumed, {item.name}: {item.source}.", style="yellow")


def _left(plan: Plan) -> str:
    """`; p90 $1,873 is over by $373`."""
    total = plan.project_usd
    if total is None or plan.budget_usd is None:
        return ""
    high = total.p90 / 1e6
    over = high - plan.budget_usd
    said = f"is over by {format_usd(over)}" if over > 0 else f"leaves {format_usd(-over)}"
    return f"; p90 {format_usd(high)} {said}"


def _verdict(verdict: str) -> tuple[str, str]:
    return VERDICT_WORDS[verdict], VERDICT_STYLE[verdict]


def _pole_line(plan: Plan) -> Text:
    pole = longest_pole(plan)
    phase = dominant_phase(pole)
    if len(plan.stages) == 1 and phase is not None:
        return Text(f"Most of the time of {pole.name}: {phase[0]!r}, {100 * phase[1]:.0f} %.")
    most = "" if phase is None else f", {100 * phase[1]:.0f} % of its time in {phase[0]!r}"
    path = plan.timeline().critical_path
    return Text(f"Bottleneck (✔): {pole.name}{most}. Critical path: {' > '.join(path)}.")


def _alternatives(plan: Plan) -> Iterator[Text]:
    pole = longest_pole(plan)
    for word, option in alternatives(pole):
        yield Text(f"{word} for {pole.name}: {option.label}, {layout(option)}: {difference(option, pole.option)}.")


def _advice(plan: Plan) -> Iterator[Text]:
    """The nearest changes that would keep a limit that is not kept."""
    for sentence in (*plan.advice, *plan.budget_advice):
        yield Text(f"Nearest change: {sentence}")


def _market_and_risk(plan: Plan) -> Iterator[Text]:
    """Yield the reason for the market of the longest stage, and its expected failures."""
    pole = longest_pole(plan)
    if pole.market_reason:
        yield Text(f"Market for {pole.name}: {pole.market_reason}.")
    if pole.risk is not None and pole.risk.interruptions > 0:
        yield Text(f"Risk of {pole.name}: {risk_sentence(pole.risk)}.")


def risk_sentence(risk: StageRisk) -> str:
    """`a checkpoint every 25 min 0 s; 3.2 interruptions expected, 14 min 2 s lost at each; 1 spare node; ...`."""
    parts = [f"a checkpoint every {format_seconds(risk.interval_seconds)}"]
    software = f" ({100 * risk.software_share:.0f} % by software)" if risk.software_share else ""
    each = format_seconds(risk.lost_seconds_each)
    number = f"{risk.interruptions:,.0f}" if risk.interruptions >= 10 else f"{risk.interruptions:.2g}"
    parts.append(f"{number} interruptions expected{software}, {each} lost at each")
    if risk.spares is not None and risk.spares.nodes:
        parts.append(f"{risk.spares.nodes} spare node{'s' if risk.spares.nodes > 1 else ''}")
    parts.append(f"{100 * risk.useful_share:.0f} % of the paid time is work")
    return "; ".join(parts)


def difference(option: Option, chosen: Option) -> str:
    """`$12 less, 2 h 10 min longer` at the medians."""
    parts = []
    if option.usd is not None and chosen.usd is not None:
        more = option.usd.p50 - chosen.usd.p50
        parts.append(f"{format_usd(abs(more))} {'more' if more > 0 else 'less'}")
    longer = option.seconds.p50 - chosen.seconds.p50
    parts.append(f"{format_seconds(abs(longer))} {'longer' if longer > 0 else 'shorter'}")
    return ", ".join(parts)


def _ties(plan: Plan) -> Iterator[Text]:
    pole = longest_pole(plan)
    others = [tied for tied in pole.option.tied_layouts if tied.label != pole.option.layout.label]
    if others:
        base = pole.option.overhead.useful_seconds
        named = ", ".join(f"{tied.label} ({format_ratio(tied.seconds / base)})" for tied in others[:TIES_NAMED])
        yield Text(f"As good for {pole.name}, within what the estimate can tell: {named}.")


def _uncertain(plan: Plan) -> Iterator[Text]:
    """Yield the reason why the total is no sum, and the spread of the cost over random draws with its main causes."""
    if len(plan.stages) > 1:
        yield Text(
            "Total time: p50 and p90 of the run as a whole, over random draws of all stages together; those of the "
            "stages do not add up to it."
        )
    if plan.cost is None or plan.cost.unpriced or not plan.cost.spread.drivers:
        return
    spread = plan.cost.spread
    low, middle, high = (format_usd(getattr(spread.usd, name)) for name in ("p10", "p50", "p90"))
    causes = ", ".join(f"{item.cause} {100 * item.share:.0f} %" for item in spread.drivers)
    yield Text(
        f"Total cost: the sum of the lines above, at p50 and at p90; over {spread.draws:,} draws it is {low} to {high} "
        f"(p10 to p90), median {middle}; the spread comes from {causes}."
    )


def _price_lines(plan: Plan) -> Iterator[Text]:
    prices = {
        f"{option.place.label} {option.price.market.replace('_', ' ')}"
        f" {format_usd(option.price.usd_per_hour)} per accelerator-hour,"
        f" as of {short_date(option.price.as_of) or 'now'}"
        for option in (stage.option for stage in plan.stages)
        if option.price.usd_per_hour
    }
    if not prices and plan.usd is not None:
        return
    for text in sorted(prices) or [
        "none known for this machine; resources.price, or --price of a question, shows a cost"
    ]:
        yield Text(f"Prices: {text}.")


def _why_not(plan: Plan) -> Iterator[Text]:
    """The nearest option that fitted and lost, and the nearest that did not fit, of the longest stage."""
    pole = longest_pole(plan)
    fitting, other = split_rejected(pole)
    too_small = [item for item in other if item.reason.startswith("needs")]
    for item in (*fitting[:1], *too_small[:1]):
        yield Text(f"Why not {item.option} for {pole.name}? {item.reason}.")


def split_rejected(stage: StagePlan) -> tuple[list[Rejected], list[Rejected]]:
    """Rejected options that fit, best first; and the families that do not, or that are not offered."""
    names = {f"{option.label} {option.layout_label}" for option in stage.options}
    fitting = [item for item in stage.rejected if item.option in names]
    return fitting, [item for item in stage.rejected if item.option not in names]


# -------- Other engines on the accelerators of each stage, with time and money, as lines of text.

WORTH_SAYING = 0.9
"""Share of the native engine's work time, from which on another engine is named: estimates differ by as much."""


def engine_lines(plan: Plan) -> Iterator[str]:
    """A block per stage that was asked about (`--any-engine`); nothing otherwise."""
    for stage in plan.stages:
        if not stage.other_engines:
            continue
        option = stage.option
        work = format_seconds(option.overhead.useful_seconds)
        yield f"{stage.name}: {option.engine} {option.layout_label}, {work} of work on {option.label}"
        for other in stage.other_engines:
            yield (
                f"  {other.engine}: {other.layout}, {format_seconds(other.seconds)} ({format_ratio(other.ratio)}), "
                f"{other.peak_bytes * stage.peak_range.margin / GIB:.1f} GiB"
                + (f"; not as written: {other.refused}" if other.refused else "")
            )


def engine_line(plan: Plan) -> str:
    """Return one line on what the quickest other engine of each native stage would save; empty where nothing is."""
    saved, names = 0.0, []
    for stage in plan.stages:
        quickest = next((other for other in stage.other_engines if not other.refused), None)
        if stage.option.engine != NATIVE or quickest is None or quickest.ratio > WORTH_SAYING:
            continue
        share = 1 - quickest.ratio
        saved += share * (stage.compute_usd.p50 / 1e6 if stage.compute_usd is not None else 0.0)
        names.append(f"{quickest.engine} for {stage.name}, {100 * share:.0f} % less time")
    if not names:
        return ""
    total = "" if plan.usd is None else f" of {format_usd(plan.usd.p50 / 1e6)}"
    money = f" about {format_usd(saved)}{total}" if saved else ""
    return (
        f"Other engines would save{money}: {'; '.join(names)}, on the same accelerators, without resuming to the bit; "
        "--any-engine shows them, `charter artifacts export` hands a stage over; with `exact: record` and `engines:` "
        "the plan chooses."
    )
