"""SkyPilot's catalogs: one `vms.csv` per cloud, one line per instance type and zone.

What the columns do not say: `Price` is per instance; `MemoryGiB` is the host's; `GpuInfo` holds the accelerator's
memory in MiB as `SizeInMiB` (its `Total...` is sometimes the sum and sometimes not, and is not read). On GCP the
accelerators of a machine have lines of their own without an instance type, and the host has another: the two are added
where the instance type is known. TPU slices of v2 to v5p are named by cores, two per chip, others by chips.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from charter.catalog.offer import PART_ONLY
from charter.catalog.price_finding import Finding, Severity
from charter.catalog.price_reading import Import, Reading
from charter.catalog.price_row import PriceRow, number, resolve
from charter.catalog.rows import Row
from charter.errors import UsageError

NO_ACCELERATOR = "machines without an accelerator"
HOSTS_ADDED = "GCP hosts, added to their accelerators"


def tpu_slice(name: str) -> tuple[str, int] | None:
    """The TPU and the chips of a slice's name, None for another name.

    Names of v2, v3, v4 and v5p count TensorCores, two per chip; those of v5e (`v5litepod`) and v6e count chips.
    Source: Google Cloud TPU documentation, system architecture; 17,203.20 $/h / 4096 chips = 4.20 $/chip-h.

    >>> tpu_slice("tpu-v5p-8192"), tpu_slice("tpu-v5litepod-16"), tpu_slice("H100")
    (('TPU-v5p', 4096), ('TPU-v5e', 16), None)
    """
    found = re.fullmatch(r"(?:tpu-)?(v\d+(?:p|e|litepod)?)-(\d+)", name.casefold())
    if found is None:
        return None
    generation, size = found[1].replace("v5litepod", "v5e"), int(found[2])
    cores_per_chip = 2 if generation in ("v2", "v3", "v4", "v5p") else 1
    return f"TPU-{generation}", max(1, size // cores_per_chip)


def read_skypilot(lines: Sequence[Row], about: Import) -> Reading:
    """Rows of a SkyPilot catalog, one per zone; the cloud is named apart, since the file does not say it."""
    if not about.cloud:
        raise UsageError(f"{about.file}: a SkyPilot catalog does not name its cloud; add --cloud aws (gcp, azure, ...)")
    findings: list[Finding] = []
    hosts = {
        (line.optional_text("InstanceType"), _zone(line)): line
        for line in lines
        if not line.optional_text("AcceleratorName")
    }
    rows, used = [], set()
    for line in lines:
        if line.optional_text("AcceleratorName"):
            row = _row(line, about, findings)
            host = hosts.get((_host_type(line), _zone(line))) if not row.instance_type else None
            if host is not None:
                used.add(host.number)
            rows.append(_with_host(row, host, findings))
    left_out = {NO_ACCELERATOR: len(lines) - len(rows) - len(used), HOSTS_ADDED: len(used)}
    return Reading(rows=tuple(rows), findings=tuple(findings), left_out={k: n for k, n in left_out.items() if n})


def _row(line: Row, about: Import, findings: list[Finding]) -> PriceRow:
    printed, instance = line.optional_text("AcceleratorName"), line.optional_text("InstanceType")
    memory = re.search(r"SizeInMiB\W+(\d+(?:\.\d+)?)", line.optional_text("GpuInfo"))
    memory_mib = float(memory[1]) if memory else None
    count = number(line, "AcceleratorCount", findings) or 0.0
    pod = tpu_slice(printed)
    if pod is not None:
        (name, known), count, instance = resolve(pod[0]), pod[1] * max(count, 1.0), printed
    else:
        name, known = resolve(printed, memory_mib=memory_mib, instance_type=_hint(about.cloud, instance))
    disk = number(line, "LocalDiskSize", findings)
    disks = number(line, "LocalDiskCount", findings)
    return PriceRow(
        number=line.number,
        cloud=about.cloud,
        instance_type=instance,
        accelerator=name,
        known=known,
        count=count,
        region=line.optional_text("Region"),
        zone=line.optional_text("AvailabilityZone"),
        on_demand=number(line, "Price", findings),
        spot=number(line, "SpotPrice", findings),
        memory_mib=memory_mib,
        vcpus=number(line, "vCPUs", findings),
        ram_gib=number(line, "MemoryGiB", findings),
        local_disk_gb=None if disk is None else disk * (disks or 1.0),
        is_slice=pod is not None,
        as_of=about.date_of_prices,
        confidence="imported",
        source=about.source("SkyPilot catalog"),
    )


def _hint(cloud: str, instance_type: str) -> str:
    """The instance type, with the board named where only the cloud's own naming tells: Azure's NC A100 is PCIe."""
    is_pcie = cloud == "azure" and re.match(r"standard_nc\d+ads_a100", instance_type.casefold())
    return f"{instance_type} pcie" if is_pcie else instance_type


def _zone(line: Row) -> str:
    return line.optional_text("AvailabilityZone") or line.optional_text("Region")


_GCP_HOSTS = {
    "A100": {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g", 16: "a2-megagpu-16g"},
    "A100-80GB": {1: "a2-ultragpu-1g", 2: "a2-ultragpu-2g", 4: "a2-ultragpu-4g", 8: "a2-ultragpu-8g"},
    "H100": {1: "a3-highgpu-1g", 2: "a3-highgpu-2g", 4: "a3-highgpu-4g", 8: "a3-highgpu-8g"},
    "H100-MEGA": {8: "a3-megagpu-8g"},
    "H200": {8: "a3-ultragpu-8g"},
    "B200": {8: "a4-highgpu-8g"},
    "L4": {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
}
"""GCP's accelerator-optimised machine by accelerator and count. Source: Google Cloud, GPU machine types."""


def _host_type(line: Row) -> str:
    try:
        count = int(float(line.optional_text("AcceleratorCount") or 0))
    except ValueError:
        return ""
    return _GCP_HOSTS.get(line.optional_text("AcceleratorName"), {}).get(count, "")


def _with_host(row: PriceRow, host: Row | None, findings: list[Finding]) -> PriceRow:
    """The accelerators with their host's price, if it is there; otherwise marked as a part of a machine."""
    if row.instance_type:
        return row
    if host is None:
        return replace(row, instance_type=f"{row.accelerator} {PART_ONLY}")
    price, spot = number(host, "Price", findings), number(host, "SpotPrice", findings)
    whole, whole_spot = _sum(row.on_demand, price), _sum(row.spot, spot)
    if _is_above(row.spot, row.on_demand) and not _is_above(whole_spot, whole):
        message = f"spot {row.spot:g} of the accelerators is above their on-demand price {row.on_demand:g}"
        findings.append(row.finding("spot-above-on-demand", Severity.ERROR, message))
    return replace(
        row,
        instance_type=host.optional_text("InstanceType"),
        on_demand=whole,
        spot=whole_spot,
        vcpus=number(host, "vCPUs", findings),
        ram_gib=number(host, "MemoryGiB", findings),
        note=f"accelerators {row.on_demand} + host {price} on demand",
    )


def _is_above(first: float | None, second: float | None) -> bool:
    return first is not None and second is not None and first > second


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else round(first + second, 6)
