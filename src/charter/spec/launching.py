"""Settings of stages started on a scheduler that is not this machine: the section `launch:` of `charter.yaml`.

Execution only: nothing here changes what is computed, and no secret stands here, only the place where it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from charter.redaction import HIDDEN, is_plain_variable
from charter.spec.quantity import Bytes, Count, Names, Seconds

FORBID_EXTRA: dict[str, str] = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class SlurmSettings:
    """A Slurm cluster whose commands (`sbatch`, `squeue`, `scontrol`, `sacct`) are on the path here."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    """Node features, in Slurm's own words: `h100|h200`."""
    exclude: Names = ()
    """Nodes never to be used."""
    requeue: bool = True
    """Let Slurm start a preempted job or one of a lost node again, under the same number."""
    max_array_tasks: Count = 256
    """Tasks of one array that may run at the same time."""
    gpu_types: Mapping[str, str] = field(default_factory=dict)
    """What this cluster calls accelerators, where that is not the first word of the catalog's name:
    `{H100-80GB: nvidia_h100_80gb_hbm3}`."""
    seconds_between_polls: Seconds = 2.0
    """The controller is asked about jobs at most so often, however many they are."""
    options: Names = ()
    """Further lines after `#SBATCH`, as they are: `--reservation=alignment`."""


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """A Ray cluster."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    address: str = "auto"
    """`auto`: the cluster of this machine, or of `RAY_ADDRESS`; else `HOST:PORT` of the head."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources that every process of a stage takes."""


@dataclass(frozen=True, kw_only=True)
class KubernetesSettings:
    """A Kubernetes cluster; `kubectl` reaches it here."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    namespace: str = "default"
    context: str | None = None
    image: str | None = None
    """Image with Charter in it; without one nothing can be submitted."""
    shape: Literal["auto", "job", "indexed_job", "jobset", "trainjob"] = "auto"
    """`auto`: a Job for one process, an indexed Job for shards, a JobSet for several nodes."""
    queue: str | None = None
    """Kueue's LocalQueue."""
    priority_class: str | None = None
    service_account: str | None = None
    volume_claim: str | None = None
    """PersistentVolumeClaim (ReadWriteMany) that holds the project directory."""
    mount_path: str = "/charter"
    """Where the claim is mounted, in every pod."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables from secrets of the namespace, by reference: `{JUDGE_KEY: judge-secret/api-key}`."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    accelerator_resource: str = "nvidia.com/gpu"
    validation: Literal["strict", "ignore"] = "strict"
    """`ignore` lets a cluster before 1.31 drop the fields that it does not know: failure policies, indexes."""
    training_runtime: str = "torch-distributed"
    """Kubeflow's ClusterTrainingRuntime that a TrainJob fills in."""


@dataclass(frozen=True, kw_only=True)
class SkyPilotSettings:
    """SkyPilot."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    managed: bool = True
    """`sky jobs launch`, which recovers from preemption; `sky launch` otherwise."""
    bucket: str | None = None
    """Bucket that holds the project directory on the machines: `s3://bucket/charter`."""
    setup: str | None = None
    """Shell lines that install Charter on a machine; pip with the present version unless given."""


@dataclass(frozen=True, kw_only=True)
class ManagedSettings:
    """Managed services (SageMaker, Vertex AI, Azure ML) and pipelines: what their texts need to know."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    image: str | None = None
    """Image with Charter in it, in a registry that the service reaches."""
    serving_image: str | None = None
    """Image that serves a judge (vLLM's OpenAI-compatible server); without it models answer at their addresses."""
    storage: str | None = None
    """Where the project lies: `s3://BUCKET/PATH` for SageMaker, `SERVER:/EXPORT` (NFS) for Vertex AI, a path of a
    datastore (`azureml://datastores/NAME/paths/PATH`) for Azure ML."""
    exports: str | None = None
    """Where exported models lie that an endpoint serves, if not in `exports` beneath `storage`: `gs://BUCKET/PATH` for
    Vertex AI."""
    role: str | None = None
    """SageMaker's execution role (its ARN), or the service account of Vertex AI."""
    project: str | None = None
    """Google Cloud project, by number or id."""
    region: str | None = None
    network: str | None = None
    """VPC network of Vertex AI in which the NFS server is: `projects/NUMBER/global/networks/NAME`."""
    compute: str | None = None
    """Compute cluster of Azure ML; serverless compute unless given."""
    instance_type: str | None = None
    """Instance type of every stage; the smallest of the price book with its accelerators unless given."""
    volume: Bytes = 500 * 1024**3
    """Disk of an instance beside what it brings."""


@dataclass(frozen=True, kw_only=True)
class NodeChecks:
    """Checks that a node must pass before an attempt starts on it."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    enabled: bool = True
    disk_bytes: Bytes = 2 * 1024**3
    """Free space in the stage directory."""
    slow_rank_ratio: float = 2.0
    """Of three nodes and more: one whose processor, memory or network is so many times slower than the median is left
    out."""
    spares: int = 0
    """Nodes held beside those that a stage needs, one of which takes the place of a node that failed its checks."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Settings of the schedulers that start stages elsewhere."""

    __pydantic_config__: ClassVar[dict[str, str]] = FORBID_EXTRA

    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    skypilot: SkyPilotSettings = field(default_factory=SkyPilotSettings)
    managed: ManagedSettings = field(default_factory=ManagedSettings)
    launcher: Literal["direct", "torchrun"] = "direct"
    """How the processes of a node are started: by Charter's own node agent, or by torchrun under it."""
    python: str | None = None
    """Python on the nodes; the one that runs Charter here unless given."""
    time_limit: Seconds | None = None
    """Longest run of one attempt, for schedulers that ask for it; a stage is stopped at a checkpoint before it."""
    stop_before: Seconds = 120.0
    """How long before the time limit a stage is asked to stop at a checkpoint; it then goes on in a new attempt."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every process. They stand in the text of every job, so that secrets are better given by reference
    (`secrets` of `launch.kubernetes`, or exported where the job is submitted); what is shown has them hidden."""
    node_checks: NodeChecks = field(default_factory=NodeChecks)

    def as_shown(self) -> "Launch":
        """The same without the values of variables, but for those of libraries that are known to hold no secret."""
        return replace(
            self,
            environment={
                name: value if is_plain_variable(name, value) else HIDDEN for name, value in self.environment.items()
            },
        )
