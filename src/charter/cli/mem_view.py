"""Tables of `charter plan mem`: every term of a model's memory with its share and source, and what would fit."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from charter.catalog.accelerators import Accelerator
    from charter.catalog.models import CatalogModel
    from charter.physics.memory import Alternative
    from charter.physics.terms import MemoryBreakdown
    from charter.spec.layout import Layout


def memory_json(
    model: "CatalogModel",
    device: "Accelerator",
    count: int,
    mode: str,
    layout: "Layout",
    memory: "MemoryBreakdown",
    changes: "tuple[Alternative, ...]",
) -> dict[str, Any]:
    """Everything as plain JSON values; bytes per accelerator."""
    from charter.physics.shapes import count_parameters

    parameters = count_parameters(model.architecture)
    return {
        "model": model.name,
        "parameters": parameters.total,
        "active_parameters": parameters.active,
        "model_source": model.provenance.source,
        "model_confidence": model.provenance.confidence,
        "model_assumption": model.assumption,
        "accelerator": device.name,
        "count": count,
        "mode": mode,
        "layout": layout.label,
        "pipeline_stage": memory.stage,
        "phase": memory.phase,
        "phases": memory.phase_bytes,
        "terms": [
            {"name": t.name, "part": t.part, "bytes": t.value, "formula": t.formula, "source": t.source}
            for t in memory.terms
        ],
        "breakdown": memory.by_part(),
        "peak_bytes": memory.total_bytes,
        "interval": asdict(memory.interval),
        "largest_term": memory.largest_term.name,
        "capacity_bytes": device.memory_bytes,
        "capacity_source": device.memory_provenance.source,
        "fits": memory.fits(device.memory_bytes),
        "surely_fits": memory.surely_fits(device.memory_bytes),
        "would_fit": [{"change": item.change, "count": item.count, "peak_bytes": item.total_bytes} for item in changes],
    }


def print_memory(
    model: "CatalogModel", device: "Accelerator", report: dict[str, Any], memory: "MemoryBreakdown"
) -> None:
    """The same for people, as a table."""
    from charter.cli.common import console, plain_table
    from charter.units import format_bytes, format_count

    out = console()
    stage = "" if memory.stage == "only" else f", {memory.stage} pipeline stage (the fullest)"
    parameters = format_count(report["parameters"])
    origin = f"{model.provenance.source}; {model.provenance.confidence}"
    out.print(f"{model.name}, {parameters} parameters ({origin})")
    if model.assumption:
        out.print(f"Assumed: {model.assumption}.", style="yellow")
    out.print(f"{report['mode']} on {report['count']} x {device.name}, {report['layout']}{stage}", style="bold")
    table = plain_table(("per accelerator", "left"), ("GiB", "right"), ("", "right"), ("formula", "wrap"))
    sources: dict[str, int] = {}
    for term in memory.terms:
        number = sources.setdefault(term.source, len(sources) + 1)
        share = f"{term.value / memory.total_bytes:.0%}"
        table.add_row(term.name, f"{term.value / 2**30:.2f}", share, f"{term.formula} [{number}]")
    table.add_section()
    free = device.memory_bytes - memory.total_bytes
    verdict = f"fits, {format_bytes(free)} free" if free >= 0 else f"does not fit, {format_bytes(-free)} too much"
    capacity = f"of {device.memory_bytes / 2**30:.2f} GiB: {verdict}"
    table.add_row("total", f"{memory.total_bytes / 2**30:.2f}", "", capacity, style="bold")
    out.print(table)
    phases = ", ".join(f"{phase} {size / 2**30:.2f}" for phase, size in memory.phase_bytes.items())
    out.print(f"fullest in {memory.phase}; GiB by phase: {phases}")
    spread = memory.interval
    doubt = "" if free < 0 or memory.surely_fits(device.memory_bytes) else "; it may not fit: p90 is above the capacity"
    out.print(f"p10 {spread.p10 / 2**30:.2f}, p50 {spread.p50 / 2**30:.2f}, p90 {spread.p90 / 2**30:.2f} GiB{doubt}")
    out.print("\n".join(f"[{number}] {source}" for source, number in sources.items()), style="dim")
    out.print(f"capacity: {device.memory_provenance.source}", style="dim")
    if free < 0:
        largest = memory.largest_term
        out.print(f"The largest term is {largest.name} ({format_bytes(largest.value)}).")
        lines = [f"  {item['change']}: {format_bytes(item['peak_bytes'])}" for item in report["would_fit"]]
        out.print("Would fit:\n" + "\n".join(lines) if lines else "Nothing that was tried fits.")


def print_printed(rows: list[dict[str, Any]]) -> None:
    """Print formulas as their sources print them, beside ours; GB, as they print it."""
    from charter.cli.common import console, plain_table

    table = plain_table(("as printed", "left"), ("GB", "right"), ("ours", "right"), ("formula", "wrap"))
    for row in rows:
        text = f"{row['formula']}: {row['note']} ({row['source']})"
        table.add_row(row["name"], f"{row['printed_bytes'] / 1e9:,.2f}", f"{row['our_bytes'] / 1e9:,.2f}", text)
    console().print(table)
