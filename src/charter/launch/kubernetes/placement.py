"""On which nodes a pod may run, and how soon it leaves one that is lost."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from charter.catalog import accelerators
from charter.launch.job import StageJob
from charter.spec.launching import KubernetesSettings

LOST_NODE_SECONDS = 5
"""How long a pod stays on a node that is not ready or not reachable. The controller notices after 40 s, since 1.32
after 50 s (`--node-monitor-grace-period`), so that a lost node is seen in under a minute; the default adds 300 s.
Source: Kubernetes documentation, Taints and Tolerations, taint based evictions; kube-controller-manager reference."""
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
SPOT_LABELS = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
"""How GKE, EKS, Karpenter and AKS mark a spot node. Source: their documentation of spot nodes."""
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority")
GPU_PRODUCT = "nvidia.com/gpu.product"
GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
PRODUCTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "B200-SXM-180GB": (("NVIDIA-B200",), ("nvidia-b200",)),
        "H200-SXM-141GB": (("NVIDIA-H200",), ("nvidia-h200-141gb",)),
        "H100-SXM-80GB": (("NVIDIA-H100-80GB-HBM3",), ("nvidia-h100-80gb", "nvidia-h100-mega-80gb")),
        "H100-PCIe-80GB": (("NVIDIA-H100-PCIe",), ()),
        "H100-NVL-94GB": (("NVIDIA-H100-NVL",), ()),
        "A100-SXM-80GB": (("NVIDIA-A100-SXM4-80GB",), ("nvidia-a100-80gb",)),
        "A100-PCIe-80GB": (("NVIDIA-A100-80GB-PCIe",), ()),
        "A100-SXM-40GB": (("NVIDIA-A100-SXM4-40GB",), ("nvidia-tesla-a100",)),
        "A100-PCIe-40GB": (("NVIDIA-A100-PCIE-40GB",), ()),
        "L40S": (("NVIDIA-L40S",), ()),
        "L4": (("NVIDIA-L4",), ("nvidia-l4",)),
        "A10G": (("NVIDIA-A10G",), ()),
        "T4": (("Tesla-T4",), ("nvidia-tesla-t4",)),
        "V100-SXM2-16GB": (("Tesla-V100-SXM2-16GB",), ("nvidia-tesla-v100",)),
    }
)
"""What nodes with an accelerator of the catalog call it: NVIDIA's GPU feature discovery (the product name of the
driver, with hyphens), and GKE. Any other accelerator is left to the `node_selector` of the file."""


def tolerations(job: StageJob, settings: KubernetesSettings) -> list[dict[str, Any]]:
    """Leave a lost node soon; go to nodes that are kept for accelerators or are spot, where the job wants them."""
    lost = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE_TAINTS
    ]
    devices = [settings.accelerator_resource] if job.accelerators_per_node else []
    spot = list(SPOT_TAINTS) if job.use_spot else []
    return [*lost, *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in (*devices, *spot))]


def affinity(job: StageJob, settings: KubernetesSettings) -> dict[str, Any] | None:
    """Nodes with the asked accelerator, spot or not, without those that are excluded; None for any node.

    The terms of a node selector are alternatives, and the expressions of a term must all hold.
    """
    excluded = [_expression("kubernetes.io/hostname", "NotIn", job.exclude_nodes)] if job.exclude_nodes else []
    alternatives = [
        [*accelerator, *spot, *excluded]
        for accelerator in _accelerator_terms(job, settings)
        for spot in (([_expression(key, "In", (value,))] for key, value in SPOT_LABELS) if job.use_spot else [[]])
    ]
    terms = [{"matchExpressions": term} for term in alternatives if term]
    if not terms:
        return None
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _accelerator_terms(job: StageJob, settings: KubernetesSettings) -> list[list[dict[str, Any]]]:
    """A user who selects nodes knows better what they are called."""
    known = PRODUCTS.get(accelerators.get(job.accelerator).name) if job.accelerator else None
    if known is None or not job.accelerators_per_node or settings.node_selector:
        return [[]]
    products, google = known
    alternatives = ((GPU_PRODUCT, products), (GKE_ACCELERATOR, google))
    return [[_expression(key, "In", values)] for key, values in alternatives if values]


def _expression(key: str, operator: str, values: tuple[str, ...]) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}
