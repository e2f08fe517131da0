"""Price lists in the layout of Charter's own `prices.csv`."""

from collections.abc import Sequence

from charter.catalog.offer import CONTRACT
from charter.catalog.price_finding import Finding
from charter.catalog.price_reading import Import, Reading
from charter.catalog.price_row import PriceRow, number, resolve
from charter.catalog.rows import Row


def read_own(lines: Sequence[Row], about: Import) -> Reading:
    """Rows of a `prices.csv`, one per offer; date, source and confidence are the file's own."""
    findings: list[Finding] = []
    rows = tuple(_row(line, findings) for line in lines)
    return Reading(rows=rows, findings=tuple(findings))


def _row(line: Row, findings: list[Finding]) -> PriceRow:
    name, known = resolve(line.optional_text("accelerator"))
    confidence = line.optional_text("confidence")
    values = {field: number(line, column, findings) for field, column in _NUMBERS.items()}
    texts = {field: line.optional_text(field) for field in _TEXTS}
    return PriceRow(
        number=line.number,
        accelerator=name,
        known=known,
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
