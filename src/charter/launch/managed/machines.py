"""The machine of a managed service that has what a stage asks for, by the price book."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from charter.catalog import accelerators
from charter.catalog.price_book import offers
from charter.errors import InfeasibleError
from charter.launch.machine import CPU, asked_accelerators
from charter.spec.project import Project
from charter.spec.stage import Stage

Service = Literal["sagemaker", "vertex", "azureml"]
CLOUDS: Mapping[Service, str] = MappingProxyType({"sagemaker": "aws", "vertex": "gcp", "azureml": "azure"})
WITHOUT_ACCELERATOR: Mapping[Service, str] = MappingProxyType(
    {"sagemaker": "ml.m5.4xlarge", "vertex": "n2-standard-16", "azureml": "Standard_D16s_v5"}
)
"""16 CPUs and 64 GiB each: for stages on processors, of which the price book has no rows."""
VERTEX_ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "B200-SXM-180GB": "NVIDIA_B200",
        "H200-SXM-141GB": "NVIDIA_H200_141GB",
        "H100-SXM-80GB": "NVIDIA_H100_80GB",
        "A100-SXM-80GB": "NVIDIA_A100_80GB",
        "A100-SXM-40GB": "NVIDIA_TESLA_A100",
        "L4": "NVIDIA_L4",
        "T4": "NVIDIA_TESLA_T4",
        "V100-SXM2-16GB": "NVIDIA_TESLA_V100",
    }
)
"""Source: Vertex AI API, enum AcceleratorType of google-cloud-aiplatform."""


@dataclass(frozen=True, kw_only=True)
class ManagedMachine:
    """One instance of a service."""

    instance_type: str
    accelerator: str = ""
    """Catalog name; empty for none."""
    count: int = 0

    @property
    def vertex_accelerator(self) -> str:
        """What Vertex AI calls its accelerators."""
        return VERTEX_ACCELERATORS[self.accelerator]


def machine_of(project: Project, stage: Stage, service: Service) -> ManagedMachine:
    """The instance that the file names, else the smallest of the price book with at least the asked accelerators."""
    name, count = asked_accelerators(project, stage)
    own = project.launch.managed.instance_type
    if name in ("", CPU, "any"):
        return ManagedMachine(instance_type=own or WITHOUT_ACCELERATOR[service])
    accelerator = accelerators.get(name).name
    if own:
        return ManagedMachine(instance_type=own, accelerator=accelerator, count=count)
    return _smallest(service, accelerator, count)


def _smallest(service: Service, accelerator: str, count: int) -> ManagedMachine:
    sold = [offer for offer in offers(accelerator, cloud=CLOUDS[service]) if offer.whole_machine]
    fitting = [offer for offer in sold if offer.count >= count]
    if service == "vertex" and accelerator not in VERTEX_ACCELERATORS:
        fitting = []
    if not fitting:
        most = max((offer.count for offer in sold), default=0)
        raise InfeasibleError(
            f"{service} has no machine with {count} x {accelerator} in the price book"
            + (f"; the largest has {most}" if most else "")
            + "\n  ask for fewer, or name one: launch.managed.instance_type"
        )
    best = min(fitting, key=lambda offer: (offer.count, offer.vcpus or 0, offer.instance_type))
    prefix = "ml." if service == "sagemaker" else ""
    return ManagedMachine(instance_type=prefix + best.instance_type, accelerator=accelerator, count=best.count)
