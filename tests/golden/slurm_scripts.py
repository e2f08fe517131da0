"""Writes the golden batch scripts: .venv/bin/python tests/golden/slurm_scripts.py."""

from pathlib import Path

from charter.launch.job import StageJob
from charter.launch.slurm.render import render
from charter.spec.launching import SlurmSettings

SCRIPTS = Path(__file__).parent / "launch" / "slurm"
AGENT = ("/opt/charter/bin/python", "-m", "charter.launch.agent", "--stage-dir", "/runs/my run/ppo")
HOSTILE = "a;$(touch x)\n#SBATCH --nodes=99\n'`id`\" \\"


def job(**values: object) -> StageJob:
    """A job; `values` replace what it has."""
    usual: dict[str, object] = {
        "name": "charter-shop-ppo-0123abcd",
        "run": "shop",
        "stage": "ppo",
        "kind": "ppo",
        "attempt": 1,
        "command": AGENT,
        "directory": Path("/runs/shop"),
        "log": Path("/runs/shop/log.txt"),
        "labels": {"project": "shop", "stage": "ppo"},
    }
    return StageJob(**{**usual, **values})  # type: ignore[arg-type]


CASES: dict[str, tuple[StageJob, SlurmSettings, tuple[str, ...]]] = {
    "one_node": (
        job(
            environment={"OMP_NUM_THREADS": "4"},
            secrets={"JUDGE_KEY": "env:JUDGE_KEY", "HF_TOKEN": "file:/run/secrets/hf token"},
            accelerator="H100-80GB",
            accelerators_per_node=4,
            cpus_per_node=16,
            memory_bytes_per_node=200 * 1024**3 + 1,
            time_limit_seconds=7230,
        ),
        SlurmSettings(partition="gpu", account="alignment", qos="high", constraint="h100|h200", exclude=("n7",)),
        (),
    ),
    "several_nodes": (
        job(nodes=2, accelerator="A100-80GB", accelerators_per_node=8, exclude_nodes=("n3", "n7")),
        SlurmSettings(exclude=("n7",), gpu_types={"A100-80GB": "nvidia_a100_sxm4"}, requeue=False),
        ("17", "18"),
    ),
    "spare_nodes": (job(nodes=2, spare_nodes=1), SlurmSettings(options=("--reservation=alignment", "--exclusive")), ()),
    "shards": (job(shards=1000, time_limit_seconds=3600, stop_before_seconds=300), SlurmSettings(), ()),
    "supervisor": (
        job(
            name="charter-shop-supervisor-0123abcd",
            stage="supervisor",
            kind="supervisor",
            command=(AGENT[0], "-m", "charter.cli.main", "run", "-C", "/runs/shop", "--on", "slurm", "--yes"),
            environment={"CHARTER_SENT": "slurm"},
        ),
        SlurmSettings(requeue=False),
        (),
    ),
    "hostile": (
        job(
            command=(*AGENT, HOSTILE),
            environment={"EVIL": HOSTILE},
            labels={"owner": HOSTILE, HOSTILE: "x"},
            log=Path("/runs/a \"b\" 'c' $(d)/log.txt"),
        ),
        SlurmSettings(),
        (),
    ),
}


def main() -> None:
    """Write them all."""
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    for name, (asked, settings, after) in CASES.items():
        (SCRIPTS / f"{name}.sh").write_text(render(asked, settings, after=after), encoding="utf-8")


if __name__ == "__main__":
    main()
