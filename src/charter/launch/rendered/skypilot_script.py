"""Run by a Python that has SkyPilot, in a directory that `charter.run.submit` has written.

Reads `pipeline.yaml` with SkyPilot's own reader, which checks it against SkyPilot's own schema, lets its optimizer
choose with our times and prices, and prints what it chose as one line of JSON. Imports nothing of Charter.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def main() -> None:
    """Optimize for `cost` or `time`, as the argument says."""
    import sky
    from sky import check, clouds
    from sky.optimizer import Optimizer
    from sky.utils import dag_utils, registry
    from sky.utils.common import OptimizeTarget

    rows = json.loads(Path("times.json").read_text(encoding="utf-8"))
    secrets = [(name, "dry-run") for name in secret_names(Path("pipeline.yaml").read_text(encoding="utf-8"))]
    names = {path.parent.name for path in Path.home().glob(".sky/catalogs/*/*/vms.csv")}
    enabled: list[clouds.Cloud] = [registry.CLOUD_REGISTRY.from_str(name) for name in sorted(names)]
    # Which clouds are enabled is asked of the providers, with credentials; a dry run takes those with prices.
    check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: enabled
    dag = dag_utils.load_chain_dag_from_yaml("pipeline.yaml", secret_overrides=secrets)
    for task in dag.tasks:
        task.set_time_estimator(estimator([row for row in rows if row["task"] == task.name]))
        task.set_resources(type(task.resources)(planned(task.resources, rows, task.name)))
    target = OptimizeTarget.TIME if sys.argv[1:] == ["time"] else OptimizeTarget.COST
    Optimizer.optimize(dag, minimize=target, quiet=True)
    chosen = [outcome(task) for task in dag.tasks]
    total = {"seconds": sum(row["seconds"] for row in chosen), "usd": sum(row["usd"] for row in chosen)}
    print(json.dumps({"skypilot": sky.__version__, "target": target.name, "tasks": chosen, "total": total}))


def estimator(rows: Sequence[Row]) -> Callable[[Any], int]:
    """The seconds of one task on given resources."""

    def seconds(resources: Any) -> int:
        times = [row["seconds"] for row in rows if fits(resources, row)]
        if not times:
            raise SystemExit(f"no time is known of {rows[0]['task']} on {resources}")
        return int(min(times))

    return seconds


def planned(candidates: Any, rows: Sequence[Row], task: str) -> list[Any]:
    """The candidates that the plan has a time of: on the others the stage does not fit."""
    return [candidate for candidate in candidates if any(row["task"] == task and fits(candidate, row) for row in rows)]


def fits(resources: Any, row: Row) -> bool:
    """Return True if a row of the table is of these resources; a candidate without a cloud is of any."""
    cloud = None if resources.cloud is None else str(resources.cloud).lower()
    accelerators = {name.lower(): count for name, count in (resources.accelerators or {}).items()}
    return (
        cloud in (None, row["infra"])
        and accelerators == {row["accelerator"].lower(): row["count"]}
        and resources.use_spot == row["use_spot"]
    )


def outcome(task: Any) -> dict[str, Any]:
    """Return the resources chosen for one task, and their cost."""
    best = task.best_resources
    seconds = task.estimate_runtime(best)
    return {
        "task": task.name,
        "cloud": str(best.cloud),
        "region": best.region,
        "instance_type": best.instance_type,
        "accelerators": best.accelerators,
        "use_spot": best.use_spot,
        "seconds": seconds,
        "usd": task.num_nodes * best.get_cost(seconds),
    }


def secret_names(text: str) -> list[str]:
    """Names of the secrets that tasks ask for: a dry run gives each a word in place of a value."""
    import yaml

    names = {name for document in yaml.safe_load_all(text) for name in document.get("secrets", {})}
    return sorted(names)


if __name__ == "__main__":
    main()
