"""Read a price list in any layout that Charter knows, check it, and make it into rows of `prices.csv`.

Nothing is dropped in silence: what a layout leaves out by design is counted in `left_out`, and rows that fail a check
are findings of severity `error`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum

from charter.catalog.accelerators import get
from charter.catalog.offer import ALL_REGIONS, CONTRACT, PART_ONLY, Market
from charter.catalog.price_book import CONTRACT_INSTANCE, PriceBook
from charter.catalog.price_checks import check_rows, reference_of
from charter.catalog.price_row import (
    Import,
    PriceFinding,
    PriceRow,
    Reading,
    Severity,
    lines_of,
    number,
    read_lines,
    resolve,
)
from charter.catalog.rows import TableRow
from charter.errors import UsageError

_FIELD = {
    Market.ON_DEMAND: "on_demand",
    Market.SPOT: "spot",
    Market.RESERVED_1Y: "reserved_1y",
    Market.RESERVED_3Y: "reserved_3y",
}


def read_contract(lines: Sequence[TableRow], about: Import) -> Reading:
    """Rows of a contract file; every problem of every line is a finding."""
    findings: list[PriceFinding] = []
    rows = tuple(_contract_row(line, about, findings) for line in lines)
    return Reading(rows=rows, findings=tuple(findings))


def _contract_row(line: TableRow, about: Import, findings: list[PriceFinding]) -> PriceRow:
    cloud, instance = line.optional_text("cloud") or about.cloud, line.optional_text("instance_type")
    name, in_catalog, count = _hardware(line, cloud, instance, about, findings)
    market = _market(line, findings)
    instance_price, each = (number(line, column, findings) for column in ("usd_per_hour", "usd_per_accelerator_hour"))
    price = instance_price if instance_price is not None else None if each is None else round(each * count, 6)
    if instance_price is None and each is None:
        _problem(line, "no-price", "neither usd_per_hour nor usd_per_accelerator_hour has a price", findings)
    _dates(line, findings)
    return PriceRow(
        number=line.number,
        cloud=cloud,
        instance_type=instance or CONTRACT_INSTANCE,
        accelerator=name,
        known=in_catalog,
        count=count,
        region=line.optional_text("region") or ALL_REGIONS,
        usd_per_accelerator_hour=each if instance_price is not None and market is Market.ON_DEMAND else None,
        is_contract=True,
        as_of=line.optional_text("valid_from") or about.date_of_prices,
        confidence=CONTRACT,
        source=about.source("contract"),
        note=line.optional_text("note"),
        valid_from=line.optional_text("valid_from"),
        valid_until=line.optional_text("valid_until"),
        **{_FIELD[market]: price},  # type: ignore[arg-type]
    )


def _hardware(
    line: TableRow, cloud: str, instance: str, about: Import, findings: list[PriceFinding]
) -> tuple[str, bool, float]:
    """Accelerator, whether it is known, and how many a machine has."""
    text, _, suffix = line.optional_text("accelerator").partition(":")
    written = number(line, "count", findings)
    if suffix.isdecimal():
        if written is not None and written != int(suffix):
            _problem(line, "arithmetic", f"accelerator says {suffix}, count says {written:g}", findings)
        written = float(suffix)
    known_type = about.instances.get((cloud, instance))
    if text:
        name, in_catalog = resolve(text)
    elif known_type is not None:
        name, in_catalog = known_type[0], True
    else:
        fault = f"instance_type {instance!r} of {cloud} is not in the price book" if instance else "both are empty"
        _problem(line, "unknown-accelerator", f"give accelerator or a known instance_type: {fault}", findings)
        return "", False, written or 1.0
    if written is not None:
        return name, in_catalog, written
    if known_type is not None and known_type[0] == name:
        return name, in_catalog, float(known_type[1])
    return name, in_catalog, float(get(name).devices_per_node) if in_catalog else 1.0


def _market(line: TableRow, findings: list[PriceFinding]) -> Market:
    text = line.optional_text("market").casefold().replace("-", "_") or Market.ON_DEMAND.value
    try:
        return Market(text)
    except ValueError:
        allowed = ", ".join(market.value for market in Market)
        _problem(line, "unknown-market", f"column market: {text!r} is none of {allowed}", findings)
        return Market.ON_DEMAND


def _dates(line: TableRow, findings: list[PriceFinding]) -> None:
    days = []
    for column in ("valid_from", "valid_until"):
        text = line.optional_text(column)
        try:
            if text and not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                raise ValueError
            days.append(date.fromisoformat(text) if text else None)
        except ValueError:
            _problem(line, "not-a-date", f"column {column}: {text!r} is not a day like 2026-12-31", findings)
    if len(days) == 2 and days[0] and days[1] and days[0] > days[1]:
        _problem(line, "contract-dates", f"valid_from {days[0]} is after valid_until {days[1]}", findings)


def _problem(line: TableRow, rule: str, message: str, findings: list[PriceFinding]) -> None:
    findings.append(PriceFinding(rule=rule, severity=Severity.ERROR, row=line.number, message=message))


def read_own(lines: Sequence[TableRow], about: Import) -> Reading:
    """Rows of a `prices.csv`, one per offer; date, source and confidence are the file's own."""
    findings: list[PriceFinding] = []
    rows = tuple(_own_row(line, findings) for line in lines)
    return Reading(rows=rows, findings=tuple(findings))


