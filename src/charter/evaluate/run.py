"""The eval stage: run its suites one by one, and write every figure with its interval and what may be said of it.

A finished suite is a checkpoint, so a kill loses at most one suite; a suite's draws hang on ids, so it comes out the
same when it is done again. Only figures are written, never the texts of answers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import stage_main
from charter.errors import DataError
from charter.evaluate.accuracy import hhh, judge_agreement, pm_accuracy
from charter.evaluate.answers import independent_check, win_rate
from charter.evaluate.bench import Bench
from charter.evaluate.claims import claims_of
from charter.evaluate.figures import Figure
from charter.evaluate.perplexity import perplexity

SCHEMA = "charter.results/1"
FIGURES_FILE, RESULTS_FILE = "figures.json", "results.json"
UNIT = "suites"
SUITES: Mapping[str, tuple[Callable[[Bench], list[Figure]], tuple[str, ...]]] = {
    "perplexity": (perplexity, ("policy", "pairs")),
    "judge_agreement": (judge_agreement, ("judge", "pairs")),
    "pm_accuracy": (pm_accuracy, ("reward", "pairs")),
    "win_rate": (win_rate, ("policy", "against", "reward", "prompts")),
    "independent_check": (independent_check, ("policy", "against", "prompts", "independent_pairs")),
    "hhh": (hhh, ()),
}
"""Each suite with the roles that it cannot do without."""


def run(stage: StageDir) -> None:
    """Measure what the suites ask for and publish `results.json`."""
    bench = Bench(stage)
    suites = tuple(dict.fromkeys(bench.spec.suites))
    _check(bench, suites)
    checkpoint = stage.latest_checkpoint()
    figures = _read(checkpoint.path) if checkpoint else []
    for number in range((checkpoint.step if checkpoint else 0) + 1, len(suites) + 1):
        if stage.should_stop():
            return
        new = SUITES[suites[number - 1]][0](bench)
        figures += new
        _save(stage, number, _dump(figures))
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
        "figures": [asdict(figure) | {"headline": figure.headline} for figure in figures],
        "claims": {"may": list(claims.may), "may_not": list(claims.may_not)},
    }


def _check(bench: Bench, suites: Sequence[str]) -> None:
    if not suites:
        raise DataError(f"stage {bench.job.stage} has no suites; name some of {', '.join(SUITES)}")
    for suite in suites:
        bench.require(suite, *SUITES[suite][1])
    if "hhh" in suites and not (bench.has("reward") or bench.has("also_rewards") or bench.has("judge")):
        raise DataError(f"stage {bench.job.stage}: suite hhh needs a reward, also_rewards or a judge")


def _dump(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    return [asdict(figure) for figure in figures]


def _read(checkpoint: Path) -> list[Figure]:
    return [Figure(**row) for row in json.loads((checkpoint / FIGURES_FILE).read_text(encoding="utf-8"))]


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    stage_main(run)
