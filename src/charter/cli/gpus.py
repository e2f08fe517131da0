"""`charter gpus`: the accelerators of the catalog."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    from charter.catalog.accelerators import Accelerator


def gpus(
    name: Annotated[str | None, typer.Argument(help="One accelerator (H100, A100-80GB, tpu-v5e, ...).")] = None,
    json_: JsonOption = False,
) -> None:
    """List accelerators: memory, rates, bandwidth, and where each figure comes from."""
    from charter.catalog import accelerators

    found = (accelerators.get(name),) if name else accelerators.catalog()
    if json_:
        print_json({"accelerators": [_as_json(item) for item in found]})
    elif name:
        _print_one(found[0])
    else:
        _print_table(found)


def _as_json(item: "Accelerator") -> dict[str, Any]:
    return {
        "name": item.name,
        "vendor": item.vendor,
        "kind": item.kind,
        "memory_bytes": item.memory_bytes,
        "memory_is_reported": item.memory_is_reported,
        "memory_source": item.memory_provenance.source,
        "memory_bytes_per_second": item.memory_bytes_per_second,
        "dense_flops_per_second": dict(item.dense_flops_per_second),
        "matmul_ceiling": dict(item.matmul_ceiling),
        "scaleup_link": item.scaleup_link,
        "scaleup_bytes_per_second": item.scaleup_bytes_per_second,
        "scaleup_domain": item.scaleup_domain,
        "devices_per_node": item.devices_per_node,
        "scaleout_bytes_per_second_per_node": item.scaleout_bytes_per_second_per_node,
        "tdp_watts": item.tdp_watts,
        "year": item.year,
        "confidence": item.provenance.confidence,
        "source": item.provenance.source,
        "as_of": item.provenance.as_of,
    }


def _tera(item: "Accelerator", dtype: str) -> str:
    rate = item.dense_flops_per_second.get(dtype)
    return f"{rate / 1e12:,.0f}" if rate else "-"


def _print_table(found: "tuple[Accelerator, ...]") -> None:
    from charter.cli.tables import console, plain_table, short_confidence

    right = ((name, "right") for name in ("GiB", "GB/s", "TFLOP/s", "fp8", "link GB/s", "per node"))
    table = plain_table(("accelerator", "left"), *right, ("figures", "left"), ("as of", "left"))
    for item in found:
        mark = " " if item.memory_is_reported else "*"
        dtype = "bf16" if "bf16" in item.dense_flops_per_second else "fp16"
        table.add_row(
            item.name,
            f"{item.memory_bytes / 2**30:.1f}{mark}",
            f"{item.memory_bytes_per_second / 1e9:,.0f}",
            f"{_tera(item, dtype)} {dtype}",
            _tera(item, "fp8"),
            f"{item.scaleup_bytes_per_second / 1e9:,.0f}",
            str(item.devices_per_node),
            short_confidence(item.provenance.confidence),
            item.provenance.as_of,
        )
    out = console()
    out.print(table)
    out.print(
        "Rates are dense; links are per direction; `from memory` means: verify before relying on it.\n"
        "* data sheet's GB read as 10^9 bytes, for want of a device's own report. `charter gpus NAME`: sources.",
        style="dim",
    )


def _print_one(item: "Accelerator") -> None:
    from charter.cli.tables import console, short_confidence
    from charter.units import format_bytes

    rates = ", ".join(f"{dtype} {rate / 1e12:,.1f}" for dtype, rate in item.dense_flops_per_second.items())
    measured = ", ".join(f"{dtype} {share:.0%}" for dtype, share in item.matmul_ceiling.items())
    node = item.scaleout_bytes_per_second_per_node
    network = f"{node * 8 / 1e9:,.0f} Gbit/s" if node else "unknown network"
    memory = short_confidence(item.memory_provenance.confidence)
    lines = {
        "memory": f"{format_bytes(item.memory_bytes)} ({item.memory_provenance.source}; {memory})",
        "bandwidth": f"{item.memory_bytes_per_second / 1e9:,.0f} GB/s",
        "peak": f"{rates} TFLOP/s, dense",
        "ceiling": f"{measured} of peak, best measured matrix product" if measured else "no matrix product measured",
        "link": f"{item.scaleup_link}, {item.scaleup_bytes_per_second / 1e9:,.0f} GB/s per direction",
        "node": f"{item.devices_per_node} devices, {network}; the link joins {item.scaleup_domain}",
        "figures": f"{short_confidence(item.provenance.confidence)}, as of {item.provenance.as_of}",
        "source": item.provenance.source,
    }
    out = console()
    out.print(f"{item.name}  ({item.vendor}, {item.form_factor}, {item.year})", style="bold")
    for name, text in lines.items():
        out.print(f"  {name:<11}{text}")