def _own_row(line: TableRow, findings: list[PriceFinding]) -> PriceRow:
    name, in_catalog = resolve(line.optional_text("accelerator"))
    confidence = line.optional_text("confidence")
    values = {field: number(line, column, findings) for field, column in _NUMBERS.items()}
    texts = {field: line.optional_text(field) for field in _TEXTS}
    return PriceRow(
        number=line.number,
        accelerator=name,
        known=in_catalog,
        count=number(line, "count", findings) or 0.0,
        confidence=confidence,
        is_contract=confidence.startswith(CONTRACT),
        is_slice=name.startswith("TPU"),
        **texts,  # type: ignore[arg-type]
        **values,  # type: ignore[arg-type]
    )


_TEXTS = ("cloud", "instance_type", "region", "as_of", "source", "note", "valid_from", "valid_until")
_NUMBERS = {
    "on_demand": "ondemand_usd_h",
    "spot": "spot_usd_h_median_az",
    "spot_min": "spot_usd_h_min_az",
    "reserved_1y": "reserved_1y_usd_h",
    "reserved_3y": "reserved_3y_usd_h",
    "usd_per_accelerator_hour": "ondemand_usd_per_acc_h",
    "vcpus": "vcpu",
    "ram_gib": "ram_gib",
    "network_gbit_per_second": "network_gbit_s",
    "local_disk_gb": "local_nvme_gb",
    "spot_zones_at_on_demand": "spot_azs_capped_at_ondemand",
}


NO_ACCELERATOR = "machines without an accelerator"
HOSTS_ADDED = "GCP hosts, added to their accelerators"


