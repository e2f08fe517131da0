"""Costs of a plan beside the machines of its stages, in sums that add up to its total."""

from collections.abc import Iterable

from charter.cost.job import BUCKETS
from charter.plan.money import API, STORAGE, TRANSFER
from charter.plan.plan import Plan
from charter.plan.stage_plan import MicroUsd

NOTHING = MicroUsd(p10=0, p50=0, p90=0)
REPEATED = "reruns, idle time"


def beside_the_machines(plan: Plan) -> list[tuple[str, MicroUsd | None]]:
    """Return the costs beside the machines of the stages, by name; together with those they are the total.

    Without a price for everything these are storage, transfer, endpoints, and None for what has no price.
    """
    if plan.cost is None or plan.cost.total is None:
        return _of_stages(plan)
    buckets = plan.cost.by_bucket
    accelerators = added(buckets[name] for name in BUCKETS if name in buckets) or NOTHING
    machines = added(stage.compute_usd for stage in plan.stages if stage.compute_usd is not None) or NOTHING
    repeated = less(accelerators, machines)
    rows: list[tuple[str, MicroUsd | None]] = [(REPEATED, repeated)] if repeated.p90 else []
    return [*rows, *((name, amount) for name, amount in buckets.items() if name not in BUCKETS)]


def _of_stages(plan: Plan) -> list[tuple[str, MicroUsd | None]]:
    storage = added(stage.storage_usd for stage in plan.stages)
    moved = added(stage.transfer_usd for stage in plan.stages)
    missing = plan.cost.unpriced if plan.cost is not None else ()
    rows: list[tuple[str, MicroUsd | None]] = [(STORAGE, storage)]
    rows += [(TRANSFER, moved)] if moved is not None and moved.p90 else []
    charged = added(stage.endpoint_usd for stage in plan.stages)
    rows += [(API, charged)] if charged is not None and charged.p90 else []
    return [*rows, *((name, None) for name in missing if plan.stage(name) is None)]


def added(parts: Iterable[MicroUsd | None]) -> MicroUsd | None:
    """The exact sum; None where a part is not known.

    >>> added([MicroUsd(p10=1, p50=2, p90=3), MicroUsd(p10=1, p50=1, p90=1)]), added([None])
    (MicroUsd(p10=2, p50=3, p90=4), None)
    """
    total = NOTHING
    for part in parts:
        if part is None:
            return None
        total = total.plus(part)
    return total


def less(whole: MicroUsd, part: MicroUsd) -> MicroUsd:
    """Quantile by quantile.

    >>> less(MicroUsd(p10=2, p50=3, p90=4), MicroUsd(p10=1, p50=1, p90=1))
    MicroUsd(p10=1, p50=2, p90=3)
    """
    return MicroUsd(p10=whole.p10 - part.p10, p50=whole.p50 - part.p50, p90=whole.p90 - part.p90)
