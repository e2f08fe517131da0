"""Predictions of Charter, calculon and llm-analysis beside measurements; writes docs/concepts/accuracy-tables.md.

    .venv/bin/python benchmarks/accuracy_vs_peers.py [--peers DIR] [--published FILE] [--no-write]

`--peers` is a folder that holds checkouts `calculon/` and `llm-analysis/` and `predict_peers.py`; by default
CALCULON_DIR and LLM_ANALYSIS_DIR are read, and a peer that is not there is left out. What the peers need is installed
into an environment of its own. The last line is one JSON object.
"""

import argparse
import csv
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
PAGE = ROOT / "docs" / "concepts" / "accuracy-tables.md"
ENVIRONMENT = ROOT / ".venv-peers"
sys.path.insert(0, str(ROOT / "src"))

from charter.physics.fitted import bundled  # noqa: E402
from charter.validation.alarms import MEASUREMENTS, bundled_measurements  # noqa: E402
from charter.validation.rows.measurement import Measurement, read_measurements  # noqa: E402
from charter.validation.score import (  # noqa: E402
    TRAINING_TIME,
    Case,
    calibrated,
    cases_of,
    predict,
)
from charter.validation.validate import RowVerdict, score, validate, without  # noqa: E402

CLASSIC_SHAPE = ("id", "model_hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq")
CLASSIC_LAYOUT = ("gpu", "gpus", "tp", "pp", "dp", "vpp", "mbs", "gbs", "recompute", "seqpar", "zero_stage", "dtype")
CLASSIC = (*CLASSIC_SHAPE, *CLASSIC_LAYOUT, "measured_step_s", "measured_mem_gib")


