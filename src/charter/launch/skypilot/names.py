"""Accelerators and clouds by the names that SkyPilot gives them."""

from collections.abc import Mapping
from types import MappingProxyType

from charter.catalog import accelerators
from charter.errors import UsageError

CLOUDS = frozenset({"aws", "azure", "gcp", "kubernetes", "lambda", "nebius", "runpod", "slurm", "ssh", "verda"})
"""What `infra` may be for SkyPilot 0.14.1, of the places that Charter knows too."""

SKY_ACCELERATORS: Mapping[str, str] = MappingProxyType(
    {
        "V100-SXM2-16GB": "V100",
        "V100-SXM2-32GB": "V100-32GB",
        "P100-SXM2-16GB": "P100",
        "A100-SXM-40GB": "A100",
        "A100-PCIe-40GB": "A100",
        "A100-SXM-80GB": "A100-80GB",
        "A100-PCIe-80GB": "A100-80GB",
        "H100-SXM-80GB": "H100",
        "H100-PCIe-80GB": "H100",
        "H100-NVL-94GB": "H100",
        "H200-SXM-141GB": "H200",
        "B200-SXM-180GB": "B200",
        "B300-SXM-288GB": "B300",
        "GH200-96GB": "GH200",
        "GB200-NVL72-186GB": "GB200",
        "MI300X-192GB": "MI300X",
        "TPU-v5e": "tpu-v5litepod",
        "TPU-v5p": "tpu-v5p",
        "TPU-v6e": "tpu-v6e",
        "TPU-v4": "tpu-v4",
        "TPU-v3": "tpu-v3",
    }
)
"""Catalog name -> SkyPilot's, where they differ; SkyPilot does not tell the boards of one chip apart."""


def sky_accelerator(name: str) -> str:
    """SkyPilot's name of an accelerator.

    >>> sky_accelerator("H100-SXM-80GB"), sky_accelerator("A100-80GB"), sky_accelerator("L4")
    ('H100', 'A100-80GB', 'L4')
    """
    known = accelerators.get(name).name
    return SKY_ACCELERATORS.get(known, known)


def sky_cloud(infra: str) -> str:
    """An `infra` that SkyPilot knows, which is most of those that Charter knows."""
    if infra not in CLOUDS:
        raise UsageError(
            f"SkyPilot does not know the place {infra!r}; of those that Charter plans with it knows "
            f"{', '.join(sorted(CLOUDS))}\n  leave it out of resources.any_of, or run there with charter run"
        )
    return infra
