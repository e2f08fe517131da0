"""The message when nothing fits: what overflows, and what would fit."""

from dataclasses import replace

from charter.catalog import accelerators
from charter.plan.hardware.place import UNPRICED, Place
from charter.plan.options.question import Found, Question
from charter.plan.options.why_not import does_not_fit, largest_term
from charter.plan.physics.engine_space import ENGINES
from charter.plan.plan import InfeasiblePlanError
from charter.plan.search import search
from charter.spec.stage import PpoStage
from charter.units import GIB

ALTERNATIVES = ("A100-80GB", "H100", "H200", "B200")
NODE_COUNTS = (1, 2, 4, 8, 16, 32, 64)


def infeasible(name: str, question: Question, places: tuple[Place, ...], found: Found) -> InfeasiblePlanError:
    """The error of a stage that fits nowhere among `places`."""
    tried = ", ".join(sorted({f"up to {place.nodes[-1]} x {place.label}" for place in places}))
    lines = [f"stage {name!r} does not fit on {tried}"]
    if found.closest is not None:
        peak, capacity = found.closest
        term = largest_term(peak)
        lines.append(f"  {does_not_fit(peak, capacity)} (at {peak.moment})")
        lines.append(f"  the largest part is {term.name}: {term.value / GIB:.1f} GiB = {term.formula}")
    else:
        reasons = sorted({item.reason for item in found.rejected})
        lines += [f"  {reason}" for reason in reasons] or ["  no layout divides the model and the batch as asked"]
    engines = _other_engines(question, places)
    if engines:
        lines.append(
            f"  another engine could train it there, by its plan: {', '.join(engines)} (`engine:` of the stage)"
        )
    if found.closest is not None:
        lines.append(f"  {_what_would_fit(question)}")
    return InfeasiblePlanError("\n".join(lines), stage=name)


def _what_would_fit(question: Question) -> str:
    fitting = []
    for name in ALTERNATIVES:
        nodes = _fewest_nodes(question, name)
        if nodes is not None:
            fitting.append(f"{nodes} x {name}:8" if nodes > 1 else f"{name}:8")
    if fitting:
        return f"would fit on: {', '.join(fitting)}; or use an adapter (adapter: {{rank: 64}}) or a shorter seq_len"
    return "does not fit on 64 nodes of 8 accelerators of any kind either; use an adapter or a shorter seq_len"


def _other_engines(question: Question, places: tuple[Place, ...]) -> list[str]:
    """Engines that have a layout which fits, with that layout."""
    if not question.work.trained or isinstance(question.stage, PpoStage) or any(place.is_cpu for place in places):
        return []
    found = []
    for name in ENGINES:
        options = search(replace(question, engine=name, peaks={}), places).options
        if options:
            best = min(options, key=lambda option: option.overhead.useful_seconds)
            found.append(f"{name} ({best.layout_label})")
    return found


def _fewest_nodes(question: Question, name: str) -> int | None:
    accelerator = accelerators.get(name)
    for nodes in NODE_COUNTS:
        place = Place(
            infra="any", region=None, accelerator=accelerator, per_node=8, instance="", price=UNPRICED, nodes=(nodes,)
        )
        if search(question, (place,)).options:
            return nodes
    return None
