"""The loss by choosing our layout instead of the best that was measured: vTrain's runs, layout by layout.

    .venv/bin/python benchmarks/plan_regret.py [--measurements FILE]

Rows of one source that share model, accelerators and batch differ in layout alone. Constants are fitted without that
source. Regret of a group = measured time of the layout predicted fastest / least measured time - 1; with it
Spearman's rank correlation of predicted and measured times in a group, and how far the *ratio* of two layouts' times
is off against one time: the width that decides which layouts count as tied (`RATIO_SHARE`). Read is
the full calibration file where it is at hand, else the bundled one. The last line is one JSON object.
"""

import argparse
import json
import os
import platform
import shlex
import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parent.parent
FULL = ROOT.parent / "shared" / "data" / "measurements" / "calibration.csv"
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402

from charter.physics.fitted import bundled  # noqa: E402
from charter.validation.alarms import MEASUREMENTS  # noqa: E402
from charter.validation.quantities.training_time import TRAINING_TIME  # noqa: E402
from charter.validation.rows.measurement import read_measurements  # noqa: E402
from charter.validation.score import ScoredRow, cases_of, scored  # noqa: E402

PREFIX = "VTR"
FEWEST = 2


def groups(rows: list[ScoredRow]) -> dict[tuple[object, ...], list[ScoredRow]]:
    """Rows by what they share, where at least two layouts were measured."""
    members: dict[tuple[object, ...], list[ScoredRow]] = defaultdict(list)
    for item in rows:
        row = item.row
        members[(row.model, row.hidden, row.layers, row.gpus, row.gbs, row.seq)].append(item)
    return {key: items for key, items in sorted(members.items(), key=str) if len(items) >= FEWEST}


def regret(items: list[ScoredRow]) -> float:
    """Measured time of the choice over the least measured, less one."""
    chosen = min(items, key=lambda item: item.predicted)
    return chosen.row.value / min(item.row.value for item in items) - 1


def rank_correlation(items: list[ScoredRow]) -> float:
    """Spearman's: correlation of the ranks of predicted and measured times."""
    ranks = [np.argsort(np.argsort([value(item) for item in items])) for value in (predicted, measured)]
    return float(np.corrcoef(*ranks)[0, 1])


def predicted(item: ScoredRow) -> float:
    """Seconds that were predicted."""
    return item.predicted


def measured(item: ScoredRow) -> float:
    """Seconds that were measured."""
    return item.row.value


def told(found: list[list[ScoredRow]]) -> dict[str, object]:
    """Figures over groups."""
    regrets = [regret(items) for items in found]
    ranks = [rank_correlation(items) for items in found if len(items) > FEWEST]
    return {
        "groups": len(found),
        "rows": sum(len(items) for items in found),
        "mean_regret": round(mean(regrets), 4),
        "median_regret": round(median(regrets), 4),
        "max_regret": round(max(regrets), 4),
        "best_chosen": round(mean(one < 1e-9 for one in regrets), 3),
        "mean_rank_correlation": round(mean(ranks), 3) if ranks else None,
    }


def ratio_share(found: list[list[ScoredRow]]) -> dict[str, float]:
    """80th percentiles of |log error|: of one time, and of the ratio of two times in a group."""
    single = [abs(item.log_error) for items in found for item in items]
    near = [
        abs(one.log_error - other.log_error)
        for items in found
        for one, other in combinations(items, 2)
        if abs(np.log(one.predicted / other.predicted)) < np.log(1.25)
    ]
    one, both = float(np.quantile(single, 0.8)), float(np.quantile(near, 0.8))
    return {
        "one_time": round(one, 4),
        "ratio_of_two": round(both, 4),
        "share": round(both / one, 3),
        "pairs": len(near),
    }


def main() -> None:
    """Predict, group, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measurements", type=Path, default=FULL if FULL.is_file() else MEASUREMENTS)
    options = parser.parse_args()
    rows = [row for row in read_measurements(options.measurements) if row.prefix == PREFIX]
    cases, refused = cases_of(TRAINING_TIME, rows)
    fit = bundled().quantities[TRAINING_TIME.name]
    items = scored(TRAINING_TIME, cases, fit.without[PREFIX])
    choices = list(groups(items).values())
    nodes = {
        "single_node": [group for group in choices if (group[0].row.gpus or 0) <= (group[0].row.gpus_per_node or 8)],
        "multi_node": [group for group in choices if (group[0].row.gpus or 0) > (group[0].row.gpus_per_node or 8)],
    }
    figures: dict[str, object] = {
        "source": PREFIX,
        "constants": f"fitted without {PREFIX}",
        "rows": len(items),
        "refused": len(refused),
        **{name: told(part) if part else "no such rows in the file" for name, part in nodes.items()},
        "errors": ratio_share(choices),
        "command": shlex.join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