def main() -> None:
    """Predict, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=None)
    parser.add_argument("--published", type=Path, default=SHARED / "data" / "measurements" / "published_rows.csv")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    figures: dict[str, object] = {"targets": targets()}
    tables = [target_table(figures["targets"]), source_table()]
    if options.published.is_file():
        classic = classic_rows(options)
        figures["published_rows"] = classic
        tables.append(classic_table(classic))
    figures |= {"command": shlex.join(["python", *sys.argv]), "date": date.today().isoformat(), "machine": machine()}
    if not options.no_write:
        PAGE.write_text(page(tables, figures), encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
    print(json.dumps(figures))


# ---------------------------------------------------------------- our figures on the bundled measurements
def estimates(rows: Sequence[Measurement], *, calibrate_rows: int) -> tuple[RowVerdict, ...]:
    """Rows with the estimate, which is what peers print; what a plan shows of the memory of training lies above it."""
    verdicts = validate(rows, calibrate_rows=calibrate_rows)
    return tuple(item if item.p50 is None else replace(item, predicted=item.p50) for item in verdicts)


def targets() -> list[dict[str, object]]:
    """Every figure of the accuracy issue: what was asked, what was reached."""
    rows = bundled_measurements()
    zero, five, ten = (estimates(rows, calibrate_rows=count) for count in (0, 5, 10))

    def sources(verdicts: Sequence[RowVerdict], keep) -> float | None:
        groups: dict[str, list[RowVerdict]] = {}
        for item in verdicts:
            if keep(item.row) and item.row.says_lengths:
                groups.setdefault(item.row.prefix, []).append(item)
        scores = [score(group) for group in groups.values()]
        errors = [each.median_error for each in scores if each.configurations and each.median_error is not None]
        return mean(errors) if errors else None

    def line(
        name: str, keep, asked: float | None, after: float | None, peer: str, ten_rows: bool = False
    ) -> dict[str, object]:
        chosen = [item for item in zero if keep(item.row) and item.row.says_lengths]
        return {
            "quantity": name,
            "peer": peer,
            "asked": asked,
            "zero_shot": sources(zero, keep),
            "bias": score(chosen).bias,
            "asked_after": after,
            "after": sources(ten if ten_rows else five, keep) if after else None,
            "bias_after": score(
                [item for item in (ten if ten_rows else five) if keep(item.row) and item.row.says_lengths]
            ).bias,
        }

    def trained(row: Measurement) -> bool:
        return row.metric in ("step_time_s", "tokens_per_s_per_gpu", "tokens_per_s_total") and row.kind in (
            "pretrain", "sft", "lora", "rm",
        )  # fmt: skip

    def memory(row: Measurement, *prefixes: str) -> bool:
        return row.metric.startswith("peak_mem") and row.prefix in prefixes

    step_metrics = ("step_time_s", "ppo_step_time_s")
    hours = ("wall_hours", "wall_days", "gpu_hours")
    lines = [
        line("training step time, dense", lambda r: trained(r) and not r.n_experts, 0.14, 0.08, "constant MFU 40 %"),
        line("MoE training", lambda r: trained(r) and bool(r.n_experts), 0.25, 0.12, "quick roofline 35 %"),
        line("vTrain rows", lambda r: r.prefix == "VTR", 0.20, 0.09, "calculon 38.9 %", ten_rows=True),
        line("memory: B200 rows", lambda r: memory(r, "SMX"), 0.03, None, "SimuMax 0.33 % (operators measured)"),
        line("memory: BLOOM", lambda r: memory(r, "BSC"), 0.20, 0.04, "-"),
        line("memory: LoRA and QLoRA tables", lambda r: memory(r, "LGT", "QFT") and r.kind == "lora", 0.15, 0.08, "-"),
        line("memory: inference", lambda r: r.metric.startswith("peak_mem") and r.kind == "inference", None, None, "-"),
        line("generation throughput", lambda r: r.kind == "inference" and "mem" not in r.metric and r.metric != "oom",
             0.22, 0.12, "quick roofline 15-25 %"),
        line("PPO and GRPO step", lambda r: r.kind == "ppo" and r.metric in step_metrics, 0.30, 0.18, "-"),
        line("phases of a PPO step", lambda r: r.metric.startswith("ppo_") and r.metric not in step_metrics,
             None, None, "-"),
        line("run hours", lambda r: r.metric in hours, 0.25, 0.15, "-"),
    ]  # fmt: skip
    return [*lines, verdicts_line(zero), *intervals(zero, five), refusals(zero)]


def verdicts_line(verdicts: Sequence[RowVerdict]) -> dict[str, object]:
    """Out-of-memory verdicts on the rows that say so, and on every row that ran and says how."""
    counts = score(verdicts)
    return {
        "quantity": "OOM rows called 'fits'",
        "asked": 0,
        "zero_shot": counts.said_fits_was_oom,
        "rows": counts.oom_rows,
    }


def intervals(zero: Sequence[RowVerdict], five: Sequence[RowVerdict]) -> list[dict[str, object]]:
    """Coverage and width of the 80 % interval over kinds with at least 50 configurations."""
    entries = []
    kinds = sorted({item.row.kind for item in zero})
    for name, verdicts, width in (("interval, zero-shot", zero, 2.2), ("interval, after 5 rows", five, 1.5)):
        for kind in kinds:
            scored = score([item for item in verdicts if item.row.kind == kind])
            if scored.configurations >= 50:
                entries.append(
                    {
                        "quantity": f"{name}: {kind}",
                        "asked": f"70-90 %, p90/p10 <= {width}",
                        "coverage": scored.coverage,
                        "width": scored.width,
                    }
                )
    return entries


def refusals(verdicts: Sequence[RowVerdict]) -> dict[str, object]:
    """Share of rows refused."""
    counts = score(verdicts)
    return {"quantity": "rows refused", "asked": 0.10, "zero_shot": counts.refused / counts.rows}


# ---------------------------------------------------------------- the classic rows, side by side with the peers
def classic_rows(options: argparse.Namespace) -> dict[str, object]:
    """Errors on the published training steps, with the two sources they come from left out of our fit."""
    rows = [row for row in read_measurements(options.published) if row.metric == "step_time_s"]
    verdicts = validate(rows, leave_out=("KOR", "MLM"))
    expressible = [item for item in verdicts if item.row.shard == "none"]
    errors = [float(item.error) for item in expressible if item.error is not None]
    result: dict[str, object] = {
        "charter": summary(errors) | {"rows": {item.row.id: item.error for item in verdicts}},
        "charter_one_set_calibrated": calibrated_sets([item.row for item in expressible]),
        "vtrain": {"charter": summary(errors_of_vtrain())},
    }
    with tempfile.TemporaryDirectory() as scratch:
        vtrain = Path(scratch) / "vtrain.csv"
        write_classic(vtrain)
        for name, file in (("published", options.published), ("vtrain", vtrain)):
            for peer, peer_errors in peers(options, file).items():
                target = result if name == "published" else result["vtrain"]
                target[peer] = summary(list(peer_errors.values())) | {
                    "rows": peer_errors if name == "published" else {}
                }
    return result


def errors_of_vtrain() -> list[float]:
    """Our errors on the vTrain rows, with vTrain left out."""
    rows = [row for row in bundled_measurements() if row.prefix == "VTR"]
    return [float(item.error) for item in validate(rows) if item.error is not None]


def calibrated_sets(rows: Sequence[Measurement]) -> dict[str, object]:
    """Each row predicted after calibration on the other rows of its paper's table."""
    cases, _ = cases_of(TRAINING_TIME, rows)
    start = without(TRAINING_TIME, bundled().quantities[TRAINING_TIME.name], ("KOR", "MLM"))
    sets: dict[str, list[Case]] = {}
    for case in cases:
        sets.setdefault("-".join(case.row.id.split("-")[:2]), []).append(case)
    by_set = {}
    for name, members in sets.items():
        if len(members) < 3:
            continue
        errors = []
        for left in members:
            others = [case for case in members if case is not left]
            value = float(predict(TRAINING_TIME, [left], calibrated(TRAINING_TIME, others, start))[0])
            errors.append(value / left.row.value - 1)
        by_set[name] = summary(errors)
    return by_set


