"""Jobs as Kubernetes is asked for them in tests, and the settings that they are rendered with."""

from dataclasses import replace
from pathlib import Path

from charter.launch.job import StageJob
from charter.spec.launching import KubernetesSettings

SETTINGS = KubernetesSettings(image="registry.example/charter:1.2", volume_claim="runs", mount_path="/charter")
QUEUED = replace(SETTINGS, namespace="alignment", queue="team-a", priority_class="research", service_account="trainer")
ONE = StageJob(
    name="charter-r1-sft-ab12",
    run="r1",
    stage="sft",
    kind="sft",
    attempt=1,
    command=("python", "-m", "charter.launch.agent", "--stage-dir", "/charter/p/run/stages/sft", "--processes", "1"),
    directory=Path("/charter/p/run/stages/sft"),
    log=Path("/charter/p/run/stages/sft/jobs/0001/log.txt"),
    environment={"OMP_NUM_THREADS": "4", "CHARTER_LAUNCH_LEVEL": "3"},
    cpus_per_node=4,
    memory_bytes_per_node=16 * 2**30,
    memory_limit_bytes_per_node=16 * 2**30,
    labels={"project": "assistant", "owner": "team α/alignment", "cost centre": "42"},
)
SHARDS = replace(
    ONE,
    name="charter-r1-label-cd34",
    stage="label",
    kind="label",
    shards=1000,
    secrets={"JUDGE_KEY": "secret:judge/key"},
)
NODES = replace(
    ONE,
    name="charter-r1-ppo-ef56",
    stage="ppo",
    kind="ppo",
    nodes=4,
    spare_nodes=1,
    processes_per_node=8,
    accelerator="H100-80GB",
    accelerators_per_node=8,
    cpus_per_node=96,
    memory_bytes_per_node=1024 * 2**30,
    memory_limit_bytes_per_node=None,  # by a plan
    time_limit_seconds=6 * 3600,
    stop_before_seconds=180,
    use_spot=True,
    exclude_nodes=("node-17",),
)
TRAINED = replace(NODES, name="charter-r1-ppo-gh78", spare_nodes=0, use_spot=False)
CASES = {
    "job": (ONE, SETTINGS),
    "indexed_job": (SHARDS, replace(QUEUED, secrets={"HF_TOKEN": "hub/token"})),
    "jobset": (NODES, QUEUED),
    "trainjob": (TRAINED, replace(QUEUED, shape="trainjob", priority_class=None)),
}
"""One of every kind of object: golden texts in tests/golden/launch/kubernetes."""
