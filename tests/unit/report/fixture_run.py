"""A run directory as `charter run` leaves it, made by hand: two kills, one failure, one stage still running.

`python tests/unit/report/fixture_run.py DIR` writes one to look at.
"""

import json
import math
import os
import random
import sys
from dataclasses import asdict
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.fingerprint import sha256_file
from charter.artifacts.lease import Holder, host_id, start_ticks
from charter.artifacts.record import Record, write_record
from charter.ledger import Ledger

START = 1_795_000_000.0
GIB = 2**30

# name, kind, planned p50 seconds, actual seconds, steps, peak GiB terms
STAGES = (
    ("pretrain", "pretrain", 74.0, 81.2, 1500, (0.4, 0.8, 1.1)),
    ("sft", "sft", 9.0, 8.1, 120, (0.4, 0.8, 0.9)),
    ("judge", "judge", 16.0, 14.4, 94, (0.4, 0.8, 1.3)),
    ("critique", "critique", 7.0, 7.7, 24, (0.2, 0.0, 0.3)),
    ("sl_cai", "sft", 9.0, 9.6, 120, (0.4, 0.8, 0.9)),
    ("label", "label", 6.0, 6.3, 40, (0.2, 0.0, 0.4)),
    ("preference_model", "preference_model", 11.0, 10.2, 48, (0.4, 0.8, 0.7)),
    ("ppo", "ppo", 82.0, 88.9, 99, (1.1, 1.6, 1.9)),
    ("eval", "eval", 9.0, 8.8, 12, (0.3, 0.0, 0.5)),
)
RESULTS = {
    "schema": "charter.results/1",
    "figures": [
        dict(key="judge_agreement", label="Judge agrees with the human label", value=0.577, low=0.509, high=0.643,
             n=208, unit="share", method="Wilson", note="held-out pairs"),
        dict(key="pm_accuracy", label="Preference model accuracy", value=0.601, low=0.533, high=0.665, n=208,
             unit="share", method="Wilson", note="trained on AI labels only"),
        dict(key="length_baseline", label="Baseline: the shorter answer wins", value=0.577, low=0.509, high=0.642,
             n=208, unit="share", method="Wilson", note=""),
        dict(key="bag_of_words_baseline", label="Baseline: bag of words", value=0.644, low=0.577, high=0.706,
             n=208, unit="share", method="Wilson", note=""),
        dict(key="independent_win_rate", label="Independent check prefers PPO to SFT", value=0.74, low=0.683,
             high=0.79, n=256, unit="share", method="bootstrap over prompts", note="bag of words on other pairs"),
        dict(key="control_win_rate", label="The same for the shuffled-label control", value=0.50, low=0.44,
             high=0.56, n=256, unit="share", method="bootstrap over prompts", note="equal length"),
        dict(key="reward_before", label="Reward before PPO", value=0.02, low=-0.06, high=0.1, n=256, unit="reward",
             method="bootstrap", note=""),
        dict(key="reward_after", label="Reward after PPO", value=1.31, low=1.2, high=1.42, n=256, unit="reward",
             method="bootstrap", note=""),
        dict(key="kl", label="KL from the SFT policy", value=2.8, low=2.6, high=3.0, n=256, unit="nats",
             method="bootstrap", note="per answer"),
    ],
    "claims": {
        "may": ["AI labels move the policy towards an independent human-preference proxy, beyond a shuffled control."],
        "may_not": ["Zero-shot AI feedback: the judge distils human labels.", "Coherent or safer answers."],
    },
}  # fmt: skip


def plan_json(*, priced: bool = True) -> dict[str, object]:
    """The plan in the shape of design.md, section 6."""
    stages = [_planned(name, kind, seconds, terms, priced) for name, kind, seconds, _, _, terms in STAGES]
    return {
        "schema": "charter.plan/1",
        "stages": stages,
        "total": {
            "seconds": _quantiles(sum(stage[2] for stage in STAGES)),
            "usd": _quantiles(sum(stage[2] for stage in STAGES) * 0.4 / 3600) if priced else None,
        },
        "assumptions": [
            {"name": "matmul efficiency", "value": 0.61, "source": "measured on this machine", "as_of": "2026-11-20"},
            {"name": "price per machine-hour", "value": 0.4, "source": "charter.yaml", "as_of": ""},
        ],
    }


def _quantiles(p50: float) -> dict[str, float]:
    return {"p10": p50 * 0.8, "p50": p50, "p90": p50 * 1.45}


def _planned(name: str, kind: str, seconds: float, terms: tuple[float, ...], priced: bool) -> dict[str, object]:
    names = ("parameters", "optimizer", "activations")
    return {
        "name": name,
        "kind": kind,
        "accelerator": "cpu",
        "count": 1,
        "market": "owned",
        "layout": {"data": 1, "micro_batch": 8},
        "peak_bytes": sum(terms) * GIB,
        "capacity_bytes": 15.6 * GIB,
        "fits": True,
        "seconds": _quantiles(seconds),
        "gpu_hours": _quantiles(0.0),
        "usd": _quantiles(seconds * 0.4 / 3600) if priced else None,
        "breakdown": {"memory": {key: value * GIB for key, value in zip(names, terms, strict=True)}},
        "rejected": [],
    }


