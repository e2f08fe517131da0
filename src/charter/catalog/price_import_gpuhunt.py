"""gpuhunt's catalogs: one CSV per provider, on-demand and spot in lines of their own, memory in GB per accelerator."""

from collections.abc import Sequence
from dataclasses import replace

from charter.catalog.offer import Market
from charter.catalog.price_finding import Finding, Severity
from charter.catalog.price_import_skypilot import NO_ACCELERATOR, tpu_slice
from charter.catalog.price_reading import Import, Reading
from charter.catalog.price_row import PriceRow, number, resolve
from charter.catalog.rows import Row
from charter.errors import UsageError

MIB_PER_GIB = 1024.0
CLOUD_NAMES = {"lambdalabs": "lambda", "datacrunch": "verda", "vastai": "vast"}
"""gpuhunt's provider names where the snapshot has others."""


def read_gpuhunt(lines: Sequence[Row], about: Import) -> Reading:
    """Rows of a gpuhunt catalog; the spot line of an instance is joined to its on-demand line.

    Its `gpu_memory` says GB and means GiB (an H100 has 80).
    """
    if not about.cloud:
        raise UsageError(f"{about.file}: a gpuhunt catalog does not name its provider; add --cloud aws (gcp, ...)")
    findings: list[Finding] = []
    without, joined = 0, dict[tuple[object, ...], PriceRow]()
    for line in lines:
        if not line.optional_text("gpu_name"):
            without += 1
            continue
        row, market = _row(line, about, findings)
        key = (row.instance_type, row.accelerator, row.count, row.region)
        held = joined.get(key)
        if held is None:
            joined[key] = row
        elif market in held.prices:
            joined[(*key, line.number)] = row
        else:
            joined[key] = replace(held, on_demand=held.on_demand or row.on_demand, spot=held.spot or row.spot)
    left_out = {NO_ACCELERATOR: without} if without else {}
    return Reading(rows=tuple(joined.values()), findings=tuple(findings), left_out=left_out)


def _row(line: Row, about: Import, findings: list[Finding]) -> tuple[PriceRow, Market]:
    printed, instance = line.optional_text("gpu_name"), line.optional_text("instance_name")
    memory_gib = number(line, "gpu_memory", findings)
    memory_mib = memory_gib * MIB_PER_GIB if memory_gib else None
    count = number(line, "gpu_count", findings) or 0.0
    pod = tpu_slice(printed)
    if pod is not None:
        (name, known), count = resolve(pod[0]), pod[1] * max(count, 1.0)
    else:
        name, known = resolve(printed, memory_mib=memory_mib, instance_type=instance)
    price = number(line, "price", findings)
    spot_text = line.optional_text("spot").casefold()
    if spot_text not in ("true", "false"):
        message = f"column spot: {spot_text!r} is neither True nor False"
        findings.append(Finding(rule="not-a-flag", severity=Severity.ERROR, row=line.number, message=message))
    is_spot = spot_text == "true"
    row = PriceRow(
        number=line.number,
        cloud=CLOUD_NAMES.get(about.cloud, about.cloud),
        instance_type=instance,
        accelerator=name,
        known=known,
        count=count,
        region=line.optional_text("location"),
        on_demand=None if is_spot else price,
        spot=price if is_spot else None,
        memory_mib=memory_mib,
        vcpus=number(line, "cpu", findings),
        ram_gib=number(line, "memory", findings),
        is_slice=pod is not None,
        as_of=about.date_of_prices,
        confidence="imported",
        source=about.source("gpuhunt catalog"),
    )
    return row, Market.SPOT if is_spot else Market.ON_DEMAND
