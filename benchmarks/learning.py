"""A test of learning: the demo's whole pipeline under five seeds, every figure printed as it came out.

A seed is `charter init --template cai-tiny` and `charter run` with another `seed:`, from the tokenizer to the
evaluation; seeds share nothing but the data. Printed for each seed and over all: accuracy of the preference model on
the 208 held-out human pairs beside the shorter-answer rule and a bag of words, with the exact sign test (McNemar's)
of the model against the rule; reward gained by PPO on held-out prompts and the KL it cost; and the independent check
of policy and control. No seed is left out. The last line is one JSON object. With `--directory`, an interrupted
benchmark goes on where it stood. Some minutes a seed on two quiet cores.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
FIGURES = {
    "judge": "judge_agreement.all_unseen",
    "preference_model": "pm_accuracy.reward",
    "shorter_answer": "pm_accuracy.shorter_answer",
    "bag_of_words": "pm_accuracy.bag_of_words",
    "reward_gain": "win_rate.gain_policy",
    "kl": "win_rate.kl_policy",
    "kl_control": "win_rate.kl_control",
    "control_by_own_reward": "win_rate.control_own",
    "check_itself": "independent_check.proxy",
    "check_policy": "independent_check.policy",
    "check_control": "independent_check.control",
    "check_difference": "independent_check.difference",
}
"""The figures that are printed, by their key in the evaluation's `results.json`."""
BASELINES = ("shorter_answer", "bag_of_words")
CHECKS = ("control_by_own_reward", "check_policy", "check_control", "check_difference")
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""97.5 % points of Student's t for so many seeds (Student 1908; tables)."""


def run_seed(directory: Path, seed: int) -> None:
    """Run the demo's project under a seed, or go on with it."""
    charter = [sys.executable, "-m", "charter.cli.main"]
    if not (directory / "charter.yaml").exists():
        subprocess.run([*charter, "init", "--template", "cai-tiny", str(directory)], check=True, stdout=sys.stderr)
    run = [*charter, "run", "-C", str(directory), "--yes", "--set", f"seed={seed}"]
    subprocess.run(run, check=True, stdout=sys.stderr)


def output_of(directory: Path, stage: str) -> Path:
    """The outputs of a stage of a finished run."""
    outputs = (directory / "run" / "stages").glob(f"{stage}-*/outputs")
    return max(outputs, key=lambda path: path.stat().st_mtime)


def pair_wins(directory: Path) -> tuple[list[float], list[float]]:
    """For every held-out pair, whether the preference model and the shorter-answer rule are right."""
    from charter.data.dataset import read_pairs
    from charter.evaluate.preferences import shorter_wins
    from charter.evaluate.statistics import win_of
    from charter.inference.score import score_answers
    from charter.models.preference import load_preference_model
    from charter.spec.project import DataSpec

    pairs = read_pairs(directory / "preference_test.jsonl", DataSpec(path=""))
    model = load_preference_model(output_of(directory, "pm") / "model")
    model.scalar.eval()
    answers = [(pair.prompt, answer) for pair in pairs for answer in (pair.chosen, pair.rejected)]
    scores = score_answers(model, answers).tolist()
    return [win_of(a, b) for a, b in zip(scores[::2], scores[1::2], strict=True)], shorter_wins(pairs)


def paired(differences: list[float]) -> dict[str, float]:
    """The mean of paired differences, its 95 % interval by bootstrap over the pairs, and the exact sign test."""
    from charter.evaluate.statistics import paired_bootstrap, sign_test

    interval = paired_bootstrap(differences, seed=0)
    ends = {"value": statistics.fmean(differences), "low": interval.low, "high": interval.high}
    return {name: round(value, 6) for name, value in ends.items()} | vars(sign_test(differences))


def measure(directory: Path) -> tuple[dict, list[float]]:
    """The figures of a finished seed, and on each pair the preference model less the shorter-answer rule."""
    results = json.loads((output_of(directory, "eval") / "results.json").read_text())
    by_key = {figure["key"]: figure for figure in results["figures"]}
    figures = {
        name: {part: by_key[key][part] for part in ("value", "low", "high", "n")} for name, key in FIGURES.items()
    }
    model, shorter = pair_wins(directory)
    if abs(sum(model) / len(model) - figures["preference_model"]["value"]) > 1 / len(model):
        raise SystemExit(f"{directory}: the preference model scores other than in results.json")
    differences = [a - b for a, b in zip(model, shorter, strict=True)]
    figures["over_shorter"] = paired(differences)
    return figures, differences