def write_run(
    project: Path, *, priced: bool = True, finished: bool = True, rename: dict[str, str] | None = None
) -> Path:
    """Write a project with a run; with `finished` false, PPO is at step 40 and eval has not begun."""
    run = project / "run"
    (run / "stages").mkdir(parents=True)
    plan = plan_json(priced=priced)
    text = json.dumps(plan)
    for old, new in (rename or {}).items():
        text = text.replace(json.dumps(old), json.dumps(new))
    (run / "plan.json").write_text(text)
    with Ledger.open(run / "ledger.sqlite") as ledger:
        at = START
        for index, (name, kind, _, seconds, steps, _) in enumerate(STAGES):
            if not finished and name == "eval":
                break
            shown = (rename or {}).get(name, name)
            stops = not finished and name == "ppo"
            at = _write_stage(ledger, run, shown, kind, f"{index:08x}" * 8, at, seconds, steps, stops, priced)
    return project


def _write_stage(
    ledger: Ledger,
    run: Path,
    name: str,
    kind: str,
    fingerprint: str,
    at: float,
    seconds: float,
    steps: int,
    stops: bool,
    priced: bool,
) -> float:
    shared = dict(run="cai-tiny", stage=name, kind=kind, fingerprint=fingerprint, host="box", pid=1)
    if priced:
        shared |= dict(price_micro_usd_per_hour=400_000, price_source="charter.yaml", price_as_of="2026-11-20")
    first = 0
    if kind in ("pretrain", "ppo"):
        attempt = ledger.begin(**shared, at=at)
        ledger.heartbeat(attempt, at=at + seconds * 0.4, step=int(steps * 0.4), tokens=40_000, episodes=0)
        ledger.close_abandoned(now=at + 60)
        at, first = at + seconds * 0.4 + 2, int(steps * 0.35)
    if kind == "label":
        attempt = ledger.begin(**shared, at=at)
        ledger.end(attempt, at=at + 3.2, outcome="failed", step=2, note="the judge did not answer")
        at += 4
    attempt = ledger.begin(**shared, at=at, first_step=first)
    share = 1 - first / steps
    last = 40 if stops else steps
    counts = dict(
        tokens=int(160_000 * share),
        episodes=int(64 * (last - first)) if kind == "ppo" else None,
        pairs=1280 if kind in ("label", "preference_model") else None,
        records=768 if kind in ("critique", "label") else None,
    )
    took = seconds * share * (0.3 if stops else 1.0)
    if stops:
        ledger.heartbeat(attempt, at=at + took, step=last, **counts)
    else:
        ledger.end(attempt, at=at + took, outcome="done", step=last, **counts)
    _write_stage_dir(run, name, kind, fingerprint, steps, last, at)
    return at + took + 0.4


def _write_stage_dir(run: Path, name: str, kind: str, fingerprint: str, steps: int, last: int, at: float) -> None:
    directory = run / "stages" / f"{name.replace('/', '_')}-{fingerprint[:8]}"
    (directory / "outputs").mkdir(parents=True)
    draw = random.Random(name)
    for step in range(1, last + 1):
        line = {"step": step, "time": at, **_metrics(kind, step, steps, draw)}
        durable.append_line(directory / "metrics.jsonl", line)
    progress = {"step": last, "target_step": steps, "unit": "steps", "rate_per_second": 10.0, "rate_steps": last - 1}
    progress["metrics"] = {}
    (directory / "progress.json").write_text(json.dumps({**progress, "updated_at": at}))
    (directory / "job.json").write_text(json.dumps({"stage": name, "kind": kind, "fingerprint": fingerprint}))
    if kind == "eval":
        (directory / "outputs" / "results.json").write_text(json.dumps(RESULTS))
    if last == steps:
        weights = directory / "outputs" / "model.bin"
        weights.write_bytes(b"\0" * 1000)
        record = Record(
            stage=name, kind=kind, fingerprint=fingerprint, identity={}, inputs={},
            outputs={"model.bin": sha256_file(weights)}, frozen={"threads": 2},
            versions={"charter": "0.1.0", "python": "3.11.7", "torch": "2.13.0"}, step=last, target_step=steps,
        )  # fmt: skip
        write_record(directory, record)
    else:
        holder = Holder(pid=os.getpid(), start_ticks=start_ticks(os.getpid()), host=host_id(), since=START)
        (directory / "lease.json").write_text(json.dumps(asdict(holder)))


def _metrics(kind: str, step: int, steps: int, draw: random.Random) -> dict[str, float]:
    x, noise = step / steps, draw.gauss(0, 1)
    if kind == "ppo":
        return {
            "reward_mean": 1.4 * (1 - math.exp(-3 * x)) + 0.12 * noise,
            "kl": 2.9 * x**0.6 + 0.08 * noise,
            "policy_loss": -0.02 + 0.01 * noise,
            "value_loss": 0.4 * math.exp(-2 * x) + 0.03 * abs(noise),
            "response_tokens": 24.0,
        }
    if kind in ("critique", "label"):
        return {"records": float(step * 16)}
    if kind == "eval":
        return {}
    floor, start = {"pretrain": (3.4, 7.6), "sft": (2.9, 3.6)}.get(kind, (0.62, 0.72))
    loss = floor + (start - floor) * math.exp(-5 * x) + 0.04 * noise * (start - floor)
    return {"loss": loss, "learning_rate": 4e-3 * (1 - x), "tokens": 1024.0}


if __name__ == "__main__":
    print(write_run(Path(sys.argv[1]), finished="--running" not in sys.argv, priced="--unpriced" not in sys.argv))
