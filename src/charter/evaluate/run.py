"""The eval stage: run its suites one by one, and write every figure with its interval and what may be said of it.

A finished suite is a checkpoint, so a kill loses at most one suite; a suite's draws hang on ids, so it comes out the
same when it is done again. Only figures are written, never the texts of answers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import DataError
from charter.evaluate.accuracy import hhh, pm_accuracy
from charter.evaluate.answers import independent_check, win_rate
from charter.evaluate.bench import Bench
from charter.evaluate.claims import claims_of
from charter.evaluate.figures import Figure
from charter.evaluate.goodhart import goodhart
from charter.evaluate.judge_wins import judge_win_rate
from charter.evaluate.judges import judge_agreement, probes
from charter.evaluate.lm_eval_suite import lm_eval
from charter.evaluate.multiple_choice import multiple_choice
from charter.evaluate.perplexity import perplexity
from charter.evaluate.pm_calibration import pm_calibration
from charter.evaluate.refusal import refusal
from charter.spec.stage_checks import missing_needs

SCHEMA = "charter.results/1"
FIGURES_FILE, RESULTS_FILE = "figures.json", "results.json"
UNIT = "suites"
SUITES: Mapping[str, Callable[[Bench], list[Figure]]] = {
    "perplexity": perplexity,
    "judge_agreement": judge_agreement,
    "pm_accuracy": pm_accuracy,
    "pm_calibration": pm_calibration,
    "win_rate": win_rate,
    "judge_win_rate": judge_win_rate,
    "independent_check": independent_check,
    "hhh": hhh,
    "multiple_choice": multiple_choice,
    "refusal": refusal,
    "goodhart": goodhart,
    "probes": probes,
    "lm_eval": lm_eval,
}
"""What measures each suite; what it cannot do without is in `SUITE_NEEDS`."""


def run(stage: StageDir) -> None:
    """Measure what the suites ask for and publish `results.json`."""
    with closing(Bench(stage)) as bench:
        _measure(stage, bench, tuple(dict.fromkeys(bench.spec.suites)))


def _measure(stage: StageDir, bench: Bench, suites: Sequence[str]) -> None:
    check_needs(bench, suites)
    checkpoint = stage.latest_checkpoint()
    figures = _read(checkpoint.path) if checkpoint else []
    for number in range((checkpoint.step if checkpoint else 0) + 1, len(suites) + 1):
        if stage.should_stop():
            return
        new = SUITES[suites[number - 1]](bench)
        figures += new
        _save(stage, number, [asdict(figure) for figure in figures])
        stage.report(number, len(suites), UNIT, {figure.key: figure.value for figure in new})
    learnt = any(item.stage_kind == "judge" for item in stage.job.inputs.get("judge", ()))
    results = results_json(figures, judge_learnt_from_humans=learnt)
    stage.publish_outputs(
        lambda path: _write_json(path / RESULTS_FILE, results), step=len(suites), target_step=len(suites)
    )


def _save(stage: StageDir, number: int, figures: list[dict[str, Any]]) -> None:
    stage.save_checkpoint(number, lambda path: _write_json(path / FIGURES_FILE, figures))


def results_json(figures: Sequence[Figure], *, judge_learnt_from_humans: bool) -> dict[str, Any]:
    """The content of `results.json`."""
    claims = claims_of(figures, judge_learnt_from_humans=judge_learnt_from_humans)
    return {
        "schema": SCHEMA,
        "figures": [_figure_json(figure) for figure in figures],
        "claims": {"may": list(claims.may), "may_not": list(claims.may_not)},
    }


def check_needs(bench: Bench, suites: Sequence[str]) -> None:
    """Refuse a suite whose inputs are not named, before anything is measured."""
    stage = bench.job.stage
    if not suites:
        raise DataError(f"stage {stage} has no suites; name some of {', '.join(SUITES)}")
    for suite in suites:
        missing = missing_needs(suite, bench.has)
        if missing:
            raise DataError(f"stage {stage}: suite {suite} needs {', '.join(missing)}; add it or drop the suite")


def _figure_json(figure: Figure) -> dict[str, Any]:
    """A figure as it is published; `at` only where it is a point of a curve."""
    return {key: value for key, value in asdict(figure).items() if key != "at" or value is not None} | {
        "headline": figure.headline
    }


def _read(checkpoint: Path) -> list[Figure]:
    return [Figure(**row) for row in json.loads((checkpoint / FIGURES_FILE).read_text(encoding="utf-8"))]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    stage_main(run)
