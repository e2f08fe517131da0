"""Charter's prices as SkyPilot's catalog: `CLOUD/vms.csv`, and which accelerators there are. Pure.

With these files in its catalog directory SkyPilot's optimizer computes with the prices of the plan, contracts and
imported lists among them, and asks nobody.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from charter.catalog.accelerators import get
from charter.catalog.offer import PART_ONLY, Market, Offer
from charter.catalog.price_book import PriceBook
from charter.launch.skypilot.names import CLOUDS, sky_accelerator
from charter.units import GIB

CATALOG_VERSION = "v8"
"""Of the catalogs that SkyPilot 0.14.1 reads."""
COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "Price",
    "SpotPrice",
    "Region",
    "AvailabilityZone",
    "GpuInfo",
)
SPELLED = {"lambda": "Lambda", "aws": "AWS", "gcp": "GCP", "runpod": "RunPod"}
"""Names in `accelerators.csv` that are not merely capitalised."""
ZONED = frozenset({"aws", "gcp"})
"""Clouds whose machines stand in zones; our offers are of regions, so one zone stands for all."""


def catalog_files(book: PriceBook, clouds: Iterable[str] = CLOUDS) -> dict[str, str]:
    """File name -> text, for every cloud that the book has offers of."""
    files: dict[str, str] = {}
    sold_by: dict[str, set[str]] = {}
    for cloud in sorted(set(clouds) & CLOUDS):
        offers = [offer for offer in book.offers(cloud=cloud) if _is_whole(offer)]
        rows = [row for offer in offers for row in _rows(offer)]
        if rows:
            files[f"{cloud}/vms.csv"] = _text(COLUMNS, rows)
            for offer in offers:
                sold_by.setdefault(sky_accelerator(offer.accelerator), set()).add(SPELLED.get(cloud, cloud.title()))
    names = [{"AcceleratorName": name, "Clouds": str(sorted(sold_by[name]))} for name in sorted(sold_by)]
    files["common/accelerators.csv"] = _text(("AcceleratorName", "Clouds"), names)
    return files


def _is_whole(offer: Offer) -> bool:
    rents = offer.usd_per_hour(Market.ON_DEMAND), offer.usd_per_hour(Market.SPOT)
    return PART_ONLY not in offer.instance_type and any(price is not None for price in rents)


def _rows(offer: Offer) -> list[dict[str, Any]]:
    """One row; on GCP two, where accelerators have one without a machine: the machine's has the price of both."""
    accelerator = {
        "AcceleratorName": sky_accelerator(offer.accelerator),
        "AcceleratorCount": float(offer.count),
        "GpuInfo": _gpu_info(offer),
    }
    machine = {
        "InstanceType": offer.instance_type,
        "vCPUs": offer.vcpus,
        "MemoryGiB": None if offer.host_memory_bytes is None else round(offer.host_memory_bytes / GIB, 2),
        "Price": offer.usd_per_hour(Market.ON_DEMAND),
        "SpotPrice": offer.usd_per_hour(Market.SPOT),
    }
    where = {"Region": offer.region, "AvailabilityZone": f"{offer.region}-a" if offer.cloud in ZONED else None}
    if offer.cloud == "gcp":
        free = {"Price": 0.0, "SpotPrice": 0.0}
        return [{**where, **machine}, {**where, **accelerator, **free}]
    return [{**where, **machine, **accelerator}]


def _gpu_info(offer: Offer) -> str:
    found = get(offer.accelerator)
    memory_mib = int(found.memory_bytes / 1024**2)
    gpu = {
        "Name": sky_accelerator(offer.accelerator),
        "Manufacturer": found.vendor,
        "Count": float(offer.count),
        "MemoryInfo": {"SizeInMiB": memory_mib},
    }
    return str({"Gpus": [gpu], "TotalGpuMemoryInMiB": memory_mib * offer.count})


def _text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return out.getvalue()