def summary(errors: Sequence[float]) -> dict[str, object]:
    """Mean and largest absolute error, and the signed mean."""
    if not errors:
        return {"n": 0}
    sizes = [abs(error) for error in errors]
    return {"n": len(errors), "mean": mean(sizes), "median": median(sizes), "max": max(sizes), "bias": mean(errors)}


def write_classic(path: Path) -> None:
    """The vTrain rows in the peers' layout."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CLASSIC)
        for row in bundled_measurements():
            if row.prefix == "VTR":
                shape = [row.id, row.hidden, row.layers, row.heads, row.kv_heads, row.ffn, row.vocab, row.seq]
                degrees = ["a100-80g", row.gpus, row.tp or 1, row.pp or 1, row.dp or 1, row.vpp or 1]
                batch = [int(row.mbs or 1), int(row.gbs or 1), "full", 0, 0, "fp16", row.value, ""]
                writer.writerow([*shape, *degrees, *batch])


def peers(options: argparse.Namespace, file: Path) -> dict[str, dict[str, float]]:
    """Errors per row of each peer that is at hand; rows a peer cannot express are left out."""
    directory: Path | None = options.peers
    places = {
        "CALCULON_DIR": os.environ.get("CALCULON_DIR") or (directory / "calculon" if directory else None),
        "LLM_ANALYSIS_DIR": os.environ.get("LLM_ANALYSIS_DIR") or (directory / "llm-analysis" if directory else None),
    }
    script = next(
        (
            path
            for path in (directory and directory / "predict_peers.py", SHARED / "peers" / "predict_peers.py")
            if path and path.is_file()
        ),
        None,
    )
    present = {name: str(place) for name, place in places.items() if place and Path(place).is_dir()}
    if script is None or not present:
        print("no peer at hand (CALCULON_DIR, LLM_ANALYSIS_DIR): only our own figures", file=sys.stderr)
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.csv"
        command = [str(python()), str(script), str(file), "-o", str(out)]
        subprocess.run(command, check=True, env={**os.environ, **present}, stderr=subprocess.DEVNULL)
        with out.open(newline="") as handle:
            rows = list(csv.DictReader(handle))
    zero = {row["id"] for row in csv.DictReader(file.open(newline="")) if int(row["zero_stage"]) < 2}
    names = {"calculon": "calculon_err_pct", "llm_analysis": "llma_err_pct"}
    by_peer = {
        peer: {row["id"]: float(row[column]) / 100 for row in rows if row[column] and row["id"] in zero}
        for peer, column in names.items()
    }
    return {peer: errors for peer, errors in by_peer.items() if errors}


def python() -> Path:
    """An interpreter that has what the peers import."""
    interpreter = ENVIRONMENT / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(interpreter), "-m", "pip", "-qq", "install", "psutil", "pandas", "fire"], check=True)
    return interpreter


# ---------------------------------------------------------------- the page
def percent(value: object, sign: str = "") -> str:
    return "-" if value is None else f"{float(value):{sign}.1%}".replace("%", " %")  # type: ignore[arg-type]


def limit(value: object) -> str:
    return "" if value is None else f"<= {percent(value)}"


def target_table(lines: Iterable[dict[str, object]]) -> str:
    """Targets beside the figures that were reached."""
    head = (
        "| quantity | peer or baseline | asked | reached | bias | asked after 5 | reached | bias |\n"
        + "| --- " * 8
        + "|"
    )
    rows = []
    for item in lines:
        if "coverage" in item:
            inside = f"{percent(item['coverage'])} inside, p90/p10 {float(item['width']):.2f}"  # type: ignore[arg-type]
            rows.append(f"| {item['quantity']} | no peer has one | {item['asked']} | {inside} | | | | |")
            continue
        if "rows" in item:
            rows.append(f"| {item['quantity']} | | {item['asked']} | {item['zero_shot']} of {item['rows']} | | | | |")
            continue
        after = item.get("asked_after")
        rows.append(
            f"| {item['quantity']} | {item.get('peer', '')} | {limit(item['asked'])} "
            f"| {percent(item['zero_shot'])} | {percent(item.get('bias'), '+')} "
            f"| {limit(after)} "
            f"| {percent(item['after']) if after else ''} | {percent(item.get('bias_after'), '+') if after else ''} |"
        )
    return (
        "## Figures asked and reached\n\n"
        "Mean over sources of the median error; each source predicted without its own rows. vTrain after 10 rows.\n\n"
        + "\n".join([head, *rows])
    )


def source_table() -> str:
    """Per source, kind and metric."""
    from charter.validation.validate import grouped

    zero, five = (grouped(estimates(bundled_measurements(), calibrate_rows=count), "source") for count in (0, 5))
    columns = ("source, kind, metric", "rows", "refused", "configurations", "median", "90th percentile", "bias")
    head = "| " + " | ".join((*columns, "inside", "after 5 rows")) + " |\n" + "| --- " * 9 + "|"
    rows = [
        f"| {name} | {scored.rows} | {scored.refused} | {scored.configurations} | {percent(scored.median_error)} "
        f"| {percent(scored.p90_error)} | {percent(scored.bias, '+')} | {percent(scored.coverage)} "
        f"| {percent(five[name].median_error)} |"
        for name, scored in zero.items()
    ]
    return "## Every source\n\n" + "\n".join([head, *rows])


def classic_table(found: dict[str, object]) -> str:
    """The published training steps, side by side."""
    names = {
        "charter": "Charter (KOR and MLM left out of the fit)",
        "calculon": "calculon",
        "llm_analysis": "llm-analysis at 0.5",
    }
    head = "| planner | rows | mean | largest | bias | vTrain rows, mean |\n" + "| --- " * 6 + "|"
    rows = []
    for name, label in names.items():
        item, vtrain = found.get(name), found["vtrain"].get(name, {})  # type: ignore[attr-defined]
        if isinstance(item, dict) and item.get("n"):
            rows.append(
                f"| {label} | {item['n']} | {percent(item['mean'])} | {percent(item['max'])} "
                f"| {percent(item['bias'], '+')} | {percent(vtrain.get('mean'))} |"
            )
    sets = found["charter_one_set_calibrated"]
    lines = [
        f"| {name} | {item['n']} | {percent(item['mean'])} | {percent(item['max'])} |" for name, item in sets.items()
    ]  # type: ignore[attr-defined]
    return (
        "## Published Megatron steps, side by side\n\n"
        + "\n".join([head, *rows])
        + "\n\nAfter calibration on the other rows of the same table (calculon with one scalar: 2.3-3.8 %):\n\n"
        + "\n".join(["| table | rows | mean | largest |\n| --- | --- | --- | --- |", *lines])
    )


def page(tables: Sequence[str], figures: dict[str, object]) -> str:
    """The whole page."""
    head = (
        "# Accuracy: the tables\n\n"
        f"Written by `{figures['command']}` on {figures['date']}, {figures['machine']}; measurements: "
        f"`{MEASUREMENTS.relative_to(ROOT)}`. How to read them: [accuracy](accuracy.md). Do not edit by hand.\n"
    )
    return "\n\n".join([head.rstrip(), *tables]) + "\n"


def machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
