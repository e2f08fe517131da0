"""The ways to run one stage: every place, node count, layout and market that fits; the message when nothing does."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from charter.catalog import accelerators
from charter.catalog.accelerators import Accelerator
from charter.engines import capabilities, engine_names, rl_engines
from charter.engines.common.capabilities import of_kind, refused_rewards
from charter.engines.hardware import hardware_refusal, server_refusal
from charter.plan.knowledge import format_refusal
from charter.plan.layout_search import NodeGroup, options_of, training_options
from charter.plan.offers import LOCAL, UNPRICED, NodeOffer, node_memory_bytes
from charter.plan.option import Found, Missed, Option, Overflow, Rejected, StageQuestion, does_not_fit, largest_term
from charter.plan.plan import InfeasiblePlanError
from charter.plan.purchase import markets
from charter.plan.rl_search import across, rl_answers
from charter.plan.servers import answering_options, endpoint_only, with_endpoints, without_accelerators
from charter.spec.stage_base import NATIVE, Sampling, StageResources
from charter.units import GIB, format_machines

# -------- The ways to run one stage: every place, node count, layout and market that fits; and why the others do not.


def search(question: StageQuestion, places: tuple[NodeOffer, ...]) -> Found:
    """Options over all places; of each place, node count and market those that may be chosen."""
    options: list[Option] = []
    misses: list[Overflow] = []
    refusals = {place: _refusal(question, place) for place in places}
    rejected = [Rejected(option=place.label, reason=reason) for place, reason in refusals.items() if reason]
    places = tuple(place for place, reason in refusals.items() if reason is None)
    sites = [NodeGroup(place=place, num_nodes=num_nodes) for place in places for num_nodes in place.nodes]
    answers = _answers(question, sites)
    for site in sites:
        fitting, missed = answers[_hardware(site)]
        for option in fitting:
            options += markets(question, replace(_billed(question, option), place=site.place, price=site.place.price))
        rejected += missed.rejected if not fitting else ()
        misses += missed.peaks if not fitting else ()
    if question.stage.ROLLS_OUT:
        options += [_billed(question, option) for option in across(question, places)]
    options += without_accelerators(question)
    return Found(
        options=tuple(options),
        rejected=tuple(rejected),
        closest=min(misses, key=lambda miss: miss[0].total_bytes / miss[1], default=None),
        evaluated=sum(missed.evaluated for _, missed in answers.values()),
        pruned=sum(missed.pruned for _, missed in answers.values()),
        question=question,
    )


def _billed(question: StageQuestion, option: Option) -> Option:
    """A stage that trains, with the bill of what it asks meanwhile; one that only answers has it already."""
    return option if question.asked is None else with_endpoints(option, question)


def _refusal(question: StageQuestion, place: NodeOffer) -> str | None:
    """Return why no layout need be tried at a place: what is planned does not run on its accelerators."""
    kind, accelerator = question.stage.kind, place.accelerator
    if question.work.trained:
        wrong_format = format_refusal(question.dtype, question.engine, kind, accelerator)
        return wrong_format or hardware_refusal(question.engine, kind, accelerator)
    return server_refusal(accelerator) if question.work.needs_accelerator else None


Answer = tuple[tuple[Option, ...], Missed]


def _answers(question: StageQuestion, sites: Sequence[NodeGroup]) -> dict[tuple[object, ...], Answer]:
    """Return what is possible on every kind of hardware among the sites; training layouts of all of them in one go."""
    first: dict[tuple[object, ...], NodeGroup] = {}
    for site in sites:
        first.setdefault(_hardware(site), site)
    if question.work.trained and not any(site.place.is_cpu for site in first.values()):
        answers = rl_answers if question.stage.ROLLS_OUT else options_of
        return dict(zip(first, answers(question, list(first.values())), strict=True))
    return {key: _on(question, site.place, site.num_nodes) for key, site in first.items()}


def _hardware(site: NodeGroup) -> tuple[object, ...]:
    """Return what decides memory and time: providers of one accelerator differ in the nodes' network and memory."""
    place, num_nodes = site.place, site.num_nodes
    network = place.accelerator.scaleout_bytes_per_second_per_node if num_nodes > 1 else None
    host_bytes = None if place.is_cpu else node_memory_bytes(place)
    return (place.infra == LOCAL, place.accelerator.name, place.per_node, num_nodes, network, host_bytes)


