"""Charter's engine against TRL, step by step in turn, per CPU second. The last line is one JSON object.

Both train the same models on the same rows with the same hyperparameters, in fp32 on one thread, and log the same
kind of statistics every step (`peer_workload.py`). In PPO and GRPO neither side may draw the end token, so that all
answers are of one length; GRPO's reward is one function, without a reference. TRL 1.16.0 does fine-tuning, preference
models and GRPO, 1.12.0 PPO: the last that has it. Each lives in an environment of its own under
~/.cache/charter-benchmarks, made when missing.

A step of one side is followed by the same step of the other, so that a busy machine slows both. CPU seconds are
those of the side's process and of what it has started, such as Charter's process for a reward. Ratio: median over steps
of theirs / ours; the first steps are left out.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import peer_workload as work

HERE = Path(__file__).resolve().parent
CHARTER = HERE.parent / ".venv" / "bin" / "python"
CACHE = Path.home() / ".cache" / "charter-benchmarks"
TRL = {
    "sft": "1.16.0",
    "preference_model": "1.16.0",
    "preference_model_varlen": "1.16.0",
    "ppo": "1.12.0",
    "grpo": "1.16.0",
}
PINNED = ("torch==2.13.0", "transformers==5.23.0")
REQUIRED = {"sft": 1.3, "preference_model": 1.0, "preference_model_varlen": 1.3, "ppo": 1.5, "grpo": 1.5}
REQUIRED_AT_10X = {"grpo": 1.25}
STEPS = {1: {"sft": 40, "ppo": 14, "grpo": 20}, 10: {"sft": 12, "ppo": 6, "grpo": 8}}
OTHER_STEPS = {1: 40, 10: 12}
WARM_UP = 2
SAME = {"sft": ("loss", "loss"), "preference_model": ("loss", "loss"), "preference_model_varlen": ("loss", "loss")}
TOLERANCE = 2e-3
"""Of the losses of both sides in the first three steps: fp32, other order of sums."""


def trl_python(version: str) -> Path:
    """The interpreter of an environment with that TRL, made when it is not there."""
    home = CACHE / f"trl-{version}"
    python, ready = home / "bin" / "python", home / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True, stdout=sys.stderr)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, PINNED[0]], check=True, stdout=sys.stderr)
        subprocess.run([*pip, *PINNED, f"trl=={version}"], check=True, stdout=sys.stderr)
        ready.write_text("\n".join((*PINNED, f"trl=={version}")) + "\n")
    return python


class Side:
    """One side's process, which does a step when told to."""

    def __init__(self, command: list[str]) -> None:
        environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
        self._process = subprocess.Popen(
            command, cwd=HERE, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.name = " ".join(command[1:])

    def read(self) -> dict:
        """The next line of the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise SystemExit(f"{self.name} ended:\n{self._process.stderr.read().decode()[-4000:]}")
        return json.loads(line)

    def step(self) -> dict:
        """Let it do a step; its CPU seconds and metrics."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return self.read()

    def end(self) -> None:
        """Nothing more is asked of it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


def compare(stage: str, scale: int, steps: int) -> dict:
    """Both sides in turn; ratio, rates and how near the losses are."""
    arguments = [stage, str(steps), str(scale)]
    ours = Side([str(CHARTER), "engine_peer.py", *arguments])
    ours.read()
    theirs = Side([str(trl_python(TRL[stage])), "trl_peer.py", *arguments])
    theirs.read()
    done: list[tuple[dict, dict]] = []
    for number in range(steps - 1):
        if number % 2:
            second = theirs.step()
            done.append((ours.step(), second))
        else:
            first = ours.step()
            done.append((first, theirs.step()))
    for side in (ours, theirs):
        side.end()
    timed = done[min(WARM_UP, len(done) - 1) :]
    ratios = sorted(other["cpu_s"] / own["cpu_s"] for own, other in timed)
    rates = [work.UNITS[stage] / statistics.median(pair[index]["cpu_s"] for pair in timed) for index in (0, 1)]
    result = {
        "ratio": round(statistics.median(ratios), 3),
        "ratio_quartiles": [round(ratios[len(ratios) // 4], 3), round(ratios[(3 * len(ratios)) // 4], 3)],
        "charter_per_cpu_s": round(rates[0], 2),
        "trl_per_cpu_s": round(rates[1], 2),
        "unit": work.UNIT_NAMES[stage],
        "timed_steps": len(timed),
        "first_metrics": [{k: round(v, 6) for k, v in side["metrics"].items()} for side in done[0]],
    }
    if stage == "ppo":
        ends = [(own["metrics"]["end_tokens"], other["metrics"]["val/num_eos_tokens"]) for own, other in done]
        result |= {"same_lengths": all(pair == (0, 0) for pair in ends)}
    if stage == "grpo":
        lengths = [
            (own["metrics"]["response_tokens"], other["metrics"]["completions/mean_length"]) for own, other in done
        ]
        result |= {"same_lengths": all(pair == (work.ANSWER_TOKENS,) * 2 for pair in lengths)}
    if stage in SAME:
        mine, other = SAME[stage]
        gaps = [abs(a["metrics"][mine] - b["metrics"][other]) / abs(b["metrics"][other]) for a, b in done[:3]]
        result |= {"largest_relative_loss_gap": max(gaps), "same_work": max(gaps) <= TOLERANCE}
    return result


def main() -> None:
    """Measure what was asked for, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few steps of the small model: does it run?")
    parser.add_argument("--stage", choices=work.STAGES, action="append", help="only this one (may be repeated)")
    parser.add_argument("--scale", type=int, choices=(1, 10), help="only this model size")
    options = parser.parse_args()
    scales = [options.scale] if options.scale else [1] if options.quick else [1, 10]
    figures: dict[int, dict[str, dict]] = {}
    for scale in scales:
        for stage in options.stage or work.STAGES:
            steps = 5 if options.quick else STEPS[scale].get(stage, OTHER_STEPS[scale])
            figures.setdefault(scale, {})[stage] = compare(stage, scale, steps)
            print(f"scale {scale} {stage}: {json.dumps(figures[scale][stage])}", file=sys.stderr, flush=True)
    small, large = figures.get(1, {}), figures.get(10, {})
    result = {
        "ratio_per_cpu_second": {stage: item["ratio"] for stage, item in small.items()},
        "at_10x": {stage: item["ratio"] for stage, item in large.items()},
        "required": REQUIRED,
        "required_at_10x": 1.0,
        "required_at_10x_of": REQUIRED_AT_10X,
        "within_limits": all(item["ratio"] >= REQUIRED[stage] for stage, item in small.items())
        and all(item["ratio"] >= REQUIRED_AT_10X.get(stage, 1.0) for stage, item in large.items()),
        "figures": figures,
        "command": " ".join(["benchmarks/engine_vs_trl.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "versions": {"pinned": PINNED, "trl": TRL, "python": platform.python_version()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
