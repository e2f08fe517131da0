"""Accelerators by the names that Ray gives them: nodes hold `accelerator_type:H100` beside their count of GPUs."""

from collections.abc import Mapping
from types import MappingProxyType

from charter.catalog import accelerators
from charter.errors import UsageError

ACCELERATOR_RESOURCE_SHARE = 0.001
"""What one task takes of `accelerator_type:X`, of which every such node has 1: Ray's own amount."""

RAY_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "V100": "V100",
        "P100": "P100",
        "T4": "T4",
        "A10G": "A10G",
        "L4": "L4",
        "L40S": "L40S",
        "A100": "A100",
        "H100": "H100",
        "H200": "H200",
        "H20": "H20",
        "B200": "B200",
        "B300": "B300",
        "GB200": "GB200",
        "GB300": "GB300",
        "RTX-PRO-6000": "RTX-PRO-6000",
        "MI250X": "AMD-Instinct-MI250X",
        "MI300X": "AMD-Instinct-MI300X-OAM",
        "MI325X": "AMD-Instinct-MI325X-OAM",
        "MI355X": "AMD-Instinct-MI355X-OAM",
        "Gaudi2": "Intel-GAUDI",
        "Gaudi3": "Intel-GAUDI",
        "Ascend-910B": "Ascend910B",
    }
)
"""Start of a catalog name -> Ray's name (`ray.util.accelerators` of Ray 2.60).

Ray tells one A100 (H100, V100) from another only where the administrator has said more, so its memory is not asked.
"""


def ray_accelerator_type(accelerator: str) -> str:
    """Ray's name of an accelerator, which may be spelled as people do.

    >>> ray_accelerator_type("H100-SXM-80GB"), ray_accelerator_type("A100-80GB"), ray_accelerator_type("h20")
    ('H100', 'A100', 'H20')
    """
    parts = accelerators.get(accelerator).name.split("-")
    for length in range(len(parts), 0, -1):
        if found := RAY_TYPES.get("-".join(parts[:length])):
            return found
    raise UsageError(
        f"Ray has no name for the accelerator {accelerator}\n"
        f"  it knows {', '.join(RAY_TYPES)}\n"
        "  give such nodes a resource of their own (ray start --resources) and ask for it in launch.ray.resources"
    )