def over_seeds(values: list[float]) -> dict[str, float]:
    """Mean over seeds with Student's 95 % interval, which covers the seed; the least and the most."""
    mean = statistics.fmean(values)
    summary = {"mean": mean, "least": min(values), "most": max(values)}
    if len(values) in T_95:
        half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
        summary |= {"low": mean - half, "high": mean + half}
    return {name: round(value, 6) for name, value in summary.items()}


def together(seeds: dict[int, dict], differences: list[list[float]]) -> dict:
    """All seeds: every figure over seeds, and the test against the rule with a pair's mean over seeds as one row."""
    names = [*FIGURES, "over_shorter"]
    summary = {name: over_seeds([item[name]["value"] for item in seeds.values()]) for name in names}
    by_pair = [statistics.fmean(item) for item in zip(*differences, strict=True)]
    summary["over_shorter_by_pair"] = paired(by_pair)
    return summary


def shown(figure: dict, *, percent: bool = True) -> str:
    """`58.2 (51.4 to 64.7)`, in per cent or as it is; of a mean over seeds, too."""
    scale, digits = (100, 1) if percent else (1, 2)
    value = figure.get("value", figure.get("mean"))
    if "low" not in figure:
        return f"{scale * value:.{digits}f}"
    return f"{scale * value:.{digits}f} ({scale * figure['low']:.{digits}f} to {scale * figure['high']:.{digits}f})"


def print_tables(seeds: dict[int, dict], everything: dict) -> None:
    """Print how much the preference model learnt, then PPO from it: a row per seed, the mean over seeds last."""
    rows = {f"seed {seed}": figures for seed, figures in seeds.items()}
    everything = {**everything, "over_shorter": everything["over_shorter_by_pair"]}
    print("| | judge, unseen pairs | preference model | shorter; bag of words | model less shorter, better : worse |")
    print("| --- | --- | --- | --- | --- |")
    for name, figures in {**rows, "mean": everything}.items():
        test = figures["over_shorter"]
        exact = f"{test['better']} : {test['worse']}, p = {test['p_value']:.2g}"
        baselines = "; ".join(
            shown({"value": figures[key].get("value", figures[key].get("mean"))}) for key in BASELINES
        )
        cells = [shown(figures["judge"]), shown(figures["preference_model"]), baselines]
        print(f"| {name} | {' | '.join(cells)} | {shown(test)}, {exact} |")
    print(
        "\n| | reward gained | KL, nats | control by its own | check: policy | check: control | policy less control |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, figures in {**rows, "mean": everything}.items():
        measures = [shown(figures[key], percent=False) for key in ("reward_gain", "kl")]
        shares = [shown(figures[key]) for key in CHECKS]
        print(f"| {name} | {' | '.join(measures + shares)} |")
    print()


def main() -> None:
    """Run every seed, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9, 10, 11])
    parser.add_argument(
        "--directory", type=Path, help="keep the runs here, one directory per seed; go on where they stand"
    )
    arguments = parser.parse_args()
    if not PYTHON.exists():
        subprocess.run(["make", "-C", str(ROOT), ".venv/.ready-run"], check=True, stdout=sys.stderr)
    if Path(sys.executable).resolve() != PYTHON.resolve() or sys.prefix == sys.base_prefix:
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    import torch

    torch.set_num_threads(1)
    seeds: dict[int, dict] = {}
    differences = []
    with tempfile.TemporaryDirectory() as temporary:
        for seed in arguments.seeds:
            directory = (arguments.directory or Path(temporary)) / f"seed-{seed}"
            run_seed(directory, seed)
            seeds[seed], figures = measure(directory)
            differences.append(figures)
            print(f"seed {seed}: {json.dumps(seeds[seed])}", file=sys.stderr, flush=True)
    everything = together(seeds, differences)
    print_tables(seeds, everything)
    machine = {"cpus": os.cpu_count(), "architecture": platform.machine(), "torch": torch.__version__}
    provenance = {"command": " ".join(sys.argv), "date": datetime.now(tz=UTC).date().isoformat(), "machine": machine}
    print(json.dumps({"seeds": seeds, "all": everything, **provenance}))


if __name__ == "__main__":
    main()
