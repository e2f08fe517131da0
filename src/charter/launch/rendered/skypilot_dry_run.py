"""SkyPilot's optimizer on Charter's times and prices, without a cloud: files for it, and a run of it elsewhere."""

import csv
import io
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.catalog.accelerators import get
from charter.catalog.offer import PART_ONLY, Market, Offer
from charter.catalog.price_book import PriceBook
from charter.errors import InfeasibleError, StageError, UsageError
from charter.launch.rendered import chosen, texts_for
from charter.launch.rendered.skypilot import CLOUDS, PIPELINE, sky_accelerator, task_name
from charter.plan.plan import Plan
from charter.spec.project import Project
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


def catalog_files(book: PriceBook) -> dict[str, str]:
    """File name -> text, for every cloud that the book has offers of."""
    files: dict[str, str] = {}
    sold_by: dict[str, set[str]] = {}
    for cloud in sorted(CLOUDS):
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
    accelerator = get(offer.accelerator)
    memory_mib = int(accelerator.memory_bytes / 1024**2)
    gpu = {
        "Name": sky_accelerator(offer.accelerator),
        "Manufacturer": accelerator.vendor,
        "Count": float(offer.count),
        "MemoryInfo": {"SizeInMiB": memory_mib},
    }
    return str({"Gpus": [gpu], "TotalGpuMemoryInMiB": memory_mib * offer.count})


def _text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


SECONDS_PER_HOUR = 3600


def time_table(project: Project, plan: Plan, stages: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per stage, cloud, accelerators of a node and market: the median seconds, restarts and waits included.

    Of options that differ in layout only the fastest stands for all; those of several nodes are left out, since tasks
    have one by what their target refuses. True as far as the plan's estimates are.
    """
    rows = []
    for name in chosen(project, stages):
        planned = plan.stage(name)
        fastest: dict[tuple[str, str, int, bool], float] = {}
        for option in planned.options if planned is not None else ():
            place, market = option.place, option.price.market
            if option.num_nodes > 1 or place.infra not in CLOUDS or place.is_cpu:
                continue
            key = (place.infra, sky_accelerator(place.accelerator.name), place.per_node, market == "spot")
            fastest[key] = min(fastest.get(key, float("inf")), option.seconds.p50)
        if not fastest:
            raise InfeasibleError(
                f"stage {name} fits on no single machine of a cloud that SkyPilot knows\n"
                "  charter plan --explain says what it needs; add larger machines to resources, or use slurm or ray"
            )
        rows += [
            {
                "task": task_name(name),
                "infra": infra,
                "accelerator": accelerator,
                "count": count,
                "use_spot": use_spot,
                "seconds": round(seconds),
            }
            for (infra, accelerator, count, use_spot), seconds in sorted(fastest.items())
        ]
    return rows


TIMES, HOME = "times.json", "home"
SCRIPT = Path(__file__).with_name("skypilot_script.py")
SECONDS = 300.0


def write_dry_run(project: Project, plan: Plan, book: PriceBook, directory: Path, stages: Sequence[str] = ()) -> None:
    """Write the pipeline, the table of times, and the catalog where SkyPilot looks for it below `home`."""
    catalog = directory / HOME / ".sky" / "catalogs" / CATALOG_VERSION
    for name, text in catalog_files(book).items():
        durable.make_dir((catalog / name).parent)
        durable.write_file(catalog / name, text)
    durable.write_file(directory / PIPELINE, texts_for(project, "skypilot", stages)[PIPELINE])
    durable.write_json(directory / TIMES, time_table(project, plan, stages))


def run_optimizer(directory: Path, python: Path, *, target: str = "cost") -> dict[str, Any]:
    """Return the choice of SkyPilot's own optimizer for every task; `python` is one that has SkyPilot."""
    if not python.is_file():
        raise UsageError(f"{python} is no file: name a Python that has SkyPilot (pip install skypilot)")
    done = subprocess.run(
        [str(python.absolute()), str(SCRIPT), target],
        cwd=directory,
        env={"HOME": str(directory / HOME), "PATH": "/usr/bin:/bin", "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != 0:
        said = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise StageError(f"SkyPilot's optimizer did not take the pipeline (exit code {done.returncode}):\n  {said}")
    choices: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return choices