def _on(question: StageQuestion, place: NodeOffer, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    if not question.work.needs_accelerator:
        return (endpoint_only(question, place),), Missed()
    if place.is_cpu:
        # A planner of its own, which plans on accelerators do without.
        from charter.plan.processors import on_processors

        return on_processors(question, place)
    if question.work.trained:
        return training_options(question, place, num_nodes)
    return answering_options(question, place, num_nodes)


# -------- The message when nothing fits, by its cause: memory, divisibility, or what an engine lacks; and what would
# fit.

NO_LAYOUT = "no layout divides the model and the batch as asked"
ALTERNATIVES = ("A100-80GB", "H100", "H200", "B200", "TPU-v5e", "TPU-v6e", "TPU-v5p")
"""Accelerators that are named where a stage fits them, of those that run it."""
SHORT_OF_HOST = "fits the accelerators"
"""How the reason begins where only system memory is too small (`rl.setting.host_shortage`)."""
PARTS = (1, 2, 4)
"""Accelerators of one node that are tried first, where it has more."""
NODE_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Nodes, each with its usual accelerators, that are tried, the fewest first."""
NEARBY = (16, 8, 4, 2)
"""Multiples of nodes next to the number that was asked for, which divide into more layouts; the roundest first."""


def infeasible(
    name: str, question: StageQuestion, places: tuple[NodeOffer, ...], answers: Found
) -> InfeasiblePlanError:
    """The error of a stage that fits nowhere among `places`."""
    tried = ", ".join(sorted({_up_to(place) for place in places}))
    lines = [f"stage {name!r} does not fit on {tried}"]
    cause = _divisibility(question, places) if answers.closest is not None else ""
    if cause:
        lines.append(f"  {cause}")
    elif answers.closest is not None:
        peak, capacity, device = answers.closest
        term = largest_term(peak)
        lines.append(f"  {does_not_fit(peak, capacity, device, question.knowledge.memory_risk)} (at {peak.moment})")
        lines.append(f"  the largest part is {term.name}: {term.value / GIB:.1f} GiB = {term.formula}")
        lines += [
            f"  {item.option}: {item.reason}" for item in answers.rejected if item.reason.startswith(SHORT_OF_HOST)
        ]
    else:
        reasons = sorted({item.reason for item in answers.rejected})
        is_on_no_spot = question.use_spot is True and not any(place.spot for place in places)
        missed = "no spot price is known there; use_spot: auto takes the other market" if is_on_no_spot else NO_LAYOUT
        lines += [f"  {reason}" for reason in reasons or (missed,)]
    engines = _other_engines(question, places)
    if engines:
        lines.append(
            f"  another engine could train it there, by its plan: {', '.join(engines)} (`engine:` of the stage)"
        )
    if answers.closest is not None and not cause:
        lines += [f"  {advice}" for advice in (_shared_rows(question, places), _what_would_fit(question)) if advice]
    return InfeasiblePlanError("\n".join(lines), stage=name, is_overflow=answers.closest is not None)


def _up_to(place: NodeOffer) -> str:
    """`up to 4 nodes x 8 H100-SXM-80GB on aws`; without "up to" where one node is all there is."""
    most = place.nodes[-1]
    return f"{'up to ' if most > 1 else ''}{place.machines(most)} {place.where}"


def _what_would_fit(question: StageQuestion) -> str:
    kind, engine = question.stage.kind, question.engine
    named = {name: accelerators.get(name) for name in ALTERNATIVES}
    tried = {name: one for name, one in named.items() if hardware_refusal(engine, kind, one) is None}
    sizes = {name: _fewest(question, one) for name, one in tried.items()}
    if fitting := [format_machines(name, size[1], size[0]) for name, size in sizes.items() if size is not None]:
        return f"would fit on: {', '.join(fitting)}; or use {_less(question)}"
    largest = [f"{one.devices_per_node} {name}" for name, one in tried.items()]
    return (
        f"with engine {engine} it does not fit on up to {NODE_COUNTS[-1]} nodes of {', '.join(largest)} either; "
        f"use {_less(question)}"
    )


def _shared_rows(question: StageQuestion, places: tuple[NodeOffer, ...]) -> str:
    """Return the fewest processes that have to share each row to fit; empty where a search has tried all by itself."""
    own, able = question.fixed or StageResources(), of_kind(capabilities(question.engine), question.stage)
    if not able.context or able.context_searched or own.context is not None:
        return ""
    most = max(place.per_node * place.nodes[-1] for place in places)
    for degree in (2**power for power in range(1, most.bit_length())):
        stage = replace(question.stage, resources=replace(own, context=degree))
        if search(replace(question, stage=stage, peaks={}), places).options:
            return f"would fit there with `resources: {{context: {degree}}}`: so many processes share each row"
    return ""


def _divisibility(question: StageQuestion, places: tuple[NodeOffer, ...]) -> str:
    """Name the node counts nearby that would do, where fewer accelerators than those that were asked for hold a stage.

    The degrees of a layout divide the number of accelerators: 5,000 has few divisors that 144 layers have too.
    """
    place = max(places, key=lambda place: place.nodes[-1])
    nodes = place.nodes[-1]
    if not question.work.trained or place.is_cpu or nodes < NEARBY[-1]:
        return ""

    def fits(count: int) -> bool:
        return bool(search(question, (replace(place, nodes=(count,)),)).options)

    return divisibility(nodes, place.per_node, question.engine, fits)


def divisibility(nodes: int, per_node: int, engine: str, fits: Callable[[int], bool]) -> str:
    """Return that so many nodes divide into no layout, with those nearby that do; empty where fewer do not fit either.

    >>> divisibility(5, 8, "megatron", lambda count: count == 4)
    'not for lack of memory: 5 nodes, 40 = 2^3 x 5 accelerators, divide into no layout of megatron that fits; 4 nodes (32 accelerators) would do'
    """  # noqa: E501
    for unit in NEARBY:
        near = sorted({nodes // unit * unit, -(-nodes // unit) * unit} - {0, nodes})
        fitting = [count for count in near if fits(count)]
        if fitting and fitting[0] < nodes:
            counts = " or ".join(f"{count:,} nodes ({count * per_node:,} accelerators)" for count in fitting)
            return (
                f"not for lack of memory: {nodes:,} nodes, {nodes * per_node:,} = {_factors(nodes * per_node)} "
                f"accelerators, divide into no layout of {engine} that fits; {counts} would do"
            )
    return ""


def _factors(number: int) -> str:
    """Return the prime factors of a number.

    >>> _factors(5000)
    '2^3 x 5^4'
    """
    parts, factor = [], 2
    while number > 1:
        power = 0
        while number % factor == 0:
            number, power = number // factor, power + 1
        if power:
            parts.append(f"{factor}^{power}" if power > 1 else f"{factor}")
        factor = factor + 1 if factor * factor <= number else max(number, factor + 1)
    return " x ".join(parts)


def _less(question: StageQuestion) -> str:
    """Return a change of the stage's own fields that needs less memory."""
    shorter = "a shorter max_prompt_tokens or max_new_tokens" if isinstance(question.stage, Sampling) else ""
    shorter = shorter or "a shorter seq_len"
    lacking = {item.field for item in capabilities(question.engine).fixed if question.stage.kind in item.kinds}
    takes = any(item.name == "adapter" for item in fields(question.stage)) and "adapter" not in lacking
    if takes and getattr(question.stage, "adapter", None) is None:
        return f"an adapter (adapter: {{rank: 64}}) or {shorter}"
    return shorter


def _other_engines(question: StageQuestion, places: tuple[NodeOffer, ...]) -> list[str]:
    """Engines that have a layout which fits, with that layout and the changes of the stage that they need."""
    if not question.work.trained or any(place.is_cpu for place in places):
        return []
    engines = []
    for name in (NATIVE, *rl_engines()) if question.stage.ROLLS_OUT else engine_names():
        if any(refused_rewards(question.stage, capabilities(name))):
            continue
        options = search(replace(question, engine=name, peaks={}), places).options
        if options:
            best = min(options, key=lambda option: option.overhead.useful_seconds)
            changes = [item.instead for item in capabilities(name).fixed if item.refuses(question.stage)]
            engines.append(f"{name} ({'; with '.join([best.layout_label, *changes])})")
    return engines


def _fewest(question: StageQuestion, accelerator: Accelerator) -> tuple[int, int] | None:
    """Nodes and accelerators per node of the smallest size that fits."""
    usual = accelerator.devices_per_node
    for nodes, per_node in (*((1, part) for part in PARTS if part < usual), *((nodes, usual) for nodes in NODE_COUNTS)):
        place = NodeOffer(
            infra="any",
            region=None,
            accelerator=accelerator,
            per_node=per_node,
            instance="",
            price=UNPRICED,
            nodes=(nodes,),
        )
        if search(question, (place,)).options:
            return nodes, per_node
    return None
