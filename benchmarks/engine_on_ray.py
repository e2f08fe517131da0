"""GRPO by an engine that is an application of Ray, on a Ray cluster with accelerators: killed once, resumed, billed.

The cluster is there already (`ray start --head` on a machine with accelerators; more nodes join it), and the engine's
environment under the same path on every node, with the cluster's version of Ray. The driver is killed after the first
checkpoint where it runs on this machine; elsewhere the run is left alone. Prompts ask for sums, rewards compare
numbers.

    .venv/bin/python benchmarks/engine_on_ray.py --engine verl --python /opt/verl/bin/python --model /models/small \
        --accelerators H100:8 [--nodes 2] [--directory CHECKOUT] [--field min_new_tokens=1]

The last line is one JSON object. `charged_as_planned` says whether each start costs nodes x accelerators x seconds.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests" / "cases")]
STAGE, PRICE_USD = "rl", 3.6
BATCH, GROUP = 64, 8


def project(root: Path, arguments: argparse.Namespace) -> None:
    """Write the project: prompts, and a file with one stage."""
    rows = [
        {"prompt": [{"role": "user", "content": f"What is {left} + {right}?"}], "answer": str(left + right)}
        for left in range(32)
        for right in range(arguments.steps)
    ]
    root.mkdir(parents=True)
    (root / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {
        "kind": "ppo",
        "engine": arguments.engine,
        "policy": "base",
        "prompts": "prompts",
        "estimator": "grpo",
        "samples_per_prompt": GROUP,
        "rewards": [{"name": "right", "kind": "function", "call": "charter:number"}],
        "episodes": arguments.steps * BATCH,
        "rollout_batch": BATCH,
        "minibatch": BATCH,
        "kl_coefficient": 0,
        "max_prompt_tokens": 64,
        "max_new_tokens": 64,
        "checkpoint_every": arguments.every,
        "learning_rate": 1e-6,
        "dtype": "bf16",
        "resources": {"accelerators": arguments.accelerators, "num_nodes": arguments.nodes},
        **loaded(arguments.field),
    }
    variables = dict(arguments.engine_variable)
    engine = {"python": arguments.python, "directory": arguments.directory, "environment": variables}
    content = {
        "name": "engine-on-ray",
        "models": {"base": {"model": arguments.model}},
        "data": {"prompts": {"path": "prompts.jsonl"}},
        "pipeline": {STAGE: stage},
        "seed": 7,
        "resources": {"infra": "ray", "price": PRICE_USD, **loaded(arguments.resource)},
        "launch": {"ray": {"address": arguments.address}, "environment": dict(arguments.job_variable)},
        "engines": {arguments.engine: {name: value for name, value in engine.items() if value}},
    }
    (root / "charter.yaml").write_text(json.dumps(content, indent=1))


def kill_driver(root: Path) -> bool:
    """Kill the engine's driver and all below it, where they are on this machine."""
    import hosted_case as case

    pids = list(case.engine_processes(root))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def measured(root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run, kill once, and say what became of it."""
    import hosted_case as case

    killed = False
    with contextlib.closing(case.Run(root)) as run:
        if not arguments.undisturbed:
            run.wait_for(case.has_checkpoint(root, STAGE, arguments.every), seconds=arguments.seconds)
            killed = kill_driver(root)
        code = run.process.wait(timeout=arguments.seconds)
    attempts = case.answered(root, "cost", "report")["attempts"]
    count = arguments.nodes * int(arguments.accelerators.partition(":")[2] or 1)
    charged = [item["count"] * PRICE_USD * item["seconds"] / 3600 for item in attempts]
    return {
        "engine": arguments.engine,
        "exit_code": code,
        "driver_killed": killed,
        "attempts": [(item["outcome"], item["first_step"], item["last_step"], item["seconds"]) for item in attempts],
        "charged_as_planned": all(item["count"] == count for item in attempts)
        and all(abs(item["usd"] - usd) < 1e-5 for item, usd in zip(attempts, charged, strict=True)),
        "log_end": "" if code == 0 else (root / "run.log").read_text()[-4000:],
    }


def loaded(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Read the values of pairs as JSON."""
    return {name: json.loads(value) for name, value in pairs}


def pair(text: str) -> tuple[str, str]:
    """Read `NAME=VALUE`."""
    name, _, value = text.partition("=")
    return name, value


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--directory")
    parser.add_argument("--model", required=True)
    parser.add_argument("--accelerators", default="H100:8")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--address", default="auto")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1500.0, help="how long a run may take")
    parser.add_argument("--undisturbed", action="store_true")
    parser.add_argument("--field", type=pair, action="append", default=[], help="of the stage: NAME=JSON")
    parser.add_argument("--resource", type=pair, action="append", default=[], help="of a node: NAME=JSON")
    parser.add_argument("--job-variable", type=pair, action="append", default=[], help="of every job: NAME=VALUE")
    parser.add_argument("--engine-variable", type=pair, action="append", default=[], help="of the engine: NAME=VALUE")
    return parser.parse_args(words)


def main() -> None:
    """Measure one engine."""
    arguments = parsed()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        root = Path(directory) / "project"
        project(root, arguments)
        print(json.dumps(measured(root, arguments)))


if __name__ == "__main__":
    main()