def tpu_slice(name: str) -> tuple[str, int] | None:
    """The TPU and the chips of a slice's name, None for another name.

    Names of v2, v3, v4 and v5p count TensorCores, two per chip; those of v5e (`v5litepod`) and v6e count chips.
    Source: Google Cloud TPU documentation, system architecture; 17,203.20 $/h / 4096 chips = 4.20 $/chip-h.

    >>> tpu_slice("tpu-v5p-8192"), tpu_slice("tpu-v5litepod-16"), tpu_slice("H100")
    (('TPU-v5p', 4096), ('TPU-v5e', 16), None)
    """
    match = re.fullmatch(r"(?:tpu-)?(v\d+(?:p|e|litepod)?)-(\d+)", name.casefold())
    if match is None:
        return None
    generation, size = match[1].replace("v5litepod", "v5e"), int(match[2])
    cores_per_chip = 2 if generation in ("v2", "v3", "v4", "v5p") else 1
    return f"TPU-{generation}", max(1, size // cores_per_chip)


def read_skypilot(lines: Sequence[TableRow], about: Import) -> Reading:
    """Rows of a SkyPilot catalog, one per zone; the cloud is named apart, since the file does not say it."""
    if not about.cloud:
        raise UsageError(f"{about.file}: a SkyPilot catalog does not name its cloud; add --cloud aws (gcp, azure, ...)")
    findings: list[PriceFinding] = []
    hosts = {
        (line.optional_text("InstanceType"), _zone(line)): line
        for line in lines
        if not line.optional_text("AcceleratorName")
    }
    rows, used = [], set()
    for line in lines:
        if line.optional_text("AcceleratorName"):
            row = _skypilot_row(line, about, findings)
            host = hosts.get((_host_type(line), _zone(line))) if not row.instance_type else None
            if host is not None:
                used.add(host.number)
            rows.append(_with_host(row, host, findings))
    left_out = {NO_ACCELERATOR: len(lines) - len(rows) - len(used), HOSTS_ADDED: len(used)}
    return Reading(rows=tuple(rows), findings=tuple(findings), left_out={k: n for k, n in left_out.items() if n})


def _skypilot_row(line: TableRow, about: Import, findings: list[PriceFinding]) -> PriceRow:
    printed, instance = line.optional_text("AcceleratorName"), line.optional_text("InstanceType")
    memory = re.search(r"SizeInMiB\W+(\d+(?:\.\d+)?)", line.optional_text("GpuInfo"))
    memory_mib = float(memory[1]) if memory else None
    count = number(line, "AcceleratorCount", findings) or 0.0
    pod = tpu_slice(printed)
    if pod is not None:
        (name, in_catalog), count, instance = resolve(pod[0]), pod[1] * max(count, 1.0), printed
    else:
        name, in_catalog = resolve(printed, memory_mib=memory_mib, instance_type=_hint(about.cloud, instance))
    disk = number(line, "LocalDiskSize", findings)
    disks = number(line, "LocalDiskCount", findings)
    return PriceRow(
        number=line.number,
        cloud=about.cloud,
        instance_type=instance,
        accelerator=name,
        known=in_catalog,
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


def _zone(line: TableRow) -> str:
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


def _host_type(line: TableRow) -> str:
    try:
        count = int(float(line.optional_text("AcceleratorCount") or 0))
    except ValueError:
        return ""
    return _GCP_HOSTS.get(line.optional_text("AcceleratorName"), {}).get(count, "")


def _with_host(row: PriceRow, host: TableRow | None, findings: list[PriceFinding]) -> PriceRow:
    """The accelerators with their host's price, if it is there; otherwise marked as a part of a machine."""
    if row.instance_type:
        return row
    if host is None:
        return replace(row, instance_type=f"{row.accelerator} {PART_ONLY}")
    price, spot = number(host, "Price", findings), number(host, "SpotPrice", findings)
    with_host, whole_spot = _sum(row.on_demand, price), _sum(row.spot, spot)
    if _is_above(row.spot, row.on_demand) and not _is_above(whole_spot, with_host):
        message = f"spot {row.spot:g} of the accelerators is above their on-demand price {row.on_demand:g}"
        findings.append(row.finding("spot-above-on-demand", Severity.ERROR, message))
    return replace(
        row,
        instance_type=host.optional_text("InstanceType"),
        on_demand=with_host,
        spot=whole_spot,
        vcpus=number(host, "vCPUs", findings),
        ram_gib=number(host, "MemoryGiB", findings),
        note=f"accelerators {row.on_demand} + host {price} on demand",
    )


def _is_above(first: float | None, second: float | None) -> bool:
    return first is not None and second is not None and first > second


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else round(first + second, 6)


MIB_PER_GIB = 1024.0
CLOUD_NAMES = {"lambdalabs": "lambda", "datacrunch": "verda", "vastai": "vast"}
"""gpuhunt's provider names where the snapshot has others."""


def read_gpuhunt(lines: Sequence[TableRow], about: Import) -> Reading:
    """Rows of a gpuhunt catalog; the spot line of an instance is joined to its on-demand line.

    Its `gpu_memory` says GB and means GiB (an H100 has 80).
    """
    if not about.cloud:
        raise UsageError(f"{about.file}: a gpuhunt catalog does not name its provider; add --cloud aws (gcp, ...)")
    findings: list[PriceFinding] = []
    without, joined = 0, dict[tuple[object, ...], PriceRow]()
    for line in lines:
        if not line.optional_text("gpu_name"):
            without += 1
            continue
        row, market = _gpuhunt_row(line, about, findings)
        key = (row.instance_type, row.accelerator, row.count, row.region)
        joined_row = joined.get(key)
        if joined_row is None:
            joined[key] = row
        elif market in joined_row.prices:
            joined[(*key, line.number)] = row
        else:
            joined[key] = replace(
                joined_row, on_demand=joined_row.on_demand or row.on_demand, spot=joined_row.spot or row.spot
            )
    left_out = {NO_ACCELERATOR: without} if without else {}
    return Reading(rows=tuple(joined.values()), findings=tuple(findings), left_out=left_out)


def _gpuhunt_row(line: TableRow, about: Import, findings: list[PriceFinding]) -> tuple[PriceRow, Market]:
    printed, instance = line.optional_text("gpu_name"), line.optional_text("instance_name")
    memory_gib = number(line, "gpu_memory", findings)
    memory_mib = memory_gib * MIB_PER_GIB if memory_gib else None
    count = number(line, "gpu_count", findings) or 0.0
    pod = tpu_slice(printed)
    if pod is not None:
        (name, in_catalog), count = resolve(pod[0]), pod[1] * max(count, 1.0)
    else:
        name, in_catalog = resolve(printed, memory_mib=memory_mib, instance_type=instance)
    price = number(line, "price", findings)
    spot_text = line.optional_text("spot").casefold()
    if spot_text not in ("true", "false"):
        message = f"column spot: {spot_text!r} is neither True nor False"
        findings.append(PriceFinding(rule="not-a-flag", severity=Severity.ERROR, row=line.number, message=message))
    is_spot = spot_text == "true"
    row = PriceRow(
        number=line.number,
        cloud=CLOUD_NAMES.get(about.cloud, about.cloud),
        instance_type=instance,
        accelerator=name,
        known=in_catalog,
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


class PriceFormat(StrEnum):
    """A layout of price lists."""

    CHARTER = "charter"
    SKYPILOT = "skypilot"
    GPUHUNT = "gpuhunt"
    CONTRACT = "contract"


_NEEDED_COLUMNS: Mapping[PriceFormat, tuple[str, ...]] = {
    PriceFormat.CHARTER: ("cloud", "instance_type", "accelerator", "count", "region", "ondemand_usd_h"),
    PriceFormat.SKYPILOT: ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"),
    PriceFormat.GPUHUNT: ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot"),
    PriceFormat.CONTRACT: ("cloud",),
}
_CONTRACT_PRICES = {"usd_per_hour", "usd_per_accelerator_hour"}
_READERS: Mapping[PriceFormat, Callable[[Sequence[TableRow], Import], Reading]] = {
    PriceFormat.CHARTER: read_own,
    PriceFormat.SKYPILOT: read_skypilot,
    PriceFormat.GPUHUNT: read_gpuhunt,
    PriceFormat.CONTRACT: read_contract,
}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A price list with everything that the rules say about it."""

    format: PriceFormat
    rows: tuple[PriceRow, ...]
    findings: tuple[PriceFinding, ...]
    left_out: Mapping[str, int]
    """Lines that are no offers of accelerators, by reason."""

    @property
    def errors(self) -> tuple[PriceFinding, ...]:
        """Findings that forbid the use of a row."""
        return tuple(finding for finding in self.findings if finding.is_error)

    @property
    def good_rows(self) -> tuple[PriceRow, ...]:
        """The rows without an error."""
        bad = lines_of(self.findings)
        return tuple(row for row in self.rows if row.number not in bad)


def format_of(header: Sequence[str], file: str) -> PriceFormat:
    """The layout that a header belongs to.

    >>> format_of(["cloud", "accelerator", "usd_per_accelerator_hour"], "mine.csv")
    <PriceFormat.CONTRACT: 'contract'>
    """
    for layout, needed in _NEEDED_COLUMNS.items():
        fits = set(needed) <= set(header)
        if fits and (layout is not PriceFormat.CONTRACT or _CONTRACT_PRICES & set(header)):
            return layout
    columns = "; ".join(f"{layout}: {', '.join(needed)}" for layout, needed in _NEEDED_COLUMNS.items())
    raise UsageError(
        f"{file}: the header is {', '.join(header) or 'empty'}; no known layout of price lists has it\n"
        f"  the columns that tell them apart: {columns}, usd_per_hour or usd_per_accelerator_hour"
    )


def read_prices(text: str, about: Import, *, layout: PriceFormat | None = None, today: date) -> Checked:
    """Read and check a price list; its prices are compared with those that ship with Charter."""
    header, lines, ragged = read_lines(text, about.file)
    detected = format_of(header, about.file)
    if layout is not None and layout is not detected:
        missing = ", ".join(name for name in _NEEDED_COLUMNS[layout] if name not in header)
        raise UsageError(
            f"{about.file}: --format {layout} needs the column{'s' if ',' in missing else ''} "
            f"{missing or 'usd_per_hour or usd_per_accelerator_hour'}; the header is that of {detected}"
        )
    offers = PriceBook.bundled().offers()
    instances = {(offer.cloud, offer.instance_type): (offer.accelerator, offer.count) for offer in offers}
    reading = _READERS[detected](lines, replace(about, instances=instances))
    checked = check_rows(reading.rows, reference=reference_of(offers), today=today)
    findings = sorted((*ragged, *reading.findings, *checked), key=lambda finding: finding.row)
    return Checked(format=detected, rows=reading.rows, findings=tuple(findings), left_out=reading.left_out)
