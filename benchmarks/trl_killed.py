"""TRL's SFT, reward model and DPO of the data of cai-smoke under Charter, killed three times: the same hashes?

    python benchmarks/trl_killed.py [--steps 20] [--every 5] [--seed 7] [--adapter-rank 4]

Each stage is killed once at a random moment after its first checkpoint: the supervisor alone, every process at once,
TRL's own process. The same command goes on each time, from TRL's own checkpoints. Then the hashes of all outputs are
compared with those of an undisturbed run, and the ledger is asked for every attempt. TRL gets an environment of its own
(tools/engine_environment.sh). The last line is one JSON object.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "huggingface"
SHOWN = ("stage", "outcome", "first_step", "last_step", "tokens", "seconds")
"""Of an attempt in the ledger."""


def main() -> None:
    """Run twice, once killed, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--adapter-rank", type=int, default=0, help="of an adapter in every stage; 0 for none")
    options = parser.parse_args()
    subprocess.run(["bash", str(ROOT / "tools" / "engine_environment.sh"), ENGINE], check=True, stdout=sys.stderr)
    sys.path[:0] = [str(ROOT / "tests" / "cases"), str(ROOT / "src")]
    import hosted_case as case

    rank = options.adapter_rank
    more = f", adapter: {{rank: {rank}, alpha: {2 * rank}}}" if rank else ""
    python = ROOT / ".engines" / ENGINE / "bin" / "python"
    with tempfile.TemporaryDirectory(prefix="trl-killed-") as folder:
        calm, killed = Path(folder) / "undisturbed", Path(folder) / "killed"
        for root in (calm, killed):
            case.write_project(root, python=python, steps=options.steps, every=options.every, more=more)
        began = time.monotonic()
        ended = case.charter(calm, "run", "--yes", timeout_seconds=1800)
        if ended.returncode != 0:
            sys.exit(ended.stdout + ended.stderr)
        calm_seconds = time.monotonic() - began
        kills = case.kill_each(killed, every=options.every, steps=options.steps, seed=options.seed)
        wanted, got = case.outputs_of(calm), case.outputs_of(killed)
        attempts = case.answered(killed, "cost", "report")["attempts"]
        stages = case.answered(killed, "status")["stages"]
        result = {
            "identical": {stage: got[stage] == wanted[stage] and bool(wanted[stage]) for stage in wanted},
            "kills": kills,
            "attempts": [
                {key: item.get(key) for key in ("stage", "outcome", "first_step", "last_step", "tokens")}
                for item in attempts
            ],
            "left_processes": len(case.engine_processes(Path(folder))),
            "undisturbed_seconds": round(calm_seconds, 1),
            "resume_guarantee": {item["name"]: item["resume_guarantee"] for item in stages},
            "command": " ".join(["python", *sys.argv]),
            "machine": f"{platform.node()}, {platform.machine()}, Python {platform.python_version()}",
        }
    print(json.dumps(result))
    sys.exit(0 if all(result["identical"].values()) and not result["left_processes"] else 1)


if __name__ == "__main__":
    main()
